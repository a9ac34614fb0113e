"""Rows (model/news/row.py) over time, in chunks that are packed lane by lane, the high bytes apart from the low ones.

What hardly changes takes next to nothing then.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct

from mltop.probes.model.news.row import GPU_LANES, GPU_WIDTH, NODE_LANES, NODE_WIDTH, UNKNOWN, Lane, pack_row, values_of

ROWS = 60  # in a chunk, a multiple of how many become one
UNKNOWN_HALF = Struct("<e").pack(UNKNOWN)
_LEVEL = 1  # of zlib: 6 saves a twentieth and takes three times as long
_HALVES = Struct(f"<{ROWS}e")


class Ring:
    """A row every ``step_s``, for ``chunks`` chunks. A slot is a time divided by the step. ``coarse``: gets one row for
    every so many of a chunk that is full.
    """

    __slots__ = ("_chunks", "_coarse", "_number", "_packed", "_rows", "_stride", "began", "newest", "step_s")

    def __init__(self, step_s: float, chunks: int, coarse: Ring | None = None) -> None:
        self.step_s = step_s
        self._chunks, self._coarse = chunks, coarse
        self._packed: dict[int, bytes] = {}  # by number, the oldest first
        self._number = -1  # of the chunk that is open; -1: none is
        self._rows, self._stride = bytearray(), 2 * NODE_WIDTH
        self.newest: int | None = None
        self.began = 0  # the first slot that there ever was

    def slot_of(self, at: float) -> int:
        return int(at // self.step_s)

    def put(self, slot: int, row: bytes) -> None:
        """Put the row of a slot; those between it and the newest one are unknown. Where time goes back, what was later
        is forgotten.
        """
        if self.newest is None:
            self.began = slot
        elif slot <= self.newest:
            self._forget(slot)
        number, at = divmod(slot, ROWS)
        if number != self._number:
            self._seal()
            self._number = number
        if len(row) > self._stride:
            more = UNKNOWN_HALF * ((len(row) - self._stride) // 2)
            rows = (self._rows[begin : begin + self._stride] for begin in range(0, len(self._rows), self._stride))
            self._rows, self._stride = bytearray(b"".join([narrow + more for narrow in rows])), len(row)
        self._rows += UNKNOWN_HALF * ((at * self._stride - len(self._rows)) // 2)
        self._rows += row + UNKNOWN_HALF * ((self._stride - len(row)) // 2)
        self.newest = slot
        if at == ROWS - 1:
            self._seal()

    def seen(self) -> Seen:
        """All that is kept now; it stays as it is."""
        return Seen(dict(self._packed), self._number, bytes(self._rows), self._stride)

    @property
    def packed_bytes(self) -> int:
        return sum(map(len, self._packed.values())) + len(self._rows)

    def _seal(self) -> None:
        if self._number < 0:
            return
        rows = _filled(self._rows, self._stride)
        added, kept = _rounding(len(rows) // ROWS // 2)  # the bits that are spared go
        rows = ((int.from_bytes(rows, "little") + added) & kept).to_bytes(len(rows), "little")
        self._packed[self._number] = zlib.compress(_planes(rows), _LEVEL)
        while (oldest := next(iter(self._packed))) <= self._number - self._chunks:
            del self._packed[oldest]
        if self._coarse is not None:
            count = round(self._coarse.step_s / self.step_s)
            for slot, row in enumerate(_reduced(rows, count), self._number * ROWS // count):
                if row != UNKNOWN_HALF * (len(row) // 2):
                    self._coarse.put(slot, row)
        self._number, self._rows = -1, bytearray()

    def _forget(self, slot: int) -> None:
        """Forget this slot and what is later."""
        number, at = divmod(slot, ROWS)
        if self._number != number:
            planes = unpacked(self._packed[number]) if number in self._packed else b""
            self._number = number if planes else -1
            self._rows = bytearray(b"".join([planes[row::ROWS] for row in range(ROWS)]))
            self._stride = len(planes) // ROWS or self._stride
        self._packed = {one: packed for one, packed in self._packed.items() if one < number}
        del self._rows[at * self._stride :]
        self.began = min(self.began, slot)
        if self._coarse is not None and self._coarse.newest is not None:
            begin = self._coarse.slot_of(number * ROWS * self.step_s)  # of the chunk: it is put again when it is full
            if begin <= self._coarse.newest:
                self._coarse._forget(begin)
                self._coarse.newest = begin - 1


class Seen:
    """What a ring held at one time, to be read without its lock."""

    def __init__(self, packed: Mapping[int, bytes], number: int, rows: bytes, stride: int) -> None:
        self._packed, self._number, self._rows, self._stride = packed, number, rows, stride
        self._open = b""  # the planes of ``rows``

    def lane(self, place: int, first: int, length: int) -> array[float]:
        """The values at one place of ``length`` rows from the slot ``first`` on, in memory's units."""
        values = array("f", [UNKNOWN]) * length
        for number in range(first // ROWS, (first + length - 1) // ROWS + 1):
            planes, begin = self._planes(number), number * ROWS - first
            end = min(length, begin + ROWS)
            if 2 * place * ROWS < len(planes):
                values[max(0, begin) : end] = array("f", _lane(planes, place)[max(0, -begin) : end - begin])
        return values

    def row(self, slot: int) -> tuple[int, bytes] | None:
        """The newest slot up to this one of which anything is known, and its row."""
        numbers = [*self._packed, *([self._number] if self._number >= 0 else [])]
        for number in reversed(numbers):
            planes = self._planes(number) if number * ROWS <= slot else b""
            unknown = UNKNOWN_HALF * (len(planes) // ROWS // 2)
            for at in range(min(slot - number * ROWS, ROWS - 1) if planes else -1, -1, -1):
                if (row := planes[at::ROWS]) != unknown:
                    return number * ROWS + at, row
        return None

    def _planes(self, number: int) -> bytes:
        if number == self._number:
            self._open = self._open or _planes(_filled(self._rows, self._stride))
            return self._open
        packed = self._packed.get(number)
        return b"" if packed is None else unpacked(packed)


# Planes: for each byte of a row those of all rows of a chunk.


@lru_cache(maxsize=640)  # a look at a moment of 512 nodes, or at ten minutes of some: 10 KB each
def unpacked(packed: bytes) -> bytes:
    return zlib.decompress(packed)


def _filled(rows: bytes | bytearray, stride: int) -> bytes:
    """A whole chunk: of the rows that are still to come nothing is known."""
    return bytes(rows) + UNKNOWN_HALF * ((ROWS * stride - len(rows)) // 2)


def _planes(rows: bytes) -> bytes:
    stride = len(rows) // ROWS
    return b"".join([rows[plane::stride] for plane in range(stride)])


def _lane(planes: bytes, place: int) -> tuple[float, ...]:
    """One value of all rows."""
    halves = bytearray(2 * ROWS)
    begin = 2 * place * ROWS
    halves[0::2] = planes[begin : begin + ROWS]
    halves[1::2] = planes[begin + ROWS : begin + 2 * ROWS]
    return _HALVES.unpack(halves)


def _lanes(width: int) -> tuple[Lane, ...]:
    return (*NODE_LANES, *GPU_LANES * ((width - NODE_WIDTH) // GPU_WIDTH))


@lru_cache(maxsize=32)
def _rounding(width: int) -> tuple[int, int]:
    """What is added to all rows of a chunk as one number, and what is kept of it."""
    added, kept = bytearray(), bytearray()
    for lane in _lanes(width):
        added += ((1 << lane.spared) >> 1).to_bytes(2, "little")
        kept += ((0xFFFF << lane.spared) & 0xFFFF).to_bytes(2, "little")
    return int.from_bytes(added * ROWS, "little"), int.from_bytes(kept * ROWS, "little")


def _reduced(rows: bytes, count: int) -> list[bytes]:
    """Of every ``count`` rows one: means, but see the lanes. What is unknown in all of them stays unknown."""
    width = len(rows) // ROWS // 2
    every = values_of(rows)
    columns: list[Sequence[float]] = []
    for place, lane in enumerate(_lanes(width)):
        values, reduce = every[place::width], lane.reduce
        if values.count(values[0]) == ROWS:
            columns.append(values[::count])
            continue
        parts: list[Sequence[float]] = [values[begin : begin + count] for begin in range(0, ROWS, count)]
        if (total := sum(values)) != total:
            parts = [[value for value in part if value == value] for part in parts]  # noqa: PLR0124
            columns.append([(reduce(part) if reduce else sum(part) / len(part)) if part else UNKNOWN for part in parts])
        else:
            columns.append([*map(reduce, parts)] if reduce else [sum(part) / count for part in parts])
    return [pack_row(row) for row in zip(*columns, strict=True)]
