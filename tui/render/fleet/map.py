"""The heatmap as lines: short names, where each node stands, its line, the legend, the node under the cursor."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType

from mltop.probes.model import Finding
from mltop.probes.model.units import counted
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell, clip, flow, styled
from mltop.tui.render.findings import severity_cell, worst
from mltop.tui.render.fleet.heat import (
    ERROR,
    FINE_RANK,
    LETTERS,
    LOST,
    MARK,
    METRICS,
    NO_GPU,
    RANKS,
    SIGNS,
    UNKNOWN_CODE,
    Metric,
    NodeHeat,
    activity_source,
    letter,
    statuses,
)
from mltop.tui.render.fleet.nodes import gpus_per_glyph, node_state
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import NODE_STYLE

NAME_MOST = 24  # cells


@lru_cache(maxsize=8)
def short_names(names: tuple[str, ...]) -> Mapping[str, str]:
    """By name: without the dotted suffix that all of ``names`` share, at most NAME_MOST cells of its end.

    Addresses and a single name stay whole: the end of an address is what tells it from others.
    """
    labels = [name.split(".") for name in names]
    shared = 0
    if len(set(names)) > 1 and not any(_is_address(name) for name in names):
        most = min(len(parts) for parts in labels) - 1  # a name keeps its first label
        while shared < most and len({parts[-1 - shared] for parts in labels}) == 1:
            shared += 1
    return {name: _cut(".".join(parts[: len(parts) - shared])) for name, parts in zip(names, labels, strict=True)}


def name_width(names: Mapping[str, str], least: int) -> int:
    """Cells of the longest of ``short_names``, ``least`` or more."""
    return max(least, max(map(len, names.values()), default=0))


def _is_address(name: str) -> bool:
    return ":" in name or name.rpartition(".")[2].isdigit()


def _cut(name: str) -> str:
    return name if len(name) <= NAME_MOST else clip(name, NAME_MOST, tail=True, marked=True)


NAMED, GROUPED, CELLS = "named", "grouped", "cells"  # name and GPUs; GPUs; one cell per node
DENSITIES = (NAMED, GROUPED, CELLS)
USUAL_GPUS = 8  # until a node has said how many it has
CELL_GROUP = 8  # cells between two blanks
SECTION_WIDTH = 6
SECTIONS = (("CRIT", "crit"), ("WARN", "warn"), ("fine", "dim"))  # by rank
NOT_ALL_FINE = "rest"
EASED = "eased"  # nodes that stand here because of what they had a moment ago
AT = "at-"  # begins the styles of the node under the cursor
SIGN_OF = {"crit": "!", "warn": "~"}


@dataclass(frozen=True)
class Grid:
    """``rows``: first and last + 1 node of every line. ``labels``: a section's word before its first line.

    ``margin``: blank cells and names before the first node; ``pitch``: cells from one node to the next.
    ``names``: what stands for a node's name; one that is not in it stands for itself.
    """

    density: str
    rows: tuple[tuple[int, int], ...]
    labels: tuple[Cell, ...]
    name_width: int
    gpu_width: int
    margin: int
    pitch: int
    per_row: int
    names: Mapping[str, str]

    def place(self, index: int) -> tuple[int, int]:
        """(line, column) of a node; (0, 0) on an empty map."""
        if not self.rows:
            return 0, 0
        line = bisect_right(self.rows, index, key=itemgetter(0)) - 1
        return line, index - self.rows[line][0]

    def at(self, line: int, column: int) -> int | None:
        """The node there, the last of a line that is shorter; None below the last line."""
        if not 0 <= line < len(self.rows):
            return None
        first, end = self.rows[line]
        return min(first + column, end - 1)

    def column_of(self, x: int) -> int | None:
        """The column of nodes at cell ``x``, None left of all."""
        x -= self.margin
        if x < 0:
            return None
        if self.density == CELLS:
            group, within = divmod(x, CELL_GROUP + 1)
            return group * CELL_GROUP + min(within, CELL_GROUP - 1)
        return x // self.pitch


def fitting(
    heats: Sequence[NodeHeat],
    ranks: Sequence[int] | None,
    width: int,
    height: int,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Grid:
    """The most detailed grid that shows all nodes in ``height`` lines; the densest, which scrolls, when none does."""
    for density in DENSITIES:
        grid = make_grid(heats, ranks, width, density, names)
        if len(grid.rows) <= height:
            break
    return grid


def make_grid(
    heats: Sequence[NodeHeat],
    ranks: Sequence[int] | None,
    width: int,
    density: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Grid:
    """The grid of ``heats``, in their order. ``ranks``: each one's, ascending, when a rank begins on its own line."""
    name_width = min(NAME_MOST, max((len(names.get(heat.node, heat.node)) for heat in heats), default=1))
    gpu_width = max((len(heat.codes) for heat in heats), default=0) or USUAL_GPUS
    margin = SECTION_WIDTH if ranks is not None else 0
    if density == NAMED:
        pitch = 1 + name_width + 1 + gpu_width + 1
        per_row = (width - margin + 1) // pitch
    else:
        margin += name_width + 1
        pitch = 1 + gpu_width if density == GROUPED else 1
        per_row = (width - margin) // pitch
        if density == CELLS:
            groups, rest = divmod(width - margin, CELL_GROUP + 1)
            per_row = groups * CELL_GROUP or min(rest, CELL_GROUP)
    per_row = max(1, per_row)
    rows = _rows(len(heats), ranks, per_row)
    labels = _labels(heats, ranks, rows) if ranks is not None else ()
    return Grid(density, rows, labels, name_width, gpu_width, margin, pitch, per_row, names)


def _rows(count: int, ranks: Sequence[int] | None, per_row: int) -> tuple[tuple[int, int], ...]:
    """Full lines, a new one at the start of every rank: first and last + 1 node of each."""
    starts = [at for at in range(1, count) if ranks[at] != ranks[at - 1]] if ranks is not None else []
    sections = pairwise([0, *starts, count])
    return tuple((at, min(at + per_row, end)) for start, end in sections for at in range(start, end, per_row))


def _labels(heats: Sequence[NodeHeat], ranks: Sequence[int], rows: Sequence[tuple[int, int]]) -> tuple[Cell, ...]:
    """A section is named after the worst that is in it now: a node that recovers stays in it for a while."""
    all_fine = all(heat.status == "ok" for heat, rank in zip(heats, ranks, strict=True) if rank == FINE_RANK)
    worst_now: dict[int, int] = {}
    for heat, rank in zip(heats, ranks, strict=True):
        worst_now[rank] = min(worst_now.get(rank, FINE_RANK), RANKS.get(heat.status, FINE_RANK))
    labels = []
    for first, _ in rows:
        rank = ranks[first]
        word, style = SECTIONS[worst_now[rank]]
        if first > 0 and ranks[first - 1] == rank:
            word = ""
        elif rank < FINE_RANK and worst_now[rank] == FINE_RANK:
            word = EASED
        elif worst_now[rank] == FINE_RANK and not all_fine:
            word = NOT_ALL_FINE
        labels.append(Cell(clip(word, SECTION_WIDTH), style))
    return tuple(labels)


def line_cells(
    grid: Grid, heats: Sequence[NodeHeat], line: int, marks: Collection[str], cursor: int | None = None
) -> list[Cell]:
    """One line of the map. The node ``cursor`` has styles that begin with "at-"."""
    first, end = grid.rows[line]
    cells: list[Cell] = [grid.labels[line]] if grid.labels else []
    if grid.density != NAMED:
        cells.append(Cell(_name(grid, heats[first].node) + " ", "dim"))
    for index in range(first, end):
        heat = heats[index]
        if grid.density == CELLS:
            of_node = [Cell(MARK if heat.node in marks else heat.cell, heat.cell_style)]
            if index > first and (index - first) % CELL_GROUP == 0:
                cells.append(Cell(" "))
        else:
            of_node = [_sign(heat, heat.node in marks)]
            if grid.density == NAMED:
                of_node.append(Cell(_name(grid, heat.node) + " ", heat.status if heat.status in SIGN_OF else ""))
            of_node += gpu_cells(heat, grid.gpu_width)
        cells += [Cell(cell.text, AT + cell.style) for cell in of_node] if index == cursor else of_node
        if grid.density == NAMED and index + 1 < end:
            cells.append(Cell(" "))
    return _merged(cells)


def gpu_cells(heat: NodeHeat, width: int) -> list[Cell]:
    """A glyph per GPU, or the node's state as a word."""
    if heat.state != "live" or not heat.codes:
        word = heat.state if heat.state != "live" else NO_GPU
        fits = len(word) <= width or width >= USUAL_GPUS
        style = NODE_STYLE.get(heat.state, "warn") if heat.state != "live" else "dim"
        return [Cell(clip(word, width) if fits else letter(word) * width, style)]
    cells = styled("".join([SIGNS[code] for code in heat.codes]), heat.styles)
    return [*cells, Cell(" " * (width - len(heat.codes)))] if len(heat.codes) < width else cells


def _sign(heat: NodeHeat, marked: bool) -> Cell:
    style = heat.status if heat.status in SIGN_OF else ""
    return Cell(MARK, style or "accent") if marked else Cell(SIGN_OF.get(heat.status, " "), style)


def _name(grid: Grid, node: str) -> str:
    return clip(grid.names.get(node, node), grid.name_width, tail=True, marked=True)


def _merged(cells: list[Cell]) -> list[Cell]:
    """Neighbours of one style as one cell, blanks with what stands before them: every change costs 40 bytes."""
    runs: list[tuple[str, list[str]]] = []
    for cell in cells:
        bare = not cell.style.startswith(AT) and cell.text.isspace()  # its style is not seen
        if runs and (cell.style == runs[-1][0] or (bare and not runs[-1][0].startswith(AT))):
            runs[-1][1].append(cell.text)
        else:
            runs.append((cell.style, [cell.text]))
    return [Cell("".join(texts), style) for style, texts in runs]


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
    """The line above the map; what matters least is dropped where it is too short."""
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


def counts(by_status: Mapping[str, int]) -> list[Part]:
    """``! 2 nodes CRIT  ~ 1 WARN  61 fine``: how many nodes have which colour, in words."""
    parts: list[Part] = []
    for priority, (status, word) in enumerate((("crit", "CRIT"), ("warn", "WARN"))):
        amount = by_status.get(status, 0)
        if amount:
            text = f"{amount}" if parts else counted(amount, "node")
            parts.append((priority, [Cell(f"{SIGN_OF[status]} {text} {word}", status)]))
    if by_status.get("connecting"):
        parts.append((1, [Cell(f"{by_status['connecting']} connecting", NODE_STYLE["connecting"])]))
    if by_status.get("unknown"):
        parts.append((1, [Cell(f"{by_status['unknown']} without GPU", "dim")]))
    fine = by_status.get("ok", 0)
    if fine or not parts:
        parts.append((1, [Cell(f"{fine} fine", "ok" if fine else "dim")]))
    return parts


def _marked(marked: int) -> list[Part]:
    """How many are marked stands in the header."""
    return [(2, [Cell(f"{MARK} marked", "accent")])] if marked else []


def _ways(worst_first: bool, other: str) -> list[Part]:
    order = "worst first" if worst_first else "by name"
    return [(4, [Cell("o", "accent"), Cell(f" {order}", "dim")]), (4, [Cell("v", "accent"), Cell(f" {other}", "dim")])]


def _signs(heats: Sequence[NodeHeat], density: str) -> list[Part]:
    """Which of its signs stand on the map now, and what they mean."""
    codes: set[int] = set().union(*[heat.codes for heat in heats])
    states = {heat.state for heat in heats}
    words = {UNKNOWN_CODE: ("unknown", "dim"), LOST: ("GPU lost", "crit"), ERROR: ("GPU error", "crit")}
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
    summary = view.summary
    if summary is None:
        return flow(parts, width)
    if not summary.gpus:
        return flow([*parts, (1, [Cell("no GPU seen", "dim")])], width)
    live = view.state.state == "live"
    own = metric is METRICS[0]
    source = activity_source(summary.gpus) if own else metric.title
    parts.append((3, [Cell(source or metric.title, "dim")]))
    for gpu in summary.gpus:
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
    more = f"  and {len(findings) - 1} more" if len(findings) > 1 else ""
    action = f" {GLYPHS.dash} {finding.action}" if finding.action else ""
    return [severity, Cell(f" {finding.message}"), Cell(more, "dim"), Cell(action, "accent")]
