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

GAP, NARROW_GAP = "  ", " "
# What a narrow terminal loses first; quit and help, which come last, stay longest.
LOST_FIRST = ("probe", "neighbour", "timelines", "reverse", "sort", "capture", "pause", "select", "filter")
SHORT = {"overview": "main"}  # where all panes would not fit otherwise


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

    def shown(self) -> tuple[list[Binding], bool]:
        """The hints that fit, and whether the panes (which go together) stand close and short."""
        kept = list(self._hints)
        for kind in LOST_FIRST:
            if self._width(kept) <= self.size.width:
                return kept, False
            kept = _without(kept, kind)
        if self._width(kept) <= self.size.width:
            return kept, False
        if self._width(kept, close=True) <= self.size.width:
            return kept, True
        kept = _without(kept, "pane")
        while kept and self._width(kept) > self.size.width:
            kept.pop(0)
        return kept, False

    def render_line(self, y: int) -> Strip:
        cells: list[Cell] = []
        hints, close = self.shown() if y == 0 else ([], False)
        for hint in hints:
            cells += self._cells(hint, close)
        return self.strip(cells, self.size.width)

    async def on_click(self, event: events.Click) -> None:
        end = 0
        hints, close = self.shown()
        for hint in hints:
            start, end = end, end + line_width(self._cells(hint, close))
            if start <= event.x < end:
                await self._perform(hint.action)
                return

    def _cells(self, hint: Binding, close: bool) -> list[Cell]:
        """With the gap behind it."""
        key = key_name(hint.key.split(",")[0])
        active, is_pane = hint.action == self._active, _kind(hint) == "pane"
        name = SHORT.get(hint.description, hint.description) if close else hint.description
        last_pane = is_pane and hint.action == [one.action for one in self._hints if _kind(one) == "pane"][-1]
        gap = NARROW_GAP if close and is_pane and not last_pane else GAP
        return [Cell(key, "accent"), Cell(f" {name}", "title" if active else "dim"), Cell(gap)]

    def _width(self, hints: Sequence[Binding], close: bool = False) -> int:
        return sum(line_width(self._cells(hint, close)) for hint in hints) - len(GAP)


def _kind(hint: Binding) -> str:
    return hint.action.partition("(")[0]


def _without(hints: Sequence[Binding], kind: str) -> list[Binding]:
    return [hint for hint in hints if _kind(hint) != kind]
