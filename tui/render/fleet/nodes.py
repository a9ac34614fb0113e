"""A node as a table row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from mltop.probes.judge.values import mean_of
from mltop.probes.model import Finding
from mltop.probes.model.units import UNKNOWN, celsius, known, number, percent, seconds, watts
from mltop.probes.reach.view import GpuSummary, NodeView
from mltop.tui.render.cells import Cell, Column, Row, row_of
from mltop.tui.render.findings import severity_cell, worst
from mltop.tui.render.fleet.heat import ERROR, LOST, MARK, SIGNS, Metric, NodeHeat, codes_of, worst_code
from mltop.tui.render.glyphs import GLYPHS, height
from mltop.tui.render.states import NODE_STYLE, gravity

GLYPHS_PER_NODE = 8


class NodeLine(NamedTuple):
    """What a row of NODE_COLUMNS is about. ``findings`` of other nodes are ignored; ``name`` stands for the node's.

    With ``heat`` and ``metric`` its GPUs are shown as on the map.
    """

    view: NodeView
    findings: Sequence[Finding] = ()
    name: str = ""
    marked: bool = False
    heat: NodeHeat | None = None
    metric: Metric | None = None

    @property
    def gpus(self) -> Sequence[GpuSummary]:
        return self.view.summary.gpus if self.view.summary is not None else ()

    @property
    def busy(self) -> float | None:
        return mean_of(_numbers(gpu.busy for gpu in self.gpus))

    @property
    def slowest_clock(self) -> float | None:
        """The lowest share of its maximum clock that any GPU runs at which has work; idle ones clock down."""
        ratios = [
            gpu.sm_clock_mhz / gpu.sm_clock_max_mhz
            for gpu in self.gpus
            if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz and gpu.throttle_reasons != ("gpu_idle",)
        ]
        return min(ratios, default=None)

    @property
    def hottest(self) -> float | None:
        return max(_numbers(gpu.temperature_c for gpu in self.gpus), default=None)

    @property
    def power_w(self) -> float | None:
        return total([gpu.power_w for gpu in self.gpus])

    @property
    def ranks(self) -> int | None:
        return None if self.view.summary is None else len(self.view.summary.ranks)

    @property
    def worst(self) -> Finding | None:
        return worst(finding for finding in self.findings if finding.node == self.view.node)


def _figure(key: str, title: str, width: int, show: Callable[[Any], str], name: str, **layout: Any) -> Column:
    """A column about the property ``name`` of NodeLine. What a node that is not live said last is dim."""
    get = attrgetter(name)
    return Column.of(
        key, title, width, name, right=True, cell=lambda line: Cell(show(get(line)), _aged(line)), **layout
    )


def _aged(line: NodeLine) -> str:
    return "" if line.view.state.state == "live" else "dim"


def node_state(view: NodeView) -> Cell:
    """ "live 0.8s", "stale 12s", "lost 3m20s": the state and how old the newest sample is."""
    state = view.state
    text = state.state if state.age_s is None else f"{state.state} {seconds(state.age_s)}"
    return Cell(text, NODE_STYLE.get(state.state, ""))


def state_sentence(view: NodeView) -> Cell:
    """ "STALE 7.0s: no sample for 7 s", "LOST 3.2s: the agent ended", "CONNECTING"."""
    state = view.state
    text = state.state.upper() if state.age_s is None else f"{state.state.upper()} {seconds(state.age_s)}"
    return Cell(f"{text}: {state.reason}" if state.reason else text, NODE_STYLE.get(state.state, "warn"))


def total(values: Sequence[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    numbers = _numbers(values)
    return sum(numbers) if numbers else None


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and known(value)]


def _power(line: NodeLine) -> Cell:
    """The draw of all GPUs; "≥2218W" when not all report theirs."""
    reporting = len(_numbers(gpu.power_w for gpu in line.gpus))
    return Cell(("≥" if 0 < reporting < len(line.gpus) else "") + watts(line.power_w), _aged(line))


def gpus_per_glyph(gpus: int) -> int:
    return -(-gpus // GLYPHS_PER_NODE)


def metric_glyphs(view: NodeView, heat: NodeHeat, metric: Metric) -> Cell:
    """One glyph per GPU; with more than eight, one per group (its worst GPU). Dim: what the node said last."""
    gpus = view.summary.gpus if view.summary is not None else ()
    if not gpus:
        return Cell(UNKNOWN)
    codes = heat.codes or codes_of(gpus, metric)
    group = gpus_per_glyph(len(codes))
    worst_ones = [worst_code(codes[start : start + group], metric) for start in range(0, len(codes), group)]
    style = "crit" if view.state.state == "live" and any(code in (LOST, ERROR) for code in codes) else "dim"
    return Cell("".join(SIGNS[code] for code in worst_ones), style)


def _glyphs(line: NodeLine) -> Cell:
    """One glyph per GPU; with more than eight, one per group (its least busy GPU); X: one of them is lost."""
    gpus = line.gpus
    if line.heat is not None and line.metric is not None:
        return metric_glyphs(line.view, line.heat, line.metric)
    if not gpus:
        return Cell(UNKNOWN)
    group = gpus_per_glyph(len(gpus))
    groups = [gpus[start : start + group] for start in range(0, len(gpus), group)]
    text = "".join(map(_group_glyph, groups))
    return Cell(text, "crit" if any(gpu.state != "ok" for gpu in gpus) else "dim")


def _group_glyph(gpus: Sequence[GpuSummary]) -> str:
    if any(gpu.state != "ok" for gpu in gpus):
        return GLYPHS.lost
    values = _numbers(gpu.busy for gpu in gpus)
    return height(min(values) if len(values) == len(gpus) else None)


def _worst(line: NodeLine) -> Cell:
    """Why there are no samples, or the most severe finding; blank: none."""
    state, finding = line.view.state, line.worst
    if state.reason and state.state != "live":
        return Cell(state.reason, NODE_STYLE.get(state.state, ""))
    if finding is None:
        return Cell("")
    severity = severity_cell(finding.severity)
    return Cell(f"{severity.text} {finding.message}", severity.style)


def _name(line: NodeLine) -> str:
    return line.name or line.view.node


def _gravity(line: NodeLine) -> int | None:
    """For sorting: the nodes with the gravest state or finding first."""
    if line.view.state.state != "live":
        return -1
    return None if line.worst is None else gravity(line.worst.severity)


NODE_COLUMNS = (
    Column("node", "NODE", 14, cell=_name, value=_name),
    Column("state", "STATE", 12, cell=lambda line: node_state(line.view), value=lambda line: line.view.state.state),
    Column("gpus", "GPUS", GLYPHS_PER_NODE, cell=_glyphs, value=lambda line: line.busy),
    _figure("busy", "BUSY", 4, percent, "busy", priority=1),
    _figure("clock", "CLOCK", 5, percent, "slowest_clock", priority=2),
    _figure("hottest", "HOT", 4, celsius, "hottest", priority=2),
    Column("power", "POWER", 7, right=True, priority=3, cell=_power, value=lambda line: line.power_w),
    _figure("ranks", "RANKS", 5, number, "ranks"),
    Column("worst", "WORST", 12, stretch=True, cell=_worst, value=_gravity),
)
MARKED_NODE_COLUMNS = (Column("mark", "", 1, cell=lambda line: Cell(MARK * line.marked, "accent")), *NODE_COLUMNS)


def node_row(view: NodeView, findings: Sequence[Finding] = ()) -> Row:
    """One row of NODE_COLUMNS, key: the node's name."""
    return row_of(NODE_COLUMNS, NodeLine(view, findings), view.node)
