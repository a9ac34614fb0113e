"""The two texts around the heatmap: the legend above it, the node under the cursor below it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.model import Finding
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import severity_cell, worst
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.heat import ERROR, LETTERS, LOST, MARK, SIGNS, UNKNOWN, NodeHeat, statuses
from mltop.tui.render.heat_grid import CELLS, SIGN_OF
from mltop.tui.render.metrics import METRICS, Metric, activity_source
from mltop.tui.render.nodes import gpus_per_glyph, node_state
from mltop.tui.render.states import NODE_STYLE
from mltop.tui.render.wrap import flow

Part = tuple[int, Sequence[Cell]]


@dataclass(frozen=True)
class Legend:
    """What stands above the nodes. ``source``: which activity the GPUs report; ``sorted_by``: the list's column."""

    heats: Sequence[NodeHeat]
    metric: Metric
    source: str = ""
    worst_first: bool = True
    marked: int = 0
    not_judged: int = 0
    sorted_by: str = ""

    def scale(self, which: str = "") -> list[Part]:
        metric = self.metric
        title = f" {which}{metric.title}" + (f" ({self.source})" if metric is METRICS[0] and self.source else "")
        ramp = GLYPHS.ramp
        return [
            (0, [Cell("m", "accent"), Cell(title, "bold")]),
            (1, [Cell(f"{ramp[0]} {metric.low} {ramp[-1]} {metric.high}", "dim")]),
        ]

    def nodes(self) -> list[Part]:
        judged: list[Part] = [(2, [Cell(f"{self.not_judged} not judged yet", "dim")])] if self.not_judged else []
        return [*counts(statuses(self.heats)), *judged, *_marked(self.marked)]


def map_legend(legend: Legend, density: str, width: int) -> list[Cell]:
    """What matters least is dropped where the line is too short."""
    which = ("lowest " if legend.metric.low_is_bad else "highest ") if density == CELLS else ""
    parts = [*legend.scale(which), *legend.nodes()]
    if density == CELLS:
        parts.append((3, [Cell("1 cell = 1 node", "dim")]))
    parts += _signs(legend.heats, density)
    parts += _ways(legend.worst_first, "list")
    return flow(parts, width)


def list_legend(legend: Legend, width: int) -> list[Cell]:
    ways = _ways(legend.worst_first, "map")
    if legend.sorted_by:
        ways[0] = (2, [Cell("s", "accent"), Cell(f" sorted by {legend.sorted_by}", "dim")])
    groups = {gpus_per_glyph(len(heat.codes)) for heat in legend.heats if heat.codes}
    most = max(groups, default=1)
    bars: list[Part] = []
    if most > 1:
        bars.append((3, [Cell(f"1 bar = {'' if len(groups) == 1 else 'up to '}{most} GPUs", "dim")]))
    return flow([*legend.scale(), *legend.nodes(), *bars, *ways], width)


def counts(found: Mapping[str, int]) -> list[Part]:
    """``! 2 nodes CRIT  ~ 1 WARN  61 fine``: how many nodes have which colour, in words."""
    parts: list[Part] = []
    for place, (status, word) in enumerate((("crit", "CRIT"), ("warn", "WARN"))):
        number = found.get(status, 0)
        if number:
            nodes = "" if parts else "node " if number == 1 else "nodes "
            parts.append((place, [Cell(f"{SIGN_OF[status]} {number} {nodes}{word}", status)]))
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


def node_lines(
    view: NodeView, findings: Sequence[Finding], metric: Metric, width: int, judged: bool = True
) -> list[list[Cell]]:
    """The node under the cursor: its state and its GPUs in figures; then why it is not live, or what is wrong."""
    return [_figures(view, metric, width), _why(view, findings, width, judged)]


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


def _why(view: NodeView, findings: Sequence[Finding], width: int, judged: bool) -> list[Cell]:
    state = view.state
    if state.state != "live" and state.reason:
        return flow([(0, [Cell(state.reason, NODE_STYLE.get(state.state, "warn"))])], width)
    finding = worst(findings)
    if finding is None:
        fine = "no problems found" if judged else "not judged yet"
        return [Cell(fine if state.state == "live" else "", "dim")]
    severity = severity_cell(finding.severity)
    subject = "" if finding.subject in finding.message else f"{finding.subject}: "
    more = f"  and {len(findings) - 1} more" if len(findings) > 1 else ""
    action = f" {GLYPHS.dash} {finding.action}" if finding.action else ""
    return [severity, Cell(f" {subject}{finding.message}"), Cell(more, "dim"), Cell(action, "accent")]
