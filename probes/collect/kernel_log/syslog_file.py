"""/var/log/kern.log as it grows and is rotated."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mltop.probes.collect.kernel_log.places import open_log
from mltop.probes.collect.kernel_log.readers import GrowingFile, Reader

TAIL_BYTES = 2 * 1024 * 1024


class SyslogFile(Reader):
    """The last ``tail_bytes`` of a file, then what is added to it, also after it was replaced by a new one."""

    def __init__(self, fd: int, path: str, tail_bytes: int = TAIL_BYTES) -> None:
        super().__init__(fd)
        self._path = path
        self._file = GrowingFile(fd, tail_bytes)

    def batches(self, until: float) -> Iterator[list[bytes]]:
        yield from self._file.batches(until)
        self.is_current = self._file.is_current
        if self.is_current and self._was_replaced():
            fd, _ = open_log(self._path)
            if fd is not None:
                self.close()
                self._fd, self._file = fd, GrowingFile(fd)

    def _was_replaced(self) -> bool:
        """Another file has its name now, or it was emptied (logrotate's copytruncate)."""
        ours = os.fstat(self._fd)
        try:
            named = os.stat(self._path)
        except OSError:
            return False  # between the two steps of a rotation
        return (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino) or named.st_size < os.lseek(
            self._fd, 0, os.SEEK_CUR
        )
