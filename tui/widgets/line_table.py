"""A table for live data: draws only visible rows, repaints only changed ones, its cursor stays on its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events
from textual.cache import LRUCache
from textual.geometry import Size
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
from mltop.tui.widgets.cell_view import CursorView

_KEPT_STRIPS = 512  # a few screens


class LineTable(CursorView, can_focus=True):
    """Rows of cells under a header line.

    Columns that do not fit are left out (``Column.priority``), as are optional ones that no visible row has
    filled yet.
    """

    HEADER: ClassVar[int] = 1

    class Selected(CursorView.Selected):
        """Enter or a double click on the row ``key``."""

    class Highlighted(CursorView.Highlighted):
        """The cursor is now on the row ``key``."""

    class HeaderClicked(CursorView.OfItem):
        """A click on the title of column ``key``."""

    def __init__(self, **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self._columns: tuple[Column, ...] = ()
        self._rows: Sequence[Row] = ()
        self._sort: tuple[str, bool] | None = None
        self._filled: set[int] = set()  # optional columns that were known once: they stay
        self._shown: list[tuple[int, int]] = []
        self._strips: LRUCache[tuple[Row, str, int], Strip] = LRUCache(_KEPT_STRIPS)

    def set_table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Show ``rows`` in this order; keys are unique. Of ``LazyRows`` only visible ones are made."""
        if tuple(columns) != self._columns:
            self._columns = tuple(columns)
            self._filled.clear()
            self._forget()
        rows_before, cursor_was_visible = len(self._rows), self.cursor_is_visible()
        self._rows = rows
        self.set_items(row_keys(rows))
        if len(rows) != rows_before:
            self.virtual_size = Size(0, self.HEADER + len(rows))
            if not rows or not rows_before:
                self.refresh()
        if cursor_was_visible:
            self.scroll_to_cursor()
        self._lay_out()
        self.repaint_changes()

    def set_sort(self, key: str, reverse: bool = False) -> None:
        """Mark the column by which the caller has sorted; "" marks none."""
        self._sort = (key, reverse) if key else None
        self.refresh_screen_lines([0])

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def on_click(self, event: events.Click) -> None:
        """On the header; clicks on rows are the cursor's."""
        spot = event.get_content_offset(self)
        if spot is None or spot.y >= self.HEADER:
            return
        end = 0
        for index, width in self._shown:
            end += width + 1
            if spot.x < end:
                self.post_message(self.HeaderClicked(self, self._columns[index].key))
                return

    def content(self, y: int) -> tuple[Row | None, str]:
        """The row, None in the header and below the last, and the component that lies over it."""
        line = self.content_line(y)
        if y < self.HEADER or line >= len(self._rows):
            return None, ""
        return self._rows[line], self.cursor_style if line == self._cursor else ""

    def draw(self, y: int, content: tuple[Row | None, str]) -> Strip:
        width = self.scrollable_content_region.width
        if y < self.HEADER:
            return self.strip(header_line(self._columns, self._shown, self._sort), width, "header")
        row, over = content
        if row is None:
            return self.strip([Cell(self.empty_text if not self._rows and y == self.HEADER else "", "dim")], width)
        strip = self._strips.get((row, over, width))
        if strip is None:
            strip = self.strip(columns_line(self._columns, row, self._shown), width, over)
            self._strips[row, over, width] = strip
        return strip

    def _lay_out(self) -> None:
        """Which columns are shown and how wide; everything is drawn again only when that changed."""
        top = round(self.scroll_y)
        visible = self._rows[top : top + max(self.page, 1)]
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
        self._lay_out()

    def watch_show_vertical_scrollbar(self) -> None:
        """The scrollbar takes a column, and gives it back."""
        self.call_after_refresh(self._lay_out)
