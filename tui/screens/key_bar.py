"""The bottom line: the keys that work here. A click does what the key does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from textual import events
from textual.binding import Binding
from textual.strip import Strip

from mltop.tui.keys import key_name
from mltop.tui.render.cells import Cell, line_width
from mltop.tui.widgets.cell_view import CellView

GAP = "  "
# What a narrow terminal loses first; quit and help, which come last, stay longest.
LOST_FIRST = ("neighbour", "timelines", "reverse", "sort", "capture", "pause", "select", "filter", "pane")


class KeyBar(CellView, can_focus=False):
    """One line of hints, as many as fit."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, perform: Callable[[str], Awaitable[None]], **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self._perform = perform
        self._hints: list[Binding] = []
        self._active = ""

    def set_hints(self, hints: Sequence[Binding], active: str = "") -> None:
        """``active`` is the action of the pane the user is in."""
        if (list(hints), active) != (self._hints, self._active):
            self._hints, self._active = list(hints), active
            self.refresh()

    def shown(self) -> list[Binding]:
        """The hints that fit; those of one kind (the panes) go together."""
        kept = list(self._hints)
        for kind in LOST_FIRST:
            if self._width(kept) <= self.size.width:
                break
            kept = [hint for hint in kept if hint.action.partition("(")[0] != kind]
        while kept and self._width(kept) > self.size.width:
            kept.pop(0)
        return kept

    def render_line(self, y: int) -> Strip:
        cells: list[Cell] = []
        for hint in self.shown() if y == 0 else []:
            cells += [Cell(GAP)] if cells else []
            cells += self._cells(hint)
        return self.strip(cells, self.size.width)

    async def on_click(self, event: events.Click) -> None:
        end = 0
        for hint in self.shown():
            start, end = end, end + line_width(self._cells(hint))
            if start <= event.x < end:
                await self._perform(hint.action)
                return
            end += len(GAP)

    def _cells(self, hint: Binding) -> list[Cell]:
        key = key_name(hint.key.split(",")[0])
        active = hint.action == self._active
        return [Cell(key, "accent"), Cell(f" {hint.description}", "title" if active else "dim")]

    def _width(self, hints: Sequence[Binding]) -> int:
        return sum(line_width(self._cells(hint)) + len(GAP) for hint in hints) - len(GAP)
