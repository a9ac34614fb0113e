"""Scrolling lines of cells; lines with a key can be selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from mltop.tui.render.cells import Cell
from mltop.tui.widgets.cell_view import MOVES, CellView


class CellLines(CellView, can_focus=True):
    """Text made of cells. Without keys the cursor keys scroll; with keys they go from one key to the next.

    The cursor stays on its key when new lines are set. Lines that are too long are cut: break them with
    ``render.wrap.wrap`` before.
    """

    BINDINGS: list[BindingType] = MOVES  # type: ignore[misc]

    class _OfLine(Message):
        def __init__(self, view: CellLines, key: str) -> None:
            super().__init__()
            self.view = view
            self.key = key

        @property
        def control(self) -> CellLines:
            return self.view

    class Selected(_OfLine):
        """Enter or a double click on the line ``key``."""

    class Highlighted(_OfLine):
        """The cursor is now on the line ``key``."""

    def __init__(self, **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self._lines: Sequence[Sequence[Cell]] = ()
        self._keys: Sequence[str | None] = ()
        self._stops: list[int] = []  # lines that have a key
        self._cursor: int | None = None

    def allow_focus(self) -> bool:
        """What can neither be selected nor scrolled is no stop for the Tab key, unless it is still empty."""
        return not self._lines or bool(self._stops) or self.max_scroll_y > 0

    def set_lines(self, lines: Sequence[Sequence[Cell]], keys: Sequence[str | None] | None = None) -> None:
        """Show ``lines``. ``keys`` has one entry per line, None where nothing can be selected."""
        key_before, before, cursor_before = self.cursor_key, self._lines, self._cursor
        self._lines = lines
        self._keys = keys if keys is not None else [None] * len(lines)
        if len(self._keys) != len(lines):
            raise ValueError(f"{len(lines)} lines but {len(self._keys)} keys")
        self._stops = [index for index, key in enumerate(self._keys) if key is not None]
        self._cursor = self._place_of(key_before)
        if len(before) != len(lines):
            self.virtual_size = Size(0, len(lines))
            self.refresh()
        else:
            changed = {i for i, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new}
            self._refresh_lines(changed | ({cursor_before, self._cursor} if cursor_before != self._cursor else set()))
        self._tell_highlighted(key_before)

    @property
    def cursor_key(self) -> str | None:
        return None if self._cursor is None else self._keys[self._cursor]

    def move_cursor(self, key: str) -> bool:
        """Put the cursor on the line ``key``; False when there is none."""
        found = key in self._keys
        if found:
            self._move_to(self._keys.index(key))
        return found

    def action_cursor(self, step: int) -> None:
        if self._cursor is None:
            self._scroll_by(step)
            return
        stop = self._stops.index(self._cursor) + step
        if 0 <= stop < len(self._stops):
            self._move_to(self._stops[stop])
        else:
            self._scroll_by(step)  # lines before the first and after the last key stay reachable

    def action_page(self, step: int) -> None:
        rows = step * max(1, self._page - 1)
        if self._cursor is None:
            self._scroll_by(rows)
            return
        target = self._cursor + rows
        ahead = [stop for stop in self._stops if (stop >= target if step > 0 else stop <= target)]
        self._move_to((ahead[0] if step > 0 else ahead[-1]) if ahead else self._stops[-1 if step > 0 else 0])

    def action_edge(self, end: bool) -> None:
        if self._cursor is not None:
            self._move_to(self._stops[-1 if end else 0])
        self.scroll_to(y=len(self._lines) if end else 0, animate=False, force=True)

    def action_select(self) -> None:
        key = self.cursor_key
        if key is not None:
            self.post_message(self.Selected(self, key))

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        index = -1 if spot is None else spot.y + round(self.scroll_y)
        if index in self._stops:
            self._move_to(index)
            if event.chain == 2:
                self.action_select()

    def paint_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + round(self.scroll_y)
        if index >= len(self._lines):
            text = self.empty_text if not self._lines and y == 0 else ""
            return self.strip([Cell(text, "dim")], width)
        over = ("cursor" if self.has_focus else "cursor-blurred") if index == self._cursor else ""
        return self.strip(self._lines[index], width, over)

    def on_focus(self) -> None:
        self._refresh_lines({self._cursor})

    def on_blur(self) -> None:
        self._refresh_lines({self._cursor})

    @property
    def _page(self) -> int:
        return self.scrollable_content_region.height

    def _place_of(self, key: str | None) -> int | None:
        """The line of ``key``, or the first keyed line."""
        if key is not None and key in self._keys:
            return self._keys.index(key)
        return self._stops[0] if self._stops else None

    def _scroll_by(self, lines: int) -> None:
        self.scroll_to(y=round(self.scroll_y) + lines, animate=False, force=True)

    def _move_to(self, index: int) -> None:
        key_before, cursor_before, self._cursor = self.cursor_key, self._cursor, index
        top = round(self.scroll_y)
        if index < top or index >= top + self._page:
            self.scroll_to(y=index if index < top else index - self._page + 1, animate=False, force=True)
        self._refresh_lines({cursor_before, index})
        self._tell_highlighted(key_before)

    def _refresh_lines(self, indexes: set[int | None] | set[int]) -> None:
        """Repaint the visible ones of these lines."""
        top = round(self.scroll_y)
        self.refresh_screen_lines(
            sorted(index - top for index in indexes if index is not None and 0 <= index - top < self._page)
        )

    def _tell_highlighted(self, key_before: str | None) -> None:
        key = self.cursor_key
        if key is not None and key != key_before:
            self.post_message(self.Highlighted(self, key))
