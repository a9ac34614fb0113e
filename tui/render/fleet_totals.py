"""The totals of several nodes for the header: what live nodes say now, never mixed with what others said last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from mltop.probes.model import Finding
from mltop.probes.reach.glance import GpuGlance
from mltop.probes.reach.view import FleetView
from mltop.tui.render.cells import Cell
from mltop.tui.render.header_parts import Part, gpu_states, labelled, live_nodes, rank_counts
from mltop.tui.render.states import SEVERITY, SEVERITY_ORDER
from mltop.tui.render.units import UNKNOWN, age, celsius, clock_time, percent, watts


@dataclass
class Sum:
    """A sum of what is known, and of how many."""

    value: float = 0.0
    count: int = 0

    def add(self, values: Sequence[float | None]) -> None:
        """Of 4,096 GPUs a second: what is not finite is looked for only where a sum shows that there is some."""
        numbers = [value for value in values if value is not None]
        value = sum(numbers)
        if not isfinite(value):
            numbers = [number for number in numbers if isfinite(number)]
            value = sum(numbers)
        self.value += value
        self.count += len(numbers)

    @property
    def mean(self) -> float | None:
        return self.value / self.count if self.count else None


@dataclass
class Totals:
    """``gpus``, ``ok`` and ``ranks`` are those of live nodes; ``seen``: all GPUs that ever were, of ``heard`` nodes.

    ``lag_s``: the age of the oldest live sample. ``hottest``: temperature, node, index.
    """

    live: int = 0
    heard: int = 0
    gpus: int = 0
    ok: int = 0
    seen: int = 0
    busy: Sum = field(default_factory=Sum)
    sm: Sum = field(default_factory=Sum)
    power: Sum = field(default_factory=Sum)
    hottest: tuple[float, str, int] | None = None
    lag_s: float | None = None
    ranks: int = 0
    jobs: set[tuple[str, int | None]] = field(default_factory=set)


def totals_of(view: FleetView) -> Totals:
    totals = Totals()
    for node in view.nodes:
        glance = node.glance
        if glance is None:
            continue
        totals.heard += 1
        totals.seen += len(glance.gpus)
        if node.state.state != "live":
            continue
        totals.live += 1
        totals.ranks += len(glance.ranks)
        totals.jobs.update([(rank.job, rank.uid) for rank in glance.ranks])
        if node.state.age_s is not None:
            totals.lag_s = max(node.state.age_s, totals.lag_s or 0.0)
        _add(totals, node.node, glance.gpus)
    return totals


def _add(totals: Totals, node: str, gpus: Sequence[GpuGlance]) -> None:
    totals.gpus += len(gpus)
    totals.ok += sum([gpu.state == "ok" for gpu in gpus])
    totals.busy.add([gpu.busy for gpu in gpus])
    totals.sm.add([gpu.sm_active for gpu in gpus])
    totals.power.add([gpu.power_w for gpu in gpus])
    hottest = totals.hottest
    for gpu in gpus:
        heat = gpu.temperature_c
        if heat is not None and (hottest is None or heat > hottest[0]) and isfinite(heat):
            totals.hottest = hottest = (heat, node, gpu.index)


def fleet_first(view: FleetView, totals: Totals, marked: int, brief: bool) -> list[Part]:
    """What stands behind the title and the marks of the first line."""
    return [
        (2, [Cell(f"{marked} marked", "accent")] if marked else []),
        (3, live_nodes(view.nodes)),
        (4, gpu_states(totals.ok, totals.gpus, totals.seen, totals.heard > 0, brief)),
        (5, [Cell(clock_time(view.taken_at), "dim")]),
    ]


def fleet_second(totals: Totals, nodes: int, names: Mapping[str, str]) -> list[Part]:
    """``names``: what stands for the names of all nodes.

    E.g. ``sm 43%  busy 97%  power 41.2kW+  hot 91C n3/gpu2  ranks 512+  jobs 1+  lag 1.2s``.
    """
    few = "+" if totals.power.count < totals.seen or totals.live < nodes else ""
    power = watts(totals.power.value) + few if totals.power.count else UNKNOWN
    hot = UNKNOWN
    if totals.hottest is not None:
        temperature, node, index = totals.hottest
        hot = f"{celsius(temperature)} {names.get(node, node)}/gpu{index}"
    ranks, jobs = rank_counts(totals.ranks, len(totals.jobs), totals.live, nodes)
    return [
        (2, labelled("sm", percent(totals.sm.mean)) if totals.sm.count else []),
        (0, labelled("busy", percent(totals.busy.mean))),
        (4, labelled("power", power)),
        (5, labelled("hot", hot)),
        (3, ranks[1]),
        (6, jobs[1]),
        (1, labelled("lag", age(totals.lag_s))),
    ]


def problem_counts(findings: Sequence[Finding]) -> tuple[str, str, str]:
    """ "CRIT 2 WARN 7", the worst of it, and its style; findings that only inform count when there is nothing else."""
    counts = Counter(finding.severity for finding in findings)
    found = [(*SEVERITY[severity], counts[severity]) for severity in SEVERITY_ORDER if counts[severity]]
    found = [one for one in found if one[0] != "INFO"] or found
    if not found:
        return f"{len(findings)} findings", f"{len(findings)} findings", ""
    texts = [f"{word} {count}" for word, _, count in found]
    return " ".join(texts), texts[0], found[0][1]
