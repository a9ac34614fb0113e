"""Sums over the nodes of each job, kept as samples come: what graphs of a fleet show is ready when they are drawn."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from mltop.probes.model import JobKey
from mltop.probes.reach.view import SampleSummary
from mltop.tui.app.past.lanes import BUSY_AT, GPU_WIDTH, NETWORK_AT, NODE_LANES, NODE_WIDTH, POWER_AT, SM_AT
from mltop.tui.app.past.track import SPAN_S, Values

STEP_S = 1.0
COARSE = 10  # steps in one of the coarse ring
KEPT_S, COARSE_KEPT_S = 1260.0, 4 * 3600.0
LATE_STEPS = 2  # of the newest steps not all nodes have told yet
MOST_JOBS, MOST_JOBS_OF_NODE = 256, 32  # the latter: that one sample names
_NETWORK_UNIT = NODE_LANES[NETWORK_AT].unit
# What is summed per step: SM activity and how many GPUs tell it, busy likewise, power, network, and how many nodes.
_LANES = ("sm", "sm_gpus", "busy", "busy_gpus", "power", "network", "network_nodes", "nodes")
_WIDTH = len(_LANES)


@dataclass(frozen=True)
class Sums:
    """A job's, or a fleet's, values over a span, the oldest first, one per column; None: unknown.

    ``until``: the time at which the newest column ends (unix s, the nodes' clock). ``column_s``: what one stands for.
    ``began``: index of the first column of which anything was ever known. ``sm_active`` and ``busy``: means over its
    GPUs, 0..1; ``power_w`` and ``network_bytes_per_s`` (in and out of all ports; of a node that several jobs share, its
    whole traffic counts for each of them): sums over its nodes. ``nodes``: how many nodes told it at most; where a
    column has fewer than others, its sums are at least so much.
    """

    until: float
    column_s: float
    began: int
    sm_active: Values
    busy: Values
    power_w: Values
    network_bytes_per_s: Values
    nodes: Sequence[int]

    @property
    def activity(self) -> tuple[str, Values]:
        """What graphs of work show: ("SM", sm_active); where that was never known ("busy", busy), which says less."""
        known = any(value is not None for value in self.sm_active)
        return ("SM", self.sm_active) if known else ("busy", self.busy)

    @cached_property
    def most_nodes(self) -> int:
        return max(self.nodes, default=0)

    def whole(self, values: Values) -> list[float | None]:
        """A column of sums in which fewer nodes told is scaled up: it is their silence, not a fall."""
        most = self.most_nodes
        return [
            None if value is None or not nodes else value * most / nodes
            for value, nodes in zip(values, self.nodes, strict=True)
        ]


class _Ring:
    """``length`` steps of _LANES; the newest step is ``newest``."""

    __slots__ = ("began", "length", "newest", "values")

    def __init__(self, length: int) -> None:
        self.length = length
        self.values = array("f", bytes(4 * _WIDTH * length))
        self.newest = self.began = -1

    def at(self, step: int) -> int:
        """Where the values of a step begin; -1 for one that is not kept any more."""
        if self.newest < 0:
            self.newest = self.began = step
        elif step > self.newest:
            for other in range(max(self.newest + 1, step - self.length + 1), step + 1):
                begin = other % self.length * _WIDTH
                self.values[begin : begin + _WIDTH] = _NOTHING
            self.newest = step
        elif step <= self.newest - self.length:
            return -1
        self.began = min(self.began, step)
        return step % self.length * _WIDTH

    def lane(self, lane: int, first: int, count: int) -> list[float]:
        """``count`` steps from ``first`` on; 0 for what is not kept."""
        kept = range(max(first, self.newest - self.length + 1), min(first + count, self.newest + 1))
        before, values, length = min(count, max(0, kept.start - first)), self.values, self.length
        known = [values[step % length * _WIDTH + lane] for step in kept]
        return [*[0.0] * before, *known, *[0.0] * (count - before - len(known))]


_NOTHING = array("f", [0.0] * _WIDTH)


Told = tuple[float, ...]  # by _LANES, of one node at one step


def told_by(row: Sequence[float], gpus: Sequence[int] | None) -> Told:
    """What a node's row adds. ``gpus``: those that count, None: all."""
    if gpus is None:
        sm, busy, power = row[SM_AT::GPU_WIDTH], row[BUSY_AT::GPU_WIDTH], row[POWER_AT::GPU_WIDTH]
    else:
        begins = [gpu * GPU_WIDTH for gpu in gpus if NODE_WIDTH + gpu * GPU_WIDTH < len(row)]
        sm, busy, power = ([row[begin + at] for begin in begins] for at in (SM_AT, BUSY_AT, POWER_AT))
    sm_sum, busy_sum, power_sum, network = sum(sm), sum(busy), sum(power), row[NETWORK_AT]
    if (total := sm_sum + busy_sum + power_sum + network) == total:
        return sm_sum, len(sm), busy_sum, len(busy), power_sum, network, 1.0, 1.0
    known = [[value for value in values if value == value] for values in (sm, busy, power, [network])]  # noqa: PLR0124
    (sm, busy, power, told) = known
    return sum(sm), len(sm), sum(busy), len(busy), sum(power), sum(told), float(len(told)), 1.0


class RunningSums:
    """Of one job, or of all nodes. What is told of the newest steps is gathered, and added up when all have told."""

    def __init__(self) -> None:
        self._fine, self._coarse = _Ring(round(KEPT_S / STEP_S)), _Ring(round(COARSE_KEPT_S / STEP_S) // COARSE)
        self._folded = -1  # the newest step of the coarse ring
        self._gathered: dict[int, list[Told]] = {}
        self._newest = -1
        self.newest_at = -math.inf

    def add(self, steps: Sequence[int], told: Told) -> None:
        """What a node told at these steps."""
        gathered = self._gathered
        for step in steps:
            if step in gathered:
                gathered[step].append(told)
            else:
                gathered[step] = [told]
                self._newest = max(self._newest, step)
                self._settle()

    def _settle(self) -> None:
        """Add up what is complete."""
        for step in sorted(step for step in self._gathered if step <= self._newest - LATE_STEPS):
            begin = self._fine.at(step)
            told = self._gathered.pop(step)
            if begin >= 0:
                values = self._fine.values
                for at, value in enumerate(map(sum, zip(*told, strict=True)), begin):
                    values[at] += value
        self._fold()

    def forget_after(self, step: int) -> None:
        """Time went back: what was later is not so."""
        self._gathered = {at: told for at, told in self._gathered.items() if at <= step}
        self._newest = min(self._newest, step)
        for ring, newest in ((self._fine, step), (self._coarse, step // COARSE)):
            for later in range(max(newest + 1, ring.newest - ring.length + 1), ring.newest + 1):
                begin = later % ring.length * _WIDTH
                ring.values[begin : begin + _WIDTH] = _NOTHING
            ring.newest = min(ring.newest, newest)
        self._folded = min(self._folded, step // COARSE - 1)

    def _fold(self) -> None:
        """Make one of every ten steps that are complete."""
        newest = (self._fine.newest - LATE_STEPS) // COARSE - 1
        if self._folded < 0:
            self._folded = self._fine.newest // COARSE - 1
        for coarse in range(max(self._folded + 1, newest + 1 - self._coarse.length), newest + 1):
            lanes = [self._fine.lane(lane, coarse * COARSE, COARSE) for lane in range(_WIDTH)]
            begin = self._coarse.at(coarse)
            if begin >= 0:
                told = sum(count > 0 for count in lanes[-1]) or 1
                self._coarse.values[begin : begin + _WIDTH] = array("f", [sum(lane) / told for lane in lanes])
            self._folded = coarse

    def over(self, until: float | None, columns: int, span_s: float) -> Sums:
        """``columns`` over the ``span_s`` up to ``until``, None: up to the newest step that all nodes have told."""
        fine = self._fine
        newest = max(fine.newest, 0) if until is None else int(until // STEP_S)
        ring, per = fine, 1
        if newest - span_s / STEP_S < fine.newest - fine.length:
            ring, per = self._coarse, COARSE
            newest //= COARSE
        steps = max(1, round(span_s / STEP_S / per))
        columns = max(1, min(columns, steps))
        each = steps / columns
        edges = [newest + 1 - steps + round(each * column) for column in range(columns + 1)]
        lanes = [ring.lane(lane, edges[0], edges[-1] - edges[0]) for lane in range(_WIDTH)]
        spans = [(begin - edges[0], end - edges[0]) for begin, end in pairwise(edges)]
        sm, sm_gpus, busy, busy_gpus, power, network, network_nodes, nodes = lanes
        began = sum(end <= ring.began for end in edges[1:]) if ring.newest >= 0 else columns
        return Sums(
            (newest + 1) * per * STEP_S,
            each * per * STEP_S,
            min(began, columns),
            _means(sm, sm_gpus, spans),
            _means(busy, busy_gpus, spans),
            _over_time(power, nodes, spans),
            _over_time(network, network_nodes, spans, _NETWORK_UNIT),
            [round(max(nodes[begin:end], default=0)) for begin, end in spans],
        )


def _means(sums: Sequence[float], counts: Sequence[float], spans: Sequence[tuple[int, int]]) -> Values:
    return [sum(sums[begin:end]) / count if (count := sum(counts[begin:end])) > 0.0 else None for begin, end in spans]


def _over_time(
    sums: Sequence[float], told: Sequence[float], spans: Sequence[tuple[int, int]], unit: float = 1.0
) -> Values:
    """The mean of the steps in which anybody told it."""
    values: list[float | None] = []
    for begin, end in spans:
        steps = sum([count > 0.0 for count in told[begin:end]])
        values.append(unit * sum(sums[begin:end]) / steps if steps else None)
    return values


@dataclass
class _Share:
    """Which GPUs of a node belong to which job, None: all of them; ``of`` tells ranks apart by what is cheap to see."""

    of: object
    jobs: Mapping[JobKey, Sequence[int] | None]


class JobSums:
    """Of every job that ranks belong to, and of all nodes together. Fed with every sample that is new."""

    def __init__(self) -> None:
        self._all = RunningSums()
        self._jobs: dict[JobKey, RunningSums] = {}
        self._first: dict[JobKey, str] = {}  # the node that told of it first
        self._shares: dict[str, _Share] = {}
        self._newest: dict[str, int] = {}

    def add(self, node: str, summary: SampleSummary, at: float, row: Sequence[float], seamless_s: float) -> None:
        """``at``: when it was taken, by the watcher's clock; ``row``: by ``row_of``; ``seamless_s``: a sample stands
        for the time since the one before up to so long.
        """
        step = int(at // STEP_S)
        before = self._newest.get(node)
        if before is not None and step < before - KEPT_S:
            before = None  # its clock was set: nobody else's time went back
        if before is not None and step <= before:
            return
        seamless = before is not None and step - before <= max(1.0, seamless_s)
        steps = range(before + 1, step + 1) if before is not None and seamless else (step,)
        self._newest[node] = step
        of_all = told_by(row, None)
        self._all.add(steps, of_all)
        for job, gpus in self._share(node, summary).items():
            if job not in self._jobs:
                self._make_room()
                self._jobs[job], self._first[job] = RunningSums(), node
            running = self._jobs[job]
            running.newest_at = at
            running.add(steps, of_all if gpus is None else told_by(row, gpus))

    def forget_after(self, step: int) -> None:
        """Time went back: what was later is not so."""
        for running in (self._all, *self._jobs.values()):
            running.forget_after(step)
        self._newest.clear()

    def forget(self, node: str) -> None:
        self._newest.pop(node, None)
        self._shares.pop(node, None)

    def of_all(self, until: float | None, columns: int, span_s: float = SPAN_S) -> Sums:
        return self._all.over(until, columns, span_s)

    def of_job(self, job: JobKey, until: float | None, columns: int, span_s: float = SPAN_S) -> Sums | None:
        """None for a job that was never seen."""
        running = self._jobs.get(job)
        return None if running is None else running.over(until, columns, span_s)

    def _make_room(self) -> None:
        """Of too many jobs the oldest goes of the node that told of the most: who makes up names loses its own."""
        while len(self._jobs) >= MOST_JOBS:
            ((busiest, _),) = Counter(self._first.values()).most_common(1)
            own = [job for job, node in self._first.items() if node == busiest]
            oldest = min(own, key=lambda job: self._jobs[job].newest_at)
            del self._jobs[oldest], self._first[oldest]

    def _share(self, node: str, summary: SampleSummary) -> Mapping[JobKey, Sequence[int] | None]:
        ranks = summary.ranks
        of: object = ()
        if ranks:
            first, last = ranks[0], ranks[-1]
            ends = first.pid, first.job, first.uid, first.gpus, last.pid, last.job, last.uid, last.gpus
            of = (len(ranks), len(summary.gpus), ends)
        share = self._shares.get(node)
        if share is None or share.of != of:
            share = self._shares[node] = _Share(of, _shares(summary))
        return share.jobs


def _shares(summary: SampleSummary) -> dict[JobKey, Sequence[int] | None]:
    gpus: dict[JobKey, set[int]] = {}
    for rank in summary.ranks:
        gpus.setdefault(rank.job_key, set()).update(rank.gpus)
    everything = set(range(len(summary.gpus)))
    alone = len(gpus) == 1
    shares = {job: None if own == everything or (alone and not own) else sorted(own) for job, own in gpus.items()}
    return dict(list(shares.items())[:MOST_JOBS_OF_NODE])
