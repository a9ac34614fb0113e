"""Where each node stands on the heatmap, and what its line looks like. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mltop.tui.render.cells import Cell, clip
from mltop.tui.render.heat import MARK, NO_GPU, SIGNS, NodeHeat, letter
from mltop.tui.render.heat_order import FINE, RANKS
from mltop.tui.render.names import NAME_MOST
from mltop.tui.render.states import NODE_STYLE

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
        low, high = 0, len(self.rows)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.rows[middle][0] <= index else (low, middle)
        return low, index - self.rows[low][0]

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
    """The most detailed grid that shows all nodes in ``height`` lines; cells, scrolling, when none does."""
    made = make_grid(heats, ranks, width, NAMED, names)
    for density in DENSITIES[1:]:
        if len(made.rows) <= height:
            break
        made = make_grid(heats, ranks, width, density, names)
    return made


def make_grid(
    heats: Sequence[NodeHeat],
    ranks: Sequence[int] | None,
    width: int,
    density: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Grid:
    """``heats`` in their order. ``ranks``: each node's, ascending, when every rank begins on a line of its own."""
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
    """Full lines, a new one at the start of every rank."""
    rows: list[tuple[int, int]] = []
    first = 0
    while first < count:
        end = min(first + per_row, count)
        if ranks is not None:
            end = next((at for at in range(first, end) if ranks[at] != ranks[first]), end)
        rows.append((first, end))
        first = end
    return tuple(rows)


def _labels(heats: Sequence[NodeHeat], ranks: Sequence[int], rows: Sequence[tuple[int, int]]) -> tuple[Cell, ...]:
    """A section is named after the worst that is in it now: a node that recovers stays in it for a while."""
    all_fine = all(heat.status == "ok" for heat, rank in zip(heats, ranks, strict=True) if rank == FINE)
    now: dict[int, int] = {}
    for heat, rank in zip(heats, ranks, strict=True):
        now[rank] = min(now.get(rank, FINE), RANKS.get(heat.status, FINE))
    labels = []
    for first, _ in rows:
        rank = ranks[first]
        word, style = SECTIONS[now[rank]]
        if first > 0 and ranks[first - 1] == rank:
            word = ""
        elif rank < FINE and now[rank] == FINE:
            word = EASED
        elif now[rank] == FINE and not all_fine:
            word = NOT_ALL_FINE
        labels.append(Cell(clip(word, SECTION_WIDTH), style))
    return tuple(labels)


def line_cells(
    grid: Grid, heats: Sequence[NodeHeat], line: int, marks: Collection[str], cursor: int | None = None
) -> list[Cell]:
    """One line of the map. The node ``cursor`` has styles that begin with "at-"."""
    first, end = grid.rows[line]
    cells: list[Cell] = []
    if grid.labels:
        cells.append(grid.labels[line])
    if grid.density != NAMED:
        cells.append(Cell(_name(grid, heats[first].node) + " ", "dim"))
    for index in range(first, end):
        heat = heats[index]
        if grid.density == CELLS:
            made = [Cell(MARK if heat.node in marks else heat.cell, heat.cell_style)]
            if index > first and (index - first) % CELL_GROUP == 0:
                cells.append(Cell(" "))
        else:
            made = [_sign(heat, heat.node in marks)]
            if grid.density == NAMED:
                made.append(Cell(_name(grid, heat.node) + " ", _name_style(heat)))
            made += gpu_cells(heat, grid.gpu_width)
        cells += [Cell(cell.text, AT + cell.style) for cell in made] if index == cursor else made
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
    cells: list[Cell] = []
    text, styles = "".join([SIGNS[code] for code in heat.codes]), heat.styles
    start = 0
    for at in range(1, len(styles) + 1):
        if at == len(styles) or styles[at] != styles[start]:
            cells.append(Cell(text[start:at], styles[start]))
            start = at
    if len(text) < width:
        cells.append(Cell(" " * (width - len(text))))
    return cells


def _sign(heat: NodeHeat, marked: bool) -> Cell:
    style = heat.status if heat.status in SIGN_OF else ""
    return Cell(MARK, style or "accent") if marked else Cell(SIGN_OF.get(heat.status, " "), style)


def _name(grid: Grid, node: str) -> str:
    return clip(grid.names.get(node, node), grid.name_width, tail=True, marked=True)


def _name_style(heat: NodeHeat) -> str:
    return heat.status if heat.status in SIGN_OF else ""


def _merged(cells: list[Cell]) -> list[Cell]:
    """Neighbours of one style as one cell, blanks with what stands before them: every change costs 40 bytes."""
    merged: list[Cell] = []
    style: str | None = None
    texts: list[str] = []
    for cell in cells:
        joins = cell.style == style or (style is not None and _is_bare(cell) and not style.startswith(AT))
        if not joins:
            if texts:
                merged.append(Cell("".join(texts), style or ""))
            style, texts = cell.style, []
        texts.append(cell.text)
    if texts:
        merged.append(Cell("".join(texts), style or ""))
    return merged


def _is_bare(cell: Cell) -> bool:
    """A blank whose style is not seen."""
    return not cell.style.startswith(AT) and cell.text.isspace()
