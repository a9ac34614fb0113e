"""The heatmap as lines: short names, where each node stands, its line, the legend, the node under the cursor."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from operator import itemgetter
from types import MappingProxyType

from mltop.probes.model.ranks import Ranges
from mltop.probes.model.unread import unread_ranks
from mltop.probes.reach.view import NodeView
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, clip, flow, line_width, runs
from mltop.tui.render.empty import gpus_unseen
from mltop.tui.render.fleet.heat import (
    ERROR,
    LETTERS,
    LOST,
    MARK,
    METRICS,
    NO_GPU,
    SIGNS,
    STANDS,
    STYLES_OF,
    UNKNOWN_CODE,
    WAITS,
    Metric,
    NodeHeat,
    letter,
)
from mltop.tui.render.fleet.nodes import SIGN_OF, gpus_per_glyph, node_state, sign
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
    addresses = any(":" in name for name in names) or any(parts[-1].isdigit() for parts in labels)
    if len(set(names)) > 1 and not addresses:
        most = min(len(parts) for parts in labels) - 1  # a name keeps its first label
        while shared < most and len({parts[-1 - shared] for parts in labels}) == 1:
            shared += 1
    kept = (".".join(parts[: len(parts) - shared]) for parts in labels)
    return {name: clip(text, NAME_MOST, tail=True).rstrip() for name, text in zip(names, kept, strict=True)}


def name_width(names: Mapping[str, str], least: int) -> int:
    """Cells of the longest of ``short_names``, ``least`` or more."""
    return max(least, max(map(len, names.values()), default=0))


FOLD_FROM = 4  # nodes alike
NAMED, GROUPED, CELLS = "named", "grouped", "cells"  # name and GPUs; GPUs; one cell per node
USUAL_GPUS = 8  # until a node has said how many it has
CELL_GROUP = 8  # cells between two blanks
HEADED_FROM = 110  # cells of width: from there on a section's title has a line of its own
LABEL_MOST = 12  # cells of a title that stands before its first line
NAMED_GAPS = (2, 4)  # blanks between two nodes with names, at least and at most
# Between two without: the mark of a node stands apart from the GPUs of the one before, and of its own where there is
# room; else, outdented, by its own.
GROUPED_GAPS = (2, 3)
AT = "at-"  # begins the styles of the node under the cursor


@dataclass(frozen=True)
class Section:
    """Nodes that belong together, from the node number ``first`` on: their job, and what it does. ``folded``: the line
    that stands for those of its nodes that are left out, as all their GPUs are alike.
    """

    first: int
    title: str
    about: tuple[Cell, ...] = ()
    folded: tuple[Cell, ...] = ()

    def line(self) -> list[Cell]:
        return [Cell(self.title, "title"), Cell("  "), *self.about]


@dataclass(frozen=True)
class Grid:
    """``rows``: first and last + 1 node of every line; both are the same in the line of a title. ``labels``: what
    stands before the first node of a line, or is the line.

    ``margin``: blank cells, labels and names before the first node; ``pitch``: cells from one node to the next.
    ``names``: what stands for a node's name; one that is not in it stands for itself. ``gap``: of GROUPED the blanks
    before a node, of which the second is its mark's.
    """

    density: str
    rows: tuple[tuple[int, int], ...]
    labels: tuple[tuple[Cell, ...], ...]
    name_width: int
    gpu_width: int
    margin: int
    pitch: int
    per_row: int
    names: Mapping[str, str]
    gap: int = 0

    def place(self, index: int) -> tuple[int, int]:
        """(line, column) of a node; (0, 0) on an empty map."""
        if not self.rows:
            return 0, 0
        line = bisect_right(self.rows, index, key=itemgetter(0)) - 1
        return line, index - self.rows[line][0]

    def at(self, line: int, column: int) -> int | None:
        """The node there, the last of a line that is shorter; None below the last line and in that of a title."""
        if not 0 <= line < len(self.rows):
            return None
        first, end = self.rows[line]
        return min(first + column, end - 1) if end > first else None

    def column_of(self, x: int) -> int | None:
        """The column of nodes at cell ``x``, None left of all."""
        x -= self.margin
        if x < 0:
            return None
        if self.density == CELLS:
            group, within = divmod(x, CELL_GROUP + 1)
            return group * CELL_GROUP + min(within, CELL_GROUP - 1)
        return x // self.pitch


def folded(
    heats: Sequence[NodeHeat], sections: Sequence[Section], keep: Collection[str]
) -> tuple[list[NodeHeat], list[Section]]:
    """Without the nodes of a section of which nothing is to be said but that they are alike: they get one line.
    ``keep``: the names of nodes that stay.
    """
    shown: list[NodeHeat] = []
    made: list[Section] = []
    for section, (start, end) in zip(sections, pairwise([*(one.first for one in sections), len(heats)]), strict=True):
        nodes = heats[start:end]
        alike = Counter(code for heat in nodes if heat.node not in keep and (code := _only_code(heat)) is not None)
        code, count = alike.most_common(1)[0] if alike else (UNKNOWN_CODE, 0)
        if count < FOLD_FROM:
            made.append(replace(section, first=len(shown)))
            shown += nodes
            continue
        others = [heat for heat in nodes if heat.node in keep or _only_code(heat) != code]
        line = (
            Cell(f"{count} {'more ' if others else ''}nodes  ", "dim"),
            Cell(SIGNS[code] * USUAL_GPUS, STYLES_OF[code]),
            Cell(" all wait" if code == WAITS else " all alike", "dim"),
        )
        made.append(replace(section, first=len(shown), folded=line))
        shown += others
    return (shown, made) if shown else ([*heats], [*sections])


def _only_code(heat: NodeHeat) -> int | None:
    """That of all its GPUs, where they are alike and nothing is wrong with it."""
    return heat.codes[0] if heat.status == "ok" and not heat.dim and len(set(heat.codes)) == 1 else None


def fitting(
    heats: Sequence[NodeHeat],
    sections: Sequence[Section],
    width: int,
    height: int,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Grid:
    """The most detailed grid that shows all nodes in ``height`` lines; the densest, which scrolls, when none does."""
    headed = [True, False] if width >= HEADED_FROM and sections else [False]
    ways = [(NAMED, 0), *((GROUPED, gap) for gap in reversed(GROUPED_GAPS)), (CELLS, 0)]
    for (density, gap), head in product(ways, headed):
        grid = make_grid(heats, sections, width, density, names, headed=head, gap=gap)
        if len(grid.rows) <= height:
            break
    return grid


def make_grid(
    heats: Sequence[NodeHeat],
    sections: Sequence[Section],
    width: int,
    density: str,
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    headed: bool = False,
    gap: int = 0,
) -> Grid:
    """The grid of ``heats``, in their order. ``headed``: the title of a section has a line of its own; ``gap``: of
    GROUPED, 0: the least.
    """
    name_width = min(NAME_MOST, max((len(names.get(heat.node, heat.node)) for heat in heats), default=1))
    gpu_width = max((len(heat.codes) for heat in heats), default=0) or USUAL_GPUS
    label = 0 if headed or not sections else min(LABEL_MOST, max(len(section.title) for section in sections)) + 1
    margin = label
    if density == NAMED:
        pitch, per_row = _named(width - margin, 1 + name_width + 1 + gpu_width)
    elif density == GROUPED:
        gap = gap or GROUPED_GAPS[0]
        margin += name_width + gap
        pitch = gap + gpu_width
        per_row = (width - margin + gap) // pitch
    else:
        margin += name_width + 1
        pitch = 1
        groups, rest = divmod(width - margin, CELL_GROUP + 1)
        per_row = groups * CELL_GROUP or min(rest, CELL_GROUP)
    rows, labels = _rows(len(heats), sections, max(1, per_row), label, headed)
    return Grid(density, rows, labels, name_width, gpu_width, margin, pitch, max(1, per_row), names, gap)


def _named(width: int, cells: int) -> tuple[int, int]:
    """From one node of ``cells`` to the next, and how many fit."""
    least, most = NAMED_GAPS
    per_row = max(1, (width + least) // (cells + least))
    return cells + max(least, min(most, (width - per_row * cells) // max(1, per_row - 1))), per_row


Rows = tuple[tuple[int, int], ...]
Labels = tuple[tuple[Cell, ...], ...]


def _rows(count: int, sections: Sequence[Section], per_row: int, label: int, headed: bool) -> tuple[Rows, Labels]:
    """Full lines, a new one at the start of every section: first and last + 1 node of each, and what stands before."""
    starts = [section.first for section in sections] or [0]
    rows: list[tuple[int, int]] = []
    labels: list[tuple[Cell, ...]] = []
    for place, (start, end) in enumerate(pairwise([*starts, count])):
        section = sections[place] if sections else None
        if headed and section is not None:
            rows.append((start, start))
            labels.append(tuple(section.line()))
        for at in range(start, end, per_row):
            title = section.title if section is not None and at == start else ""
            rows.append((at, min(at + per_row, end)))
            labels.append((Cell(clip(title, label - 1) + " ", "title"),) if label else ())
        if section is not None and section.folded:
            title = section.title if start == end else ""
            rows.append((end, end))
            labels.append((Cell(clip(title, label - 1) + " " if label else " ", "title"), *section.folded))
    return tuple(rows), tuple(labels)


def line_cells(
    grid: Grid, heats: Sequence[NodeHeat], line: int, marks: Collection[str], cursor: int | None = None
) -> list[Cell]:
    """One line of the map. The name of the node ``cursor`` has styles that begin with "at-"."""
    first, end = grid.rows[line]
    cells: list[Cell] = [*grid.labels[line]]
    if first == end:
        return cells
    if grid.density != NAMED:
        cells.append(Cell(_name(grid, heats[first].node) + ("" if grid.density == GROUPED else " "), "dim"))
    for index in range(first, end):
        heat, marked = heats[index], heats[index].node in marks
        head: list[Cell] = []
        if grid.density == CELLS:
            body = [Cell(MARK if marked else heat.cell, heat.cell_style)]
            if index > first and (index - first) % CELL_GROUP == 0:
                cells.append(Cell(" "))
            if index == cursor:
                head, body = body, head
        else:
            head, body = [sign(heat, marked)], gpu_cells(heat, grid.gpu_width)
            if grid.density == GROUPED:
                cells.append(Cell(" "))
                body = [Cell(" " * (grid.gap - 2)), *body]
            if grid.density == NAMED:
                head.append(Cell(_name(grid, heat.node), "title" if heat.status in SIGN_OF else "dim"))
                body = [Cell(" "), *body]
        cells += [Cell(cell.text, AT + cell.style) for cell in head] if index == cursor else head
        cells += body
        if grid.density == NAMED and index + 1 < end:
            cells.append(Cell(" " * (grid.pitch - 2 - grid.name_width - grid.gpu_width)))
    return runs([cell.text for cell in cells], [cell.style for cell in cells])


def gpu_cells(heat: NodeHeat, width: int) -> list[Cell]:
    """A glyph per GPU, or the node's state as a word."""
    if heat.state != "live" or not heat.codes:
        word = _SHORT_STATES.get(heat.state, heat.state) if heat.state != "live" else NO_GPU
        fits = len(word) <= width or width >= USUAL_GPUS
        style = NODE_STYLE.get(heat.state, "warn") if heat.state != "live" else "dim"
        return [Cell(clip(word, width) if fits else letter(word) * width, style)]
    cells = runs([SIGNS[code] for code in heat.codes], heat.styles())
    return [*cells, Cell(" " * (width - len(heat.codes)))] if len(heat.codes) < width else cells


_SHORT_STATES = {"connecting": "connects"}


def _name(grid: Grid, node: str) -> str:
    return clip(grid.names.get(node, node), grid.name_width, tail=True)


Part = tuple[int, Sequence[Cell]]


@dataclass(frozen=True)
class Legend:
    """What stands above the nodes. ``source``: which activity the GPUs report; ``by_job``: how they are ordered;
    ``sorted_by``: the list's column; ``per``: what a cell stands for.
    """

    heats: Sequence[NodeHeat]
    metric: Metric
    source: str = ""
    by_job: bool = True
    not_judged: int = 0
    sorted_by: str = ""
    per: str = ""

    def scale(self) -> list[Part]:
        metric = self.metric
        title = self.source if metric is METRICS[0] and self.source else metric.title
        per = f"per {self.per} " if self.per else ""
        highest = {glyph: step for step, glyph in enumerate(GLYPHS.ramp)}  # the last two are alike
        ramp = [Cell(glyph, f"ramp-{step}") for glyph, step in highest.items()]
        return [
            (0, [Cell(title, "dim")]),
            (1, [Cell(f"{per}{metric.low} ", "dim"), *ramp, Cell(f" {metric.high}", "dim")]),
        ]

    def signs(self) -> list[Part]:
        """Those that are on the screen, and what they mean."""
        codes: set[int] = set().union(*[heat.codes for heat in self.heats])
        states = {heat.status for heat in self.heats}
        parts: list[Part] = [
            (2, [Cell(SIGNS[code], STYLES_OF[code]), Cell(f" {word}", "dim")])
            for code, word in _WORDS_OF_CODES.items()
            if code in codes
        ]
        for status in ("crit", "warn"):
            if status in states:
                parts.append((3, [Cell(GLYPHS.finding, status), Cell(" finding", "dim")]))
                break
        judged = [Cell(f"{self.not_judged} not judged yet", "dim")] if self.not_judged else []
        return [*parts, (4, judged)]


_WORDS_OF_CODES = {WAITS: "waits", STANDS: "stuck", LOST: "lost GPU", ERROR: "error", UNKNOWN_CODE: "unknown"}


def map_legend(legend: Legend, density: str, width: int) -> list[Cell]:
    """The line above the map; what matters least is dropped where it is too short."""
    states = {heat.state for heat in legend.heats} if density == CELLS else set()
    letters = (
        [Cell(LETTERS[state], NODE_STYLE[state]), Cell(f" {state} node", "dim")] for state in LETTERS if state in states
    )
    more: list[Part] = [(2, cells) for cells in letters]  # what stands on the map is explained before all else
    more += [(4, [Cell("cell = worst GPU", "dim")])] if density == CELLS else []
    legend = replace(legend, per="node" if density == CELLS else "GPU")
    order = "by name" if legend.by_job else "by job"
    return _with_keys([*legend.scale(), *legend.signs(), *more], (("m", "metric"), ("o", order), ("v", "list")), width)


def list_legend(legend: Legend, width: int) -> list[Cell]:
    groups = {gpus_per_glyph(len(heat.codes)) for heat in legend.heats if heat.codes}
    most = max(groups, default=1)
    more: list[Part] = []
    if most > 1:
        more.append((3, [Cell(f"1 bar = {'' if len(groups) == 1 else 'up to '}{most} GPUs", "dim")]))
    order = f"sorted by {legend.sorted_by}" if legend.sorted_by else "sort"
    return _with_keys([*legend.scale(), *legend.signs(), *more], (("m", "metric"), ("s", order), ("v", "map")), width)


def _with_keys(parts: Sequence[Part], keys: Sequence[tuple[str, str]], width: int) -> list[Cell]:
    """``keys`` stand at the right edge, as many as fit."""
    wide = flow(parts, width, "   ")
    line = wide if len(wide) == len(flow(parts, width)) else flow(parts, width)  # closer where more of them fit
    while keys:
        right = [cell for key, word in keys for cell in (Cell(key, "key"), Cell(f" {word}  ", "dim"))]
        right[-1] = Cell(right[-1].text.rstrip(), "dim")
        blank = width - line_width(line) - line_width(right)
        if blank >= 2:
            return [*line, Cell(" " * blank), *right]
        keys = keys[:-1]
    return line


def node_lines(
    view: NodeView, metric: Metric, width: int, below: bool = True, still: Cell | None = None
) -> list[list[Cell]]:
    """The node under the cursor: its state, its ranks and its host in figures. ``below``: its GPUs stand there;
    ``still``: how its job stands, where it does.
    """
    parts: list[Part] = [(0, [Cell(view.node, "title")]), (0, [node_state(view)])]
    if view.state.state != "live" and view.state.reason:
        return [flow([*parts, (0, [Cell(view.state.reason, NODE_STYLE.get(view.state.state, "warn"))])], width)]
    if view.newest is None:
        return [flow(parts, width)]
    if not view.gpus:
        parts.append((1, [Cell(gpus_unseen([view.whole]), "dim")]))
    if numbers := [rank.rank for rank in view.ranks if rank.rank is not None and rank.rank >= 0]:
        parts.append((1, [Cell("ranks ", "dim"), Cell(str(Ranges.of(numbers)))]))
    elif view.gpus:
        unread = view.whole is not None and unread_ranks(view.whole) is not None
        parts.append((1, [Cell("ranks unknown" if unread else "no ranks", "dim")]))
    if still is not None and still.text:
        parts.append((1, [still]))
    if metric is not METRICS[0]:
        for gpu in view.gpus:
            text, style = (metric.text(gpu), "") if gpu.state == "ok" else (gpu.state.upper(), "crit")
            parts.append((2, [Cell(text, style)]))
    if not below:
        parts.append((1, [Cell(KEYCAPS["node"], "key"), Cell(" shows its GPUs", "dim")]))
    return [flow(parts, width)]
