"""Reading the small files of /sys that are rarely looked at.

Files of /sys that are read again and again stay open: a pread costs a third of open, read and close.

A read at offset 0 makes the kernel produce the text anew. A file whose device went away answers ENODEV for ever, even
when a device of that name is back: then it is opened again.

Reading small files of /proc and /sys, cheaply: opening one costs more than reading it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
from contextlib import suppress

PAGE_BYTES = 4096  # a page: no attribute is longer


def read_small(path: str) -> bytes | None:
    """None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(descriptor, PAGE_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)


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


# What parsing raises on content that is not as expected.
MALFORMED = (ValueError, IndexError, KeyError, TypeError, AttributeError)
_CHUNK_BYTES = 65536
_LONGEST_BYTES = 4 << 20
# A piece ends where the next record does not fit into a page: a piece this short is the last one. For files whose
# records are shorter than half a page.
_SHORT_BYTES = 2048


class KeptFile:
    """A file of the running kernel that is read again and again: it stays open.

    ``root`` is put before ``path``; below one ("" is this machine) files may be replaced, so they are opened each
    time. ``in_pieces``: the kernel gives one record after the other, a page at a time (net/dev, diskstats, vmstat).
    """

    def __init__(self, root: str, path: str, in_pieces: bool = False) -> None:
        self.path = root + path
        self._keep = not root
        self._in_pieces = in_pieces
        self._fd = -1

    def read(self) -> bytes:
        """Its content now; raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = more = os.pread(self._fd, _CHUNK_BYTES, 0)
            while self._in_pieces and len(more) >= _SHORT_BYTES:
                more = os.pread(self._fd, _CHUNK_BYTES, len(data))
                data += more
        except OSError:
            self.close()
            raise
        if not self._keep:
            self.close()
        return data

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        self.close()


def read_file(path: str) -> bytes:
    """A small file that is read rarely, at most 64 KiB of it; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _CHUNK_BYTES)
    finally:
        os.close(fd)


def read_long(path: str) -> bytes:
    """A file that the kernel may give in pieces (mountinfo), at most 4 MiB of it; raises OSError."""
    data = b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(data) < _LONGEST_BYTES and (more := os.read(fd, _CHUNK_BYTES)):
            data += more
    finally:
        os.close(fd)
    return data


def read_text(path: str) -> str | None:
    """Such a file without the blanks around it, None when it cannot be read."""
    try:
        return read_file(path).decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_number(path: str) -> int | None:
    """A file that holds one whole number, None when there is no such file or it holds something else."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def number_after(data: bytes, label: bytes) -> int | None:
    """The number behind the first ``label`` of a text, e.g. ``b"\\nMemTotal:"``; None without one."""
    at = data.find(label)
    if at < 0:
        return None
    words = data[at + len(label) : at + len(label) + 64].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else None


def finite(text: str | bytes) -> float:
    """ValueError for "nan" and "inf", too: JSON has no such numbers."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
