"""The one reader of the small files of /proc and /sys, and what their text means.

Opening one costs more than reading it, so those that are read again and again stay open (``KeptFile``). A read at
offset 0 makes the kernel produce the text anew.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import resource
from functools import lru_cache

# What parsing raises on content that is not as expected.
MALFORMED = (ValueError, IndexError, KeyError, TypeError, AttributeError)
MOST_OPEN = 512
# What a restricted or dead function's firmware answers. Each further try may write a line to the kernel log
# (mlx5: "ACCESS_REG … failed") or wait for the firmware once more.
REFUSED = frozenset({errno.EIO, errno.EINVAL, errno.ETIMEDOUT, errno.EREMOTEIO})
LINE_BYTES = 256  # room for one line: all that most files of /sys have
_NUMBERS_END = 1 << 64
_CHUNK_BYTES = 65536
_LONGEST_BYTES = 4 << 20
# A piece ends where the next record does not fit into a page: a piece this short is the last one. For files whose
# records are shorter than half a page.
_SHORT_BYTES = 2048
_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


class OpenFiles:
    """How many files may stay open: half of this process's limit, ``MOST_OPEN`` at most."""

    def __init__(self, most: int | None = None) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.left = most if most is not None else MOST_OPEN if soft < 0 else min(MOST_OPEN, soft // 2)


class KeptFile:
    """A file that is read again and again. Opened at its first read, then kept open where ``open_files`` has room.

    ``descriptor``: -1 while it is not open. ``most_bytes``: so much of it is read. ``in_pieces``: the kernel gives one
    record after the other, a page at a time (net/dev, diskstats, vmstat). A file whose device went away answers ENODEV
    for ever, even when a device of that name is back: then it is opened again.
    """

    __slots__ = ("_in_pieces", "_most_bytes", "_open_files", "descriptor", "path")

    def __init__(
        self, path: str, open_files: OpenFiles, most_bytes: int = _CHUNK_BYTES, in_pieces: bool = False
    ) -> None:
        self.path = path
        self.descriptor = -1
        self._open_files = open_files
        self._most_bytes = most_bytes
        self._in_pieces = in_pieces

    def read(self) -> bytes:
        """Its content now. Raises OSError."""
        if self.descriptor >= 0:
            try:
                return self._content(self.descriptor)
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
            self.close()
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if self._open_files.left > 0:
            self._open_files.left -= 1
            self.descriptor = descriptor
            return self._content(descriptor)
        try:
            return self._content(descriptor)
        finally:
            os.close(descriptor)

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
            self._open_files.left += 1
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _content(self, descriptor: int) -> bytes:
        content = piece = os.pread(descriptor, self._most_bytes, 0)
        while self._in_pieces and len(piece) >= _SHORT_BYTES:
            piece = os.pread(descriptor, self._most_bytes, len(content))
            content += piece
        return content


def read_file(path: str) -> bytes:
    """A small file that is read rarely, at most 64 KiB of it; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    finally:
        os.close(descriptor)


def read_long(path: str, most_bytes: int = _LONGEST_BYTES) -> bytes:
    """A file that the kernel may give in pieces (mountinfo), at most so much of it; raises OSError."""
    content = bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while more := os.read(descriptor, min(most_bytes - len(content), _CHUNK_BYTES)):
            content += more
    finally:
        os.close(descriptor)
    return bytes(content)


def read_long_known(path: str, most_bytes: int = _LONGEST_BYTES) -> bytes:
    """As ``read_long``, b"" when it cannot be read."""
    try:
        return read_long(path, most_bytes)
    except OSError:
        return b""


def read_link(path: str) -> str | None:
    """Where a symbolic link leads, None when there is none or it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def read_known(path: str) -> bytes | None:
    """A small file, None when it cannot be read."""
    try:
        return read_file(path)
    except OSError:
        return None


def read_text(path: str) -> str | None:
    """Such a file without the blanks around it, None when it cannot be read."""
    content = read_known(path)
    return None if content is None else content.decode("utf-8", "replace").strip()


def read_number(path: str) -> int | None:
    """A file that holds one whole number, None when there is no such file or it holds something else."""
    return number(read_known(path))


def names_in(folder: str) -> list[str]:
    """What a folder holds; nothing when it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def number(content: bytes | None, base: int = 10) -> int | None:
    """A number of up to 64 bits without a sign, decimal or (base 16) as in "0x10de"; None for anything else: older
    kernels print "N/A (no PMA)", and -1 where there is none.
    """
    try:
        value = int(content or b"-", base)
    except ValueError:
        return None
    return value if 0 <= value < _NUMBERS_END else None


@lru_cache(maxsize=256)
def word(content: bytes | None, longest: int = 64) -> str | None:
    """A short printable text, None for anything else."""
    text = (content or b"").decode("ascii", "replace").strip()
    return text if text and len(text) <= longest and text.isprintable() and "\ufffd" not in text else None


def number_after(content: bytes, label: bytes) -> int | None:
    """The number behind the first line that begins with ``label``, as ``b"MemTotal:"``; None without one."""
    at = 0 if content.startswith(label) else content.find(b"\n" + label) + 1
    if at == 0 and not content.startswith(label):
        return None
    words = content[at + len(label) : at + len(label) + 64].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else None


def finite(text: str | bytes) -> float:
    """ValueError for "nan" and "inf", too: JSON has no such numbers."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def sysfs_bus_id(text: str) -> str | None:
    """As /sys writes it: NVML's "00000000:9B:00.0", the driver's log "0000:9b:00" → "0000:9b:00.0".

    Without a domain or a function number these are 0. None for anything that is no bus id.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if not match:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


def same_bus(first: str, second: str) -> bool:
    """Whether two bus ids name the same PCI function, whatever the width of the domain and the case."""
    bus_id = sysfs_bus_id(first)
    return bus_id is not None and bus_id == sysfs_bus_id(second)
