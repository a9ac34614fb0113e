"""All keys, made from the bindings themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from textual.binding import Binding
from textual.widget import Widget

from mltop.tui.feed import Picture
from mltop.tui.keys import APP_BINDINGS, PANE_BINDINGS, help_rows
from mltop.tui.render.cells import Cell, plain
from mltop.tui.render.glyphs import GLYPHS, GlyphSet
from mltop.tui.screens.help_filters import WIDE, filter_lines
from mltop.tui.screens.pane import Pane
from mltop.tui.screens.registry import PANES
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import MOVES

KEYS_WIDTH = 16
SECTIONS = (("Everywhere", APP_BINDINGS), ("In tables", [*PANE_BINDINGS, *MOVES]))


class HelpScreen(Pane):
    AUTO_FOCUS = "#keys-list"
    DEFAULT_CSS = "HelpScreen #keys-list { height: 1fr; }"
    lines_are = "lines of the help"

    def body(self) -> Iterable[Widget]:
        yield CellLines(id="keys-list", classes="gap-above", empty_text="no line of the help matches")

    def fill(self, picture: Picture) -> None:
        """The keys do not depend on what is watched."""

    def draw(self) -> None:
        super().draw()
        if self.is_composed:
            lines = [line for line in drawable(self._lines()) if self.filter.empty or self.keeps(plain(line))]
            self.query_one("#keys-list", CellLines).set_lines(lines)

    def _lines(self) -> list[list[Cell]]:
        """Keys, in two columns where there is room and no filter looks for single ones; then the filter's fields."""
        width = self.size.width
        blocks = [_block(title, Binding.make_bindings(bindings)) for title, bindings in SECTIONS]
        own = [_block(f"In the {name} pane", bindings) for name, bindings in own_bindings()]
        filters = filter_lines(width if self.filter.empty else min(width, WIDE - 1))
        half = width // 2
        longest = max(len(line[-1].text) for block in (*blocks, *own) for line in block)
        if half < KEYS_WIDTH + longest or not self.filter.empty:
            return [line for block in (*blocks, *own) for line in [*block, []]] + filters
        left, right = blocks[0], [line for block in own for line in [[], *block]]
        left, right = [*left, *right], blocks[1]
        height = max(len(left), len(right))
        left, right = ([*block, *[[Cell("")]] * (height - len(block))] for block in (left, right))
        both = [[*_padded(first, half), *second] for first, second in zip(left, right, strict=True)]
        return [*both, [], *filters]


def drawable(lines: Iterable[list[Cell]], glyphs: GlyphSet = GLYPHS) -> list[list[Cell]]:
    """What tooltips leave out is marked with the sign of the glyphs in use: an ASCII terminal has no "…"."""
    return [[replace(cell, text=cell.text.replace("…", glyphs.ellipsis)) for cell in line] for line in lines]


def own_bindings() -> list[tuple[str, list[Binding]]]:
    """The panes that have keys of their own, and these."""
    found = []
    for entry in PANES:
        own = Binding.make_bindings(entry.load().__dict__.get("BINDINGS", []))
        known = {binding.key for binding in Binding.make_bindings(PANE_BINDINGS)}
        new = [binding for binding in own if binding.key not in known]
        found += [(entry.name, new)] if new else []
    return found


def _block(title: str, bindings: Iterable[Binding]) -> list[list[Cell]]:
    lines = [[Cell(title, "title")]]
    for keys, what in help_rows(bindings):
        lines.append([Cell(f"  {keys:<{KEYS_WIDTH}}", "accent"), Cell(what)])
    return lines


def _padded(line: list[Cell], width: int) -> list[Cell]:
    used = sum(len(cell.text) for cell in line)
    return [*line, Cell(" " * max(0, width - used))]
