"""Lines that may matter out of a stream of any length: a few words are searched for in large blocks, by the C library,
and only lines that have one are looked at, and those after them that belong to the same block of text.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import io
import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Callable

from mltop.probes.collect.logs.anchors import ANCHORS
from mltop.probes.collect.logs.parser import MOST_LINE, OPENING, LogParser

BLOCK = 512 * 1024
_HOLE = bytes(BLOCK)
_ENDLESS = 1 << 20  # a line longer than this is read in pieces
_LOOKED_BACK = 4096

# Of lines that have a needle, those that need a closer look: the words of the tables, and what opens a block.
_WORDS = sorted({word.encode() for word in (*(row.holds for row in ANCHORS), *OPENING)})
_CLOSER = re.compile(b"|".join(map(re.escape, _WORDS)))
# One of these is in every line that matters. A fragment that several words share saves a search for each of them.
_SHARED = (
    *(b"atchdog", b"eartbeat", b"issing ranks", b"collective op", b"Killed proc", b"world", b"died", b"exited with"),
    *(b"NCCL W", b"ranks", b"nhealthy"),
)
NEEDLES = tuple(sorted({next((part for part in _SHARED if part in word), word) for word in _WORDS}))
# A line that has a word has the shorter word in it, too.
_SHORT_WORDS = [word for word in _WORDS if not any(other in word for other in _WORDS if other != word)]
_MOST_HITS = 256  # of a needle in a block: one that stands in every line tells nothing, and costs more than all words

Find = Callable[[bytes, bytes, int], int]


def _c_find() -> Find | None:
    """memmem(3), which is four times as fast as bytes.find on text."""
    try:
        memmem = ctypes.CDLL(None).memmem
    except (OSError, AttributeError):
        return None
    memmem.restype = ctypes.c_void_p
    memmem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]

    def find(block: bytes, needle: bytes, start: int) -> int:
        address = ctypes.cast(ctypes.c_char_p(block), ctypes.c_void_p).value or 0
        found = memmem(address + start, len(block) - start, needle, len(needle))
        return -1 if found is None else found - address

    return find


_find: Find = _c_find() or (lambda block, needle, start: block.find(needle, start))


def hits(block: bytes) -> list[int]:
    """Where lines begin that have one of the needles; where those are many, only the ones that need a closer look."""
    starts: set[int] = set()
    is_dense = False
    for needle in NEEDLES:
        found = list(islice(_lines_with(block, needle), _MOST_HITS + 1))
        if len(found) > _MOST_HITS:
            is_dense = True
        else:
            starts.update(found)
    if is_dense:
        for word in _SHORT_WORDS:
            starts.update(
                start for start in _lines_with(block, word) if start not in starts and _has_needle(block, start)
            )
    return sorted(starts)


def _lines_with(block: bytes, needle: bytes) -> Iterator[int]:
    """Where lines begin that have it."""
    at = _find(block, needle, 0)
    while at >= 0:
        yield block.rfind(b"\n", 0, at) + 1
        end = block.find(b"\n", at)
        at = -1 if end < 0 else _find(block, needle, end)


def _has_needle(block: bytes, start: int) -> bool:
    end = block.find(b"\n", start)
    line = block[start : end if end >= 0 else len(block)]
    return any(needle in line for needle in NEEDLES)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """BLOCK bytes each. What is unpacked before the place where an archive is broken comes before the error."""
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    while True:
        parts, wanted = [], BLOCK
        try:
            while wanted and (part := read(wanted)):
                parts.append(part)
                wanted -= len(part)
        except Exception:
            yield b"".join(parts)
            raise
        if not parts:
            return
        yield b"".join(parts)


def blocks(stream: BinaryIO, progress: Callable[[int], None] | None = None, most: int | None = None) -> Iterator[bytes]:
    """Whole lines together; of an endless line pieces. Holes (NULs and nothing else) are passed over.

    ``progress`` is told of every byte that was read; more than ``most`` of them are too many: ValueError.
    """
    rest, total = b"", 0
    for chunk in _chunks(stream):
        total += len(chunk)
        if progress is not None:
            progress(len(chunk))
        if most is not None and total > most:
            raise ValueError(f"it unpacks to more than {most >> 30} GiB")
        if total > len(chunk) and chunk == _HOLE[: len(chunk)]:  # what a file system leaves of a node that crashed
            total += _skip_hole(stream)
            continue
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            rest += chunk
            if len(rest) > _ENDLESS:
                cut = rest.rfind(b"\r") + 1 or len(rest)  # between two states of a progress bar
                yield rest[:cut]
                rest = rest[cut:]
            continue
        yield rest + chunk[:cut]
        rest = chunk[cut:]
    if rest:
        yield rest


def _skip_hole(stream: BinaryIO) -> int:
    """Goes on to the next data of a plain file, and returns how far that is: a hole may be terabytes long."""
    if not isinstance(stream, io.FileIO):
        return 0
    at = stream.tell()
    try:
        return stream.seek(at, os.SEEK_DATA) - at
    except OSError as error:  # ENXIO: there is no more; else the file system knows no holes
        return stream.seek(0, os.SEEK_END) - at if error.errno == errno.ENXIO else 0


def _pieces(block: bytes, start: int, end: int) -> Iterator[bytes]:
    """A line as it is; of a very long one (a progress bar that is written over is one) its beginning, and what needs a
    closer look.
    """
    if end - start <= MOST_LINE:
        yield block[start:end]
        return
    at = block.rfind(b"\r", start, start + MOST_LINE) + 1 or start + MOST_LINE
    yield block[start:at]
    while match := _CLOSER.search(block, at, end):
        first = max(at, block.rfind(b"\r", at, match.start()) + 1, match.start() - MOST_LINE // 2)
        last = block.find(b"\r", match.end(), end)
        at = min(end if last < 0 else last, first + MOST_LINE)
        yield block[first:at]


class Scanner:
    """Takes blocks one after the other. ``lines``: so far."""

    def __init__(self, parser: LogParser) -> None:
        self._parser = parser
        self.lines = 0
        self._block = b""
        self._at = 0
        parser.before = self.before

    def before(self) -> str:
        """The lines before the one that is being looked at."""
        return self._block[max(0, self._at - _LOOKED_BACK) : self._at].decode("utf-8", "replace")

    def feed(self, block: bytes) -> None:
        starts = hits(block)
        self._block = block
        number, counted, position = self.lines, 0, 0
        while position < len(block):
            if not self._parser.wants_more:
                index = bisect.bisect_left(starts, position)
                if index == len(starts):
                    break
                position = starts[index]
            end = block.find(b"\n", position)
            end = len(block) if end < 0 else end
            number += block.count(b"\n", counted, position)
            counted = position
            self._at = position
            if self._parser.wants_more or _CLOSER.search(block, position, end):
                for piece in _pieces(block, position, end):
                    self._parser.take(number + 1, piece)
            position = end + 1
        self.lines = number + block.count(b"\n", counted)
