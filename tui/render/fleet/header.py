"""Line 2 of every screen: what is watched, its totals, and the time.

Totals hold what live nodes say now; what other nodes said last is not mixed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from mltop.probes.model import JobMotion, Sample
from mltop.probes.model.units import (
    UNKNOWN,
    celsius,
    clock_time,
    counted,
    kilowatts,
    of,
    percent,
    rough_time,
    seconds,
)
from mltop.probes.reach.view import AnyGpu, FleetView, NodeView
from mltop.tui.render.cells import Cell, clip, flow, line_width
from mltop.tui.render.empty import gpus_unseen
from mltop.tui.render.fleet.heat import is_used
from mltop.tui.render.fleet.map import short_names
from mltop.tui.render.fleet.nodes import nobody_answered
from mltop.tui.render.states import NODE_STYLE, gravest, motion_words

Part = tuple[int, list[Cell]]  # priority as in ``flow``


def labelled(label: str, value: str, style: str = "") -> list[Cell]:
    return [Cell(f"{label} ", "dim"), Cell(value, style)]


@dataclass
class Sum:
    """A sum of what is known, and how many values it is of."""

    value: float = 0.0
    count: int = 0

    def add(self, values: Sequence[float]) -> None:
        self.value += sum(values)
        self.count += len(values)

    @property
    def mean(self) -> float | None:
        return self.value / self.count if self.count else None


@dataclass
class Totals:
    """Sums. ``gpus``, ``ok`` and ``ranks`` are of live nodes; ``seen``: all GPUs that ever were, of ``heard`` nodes.

    ``busy`` and ``sm``: of GPUs that somebody uses. ``lag_s``: the age of the oldest live sample. ``hottest``:
    temperature, node, index; of equals the first.
    """

    live: int = 0
    heard: int = 0
    gpus: int = 0
    ok: int = 0
    seen: int = 0
    busy: Sum = field(default_factory=Sum)
    sm: Sum = field(default_factory=Sum)
    power: Sum = field(default_factory=Sum)
    limit: Sum = field(default_factory=Sum)  # of those whose power is known
    both: Sum = field(default_factory=Sum)  # power of those whose limit is known
    hottest: tuple[float, str, int] | None = None
    lag_s: float | None = None
    ranks: int = 0
    jobs: set[tuple[str, int | None]] = field(default_factory=set)


def totals_of(view: FleetView) -> Totals:
    """The totals of all nodes; only live ones say what their GPUs do now."""
    totals = Totals()
    for node in view.nodes:
        if node.newest is None:
            continue
        gpus, ranks = node.gpus, node.ranks
        totals.heard += 1
        totals.seen += len(gpus)
        if node.state.state != "live":
            continue
        totals.live += 1
        totals.ranks += len(ranks)
        totals.jobs.update([(rank.job, rank.uid) for rank in ranks])
        if node.state.age_s is not None:
            totals.lag_s = max(node.state.age_s, totals.lag_s or 0.0)
        _add(totals, node.node, gpus)
    return totals


def _add(totals: Totals, node: str, gpus: Sequence[AnyGpu]) -> None:
    """All of a node's in one go: 4,096 GPUs come every second."""
    totals.gpus += len(gpus)
    busy, sm, power, both, limits = [], [], [], [], []
    hotter_c = totals.hottest[0] + HOTTER_C if totals.hottest is not None else -inf
    for gpu in gpus:
        totals.ok += gpu.state == "ok"
        if is_used(gpu):
            if gpu.busy is not None:
                busy.append(gpu.busy)
            if gpu.sm_active is not None:
                sm.append(gpu.sm_active)
        watts, limit_w, heat = gpu.power_w, gpu.power_limit_w, gpu.temperature_c
        if watts is not None:
            power.append(watts)
            if limit_w is not None:
                both.append(watts)
                limits.append(limit_w)
        if heat is not None and heat >= hotter_c:
            totals.hottest, hotter_c = (heat, node, gpu.index), heat + HOTTER_C
    for total, values in zip(
        (totals.busy, totals.sm, totals.power, totals.both, totals.limit), (busy, sm, power, both, limits), strict=True
    ):
        total.add(values)


HOTTER_C = 0.5  # what is hotter by less is as hot: of equals the first is named


def _of_fleet(totals: Totals, view: FleetView) -> list[Part]:
    """E.g. ``511 of 512 GPUs  jobs 2  ranks 496  sm 43%  power 81/358kW  hottest 91C n3 GPU 2  lag 4.2s``."""
    nodes = len(view.nodes)
    least = "≥" if totals.live < nodes else ""
    parts: list[Part] = [
        (1, gpu_count(totals, view)),
        (3, _count("jobs", len(totals.jobs), totals, least)),
        (2, _count("ranks", totals.ranks, totals, least)),
        (5, labelled("sm", percent(totals.sm.mean)) if totals.sm.count else []),
        (6, labelled("busy", percent(totals.busy.mean)) if totals.busy.count and not totals.sm.count else []),
        (4, _power(totals, least)),
    ]
    if totals.hottest is not None:
        temperature, node, index = totals.hottest
        names = short_names(tuple([node.node for node in view.nodes]))
        parts.append((8, labelled("hottest", f"{celsius(temperature)} {names.get(node, node)} GPU {index}")))
    return [*parts, (7, _lag(totals.lag_s))]


def gpu_count(totals: Totals, view: FleetView) -> list[Cell]:
    """ "511 of 512 GPUs", in colour where some do not answer; of nodes that are away nothing is known now."""
    if not totals.seen:
        return [Cell(gpus_unseen(node.whole for node in view.nodes) if totals.heard else "GPUs unknown", "dim")]
    if totals.ok == totals.seen:
        return [Cell(counted(totals.seen, "GPU"))]
    style = "crit" if totals.ok < totals.gpus else "warn"
    return [Cell(f"{totals.ok} of {counted(totals.seen, 'GPU')}", style)]


def _count(label: str, number: int, totals: Totals, least: str) -> list[Cell]:
    """ "ranks ≥12" when not every node says, unknown when none does."""
    return labelled(label, f"{least}{number}" if totals.live else UNKNOWN)


_KILOWATTS = 1000.0  # from here on both are written in these


def _power(totals: Totals, least: str = "") -> list[Cell]:
    """Draw and limit of the same GPUs, those that report both; else the draw alone."""
    few = "≥" if totals.power.count < totals.seen else least
    if totals.both.count and totals.both.count == totals.power.count:
        drawn, limit = totals.both.value, totals.limit.value
        in_kw = limit >= _KILOWATTS
        text = f"{drawn / 1000:.1f}/{limit / 1000:.1f}kW" if in_kw else of(kilowatts(drawn), kilowatts(limit))
        return labelled("power", few + text)
    return labelled("power", few + kilowatts(totals.power.value) if totals.power.count else UNKNOWN)


def _lag(lag_s: float | None) -> list[Cell]:
    """Only where it is worth a look: what is always there and always moves nobody reads."""
    return labelled("lag", seconds(lag_s), "warn") if lag_s is not None and lag_s >= LONG_LAG_S else []


LONG_LAG_S = 4.0


def _of_one_node(view: FleetView, totals: Totals) -> list[Part]:
    sample = view.nodes[0].sample if view.nodes else None
    jobs = sorted({job for job, _ in totals.jobs if job})
    uptime_s = sample.host.uptime_s if sample is not None else None
    driver = next((gpu.driver for gpu in sample.gpus if gpu.driver), "") if sample is not None else ""
    return [
        (1, _models(sample)),
        (2, labelled("job", jobs[0]) if len(jobs) == 1 else labelled("jobs", str(len(jobs))) if jobs else []),
        (3, labelled("ranks", str(totals.ranks)) if totals.ranks else []),
        (4, labelled("sm", percent(totals.sm.mean)) if totals.sm.count else []),
        (4, labelled("busy", percent(totals.busy.mean)) if totals.busy.count and not totals.sm.count else []),
        (5, _power(totals) if totals.power.count else []),
        (7, labelled("driver", driver) if driver else []),
        (8, labelled("up", rough_time(uptime_s)) if uptime_s is not None else []),
        (6, _lag(totals.lag_s)),
    ]


def _models(sample: Sample | None) -> list[Cell]:
    """ "8xH100": how many of which."""
    if sample is None or not sample.gpus:
        return [Cell(gpus_unseen([sample]), "dim")] if sample is not None else []
    models = Counter(short_model(gpu.name or "") for gpu in sample.gpus)
    text = " + ".join(f"{count}x{model or 'GPU'}" for model, count in models.items())
    lost = sum(gpu.state != "ok" for gpu in sample.gpus)
    return [Cell(text), *([Cell(f" {lost} not ok", "crit")] if lost else [])]


def short_model(name: str) -> str:
    """ "H100" of "NVIDIA H100 80GB HBM3": the first word with a digit."""
    words = name.replace("NVIDIA", "").replace("GeForce", "").split()
    return next((word for word in words if any(char.isdigit() for char in word)), words[0] if words else "")


def _is_live(node: NodeView) -> bool:
    return node.state.state == "live"


MIN_TITLE = 8  # cells of a title that is cut


def header_cells(
    view: FleetView,
    titles: Sequence[str],
    width: int = 80,
    *,
    clock: Cell | None = None,
    marked: int = 0,
    motions: Sequence[JobMotion] = (),
    totals: Totals | None = None,
) -> list[Cell]:
    """The line, at most ``width`` cells; what matters least is dropped first.

    ``titles``: what is shown, long ones first. That the picture is simulated or of another time, or that a node is not
    well, is what is dropped last. ``clock``: in place of the time of the picture. ``marked``: the user's nodes.
    ``motions``: how jobs get on. ``totals``: of this view, where they are known.
    """
    several = len(view.nodes) != 1
    totals = totals or totals_of(view)
    parts = _of_fleet(totals, view) if several else _of_one_node(view, totals)
    if len(motions) == 1 and motions[0].phase == "moving" and (motions[0].rhythm or motions[0].slowdown) is not None:
        parts.append((9, [Cell(motion_words(motions[0]))]))  # that one stands still says line 1
    marks = _marks(view)
    if several and nobody_answered(view):  # line 1 says it
        parts, marks = [], []
    own: list[Part] = [(0, [Cell(f"{marked} marked", "key")])] if marked else []
    right = [*([Cell("SIMULATED", "dim"), Cell("  ")] if _is_simulated(view) else [])]
    right.append(clock or Cell(clock_time(view.taken_at), "dim"))
    for title in titles:
        fixed: list[Part] = [(0, [Cell(title, "title")]), *((0, [mark]) for mark in marks[:1])]
        room = width - line_width(right) - 2
        if sum(line_width(cells) + 2 for _, cells in fixed) - 2 <= room:
            line = flow([*fixed, *own, *parts], room)
            return [*line, Cell(" " * (width - line_width(line) - line_width(right))), *right]
    return _short(titles[-1], marks, _is_simulated(view), clock, width)


def _short(title: str, marks: Sequence[Cell], simulated: bool, clock: Cell | None, width: int) -> list[Cell]:
    """Where there is no room for all that must be said: what fits whole, then of the title what fits."""
    said: list[Sequence[Cell]] = [[Cell("SIM", "dim")] if simulated else [], [clock] if clock else [], marks]
    line: list[Cell] = []
    for ways in said:
        room = width - line_width(line) - bool(line)
        if (fits := _first(ways, room)) is not None:
            line += [*([Cell(" ")] if line else []), fits]
    room = width - line_width(line) - bool(line)
    if room < MIN_TITLE and line:
        return line
    return [*line, *([Cell(" ")] if line else []), Cell(clip(title, room).rstrip(), "title")]


def _first(ways: Sequence[Cell], room: int) -> Cell | None:
    """The first of them that fits."""
    return next((cell for cell in ways if line_width([cell]) <= room), None)


def _is_simulated(view: FleetView) -> bool:
    return any(node.whole.simulated for node in view.nodes if node.whole is not None)


def _marks(view: FleetView) -> list[Cell]:
    """That nodes are not well, at length and, of several, in brief."""
    worst = gravest(node.state.state for node in view.nodes)
    if worst == "live":
        return []
    count = sum(node.state.state == worst for node in view.nodes)
    texts = [_node_states(view.nodes, worst), *([f"{count} {worst}"] if len(view.nodes) > 1 else [])]
    return [Cell(text, NODE_STYLE.get(worst, "warn")) for text in texts]


def _node_states(nodes: Sequence[NodeView], worst: str) -> str:
    """ "lost", or "1 lost, 2 stale", while some connect "connecting 41/64, 2 lost"."""
    if len(nodes) == 1:
        return worst
    states: Counter[str] = Counter(node.state.state for node in nodes)
    live, connecting = states.pop("live", 0), states.pop("connecting", 0)
    first = [f"connecting {live}/{len(nodes)}"] if connecting else []
    return ", ".join([*first, *(f"{states[state]} {state}" for state in sorted(states))])
