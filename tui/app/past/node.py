"""The values of one node: every second of the last twenty minutes, every ten seconds of the last four hours."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.reach.view import SampleSummary
from mltop.tui.app.past.lanes import (
    GPU_LANES,
    NODE_LANES,
    lane_of_planes,
    lane_of_rows,
    pack_row,
    pack_rows,
    place_of,
    planes_of,
    reduced,
    row_of,
    row_of_planes,
    rows_of_planes,
    unknown_rows,
    values_of,
    width_of,
)
from mltop.tui.app.past.track import SPAN_S, UNKNOWN, Track

FINE_SPAN_S = 2 * SPAN_S  # so that a graph of ten minutes is one of seconds also ten minutes back
LONGEST_S = 600.0  # between two samples: what a node says of its own interval makes no more of them
MOST_FINE_S = 1.5 * SPAN_S  # of what is asked for at once
COARSE_STEP_S, COARSE_SPAN_S = 10.0, 4 * 3600.0
CHUNK_ROWS = 60
MOST_GPUS = 256  # per node; what claims a higher index is not remembered
TOLERANCE = 2.5  # this many intervals without a sample are a gap
_LANE_AT = {lane.name: at for at, lane in enumerate(GPU_LANES)}
_NODE_LANE_AT = {lane.name: at for at, lane in enumerate(NODE_LANES)}


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count`` rows of ``gpus`` GPUs from the slot ``first`` on; ``packed`` as by ``pack_rows``."""

    first: int
    count: int
    gpus: int
    packed: bytes


class Tier:
    """A row every ``step_s`` for ``span_s``. A slot is a time divided by the step."""

    __slots__ = ("_chunks", "_first", "_gpus", "_length", "_rows", "began", "newest", "step_s")

    def __init__(self, step_s: float, span_s: float) -> None:
        self.step_s = step_s
        self._length = math.ceil(span_s / step_s)
        self._chunks: deque[Chunk] = deque()
        self._first = self._gpus = 0
        self._rows = bytearray()  # that are not packed yet, from the slot ``_first`` on
        self.newest: int | None = None
        self.began = 0  # the first slot that there ever was

    def slot_of(self, at: float) -> int:
        return int(at // self.step_s)

    def put(self, slot: int, row: bytes, gpus: int, *, between: bytes | None = None) -> None:
        """Put the row of a slot; ``between``: what the slots since the newest get, None: they are unknown.

        Where time goes back, what was later is forgotten.
        """
        if self.newest is None:
            self.began = slot
        self.forget(slot)
        missed = slot - self.newest - 1 if self.newest is not None else 0
        if self._rows and (self._gpus != gpus or (missed > CHUNK_ROWS and between is None)):
            self._seal()  # of slots in no chunk nothing is known
        if missed and (self._rows or between is not None):
            row = (between or unknown_rows(gpus, 1)) * missed + row
            slot -= missed
        if not self._rows:
            self._first, self._gpus = slot, gpus
        self._rows += row
        count = len(self._rows) // (2 * width_of(gpus))
        self.newest = self._first + count - 1
        if count >= CHUNK_ROWS:
            self._seal()

    def forget(self, slot: int) -> None:
        """Forget this slot and what is later."""
        if self.newest is not None and slot <= self.newest:
            self._cut(slot)
            self.newest, self.began = slot - 1, min(self.began, slot)

    def seen(self) -> Seen:
        """All that is kept now; it stays as it is."""
        chunks: list[Chunk | Rows] = [*self._chunks]
        if self._rows:
            chunks.append(Rows(self._first, self._gpus, bytes(self._rows)))
        return Seen(chunks)

    @property
    def packed_bytes(self) -> int:
        return sum(len(chunk.packed) for chunk in self._chunks) + len(self._rows)

    def _seal(self) -> None:
        if not self._rows:
            return
        count = len(self._rows) // (2 * width_of(self._gpus))
        self._chunks.append(Chunk(self._first, count, self._gpus, pack_rows(bytes(self._rows), self._gpus)))
        newest = self._first + count
        self._rows = bytearray()
        while self._chunks and self._chunks[0].first + self._chunks[0].count <= newest - self._length:
            self._chunks.popleft()

    def _cut(self, slot: int) -> None:
        if self._rows and self._first < slot:
            del self._rows[2 * width_of(self._gpus) * (slot - self._first) :]
            return
        self._rows = bytearray()
        while self._chunks and self._chunks[-1].first + self._chunks[-1].count > slot:
            cut = self._chunks.pop()
            if cut.first < slot:
                self._first, self._gpus = cut.first, cut.gpus
                self._rows = bytearray(rows_of_planes(planes_of(cut.packed), cut.count))
                del self._rows[2 * width_of(cut.gpus) * (slot - cut.first) :]


@dataclass(frozen=True, slots=True)
class Rows:
    """As ``Chunk``, not packed."""

    first: int
    gpus: int
    rows: bytes

    @property
    def count(self) -> int:
        return len(self.rows) // (2 * width_of(self.gpus))


class Seen:
    """What a tier held at one time, to be read without its lock."""

    def __init__(self, chunks: Sequence[Chunk | Rows]) -> None:
        self._chunks = chunks

    def lane(self, gpu: int, lane: int, first: int, length: int) -> array[float]:
        """The values of ``length`` slots from ``first`` on, in memory's units; ``gpu`` -1: of the node."""
        values = array("f", [UNKNOWN]) * length
        place = place_of(gpu, lane)
        for chunk in self._chunks:
            begin, end = max(first, chunk.first), min(first + length, chunk.first + chunk.count)
            if begin < end and gpu < chunk.gpus:
                part = self._values(chunk, place)
                values[begin - first : end - first] = part[begin - chunk.first : end - chunk.first]
        return values

    def row(self, slot: int) -> tuple[int, tuple[float, ...]] | None:
        """The newest slot up to this one of which anything is known, and its values, in memory's units."""
        for chunk in reversed(self._chunks):
            unknown = unknown_rows(chunk.gpus, 1)
            for at in range(min(slot - chunk.first, chunk.count - 1), -1, -1):
                row = _row(chunk, at)
                if row != unknown:
                    return chunk.first + at, values_of(row)
        return None

    def _values(self, chunk: Chunk | Rows, place: int) -> array[float]:
        if isinstance(chunk, Rows):
            return lane_of_rows(chunk.rows, chunk.gpus, place)
        return lane_of_planes(planes_of(chunk.packed), chunk.count, place)


def _row(chunk: Chunk | Rows, at: int) -> bytes:
    if isinstance(chunk, Chunk):
        return row_of_planes(planes_of(chunk.packed), chunk.count, at)
    stride = 2 * width_of(chunk.gpus)
    return chunk.rows[at * stride : (at + 1) * stride]


class NodePast:
    """One node's values. ``take`` is fed with every sample; one that is there already changes nothing."""

    __slots__ = ("_at", "_coarse", "_fine", "_gathered", "_gpus", "_rows", "interval_s")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = max(1.0, float(round(min(interval_s, LONGEST_S))))
        self._fine = Tier(self.interval_s, FINE_SPAN_S)
        self._coarse = Tier(max(COARSE_STEP_S, self.interval_s), COARSE_SPAN_S)
        self._gpus = 0
        self._at = -math.inf
        self._gathered = -1  # the slot of the coarse tier that ``_rows`` are of
        self._rows: list[bytes] = []

    @property
    def at(self) -> float:
        """The time of the newest sample."""
        return self._at

    @property
    def gpus(self) -> int:
        """The highest number of GPUs that it ever had."""
        return self._gpus

    @property
    def packed_bytes(self) -> int:
        return self._fine.packed_bytes + self._coarse.packed_bytes

    def take(self, summary: SampleSummary) -> list[float] | None:
        """The row of a new sample; None for one of a second that is there already. Where time goes back (a replay, a
        clock that is set), what was later is forgotten.
        """
        fine, at = self._fine, summary.sampled_at
        slot = fine.slot_of(at)
        if slot == fine.newest:
            return None
        gpus = summary.gpus
        if gpus and (len(gpus) > self._gpus or gpus[-1].index >= self._gpus):
            self._gpus = 1 + max([gpu.index for gpu in gpus if gpu.index < MOST_GPUS], default=-1)
        row = row_of(summary, self._gpus)
        packed = pack_row(row)
        elapsed_s = at - self._at
        seamless = 0 < elapsed_s <= self.holds_s(summary)
        self._gather(slot, packed, elapsed_s)
        fine.put(slot, packed, self._gpus, between=packed if seamless else None)
        self._at = at
        return row

    def holds_s(self, summary: SampleSummary) -> float:
        """For how long the sample before this one may have stood for the node: the next one was not due by then."""
        return TOLERANCE * min(LONGEST_S, max(summary.interval_s, self.interval_s))

    def track(self, gpu: int, until: float, span_s: float = SPAN_S) -> Track | None:
        """The values of a GPU over ``span_s`` up to ``until`` (unix s), None for one never seen: of each second as far
        as all of them are kept, else of every ten. Where the newest sample is much older, what lies between is unknown.
        """
        if not 0 <= gpu < self._gpus:
            return None
        tier, newest, length = self.slots(until, span_s)
        first, seen = newest - length + 1, tier.seen()
        began = min(max(0, self.began_slot(tier) - first), length - 1)

        def read(name: str) -> array[float]:
            return seen.lane(gpu, _LANE_AT[name], first, length)

        return Track(until, tier.step_s, began, newest, length, read)

    def lane(self, name: str, until: float, span_s: float = SPAN_S) -> array[float]:
        """The node's own values (``NODE_LANES``), in memory's units, over the same slots as ``track`` has."""
        tier, newest, length = self.slots(until, span_s)
        return tier.seen().lane(-1, _NODE_LANE_AT[name], newest - length + 1, length)

    def slots(self, until: float, span_s: float) -> tuple[Tier, int, int]:
        """The tier that has all of a span, its newest slot in it, and how many there are."""
        fine = self._fine
        tier = fine if until - span_s >= self._at - FINE_SPAN_S and span_s <= MOST_FINE_S else self._coarse
        length = max(1, round(span_s / tier.step_s))
        due = tier is fine and fine.newest is not None and 0 <= until - self._at <= TOLERANCE * fine.step_s
        newest = tier.slot_of(until)
        if due and fine.newest is not None:
            newest = fine.newest
        return tier, newest, length

    def began_slot(self, tier: Tier) -> int:
        """The first slot that was ever watched, as this tier counts."""
        return tier.slot_of(self._fine.began * self._fine.step_s)

    @property
    def began_at(self) -> float:
        """When the first sample was taken."""
        return self._fine.began * self._fine.step_s

    def row(self, at: float) -> tuple[float, float, tuple[float, ...]] | None:
        """The newest row up to ``at``: when it was taken, for how many seconds it stands, and its values, in memory's
        units; None where nothing is kept.
        """
        for tier in (self._fine, self._coarse):
            found = tier.seen().row(tier.slot_of(at))
            if found is not None:
                taken_at = min(at, (found[0] + 1) * tier.step_s, max(self._at, found[0] * tier.step_s))
                return taken_at, tier.step_s, found[1]
        return None

    def _gather(self, slot: int, row: bytes, elapsed_s: float) -> None:
        """Rows become one of the coarse tier when its slot is over."""
        coarse = self._coarse
        gathered = coarse.slot_of(slot * self._fine.step_s)
        if elapsed_s < 0:
            self._rows = []
            coarse.forget(gathered)
        elif gathered != self._gathered:
            self._flush()
        if self._rows and len(self._rows[0]) != len(row):
            self._flush()
        self._gathered = gathered
        self._rows.append(row)

    def _flush(self) -> None:
        if self._rows:
            gpus = (len(self._rows[0]) // 2 - len(NODE_LANES)) // len(GPU_LANES)
            row = reduced(b"".join(self._rows), gpus) if len(self._rows) > 1 else self._rows[0]
            if self._coarse.newest is None or self._gathered > self._coarse.newest:
                self._coarse.put(self._gathered, row, gpus)
            self._rows = []
