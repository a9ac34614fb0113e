"""The environment of a process as it is now: /proc/PID/environ has it as it was at the last exec.

Programs that set variables after their start (Ray Train, Lightning, scripts of mp.spawn) put them into libc's
``environ``. To find it no file of the process is opened, so containers need no care, whatever glibc they have: the
dynamic linker's list of what it has loaded lies in the process's own memory, and so do the symbols of each entry. A
static program has no such list and is unreadable. A process is never stopped: what it changes meanwhile is read again,
and what is torn then is no variable.

Reading /proc/PID/mem takes the right to attach to the process (ptrace(2), PTRACE_MODE_ATTACH), as py-spy's does.
Source: proc_pid_auxv(5), proc_pid_mem(5), elf(5), link.h (struct r_debug, struct link_map), GNU's hash table
(https://flapenguin.me/elf-dt-gnu-hash).
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.sysfile import read_file
from mltop.probes.system import paths

LIMIT_S = 0.1  # of processor time for one process; usually it takes half a millisecond
_PAGE = 4096
_MOST_PAGES = 512
_MOST_LIBRARIES = 64  # libc is loaded at the start of a program: it is among the first ten
_MOST_VARIABLES = 4096
_MOST_VALUE = 4096  # bytes of one variable
_MOST_CHAIN = 4096  # symbols of one hash
_TRIES = 3

_AT_PHDR, _AT_PHENT, _AT_PHNUM = 3, 4, 5
_PT_DYNAMIC, _PT_PHDR = 2, 6
_DT_STRTAB, _DT_SYMTAB, _DT_DEBUG, _DT_GNU_HASH = 5, 6, 21, 0x6FFFFEF5
_HEADER = struct.Struct("=IIQQQQQQ")  # Elf64_Phdr
_SYMBOL = struct.Struct("=IBBHQQ")  # Elf64_Sym
_PAIR = struct.Struct("=QQ")
_NAMES = (b"environ", b"__environ")
_ADDRESSES_END = 1 << 63


class Unreadable(Exception):
    """The process has no environment that we know how to find; the text says why."""


def read_live_environ(root: str, pid: int, start_ticks: int) -> bytes:
    """The variables as in /proc/PID/environ (``NAME=value`` with a NUL behind each), those set last first.

    Raises PermissionError, one of ``procfs.GONE`` (also when ``start_ticks``, of its stat, is another's), Unreadable.
    """
    with open(f"{root}/{pid}/mem", "rb", buffering=0) as file:
        # What is open stays this process's memory, whoever gets its pid.
        if procfs.read_stat(root, pid).start_ticks != start_ticks:
            raise ProcessLookupError("another process has this pid")
        memory = _Memory(file.fileno())
        return _environ(memory, _address_of_environ(memory, root, pid))


def live_variables(pid: int, names: Collection[str]) -> dict[str, str]:
    """These variables of a process as it is now; where that cannot be read, as it was started."""
    root = paths.proc()
    with suppress(OSError, Unreadable):
        ticks = procfs.read_stat(root, pid).start_ticks
        if content := procfs.from_memory(root, pid, lambda: read_live_environ(root, pid, ticks)):
            return procfs.variables(content, names)
    return procfs.read_variables(root, pid, names)


class _Memory:
    """Another process's memory. Pages are read once, so many at most and not after the deadline, until ``forget``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pages: dict[int, bytes] = {}
        self._left = _MOST_PAGES
        self._until = time.thread_time() + LIMIT_S

    def forget(self) -> None:
        self._pages.clear()

    def read(self, address: int, size: int) -> bytes:
        """Exactly so much. Raises Unreadable."""
        if not 0 < address < _ADDRESSES_END - size:
            raise Unreadable("its memory is not laid out as expected")
        first, end = address & -_PAGE, address + size
        content = b"".join(self._page(page) for page in range(first, end, _PAGE))
        return content[address - first : end - first]

    def _page(self, address: int) -> bytes:
        page = self._pages.get(address)
        if page is None:
            if self._left <= 0 or time.thread_time() > self._until:
                raise Unreadable("its memory takes too long to read")
            self._left -= 1
            try:
                page = os.pread(self._descriptor, _PAGE, address)
            except OSError:
                page = b""
            if len(page) != _PAGE:
                raise Unreadable("its memory is not laid out as expected")
            self._pages[address] = page
        return page

    def number(self, address: int, size: int = 8) -> int:
        return int.from_bytes(self.read(address, size), sys.byteorder)

    def text(self, address: int, most: int) -> bytes:
        """Up to the first NUL, at most so many bytes."""
        text = b""
        while len(text) < most:
            at = address + len(text)
            piece = self.read(at, min(_PAGE - at % _PAGE, most - len(text)))
            end = piece.find(b"\0")
            if end >= 0:
                return text + piece[:end]
            text += piece
        return text


def _address_of_environ(memory: _Memory, root: str, pid: int) -> int:
    """Where the pointer is. Several programs and libraries may define it: the first that was loaded counts for all."""
    raw = read_file(f"{root}/{pid}/auxv")
    auxiliary = dict(_PAIR.iter_unpack(raw[: len(raw) - len(raw) % _PAIR.size]))
    if auxiliary.get(_AT_PHENT) != _HEADER.size or not auxiliary.get(_AT_PHDR):
        raise Unreadable("it is no 64-bit program")
    size = min(auxiliary.get(_AT_PHNUM, 0), 128) * _HEADER.size
    headers = {header[0]: header for header in _HEADER.iter_unpack(memory.read(auxiliary[_AT_PHDR], size))}
    if _PT_DYNAMIC not in headers or _PT_PHDR not in headers:
        raise Unreadable("it is a static program, or run by the dynamic linker's name")
    bias = auxiliary[_AT_PHDR] - headers[_PT_PHDR][3]  # by how much it lies beyond its own addresses
    debug = _tags(memory, bias + headers[_PT_DYNAMIC][3]).get(_DT_DEBUG, 0)
    for base, tags in _loaded(memory, memory.number(debug + 8)) if debug else ():
        for name in _NAMES:
            address = _symbol(memory, base, tags, name)
            if address is not None:
                return address
    raise Unreadable("none of its libraries has an environment")


def _loaded(memory: _Memory, entry: int) -> Iterator[tuple[int, dict[int, int]]]:
    """The base address and dynamic section of the program and each library, in the order in which they were loaded."""
    for _ in range(_MOST_LIBRARIES):
        if not entry:
            return
        base, _name, dynamic, entry = struct.unpack("=QQQQ", memory.read(entry, 32))
        with suppress(Unreadable):  # one that is just being unloaded
            yield base, _tags(memory, dynamic)


def _tags(memory: _Memory, address: int) -> dict[int, int]:
    tags: dict[int, int] = {}
    for position in range(128):
        tag, value = _PAIR.unpack(memory.read(address + position * _PAIR.size, _PAIR.size))
        if tag == 0:
            break
        tags.setdefault(tag, value)
    return tags


def _symbol(memory: _Memory, base: int, tags: dict[int, int], name: bytes) -> int | None:
    """The address of what is defined there under this name; nothing in the kernel's own library, whose tags hold no
    addresses. One that cannot be searched may define it, so that no later one can be believed.
    """
    table, strings, hashes = (tags.get(tag, 0) for tag in (_DT_SYMTAB, _DT_STRTAB, _DT_GNU_HASH))
    if min(table, strings) <= base:
        return None
    if not hashes:
        raise Unreadable("one of its libraries has no GNU hash table")
    for index in _indexes(memory, hashes, name):
        offset, info, _, section, value, _ = _SYMBOL.unpack(memory.read(table + index * _SYMBOL.size, _SYMBOL.size))
        if section and info & 15 <= 1 and memory.text(strings + offset, len(name) + 1) == name:
            return base + int(value)
    return None


def _indexes(memory: _Memory, table: int, name: bytes) -> Iterator[int]:
    """The symbols that may have the name, of a DT_GNU_HASH."""
    wanted = 5381
    for byte in name:
        wanted = (wanted * 33 + byte) & 0xFFFFFFFF
    buckets, first, words, shift = struct.unpack("=IIII", memory.read(table, 16))
    if not buckets or not words:
        return
    filter_ = memory.number(table + 16 + 8 * ((wanted >> 6) % words))
    if not (filter_ >> (wanted & 63)) & (filter_ >> ((wanted >> (shift & 31)) & 63)) & 1:
        return
    buckets_at = table + 16 + 8 * words
    index = memory.number(buckets_at + 4 * (wanted % buckets), 4)
    for _ in range(_MOST_CHAIN if index >= first else 0):
        hashed = memory.number(buckets_at + 4 * (buckets + index - first), 4)
        if hashed | 1 == wanted | 1:
            yield index
        if hashed & 1:
            return
        index += 1


def _environ(memory: _Memory, pointer_at: int) -> bytes:
    """Read again while it changes; after the last try what is there: of a torn entry no name is left."""
    memory.forget()
    before = _pointers(memory, pointer_at)
    variables = _strings(memory, before)
    with suppress(Unreadable):  # it is too much to be read twice
        for _ in range(_TRIES - 1):
            memory.forget()
            now = _pointers(memory, pointer_at)
            if now == before:
                break
            before, variables = now, _strings(memory, now)
    return b"".join(variable + b"\0" for variable in variables if b"=" in variable[1:])


def _pointers(memory: _Memory, pointer_at: int) -> list[int]:
    array = memory.number(pointer_at)
    pointers: list[int] = []
    while array and len(pointers) < _MOST_VARIABLES:
        pointer = memory.number(array + 8 * len(pointers))
        if not pointer:
            break
        pointers.append(pointer)
    return pointers


def _strings(memory: _Memory, pointers: list[int]) -> list[bytes]:
    """What was set last stands last: it is read first, while there is room and time."""
    strings = []
    for pointer in reversed(pointers):
        with suppress(Unreadable):
            strings.append(memory.text(pointer, _MOST_VALUE))
    return strings
