"""The two lines above every screen: what is watched, and its totals.

Totals hold what live nodes say now; what other nodes said last is not mixed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from mltop.probes.model import SEVERITIES, Finding
from mltop.probes.model.units import UNKNOWN, celsius, clock_time, counted, known, of, percent, seconds, watts
from mltop.probes.reach.view import FleetView, GpuSummary, NodeView
from mltop.tui.render.cells import Cell, clip, flow, line_width
from mltop.tui.render.fleet.map import short_names
from mltop.tui.render.fleet.nodes import total
from mltop.tui.render.states import NODE_STYLE, SEVERITY, gravest

Part = tuple[int, list[Cell]]  # priority as in ``flow``


@dataclass(frozen=True)
class Mark:
    """What must be seen at any width: ``brief`` where ``text`` does not fit."""

    text: str
    brief: str
    style: str


def labelled(label: str, value: str, style: str = "") -> list[Cell]:
    return [Cell(f"{label} ", "dim"), Cell(value, style)]


def live_nodes(nodes: Sequence[NodeView]) -> list[Cell]:
    """The number of nodes when all are live: otherwise a mark says it."""
    return [Cell(f"{len(nodes)}/{counted(len(nodes), 'node')} live")] if all(map(_is_live, nodes)) else []


def gpu_states(totals: Totals, brief: bool) -> list[Cell]:
    """ "15/16 GPUs ok" of the live nodes' GPUs; of those seen elsewhere nothing is known now."""
    ok, live, seen, heard = totals.ok, totals.gpus, totals.seen, totals.heard
    if not seen:
        return [Cell("no GPU seen" if heard else "GPUs unknown", "dim")]
    if not live:
        return [Cell(f"{counted(seen, 'GPU')} unknown", "warn")]
    unknown = seen - live
    style = "crit" if ok < live else "warn" if unknown else ""
    more = f", {unknown} unknown" if unknown and not brief else ""
    return [Cell(f"{ok}/{seen if brief else live} GPU{'s' * (seen != 1)} ok{more}", style)]


def rank_counts(ranks: int, jobs: int, live: int, nodes: int) -> list[Part]:
    """The numbers of ranks and jobs; "≥12" when not every node says, unknown when none does."""
    least = "≥" if live < nodes else ""
    texts = [f"{least}{number}" if live else UNKNOWN for number in (ranks, jobs)]
    return [(1, labelled("ranks", texts[0])), (2, labelled("jobs", texts[1]))]


@dataclass
class Sum:
    """A sum of what is known, and how many values it is of."""

    value: float = 0.0
    count: int = 0

    def add(self, values: Sequence[float | None]) -> None:
        """What is not finite is left out; it is looked for only where a sum shows it: 4,096 GPUs come every second."""
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
    """Sums. ``gpus``, ``ok`` and ``ranks`` are of live nodes; ``seen``: all GPUs that ever were, of ``heard`` nodes.

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
    """The totals of all nodes; only live ones say what their GPUs do now."""
    totals = Totals()
    for node in view.nodes:
        summary = node.summary
        if summary is None:
            continue
        totals.heard += 1
        totals.seen += len(summary.gpus)
        if node.state.state != "live":
            continue
        totals.live += 1
        totals.ranks += len(summary.ranks)
        totals.jobs.update([(rank.job, rank.uid) for rank in summary.ranks])
        if node.state.age_s is not None:
            totals.lag_s = max(node.state.age_s, totals.lag_s or 0.0)
        _add(totals, node.node, summary.gpus)
    return totals


def _add(totals: Totals, node: str, gpus: Sequence[GpuSummary]) -> None:
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


def _of_fleet(totals: Totals, nodes: int, names: Mapping[str, str]) -> list[Part]:
    """``names``: what stands for the names of all nodes.

    E.g. ``sm 43%  busy 97%  power ≥41.2kW  hot 91C n3/gpu2  ranks ≥512  jobs ≥1  lag 1.2s``.
    """
    least = "≥" if totals.power.count < totals.seen or totals.live < nodes else ""
    power = least + watts(totals.power.value) if totals.power.count else UNKNOWN
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
        (1, labelled("lag", seconds(totals.lag_s))),
    ]


def problem_counts(findings: Sequence[Finding]) -> tuple[str, str, str]:
    """ "CRIT 2 WARN 7", the worst of it, and its style; findings that only inform count when there is nothing else."""
    counts = Counter(finding.severity for finding in findings)
    present = [severity for severity in SEVERITIES if counts[severity]]
    shown = [severity for severity in present if severity != "info"] or present
    if not shown:
        return f"{len(findings)} findings", f"{len(findings)} findings", ""
    texts = [f"{SEVERITY[severity][0]} {counts[severity]}" for severity in shown]
    return " ".join(texts), texts[0], SEVERITY[shown[0]][1]


WIDE = 100  # from here on there is room for everything
MIN_TITLE = 8  # cells of a title that is cut


def header_cells(
    view: FleetView,
    title: str,
    paused: bool = False,
    width: int = 80,
    *,
    shorter: Sequence[str] = (),
    findings: Sequence[Finding] = (),
    marked: int = 0,
) -> list[list[Cell]]:
    """The two lines, at most ``width`` cells each; what matters least is dropped first.

    ``shorter``: what may stand in place of ``title`` where it does not fit, long ones first. That the picture is
    simulated or paused, or that a node is not well, is never dropped. ``findings`` are counted, and the user's
    ``marked`` nodes, where several nodes are watched.
    """
    marks, totals = _marks(view, paused, width), totals_of(view)
    if len(view.nodes) > 1:
        marks += [Mark(*problem_counts(findings))] if findings else []
        second = _of_fleet(totals, len(view.nodes), short_names(tuple([node.node for node in view.nodes])))
    else:
        marked, second = 0, _of_one_node(view, totals)
    rest: list[Part] = [
        (2, [Cell(f"{marked} marked", "accent")] if marked else []),
        (3, live_nodes(view.nodes)),
        (4, gpu_states(totals, brief=width < WIDE)),
        (5, [Cell(clock_time(view.taken_at), "dim")]),
    ]
    return [_first_line((title, *shorter), marks, rest, width), flow(second, width)]


def _of_one_node(view: FleetView, totals: Totals) -> list[Part]:
    gpus = [gpu for node in view.nodes if node.summary is not None and _is_live(node) for gpu in node.summary.gpus]
    return [
        (0, labelled("busy", percent(totals.busy.mean))),
        (4, _power(gpus, totals.seen)),
        (5, _hottest(gpus)),
        *rank_counts(totals.ranks, len(totals.jobs), totals.live, len(view.nodes)),
        _age(view.nodes),
    ]


def _is_live(node: NodeView) -> bool:
    return node.state.state == "live"


def _first_line(titles: Sequence[str], marks: Sequence[Mark], rest: Sequence[Part], width: int) -> list[Cell]:
    """The longest title that fits beside all marks, whose words grow shorter only after the title has."""
    for whole in range(len(marks), -1, -1):  # so many marks, from the left, keep their text
        cells = [Cell(mark.text if at < whole else mark.brief, mark.style) for at, mark in enumerate(marks)]
        for title in titles:
            parts = [(0, [Cell(title, "title")]), *((0, [cell]) for cell in cells)]
            if line_width(flow(parts, 10**6)) <= width:
                return flow([*parts, *rest], width)
    line = flow([(0, [cell]) for cell in cells], width, gap=" ")
    room = width - line_width(line) - bool(line)
    if room < MIN_TITLE and line:
        return line
    return [*line, *([Cell(" ")] if line else []), Cell(clip(titles[-1], max(1, room)), "title")]


def _marks(view: FleetView, paused: bool, width: int) -> list[Mark]:
    simulated = any(node.summary.simulated for node in view.nodes if node.summary is not None)
    marks = [Mark("SIMULATED", "SIM", "warn")] if simulated else []
    marks += [Mark("PAUSED", "PAUSED", "warn")] if paused else []
    worst = gravest(node.state.state for node in view.nodes)
    if worst != "live":
        text = _node_states(view.nodes, worst, brief=width < WIDE)
        marks.append(Mark(text, worst.upper(), NODE_STYLE.get(worst, "warn")))
    return marks


def _node_states(nodes: Sequence[NodeView], worst: str, brief: bool) -> str:
    """ "node lost", or "61/64 nodes live, 1 lost, 2 stale": all states where there is room, else the gravest.

    While some connect: "connecting 41/64, 2 lost", live ones of all.
    """
    if len(nodes) == 1:
        return f"node {worst}"
    states: Counter[str] = Counter(node.state.state for node in nodes)
    live, connecting = states.pop("live", 0), states.pop("connecting", 0)
    named = [worst] if brief and worst in states else sorted(states)
    first = f"connecting {live}/{len(nodes)}" if connecting else f"{live}/{len(nodes)} nodes live"
    return ", ".join([first, *(f"{states[state]} {state}" for state in named)])


def _power(gpus: Sequence[GpuSummary], seen: int) -> list[Cell]:
    """Draw and limit over the same GPUs: those that report both; how many they are when not all do."""
    both = [gpu for gpu in gpus if known(gpu.power_w) and known(gpu.power_limit_w)]
    summed = both or [gpu for gpu in gpus if known(gpu.power_w)]
    limit = watts(total([gpu.power_limit_w for gpu in both]))
    drawn = watts(total([gpu.power_w for gpu in summed]))
    few = f" of {counted(len(summed), 'GPU')}" if 0 < len(summed) < seen else ""
    return labelled("power", (of(drawn, limit) if both else drawn) + few)


def _hottest(gpus: Sequence[GpuSummary]) -> list[Cell]:
    """The hottest GPU and which one it is."""
    temperatures = [(gpu.temperature_c, gpu.index) for gpu in gpus if known(gpu.temperature_c)]
    if not temperatures:
        return labelled("hot", UNKNOWN)
    temperature, index = max(temperatures)
    return labelled("hot", f"{celsius(temperature)} gpu{index}")


def _age(nodes: Sequence[NodeView]) -> Part:
    """How old the oldest sample is; it stays longer when that sample is not a live node's."""
    states = [node.state for node in nodes if node.sample is not None and node.state.age_s is not None]
    oldest = max(states, key=lambda state: state.age_s or 0.0, default=None)
    if oldest is None:
        return 6, labelled("age", UNKNOWN)
    well = oldest.state == "live"
    return (6 if well else 3), labelled("age", seconds(oldest.age_s), "" if well else NODE_STYLE.get(oldest.state, ""))
