"""Sums over the nodes of each job, as of every picture: what graphs of a fleet show is ready when they are drawn."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from mltop.probes.model import JobKey
from mltop.probes.model.news.row import (
    BUSY_AT,
    GPU_WIDTH,
    NETWORK_AT,
    NODE_LANES,
    NODE_WIDTH,
    POWER_AT,
    SM_AT,
)
from mltop.tui.app.past.node import NodePast
from mltop.tui.app.past.track import SPAN_S, Values

KEPT_STEPS = 4 * 3600  # which are seconds
LATE_STEPS = 2  # of the newest steps not all nodes have told yet
HELD_S = 10.0  # between two pictures at least: what was so is taken to have lasted
MOST_JOBS = 256
# What is kept per step: of SM activity, busy, power and network the sum and what it is to be divided by, and how many
# nodes there were. Activity is a mean over GPUs, power and network are means over steps.
_WIDTH = 9
_NOTHING = array("f", bytes(4 * _WIDTH))


@dataclass(frozen=True)
class Sums:
    """A job's, or a fleet's, values over a span, the oldest first, one per column; None: unknown.

    ``until``: the time at which the newest column ends (unix s, the watcher's clock). ``column_s``: what one is of.
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


def told_by(row: Sequence[float], gpus: Sequence[int] | None) -> Sequence[float]:
    """What a node's row adds. ``gpus``: those that count, None: all."""
    if gpus is None:
        lanes = [row[SM_AT::GPU_WIDTH], row[BUSY_AT::GPU_WIDTH], row[POWER_AT::GPU_WIDTH]]
    else:
        begins = [gpu * GPU_WIDTH for gpu in gpus if NODE_WIDTH + gpu * GPU_WIDTH < len(row)]
        lanes = [tuple([row[begin + at] for begin in begins]) for at in (SM_AT, BUSY_AT, POWER_AT)]
    told: list[float] = []
    for values in (*lanes, (row[NETWORK_AT],)):
        total, count = sum(values), len(values)
        if total != total:  # noqa: PLR0124 - NaN differs from itself
            known = [value for value in values if value == value]  # noqa: PLR0124
            total, count = sum(known), len(known)
        told += total, count
    return (*told, 1.0)


class RunningSums:
    """Of one job, or of all nodes: _WIDTH values for each step, up to ``newest``."""

    def __init__(self) -> None:
        self._rows, self._first = array("f"), 0

    @property
    def newest(self) -> int:
        return self._first + len(self._rows) // _WIDTH - 1

    def put(self, step: int, told: Sequence[float], held: int) -> None:
        """``held``: so many steps since the newest one are taken to have been the same; of more nothing is known.
        Where time goes back, what was later is forgotten.
        """
        missed = step - self.newest - 1
        if not self._rows or missed > KEPT_STEPS or step <= self._first:
            self._rows, self._first, missed = array("f"), step, 0
        row = array("f", told)
        del self._rows[(step - self._first) * _WIDTH :]
        self._rows += (row if missed <= held else _NOTHING) * max(0, missed) + row
        if (over := len(self._rows) // _WIDTH - KEPT_STEPS) > SPAN_S:
            del self._rows[: over * _WIDTH]
            self._first += over

    def over(self, until: float | None, columns: int, span_s: float) -> Sums:
        """``columns`` over the ``span_s`` up to ``until``, None: up to the newest step that all nodes have told."""
        newest = max(self.newest - LATE_STEPS, 0) if until is None else int(until)
        steps = max(1, round(span_s))
        columns = max(1, min(columns, steps))
        first, each = newest + 1 - steps, steps / columns
        spans = [*pairwise(round(each * column) for column in range(columns + 1))]
        before, begin, end = self._first - first, first - self._first, newest + 1 - self._first
        rows = _NOTHING * min(before, steps) + self._rows[max(0, begin) * _WIDTH : max(0, end) * _WIDTH]
        rows += _NOTHING * (steps - len(rows) // _WIDTH)
        sm, busy, power, network = (_means(rows[at::_WIDTH], rows[at + 1 :: _WIDTH], spans) for at in range(0, 8, 2))
        nodes = rows[8::_WIDTH]
        return Sums(
            newest + 1,
            each,
            sum(end <= before for _, end in spans),
            sm,
            busy,
            power,
            [None if value is None else value * NODE_LANES[NETWORK_AT].unit for value in network],
            [round(max(nodes[begin:end], default=0)) for begin, end in spans],
        )


def _means(sums: Sequence[float], counts: Sequence[float], spans: Sequence[tuple[int, int]]) -> Values:
    return [sum(sums[begin:end]) / count if (count := sum(counts[begin:end])) > 0.0 else None for begin, end in spans]


class JobSums:
    """Of every job that ranks belong to, and of all nodes together (None), as of every picture."""

    def __init__(self) -> None:
        self._running: dict[JobKey | None, RunningSums] = {None: RunningSums()}
        self._first: dict[JobKey, str] = {}  # the node that told of it first

    def add(self, at: float, nodes: Sequence[tuple[str, NodePast]]) -> None:
        """``at``: by the watcher's clock; ``nodes``: those that answer."""
        told: dict[JobKey | None, list[Sequence[float]]] = {}
        for name, own in nodes:
            of_all = told_by(own.row, None)
            told.setdefault(None, []).append(of_all)
            for job, gpus in own.shares.items():
                if job not in self._running:
                    self._make_room()
                    self._running[job], self._first[job] = RunningSums(), name
                told.setdefault(job, []).append(of_all if gpus is None else told_by(own.row, gpus))
        held = round(max(HELD_S, min((own.holds_s for _, own in nodes), default=0.0)))
        for key, values in told.items():
            if (running := self._running.get(key)) is not None:
                *activity, power, powers, network, networks, count = map(sum, zip(*values, strict=True))
                step = *activity, power, min(1.0, powers), network, min(1.0, networks), count
                running.put(int(at), step, held)

    def over(self, job: JobKey | None, until: float | None, columns: int, span_s: float) -> Sums | None:
        """None for a job that was never seen."""
        running = self._running.get(job)
        return None if running is None else running.over(until, columns, span_s)

    def _make_room(self) -> None:
        """Of too many jobs the oldest goes of the node that told of the most: who makes up names loses its own."""
        while len(self._first) >= MOST_JOBS:
            ((busiest, _),) = Counter(self._first.values()).most_common(1)
            own = [job for job, node in self._first.items() if node == busiest]
            oldest = min(own, key=lambda job: self._running[job].newest)
            del self._running[oldest], self._first[oldest]
