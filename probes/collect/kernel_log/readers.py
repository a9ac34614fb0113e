"""Lines of a log as it grows. No read waits, and none takes longer than it is allowed to."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

from mltop.probes.collect.kernel_log.records import seq_of

RECORD_BYTES = 16 * 1024  # a record of /dev/kmsg has at most 8 KB
CHUNK_BYTES = 64 * 1024
MAX_LINE_BYTES = 64 * 1024  # longer ones are no kernel lines
BATCH_LINES = 256
MAX_READ_BYTES = 2 * 1024 * 1024  # of one read: a usual ring


class Reader(ABC):
    """``is_current``: everything that there is has been read. ``lost``: lines that nobody can read any more.

    ``first_seq``: the kernel's number of the first line that was there, ``first_line``.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._next_seq: int | None = None
        self.first_seq: int | None = None
        self.first_line = b""
        self.lost = 0
        self.is_current = False

    @abstractmethod
    def batches(self, until: float) -> Iterator[list[bytes]]:
        """New lines, until there are no more, or ``until`` (monotonic s), or 2 MB. A line may have lines of its own
        behind it (" SUBSYSTEM=pci"). Batches, because looking for words in many lines at once costs a tenth.
        """

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _count(self, batch: list[bytes]) -> list[bytes]:
        """Gaps in the kernel's numbers are lines that were overwritten before they were read."""
        first, last = seq_of(batch[0]), seq_of(batch[-1])
        if first is None or last is None:
            return batch
        if self._next_seq is None:
            self.first_seq, self.first_line = first, batch[0]
        else:
            self.lost += max(0, first - self._next_seq)
        self.lost += max(0, last - first + 1 - len(batch))
        self._next_seq = last + 1
        return batch


class KmsgDevice(Reader):
    """/dev/kmsg: every read(2) gives one record, from the oldest that is still there."""

    def batches(self, until: float) -> Iterator[list[bytes]]:
        self.is_current = False
        size = 0
        while size < MAX_READ_BYTES and not self.is_current:
            batch = self._batch()
            if batch:
                size += sum(map(len, batch))
                yield self._count(batch)
            if time.monotonic() > until:
                return

    def _batch(self) -> list[bytes]:
        batch: list[bytes] = []
        fd, read = self._fd, os.read
        while len(batch) < BATCH_LINES:
            try:
                batch.append(read(fd, RECORD_BYTES))
            except BlockingIOError:
                self.is_current = True
                break
            except BrokenPipeError:  # overwritten meanwhile; the next read goes on with the oldest there is
                break
        return batch


class GrowingFile(Reader):
    """A regular file, a FIFO or a pipe with lines. ``has_ended``: a pipe that nobody writes to any more."""

    def __init__(self, fd: int, from_end_bytes: int = 0) -> None:
        super().__init__(fd)
        self._rest = b""
        self._rest_at_end = b""
        self._skipping = False  # inside of a line that is too long, or that was cut
        self.has_ended = False
        if from_end_bytes and os.fstat(fd).st_size > from_end_bytes:
            os.lseek(fd, -from_end_bytes, os.SEEK_END)
            self._skipping = True

    def batches(self, until: float) -> Iterator[list[bytes]]:
        self.is_current = False
        size = 0
        while size < MAX_READ_BYTES:
            try:
                chunk = os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:
                self.is_current = True
                return
            if not chunk:
                self.is_current = self.has_ended = True
            size += len(chunk)
            batch = self._split(chunk) if chunk else self._last()
            if batch:
                yield self._count(batch)
            if not chunk or time.monotonic() > until:
                return

    def _split(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if lines and self._skipping:
            del lines[0]
            self._skipping = False
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._skipping = b"", True
        # " KEY=value" belongs to the record before; `dmesg` indents the further lines of a record, too.
        return [line for line in lines if line and (line[:1] != b" " or b"NVRM" in line)]

    def _last(self) -> list[bytes]:
        """A file's last line may have no line break; one that is still being written has grown at the next look."""
        rest = self._rest
        if rest and rest == self._rest_at_end and not self._skipping:
            self._rest = self._rest_at_end = b""
            return [rest]
        self._rest_at_end = rest
        return []
