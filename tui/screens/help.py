"""All keys, made from the bindings themselves."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding
from textual.widget import Widget

from mltop.tui.feed import Picture
from mltop.tui.keys import APP_BINDINGS, PANE_BINDINGS, help_rows
from mltop.tui.render.cells import Cell
from mltop.tui.screens.pane import Pane
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import MOVES

KEYS_WIDTH = 16
SECTIONS = (("Everywhere", APP_BINDINGS), ("In tables", [*PANE_BINDINGS, *MOVES]))


class HelpScreen(Pane):
    AUTO_FOCUS = "#keys-list"
    DEFAULT_CSS = "HelpScreen #keys-list { height: 1fr; }"

    def body(self) -> Iterable[Widget]:
        yield CellLines(id="keys-list", classes="gap-above")

    def fill(self, picture: Picture) -> None:
        """The keys do not depend on what is watched."""

    def draw(self) -> None:
        super().draw()
        if self.is_mounted:
            self.query_one("#keys-list", CellLines).set_lines(self._lines())

    def _lines(self) -> list[list[Cell]]:
        """Two columns of keys where there is room."""
        blocks = [_block(title, Binding.make_bindings(bindings)) for title, bindings in SECTIONS]
        half = self.size.width // 2
        if half < 2 * KEYS_WIDTH + max(len(line[-1].text) for block in blocks for line in block) - KEYS_WIDTH:
            return [line for block in blocks for line in [*block, []]]
        left, right = blocks
        height = max(len(left), len(right))
        left, right = ([*block, *[[Cell("")]] * (height - len(block))] for block in (left, right))
        return [[*_padded(first, half), *second] for first, second in zip(left, right, strict=True)]


def _block(title: str, bindings: Iterable[Binding]) -> list[list[Cell]]:
    lines = [[Cell(title, "title")]]
    for keys, what in help_rows(bindings):
        lines.append([Cell(f"  {keys:<{KEYS_WIDTH}}", "accent"), Cell(what)])
    return lines


def _padded(line: list[Cell], width: int) -> list[Cell]:
    used = sum(len(cell.text) for cell in line)
    return [*line, Cell(" " * max(0, width - used))]
