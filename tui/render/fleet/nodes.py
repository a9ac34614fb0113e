"""A node as a table row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mltop.probes.model import Finding
from mltop.probes.reach.view import GpuGlance, NodeView
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.findings import severity_cell, worst
from mltop.tui.render.fleet.heat import MARK, SIGNS, Metric, NodeHeat, codes_of, worst_code
from mltop.tui.render.fleet.heat import UNKNOWN_CODE as NO_CODE
from mltop.tui.render.glyphs import GLYPHS, height
from mltop.tui.render.states import NODE_STYLE
from mltop.tui.render.units import UNKNOWN, age, celsius, known, percent, watts

GLYPHS_PER_NODE = 8

NODE_COLUMNS = (
    Column("node", "NODE", 14),
    Column("state", "STATE", 12),
    Column("gpus", "GPUS", GLYPHS_PER_NODE),
    Column("busy", "BUSY", 4, right=True, priority=1),
    Column("clock", "CLOCK", 5, right=True, priority=2),
    Column("hottest", "HOT", 4, right=True, priority=2),
    Column("power", "POWER", 7, right=True, priority=3),
    Column("ranks", "RANKS", 5, right=True),
    Column("worst", "WORST", 12, stretch=True),
)

MARKED_NODE_COLUMNS = (Column("mark", "", 1), *NODE_COLUMNS)


def marked_node_columns(width: int) -> tuple[Column, ...]:
    """MARKED_NODE_COLUMNS with a NODE column of ``width`` cells."""
    return tuple(replace(one, width=width) if one.key == "node" else one for one in MARKED_NODE_COLUMNS)


def marked_node_row(
    view: NodeView, heat: NodeHeat, metric: Metric, findings: Sequence[Finding], *, name: str, marked: bool
) -> Row:
    """One row of MARKED_NODE_COLUMNS; ``name`` stands for the node's, its GPUs show ``metric`` as on the map."""
    _, *cells = node_row(view, findings).cells
    at = [column.key for column in NODE_COLUMNS].index("gpus") - 1
    cells[at] = metric_glyphs(view, heat, metric)
    return Row(view.node, (Cell(MARK, "accent") if marked else Cell(""), Cell(name), *cells))


def node_row(view: NodeView, findings: Sequence[Finding] = ()) -> Row:
    """One row of NODE_COLUMNS, key: the node's name. ``findings`` of other nodes are ignored.

    What a node that is not live said last is dim.
    """
    glance = view.glance
    gpus = glance.gpus if glance is not None else ()
    aged = "" if view.state.state == "live" else "dim"
    cells = (
        Cell(view.node),
        node_state(view),
        _gpu_glyphs(gpus, aged),
        Cell(percent(mean([gpu.busy for gpu in gpus])), aged),
        Cell(percent(_slowest_clock(gpus)), aged),
        Cell(celsius(max(_numbers(gpu.temperature_c for gpu in gpus), default=None)), aged),
        Cell(_power(gpus), aged),
        Cell(UNKNOWN if glance is None else str(len(glance.ranks)), aged),
        _worst(view, findings),
    )
    return Row(view.node, cells)


def node_state(view: NodeView) -> Cell:
    """ "live 0.8s", "stale 12s", "lost 3m20s": the state and how old the newest sample is."""
    state = view.state
    text = state.state if state.age_s is None else f"{state.state} {age(state.age_s)}"
    return Cell(text, NODE_STYLE.get(state.state, ""))


def state_sentence(view: NodeView) -> Cell:
    """ "STALE 7.0s: no sample for 7 s", "LOST 3.2s: the agent ended", "CONNECTING"."""
    state = view.state
    text = state.state.upper() if state.age_s is None else f"{state.state.upper()} {age(state.age_s)}"
    return Cell(f"{text}: {state.reason}" if state.reason else text, NODE_STYLE.get(state.state, "warn"))


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known; None when nothing is."""
    numbers = _numbers(values)
    return sum(numbers) / len(numbers) if numbers else None


def total(values: Sequence[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    numbers = _numbers(values)
    return sum(numbers) if numbers else None


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and known(value)]


def _power(gpus: Sequence[GpuGlance]) -> str:
    """The draw of all GPUs; "2218W+" when not all report theirs."""
    known_ones = _numbers(gpu.power_w for gpu in gpus)
    return watts(total(known_ones)) + ("+" if 0 < len(known_ones) < len(gpus) else "")


def _slowest_clock(gpus: Sequence[GpuGlance]) -> float | None:
    """The lowest share of its maximum clock that any GPU runs at which has work; idle ones clock down."""
    ratios = [
        gpu.sm_clock_mhz / gpu.sm_clock_max_mhz
        for gpu in gpus
        if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz and gpu.throttle_reasons != ("gpu_idle",)
    ]
    return min(ratios, default=None)


def gpus_per_glyph(gpus: int) -> int:
    return -(-gpus // GLYPHS_PER_NODE)


def metric_glyphs(view: NodeView, heat: NodeHeat, metric: Metric) -> Cell:
    """One glyph per GPU; with more than eight, one per group (its worst GPU). Dim: what the node said last."""
    gpus = view.glance.gpus if view.glance is not None else ()
    if not gpus:
        return Cell(UNKNOWN)
    codes = heat.codes or codes_of(gpus, metric)
    group = gpus_per_glyph(len(codes))
    worst_ones = [worst_code(codes[start : start + group], metric) for start in range(0, len(codes), group)]
    style = "crit" if view.state.state == "live" and max(codes) > NO_CODE else "dim"
    return Cell("".join(SIGNS[code] for code in worst_ones), style)


def _gpu_glyphs(gpus: Sequence[GpuGlance], aged: str) -> Cell:
    """One glyph per GPU; with more than eight, one per group (its least busy GPU); X: one of them is lost."""
    if not gpus:
        return Cell(UNKNOWN)
    group = gpus_per_glyph(len(gpus))
    groups = [gpus[start : start + group] for start in range(0, len(gpus), group)]
    text = "".join(map(_group_glyph, groups))
    return Cell(text, "crit" if GLYPHS.lost in text else aged or "dim")


def _group_glyph(gpus: Sequence[GpuGlance]) -> str:
    if any(gpu.state != "ok" for gpu in gpus):
        return GLYPHS.lost
    values = _numbers(gpu.busy for gpu in gpus)
    return height(min(values) if len(values) == len(gpus) else None)


def _worst(view: NodeView, findings: Sequence[Finding]) -> Cell:
    """Why there are no samples, or the most severe finding; blank: none."""
    state = view.state
    if state.reason and state.state != "live":
        return Cell(state.reason, NODE_STYLE.get(state.state, ""))
    finding = worst(finding for finding in findings if finding.node == view.node)
    if finding is None:
        return Cell("")
    severity = severity_cell(finding.severity)
    subject = "" if finding.message.startswith(finding.subject) else f"{finding.subject} "
    return Cell(f"{severity.text} {subject}{finding.message}", severity.style)
