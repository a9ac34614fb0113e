"""Files of /sys that are read again and again stay open: a pread costs a third of open, read and close.

A read at offset 0 makes the kernel produce the text anew. A file whose device went away answers ENODEV for ever, even
when a device of that name is back: then it is opened again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource

READ_BYTES = 256  # the longest text that is read here is a line
MOST_OPEN = 512
COUNTER_END = 1 << 64

# What a restricted or dead function's firmware answers. Each further try may write a line to the kernel log
# (mlx5: "ACCESS_REG … failed") or wait for the firmware once more.
REFUSED = frozenset({errno.EIO, errno.EINVAL, errno.ETIMEDOUT, errno.EREMOTEIO})


class OpenFiles:
    """How many files may stay open: half of this process's limit, ``MOST_OPEN`` at most."""

    def __init__(self, most: int | None = None) -> None:
        self.left = _allowed() if most is None else most

    def attribute(self, path: str) -> Attribute:
        return Attribute(path, self)


class Attribute:
    """One file of /sys. Opened at its first read, then kept open if there is room: ``descriptor``, -1 if it is not."""

    __slots__ = ("_files", "descriptor", "path")

    def __init__(self, path: str, files: OpenFiles) -> None:
        self.path = path
        self.descriptor = -1
        self._files = files

    def read(self) -> bytes:
        """The first ``READ_BYTES``. Raises OSError."""
        if self.descriptor < 0:
            return self._open_and_read()
        try:
            return os.pread(self.descriptor, READ_BYTES, 0)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
        self.close()
        return self._open_and_read()

    def replaced(self) -> bool:
        """Whether the path leads to another file by now, or to none."""
        if self.descriptor < 0:
            return False
        try:
            return os.stat(self.path).st_ino != os.fstat(self.descriptor).st_ino
        except OSError:
            return True

    def close(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self._files.left += 1
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _open_and_read(self) -> bytes:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if self._files.left > 0:
            self._files.left -= 1
            self.descriptor = descriptor
            return os.pread(descriptor, READ_BYTES, 0)
        try:
            return os.pread(descriptor, READ_BYTES, 0)
        finally:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def counter(data: bytes) -> int | None:
    """A counter's text as a number; None for anything else (older kernels print "N/A (no PMA)")."""
    try:
        value = int(data)
    except ValueError:
        return None
    return value if 0 <= value < COUNTER_END else None


def _allowed() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_OPEN if soft < 0 else min(MOST_OPEN, soft // 2)
