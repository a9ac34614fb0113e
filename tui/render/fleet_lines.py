"""The two texts around the heatmap: the legend above it, the node under the cursor below it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mltop.probes.model import Finding
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import severity_cell, worst
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.heat import ERROR, LETTERS, LOST, MARK, SIGNS, UNKNOWN, NodeHeat, statuses
from mltop.tui.render.heat_grid import CELLS, SIGN_OF
from mltop.tui.render.metrics import METRICS, Metric, activity_source
from mltop.tui.render.nodes import node_state
from mltop.tui.render.states import NODE_STYLE
from mltop.tui.render.wrap import flow

Part = tuple[int, Sequence[Cell]]


def map_legend(
    heats: Sequence[NodeHeat],
    metric: Metric,
    *,
    density: str,
    source: str,
    worst_first: bool,
    marked: int,
    width: int,
) -> list[Cell]:
    """``source``: which activity the GPUs report. What matters least is dropped where the line is too short."""
    which = ("lowest " if metric.low_is_bad else "highest ") if density == CELLS else ""
    title = f" {which}{metric.title}" + (f" ({source})" if metric is METRICS[0] and source else "")
    ramp = GLYPHS.ramp
    parts: list[Part] = [
        (0, [Cell("m", "accent"), Cell(title, "bold")]),
        (1, [Cell(f"{ramp[0]} {metric.low} {ramp[-1]} {metric.high}", "dim")]),
        *counts(statuses(heats)),
        *_marked(marked),
    ]
    if density == CELLS:
        parts.append((3, [Cell("1 cell = 1 node", "dim")]))
    parts += _signs(heats, density)
    parts += _ways(worst_first, "list")
    return flow(parts, width)


def list_legend(heats: Sequence[NodeHeat], worst_first: bool, marked: int, width: int) -> list[Cell]:
    return flow([*counts(statuses(heats)), *_marked(marked), *_ways(worst_first, "map")], width)


def counts(found: Mapping[str, int]) -> list[Part]:
    """``! 2 CRIT  ~ 1 WARN  61 fine``: how many nodes have which colour, in words."""
    parts: list[Part] = [
        (place, [Cell(f"{SIGN_OF[status]} {found[status]} {word}", status)])
        for place, (status, word) in enumerate((("crit", "CRIT"), ("warn", "WARN")))
        if found.get(status)
    ]
    if found.get("connecting"):
        parts.append((1, [Cell(f"{found['connecting']} connecting", NODE_STYLE["connecting"])]))
    if found.get("unknown"):
        parts.append((1, [Cell(f"{found['unknown']} without GPU", "dim")]))
    fine = found.get("ok", 0)
    if fine or not parts:
        parts.append((1, [Cell(f"{fine} fine", "ok" if fine else "dim")]))
    return parts


def _marked(marked: int) -> list[Part]:
    """How many are marked stands in the header."""
    return [(2, [Cell(f"{MARK} marked", "accent")])] if marked else []


def _ways(worst_first: bool, other: str) -> list[Part]:
    order = "worst first" if worst_first else "by name"
    return [
        (4, [Cell("o", "accent"), Cell(f" {order}", "dim")]),
        (4, [Cell("v", "accent"), Cell(f" {other}", "dim")]),
    ]


def _signs(heats: Sequence[NodeHeat], density: str) -> list[Part]:
    """What the signs mean that stand on the map now."""
    codes: set[int] = set()
    states: set[str] = set()
    for heat in heats:
        codes.update(heat.codes)
        if heat.state != "live":
            states.add(heat.state)
    words = {UNKNOWN: ("unknown", "dim"), LOST: ("GPU lost", "crit"), ERROR: ("GPU error", "crit")}
    parts: list[Part] = [
        (3, [Cell(f"{SIGNS[code]} {word}", style)]) for code, (word, style) in words.items() if code in codes
    ]
    if density == CELLS:
        parts += [
            (3, [Cell(f"{letter} {state}", NODE_STYLE[state])]) for state, letter in LETTERS.items() if state in states
        ]
    return parts


def node_lines(view: NodeView, findings: Sequence[Finding], metric: Metric, width: int) -> list[list[Cell]]:
    """The node under the cursor: its state and its GPUs in figures; then why it is not live, or what is wrong."""
    return [_figures(view, metric, width), _why(view, findings, width)]


def _figures(view: NodeView, metric: Metric, width: int) -> list[Cell]:
    parts: list[Part] = [(0, [Cell(view.node, "bold")]), (0, [node_state(view)])]
    glance = view.glance
    if glance is None:
        return flow(parts, width)
    if not glance.gpus:
        return flow([*parts, (1, [Cell("no GPU seen", "dim")])], width)
    live = view.state.state == "live"
    own = metric is METRICS[0]
    source = activity_source(glance.gpus) if own else metric.title
    parts.append((3, [Cell(source or metric.title, "dim")]))
    for gpu in glance.gpus:
        text, style = (metric.text(gpu), "") if gpu.state == "ok" else (gpu.state.upper(), "crit")
        parts.append((2, [Cell(text, style if live else "dim")]))
    return flow(parts, width)


def _why(view: NodeView, findings: Sequence[Finding], width: int) -> list[Cell]:
    state = view.state
    if state.state != "live" and state.reason:
        return flow([(0, [Cell(state.reason, NODE_STYLE.get(state.state, "warn"))])], width)
    finding = worst(findings)
    if finding is None:
        return [Cell("no problems found" if state.state == "live" else "", "dim")]
    severity = severity_cell(finding.severity)
    subject = "" if finding.subject in finding.message else f"{finding.subject}: "
    more = f"  and {len(findings) - 1} more" if len(findings) > 1 else ""
    action = f" {GLYPHS.dash} {finding.action}" if finding.action else ""
    return [severity, Cell(f" {subject}{finding.message}"), Cell(more, "dim"), Cell(action, "accent")]
