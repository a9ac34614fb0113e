"""Scrolling lines of cells; lines with a key can be selected."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from textual import events

from mltop.tui.render.cells import Cell, plain
from mltop.tui.render.graph import time_at
from mltop.tui.widgets.cell_view import CursorScreen, CursorView


class CellLines(CursorView, can_focus=True):
    """Text made of cells. Without keys the cursor keys scroll; with keys they go from one key to the next.

    Lines that are too long are cut: break them with ``render.cells.wrap`` before.
    ``stays_first``: a cursor on the first key goes to whatever comes first.
    """

    def __init__(self, *, stays_first: bool = False, **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self._stays_first = stays_first
        self._stops: list[int] = []  # the first line of each key
        self._ends: list[int] = []  # and the line after its last

    def allow_focus(self) -> bool:
        """What can neither be selected nor scrolled is no stop for the Tab key, unless it is still empty."""
        return not self._lines or bool(self._stops) or self.max_scroll_y > 0

    def set_lines(self, lines: Sequence[Sequence[Cell]], keys: Sequence[str | None] | None = None) -> None:
        """Show ``lines``. ``keys`` has one entry per line, None where nothing can be selected; neighbours of one
        key are one item.
        """
        keys = keys if keys is not None else [None] * len(lines)
        if len(keys) != len(lines):
            raise ValueError(f"{len(lines)} lines but {len(keys)} keys")
        self.show_lines(lines, keys)

    def set_items(self, keys: Sequence[str | None]) -> None:
        runs = [(key, [at for at, _ in run]) for key, run in groupby(enumerate(keys), key=itemgetter(1))]
        items = [(key, run) for key, run in runs if key is not None]
        self._stops = [run[0] for _, run in items]
        self._ends = [run[-1] + 1 for _, run in items]
        super().set_items([key for key, _ in items])

    @property
    def follows_key(self) -> bool:
        return not self._stays_first or self._cursor > 0

    def place_without_key(self) -> int:
        """The first keyed line."""
        return 0

    def line_of(self, index: int) -> int:
        return self._stops[index]

    def item_at(self, x: int, line: int) -> int | None:  # noqa: ARG002
        index = bisect_right(self._stops, line) - 1
        return index if index >= 0 and line < self._ends[index] else None

    def action_cursor(self, step: int) -> None:
        if 0 <= self._cursor + step < len(self._stops):
            self.move_to(self._cursor + step)
            return
        top = round(self.scroll_y)
        self._scroll_by(step)  # lines before the first and after the last key stay reachable
        if self._stops and not 0 <= top + step <= self.max_scroll_y:
            self.leave(step)

    def by_lines(self, lines: int) -> None:
        if not self._stops:
            self._scroll_by(lines)
            return
        target = self._stops[self._cursor] + lines
        self.move_to(bisect_left(self._stops, target) if lines > 0 else bisect_right(self._stops, target) - 1)

    def text_at_cursor(self) -> str:
        """The lines from the one under the cursor to the next that can be selected; all where none can be."""
        if not self._stops:
            return "\n".join(self.texts())
        first = self._stops[self._cursor]
        end = next((stop for stop in self._stops if stop > first), len(self._lines))
        return "\n".join(self.texts()[first:end]).strip()

    def texts(self) -> list[str]:
        return [plain(line).rstrip() for line in self._lines]

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        line = self.content_line(spot.y) if spot is not None else len(self._lines)
        if spot is None or line >= len(self._lines) or not isinstance(self.screen, CursorScreen):
            return
        at = time_at(self._lines[line], spot.x)
        if at is not None:
            self.screen.graph_clicked(at)

    def action_edge(self, end: bool) -> None:
        super().action_edge(end)
        self.scroll_to(y=len(self._lines) if end else 0, animate=False, force=True)

    def _scroll_by(self, lines: int) -> None:
        self.scroll_to(y=round(self.scroll_y) + lines, animate=False, force=True)
