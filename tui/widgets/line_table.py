"""A table for live data: draws only visible rows, repaints only changed ones, its cursor stays on its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual import events
from textual.binding import BindingType
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from mltop.tui.render.cells import (
    Cell,
    Column,
    Row,
    columns_line,
    header_line,
    layout,
    row_keys,
    unknown_columns,
)
from mltop.tui.widgets.cell_view import MOVES, CellView

HEADER = 1  # lines above the rows
_KEPT_STRIPS = 512  # a few screens


class LineTable(CellView, can_focus=True):
    """Rows of cells under a header line.

    Columns that do not fit are left out (``Column.priority``), as are optional ones that no visible row has
    filled yet. The cursor belongs to a row's key: it goes with its row when the rows are sorted anew. When
    that row is gone, the cursor stays at its place in the order.
    """

    BINDINGS: list[BindingType] = MOVES  # type: ignore[misc]

    class _OfRow(Message):
        def __init__(self, table: LineTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> LineTable:
            return self.table

    class Selected(_OfRow):
        """Enter or a double click on the row ``key``."""

    class Highlighted(_OfRow):
        """The cursor is now on the row ``key``."""

    class HeaderClicked(Message):
        """A click on the title of column ``key``."""

        def __init__(self, table: LineTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> LineTable:
            return self.table

    def __init__(self, **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self._columns: tuple[Column, ...] = ()
        self._rows: Sequence[Row] = ()
        self._keys: Sequence[str] = ()
        self._sort: tuple[str, bool] | None = None
        self._cursor = 0
        self._cursor_key: str | None = None
        self._filled: set[int] = set()  # optional columns that were known once: they stay
        self._shown: list[tuple[int, int]] = []
        self._painted: dict[int, tuple[Row | None, str]] = {}
        self._strips: LRUCache[tuple[Row, str, int], Strip] = LRUCache(_KEPT_STRIPS)

    # What the caller sets and asks.

    def set_table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Show ``rows`` in this order; keys are unique. Of ``LazyRows`` only visible ones are made."""
        if tuple(columns) != self._columns:
            self._columns = tuple(columns)
            self._filled.clear()
            self._forget()
        rows_before = len(self._rows)
        cursor_was_visible = self._is_visible(self._cursor)
        self._rows, self._keys = rows, row_keys(rows)
        self._follow_key()
        if len(rows) != rows_before:
            self.virtual_size = Size(0, HEADER + len(rows))
            if not rows or not rows_before:
                self.refresh()
        if cursor_was_visible:
            self._scroll_to_cursor()
        self._lay_out()
        self._repaint_changes()

    def set_sort(self, key: str, reverse: bool = False) -> None:
        """Mark the column by which the caller has sorted; "" marks none."""
        self._sort = (key, reverse) if key else None
        self.refresh_screen_lines([0])

    @property
    def row_count(self) -> int:
        return len(self._rows)

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor; None in an empty table."""
        return self._cursor_key

    @property
    def at_top(self) -> bool:
        """Whether the cursor is where it starts."""
        return self._cursor == 0

    def move_cursor(self, key: str) -> bool:
        """Put the cursor on the row ``key``; False when there is none."""
        index = _index_of(self._keys, key, self._cursor)
        if index is not None:
            self._move_to(index)
        return index is not None

    # Keys and mouse.

    def action_cursor(self, step: int) -> None:
        self._move_to(self._cursor + step)

    def action_page(self, step: int) -> None:
        self._move_to(self._cursor + step * max(1, self._page - 1))

    def action_edge(self, end: bool) -> None:
        self._move_to(len(self._rows) - 1 if end else 0)

    def action_select(self) -> None:
        if self._cursor_key is not None:
            self.post_message(self.Selected(self, self._cursor_key))

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        if spot is None:
            return
        if spot.y < HEADER:
            self._click_header(spot.x)
            return
        index = self._row_at(spot.y)
        if index < len(self._rows):
            self._move_to(index)
            if event.chain == 2:
                self.action_select()

    def _click_header(self, x: int) -> None:
        end = 0
        for index, width in self._shown:
            end += width + 1
            if x < end:
                self.post_message(self.HeaderClicked(self, self._columns[index].key))
                return

    # The cursor.

    def _move_to(self, index: int) -> None:
        if not self._rows:
            return
        self._cursor = min(max(index, 0), len(self._rows) - 1)
        self._tell_highlighted()
        self._scroll_to_cursor()
        self._repaint_changes()

    def _follow_key(self) -> None:
        """After new rows: the index of the cursor's key, or the row that now stands in its place."""
        index = None if self._cursor_key is None else _index_of(self._keys, self._cursor_key, self._cursor)
        self._cursor = min(self._cursor, max(0, len(self._rows) - 1)) if index is None else index
        self._tell_highlighted()

    def _tell_highlighted(self) -> None:
        key = self._keys[self._cursor] if self._keys else None
        if key != self._cursor_key:
            self._cursor_key = key
            if key is not None:
                self.post_message(self.Highlighted(self, key))

    def _is_visible(self, index: int) -> bool:
        return 0 <= index - round(self.scroll_y) < self._page

    def _scroll_to_cursor(self) -> None:
        top = round(self.scroll_y)
        if self._page > 0 and not self._is_visible(self._cursor):
            target = self._cursor if self._cursor < top else self._cursor - self._page + 1
            self.scroll_to(y=target, animate=False, force=True)

    @property
    def _page(self) -> int:
        """Rows that fit below the header."""
        return max(0, self.scrollable_content_region.height - HEADER)

    # Drawing.

    def paint_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y < HEADER:
            return self.strip(header_line(self._columns, self._shown, self._sort), width, "header")
        row, over = self._painted[y] = self._at(y)
        if row is None:
            text = self.empty_text if not self._rows and y == HEADER else ""
            return self.strip([Cell(text, "dim")], width)
        strip = self._strips.get((row, over, width))
        if strip is None:
            strip = self.strip(columns_line(self._columns, row, self._shown), width, over)
            self._strips[row, over, width] = strip
        return strip

    def _row_at(self, y: int) -> int:
        return y - HEADER + round(self.scroll_y)

    def _at(self, y: int) -> tuple[Row | None, str]:
        """What belongs on screen line ``y``: the row and the component that lies over it."""
        index = self._row_at(y)
        if index >= len(self._rows):
            return None, ""
        if index != self._cursor:
            return self._rows[index], ""
        return self._rows[index], "cursor" if self.has_focus else "cursor-blurred"

    def _repaint_changes(self) -> None:
        changed = [y for y, painted in self._painted.items() if painted != self._at(y)]
        self.refresh_screen_lines(changed)

    def _lay_out(self) -> None:
        """Which columns are shown and how wide; everything is drawn again only when that changed."""
        top = round(self.scroll_y)
        visible = self._rows[top : top + max(self._page, 1)]
        hidden = unknown_columns(self._columns, visible) - self._filled
        if visible:
            self._filled |= {i for i, column in enumerate(self._columns) if column.optional} - hidden
        shown = layout(self._columns, self.scrollable_content_region.width, hidden)
        if shown != self._shown:
            self._shown = shown
            self._forget()

    def _forget(self) -> None:
        self.drop_strips()
        self.refresh()

    def drop_strips(self) -> None:
        # What is painted stays known: a style update that changes nothing is not followed by a repaint.
        self._strips.clear()

    def on_resize(self) -> None:
        # This comes after the new size was painted: what is painted is known and must stay so.
        height = self.size.height
        self._painted = {y: painted for y, painted in self._painted.items() if y < height}
        self._scroll_to_cursor()
        self._lay_out()

    def watch_show_vertical_scrollbar(self) -> None:
        """The scrollbar takes a column, and gives it back."""
        self.call_after_refresh(self._lay_out)

    def on_focus(self) -> None:
        self._repaint_changes()

    def on_blur(self) -> None:
        self._repaint_changes()


def _index_of(keys: Sequence[str], key: str, near: int) -> int | None:
    """The position of ``key``; looks where it was last time first."""
    if near < len(keys) and keys[near] == key:
        return near
    try:
        return keys.index(key)
    except ValueError:
        return None
