"""Reading small files of /proc and /sys, cheaply: opening one costs more than reading it."""

from __future__ import annotations

import math
import os
from contextlib import suppress

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
