"""A node as a table row; and how nodes that have not answered yet are being reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from mltop.probes.judge.values import grouped, mean_of
from mltop.probes.model import Finding
from mltop.probes.model.units import UNKNOWN, celsius, clock_time, counted, known, number, percent, seconds, watts
from mltop.probes.model.vocabulary import gravity
from mltop.probes.reach.view import AnyGpu, FleetView, NodeView
from mltop.tui.render.cells import Cell, Column, Row, clip, line_width, row_of, wrap
from mltop.tui.render.findings import folded_names, severity_cell, worst
from mltop.tui.render.fleet.heat import ERROR, LOST, MARK, METRICS, SIGNS, Metric, NodeHeat, codes_of, worst_code
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import NODE_STYLE

GLYPHS_PER_NODE = 8
SIGN_OF = {"stands": GLYPHS.alarm, "crit": GLYPHS.finding, "warn": GLYPHS.finding}
SIGN_STYLE = {"stands": "crit", "crit": "crit", "warn": "warn"}


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
    still: Cell | None = None  # how its job stands, where it does

    @property
    def gpus(self) -> Sequence[AnyGpu]:
        return self.view.gpus

    @property
    def busy(self) -> float | None:
        return mean_of(_numbers(gpu.busy for gpu in self.gpus))

    @property
    def slowest_clock(self) -> float | None:
        """The lowest share of its maximum clock that any GPU runs at which has work; idle ones clock down."""
        ratios = [
            gpu.sm_clock_mhz / gpu.sm_clock_max_mhz
            for gpu in self.gpus
            if gpu.sm_clock_mhz is not None
            and gpu.sm_clock_max_mhz
            and tuple(gpu.throttle_reasons or ()) != ("gpu_idle",)
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
        return None if self.view.newest is None else len(self.view.ranks)

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


def _glyphs(line: NodeLine) -> Cell:
    """One glyph per GPU; with more than eight, one per group (its worst GPU). Dim: what the node said last."""
    gpus, metric = line.gpus, line.metric or METRICS[0]
    if not gpus:
        return Cell(UNKNOWN)
    codes = (line.heat.codes if line.heat is not None else b"") or codes_of(gpus, metric)
    group = gpus_per_glyph(len(codes))
    worst_ones = [worst_code(codes[start : start + group], metric) for start in range(0, len(codes), group)]
    is_bad = line.view.state.state == "live" and any(code in (LOST, ERROR) for code in codes)
    return Cell("".join(SIGNS[code] for code in worst_ones), "crit" if is_bad else "dim")


def _worst(line: NodeLine) -> Cell:
    """Why there are no samples, or the most severe finding; blank: none."""
    state, finding = line.view.state, line.worst
    if state.reason and state.state != "live":
        return Cell(state.reason, NODE_STYLE.get(state.state, ""))
    if finding is None:
        return line.still or Cell("")
    severity = severity_cell(finding.severity)
    return Cell(f"{severity.text} {finding.message}", severity.style)


def _name(line: NodeLine) -> str:
    return line.name or line.view.node


def sign(heat: NodeHeat, marked: bool) -> Cell:
    """Before a node's name, in the map and in the list: that the user marked it, that it holds a job up, or that
    something is wrong.
    """
    style = SIGN_STYLE.get(heat.status, "")
    return Cell(MARK, style or "key") if marked else Cell(SIGN_OF.get(heat.status, " "), style)


def _gravity(line: NodeLine) -> int | None:
    """For sorting: who holds a job up, then the nodes with the gravest state or finding."""
    if line.heat is not None and line.heat.status == "stands":
        return -2
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
MARKED_NODE_COLUMNS = (
    Column("mark", "", 1, cell=lambda line: Cell("") if line.heat is None else sign(line.heat, line.marked)),
    *NODE_COLUMNS,
)


def node_row(view: NodeView, findings: Sequence[Finding] = ()) -> Row:
    """One row of NODE_COLUMNS, key: the node's name."""
    return row_of(NODE_COLUMNS, NodeLine(view, findings), view.node)


# While nodes have not answered.

SLOW_S = 10.0  # who has not answered by then may never do
MOST_NAMES = 24  # cells
_NOT_TRIED = "waiting for its turn"


def connecting_since(nodes: Sequence[NodeView]) -> float | None:
    """When the first of those that have not answered was begun to be reached, unix s; None: none was so far."""
    tried = [node.connection.tried_at for node in nodes if node.state.state == "connecting"]
    return min((at for at in tried if at is not None), default=None)


def nobody_answered(view: FleetView) -> bool:
    """Whether all there is to say is how the nodes are being reached."""
    return bool(view.nodes) and all(node.state.state == "connecting" and node.newest is None for node in view.nodes)


def connecting_lines(view: FleetView, width: int, room: int) -> list[list[Cell]]:
    """A line for all nodes that are equally far: which, since when, and what is waited for."""
    waiting = [node for node in view.nodes if node.state.state == "connecting"]
    groups = [*grouped(waiting, lambda node: node.state.reason or _NOT_TRIED).items()]
    if not groups or room < 1:
        return []
    names = [folded_names(tuple(node.node for node in nodes)) for _, nodes in groups]
    start = min(MOST_NAMES, max(map(len, names)), max(6, width // 3)) + 2
    lines: list[list[Cell]] = []
    for name, (why, nodes) in zip(names, groups, strict=True):
        shown = name if len(name) <= start - 2 else clip(counted(len(nodes), "node"), start - 2)
        since = connecting_since(nodes)
        ago = (
            f" for {seconds(float(int(view.taken_at - since)))}, since {clock_time(since)}" if since is not None else ""
        )
        text = wrap([Cell(f"{why}{ago}")], max(1, width - start))
        head = [Cell(f"{shown:<{start}}", "title")]
        lines += [[*(head if not at else [Cell(" " * start)]), *line] for at, line in enumerate(text)]
    by_ssh = ((node.node, node.connection.tried_at) for node in waiting if node.connection.trying == "ssh")
    by_hand = next((name for name, at in by_ssh if at is not None and view.taken_at - at >= SLOW_S), "")
    hint = [Cell("to see why, run:", "dim"), Cell(f" ssh {by_hand} true", "key")]
    if by_hand and line_width(hint) <= width - start:
        lines += [[Cell(" " * start), *hint]]
    return lines[:room]
