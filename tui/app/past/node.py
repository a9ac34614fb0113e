"""One node: its values of every second for twenty minutes, of every ten for four hours, and its ranks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

from mltop.probes.model import JobKey, Sample
from mltop.probes.model.news.row import GPU_LANES, MOST_GPUS_IN_ROW, gpus_of, place_of, values_of, width_of
from mltop.probes.reach.view import RankSummary, summary_of_rank
from mltop.tui.app.past.changes import Changes
from mltop.tui.app.past.rings import ROWS, Ring
from mltop.tui.app.past.track import SPAN_S, Track

FINE_CHUNKS = 20  # 20 minutes of seconds: a graph of ten minutes is one of seconds also ten minutes back
LONGEST_S = 600.0  # between two samples: what a node says of its own interval makes no more of them
COARSE_STEP_S, COARSE_SPAN_S = 10.0, 4 * 3600.0
TOLERANCE = 2.5  # this many intervals without a sample are a gap
MOST_RANKS_KEPT = 20_000
MOST_JOBS_OF_NODE = 32  # that one sample names
_LANE_AT = {lane.name: at for at, lane in enumerate(GPU_LANES)}


class NodePast:
    """``take`` is fed with every row; one that is there already changes nothing. ``at``: the time of the newest one.
    ``gpus``: the highest number that it ever had. ``whole``: its newest whole sample; ``shares``: the GPUs of each of
    its jobs, None: all.
    """

    __slots__ = ("_coarse", "_fine", "_ranks", "at", "gpus", "interval_s", "row", "shares", "whole")

    def __init__(self, interval_s: float) -> None:
        step_s = max(1.0, float(round(min(interval_s, LONGEST_S))))
        coarse_s = step_s * math.ceil(COARSE_STEP_S / step_s)
        self._coarse = Ring(coarse_s, math.ceil(COARSE_SPAN_S / coarse_s / ROWS))
        self._fine = Ring(step_s, FINE_CHUNKS, self._coarse)
        self._ranks: Changes[tuple[RankSummary, ...]] = Changes(MOST_RANKS_KEPT)
        self.interval_s = step_s
        self.gpus = 0
        self.at = -math.inf
        self.row: tuple[float, ...] = ()  # the newest
        self.whole: Sample | None = None
        self.shares: Mapping[JobKey, Sequence[int] | None] = {}

    @property
    def packed_bytes(self) -> int:
        return self._fine.packed_bytes + self._coarse.packed_bytes

    def ranks_at(self, moment: float) -> Sequence[RankSummary]:
        return self._ranks.at(moment) or ()

    @property
    def holds_s(self) -> float:
        """For how long a sample may stand for the node: the next one is not overdue by then."""
        return TOLERANCE * self.interval_s

    def take_whole(self, whole: Sample) -> None:
        """What its rows are about from here on."""
        if whole is not self.whole:
            self.whole = whole
            self.interval_s = max(1.0, min(whole.interval_s, LONGEST_S))
            ranks = tuple(map(summary_of_rank, whole.ranks))
            if ranks != self._ranks.newest or whole.sampled_at < self._ranks.newest_at:
                self._ranks.add(whole.sampled_at, ranks, 1 + len(ranks))
            self.shares = _shares(ranks, len(whole.gpus))

    def take(self, at: float, lanes: bytes) -> None:
        """Take the row of ``at``. A pause that is no gap gets the same values. Where time goes back (a replay, a clock
        that is set), what was later is forgotten.
        """
        fine, row = self._fine, lanes[: 2 * width_of(MOST_GPUS_IN_ROW)]
        slot = fine.slot_of(at)
        if slot == fine.newest:
            return
        self.row = values_of(row)
        self.gpus = max(self.gpus, gpus_of(self.row))
        if fine.newest is not None and 0 < at - self.at <= max(self.holds_s, TOLERANCE * fine.step_s):
            for missed in range(fine.newest + 1, slot):
                fine.put(missed, row)
        fine.put(slot, row)
        self.at = at

    def track(self, gpu: int, until: float, span_s: float = SPAN_S) -> Track | None:
        """The values of a GPU over ``span_s`` up to ``until`` (unix s), None for one never seen: of each second as far
        as all of them are kept, else of every ten. Where the newest sample is much older, what lies between is unknown.
        """
        if not 0 <= gpu < self.gpus:
            return None
        fine = self._fine
        is_fine = until - span_s >= self.at - FINE_CHUNKS * ROWS * fine.step_s
        ring = fine if is_fine else self._coarse
        length, newest = max(1, round(span_s / ring.step_s)), ring.slot_of(until)
        if is_fine and fine.newest is not None and 0 <= until - self.at <= TOLERANCE * fine.step_s:
            newest = fine.newest  # the next sample is not overdue
        first, seen = newest - length + 1, ring.seen()
        began = min(max(0, ring.slot_of(fine.began * fine.step_s) - first), length - 1)

        def read(name: str) -> array[float]:
            return seen.lane(place_of(gpu, _LANE_AT[name]), first, length)

        return Track(until, ring.step_s, began, newest, length, read)

    def row_at(self, at: float) -> tuple[float, float, bytes] | None:
        """The newest row up to ``at``: when it was taken, for how many seconds it stands, and its lanes; None where
        nothing is kept.
        """
        for ring in (self._fine, self._coarse):
            if (found := ring.seen().row(ring.slot_of(at))) is not None:
                slot, lanes = found
                return min(at, (slot + 1) * ring.step_s, max(self.at, slot * ring.step_s)), ring.step_s, lanes
        return None


def _shares(ranks: Sequence[RankSummary], count: int) -> Mapping[JobKey, Sequence[int] | None]:
    gpus: dict[JobKey, set[int]] = {}
    for rank in ranks:
        gpus.setdefault(rank.job_key, set()).update(rank.gpus)
    is_alone = len(gpus) == 1
    shares = [(job, own or range(count if is_alone else 0)) for job, own in gpus.items()][:MOST_JOBS_OF_NODE]
    return {job: None if {*own} == {*range(count)} else sorted(own) for job, own in shares}
