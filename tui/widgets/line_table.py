"""A table for live data: draws only visible rows, repaints only changed ones, its cursor stays on its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events
from textual.cache import LRUCache
from textual.strip import Strip

from mltop.tui.render.cells import (
    Cell,
    Column,
    Row,
    chosen_layout,
    columns_line,
    header_line,
    needs,
    plain,
    unknown_columns,
)
from mltop.tui.render.rows import Sort, row_keys
from mltop.tui.widgets.cell_view import CursorView

_KEPT_STRIPS = 128  # more than a screen: what a row that changes every second was is not drawn again


class LineTable(CursorView, can_focus=True):
    """Rows of cells under a header line.

    Columns that do not fit are left out (``Column.priority``), as are optional ones that no visible row has
    filled yet.
    """

    HEADER: ClassVar[int] = 1

    class HeaderClicked(CursorView.OfItem):
        """A click on the title of column ``key``."""

    def __init__(self, *, sortable: bool = True, kind: str = "", **widget_options: Any) -> None:
        """``kind``: its name in ``config.catalog``, "" where nothing of it can be chosen."""
        super().__init__(**widget_options)
        self.kind = kind
        if kind == "nodes":
            self.about = "node"
        self.sortable = sortable
        self.sort: Sort | None = None  # by which column the user has sorted it; None: not at all
        self.columns: tuple[Column, ...] = ()
        self.chosen: Sequence[str] = ()  # keys of the columns that the user wants, in that order; none: as they come
        self._filled: set[int] = set()  # optional columns that were known once: they stay
        self._needs: dict[str, int] = {}  # the most that each column has needed: none shrinks and grows
        self._shown: list[tuple[int, int]] = []
        self._strips: LRUCache[tuple[Row, str, int], Strip] = LRUCache(_KEPT_STRIPS)

    def set_table(self, columns: Sequence[Column], rows: Sequence[Row], empty_text: str = "") -> None:
        """Show ``rows`` in this order; keys are unique. Of ``LazyRows`` only visible ones are made.

        ``empty_text`` is shown in an empty table in place of the table's own text.
        """
        self.why_empty = empty_text
        if tuple(columns) != self.columns:
            self.columns = tuple(columns)
            self._filled.clear()
            self._needs.clear()
            self._forget()
        self.show_lines(rows, row_keys(rows))

    def choose(self, keys: Sequence[str]) -> None:
        """Show these columns in this order; none: all, as they come."""
        if tuple(keys) != tuple(self.chosen):
            self.chosen = tuple(keys)
            self.lay_out()

    def set_sort(self, sort: Sort | None) -> None:
        """Mark the column by which the caller sorts the rows."""
        if sort != self.sort:
            self.sort = sort
            self.refresh_screen_lines([0])

    def text_at_cursor(self) -> str:
        return self.text_of(self._lines[self._cursor]) if self._keys else ""

    def texts(self) -> list[str]:
        return [self.text_of(row) for row in self._lines]

    def text_of(self, row: Row) -> str:
        """A row with all its columns, also those that have no room: "GPU 3  SM 81%"."""
        if row.banner is not None:
            return plain([row.cells[0], Cell("  "), row.banner]).strip()
        named = zip(self.columns, row.cells, strict=False)
        parts = (f"{column.title} {plain([cell]).strip()}".strip() for column, cell in named if cell.text.strip())
        return "  ".join(parts)

    def shown_keys(self) -> list[str]:
        """The keys of the columns that are shown, in their order."""
        return [self.columns[index].key for index, _ in self._shown if self.columns[index].title]

    def as_data(self) -> list[dict[str, str]]:
        """Every row, with what all its columns say by their keys."""
        return [
            {"key": row.key, **{column.key: cell.text.strip() for column, cell in self._named(row)}}
            for row in self._lines
        ]

    def _named(self, row: Row) -> list[tuple[Column, Cell]]:
        banner = [(Column("banner", "", 0), row.banner)] if row.banner is not None else []
        return [*zip(self.columns, row.cells, strict=False), *banner]

    @property
    def keys(self) -> Sequence[str]:
        """The keys of the rows that are shown, in order."""
        return self._keys

    @property
    def needed(self) -> int:
        """Lines for the header and all rows, or for what an empty table says; never fewer than a header and a row."""
        said = (self.why_empty or self.empty_text).count("\n") + 1
        return self.HEADER + len(self._lines) if self._lines else max(self.HEADER + 1, said)

    @property
    def row_count(self) -> int:
        return len(self._lines)

    def on_click(self, event: events.Click) -> None:
        """Handles clicks on the header; those on rows move the cursor."""
        spot = event.get_content_offset(self)
        if spot is None or spot.y >= self.HEADER:
            return
        end = 0
        for index, width in self._shown:
            end += width + 1
            if spot.x < end:
                self.post_message(self.HeaderClicked(self, self.columns[index].key))
                return

    def draw(self, y: int, content: tuple[Row | None, str]) -> Strip:
        width = self.scrollable_content_region.width
        if y < self.HEADER and self._lines:
            return self.strip(header_line(self.columns, self._shown, self.sort), width, "header")
        row, over = content
        if row is None:
            return super().draw(y, content)
        strip = self._strips.get((row, over, width))
        if strip is None:
            strip = self._strips[row, over, width] = super().draw(y, content)
        return strip

    def cells_of(self, line: Row) -> Sequence[Cell]:
        return columns_line(self.columns, line, self._shown)

    def lay_out(self) -> None:
        """Which columns are shown and how wide; everything is drawn again only when that changed."""
        top = round(self.scroll_y)
        visible = self._lines[top : top + max(self.page, 1)]
        hidden = unknown_columns(self.columns, visible) - self._filled
        if visible:
            self._filled |= {i for i, column in enumerate(self.columns) if column.optional} - hidden
        for key, cells in needs(self.columns, visible).items():
            self._needs[key] = max(cells, self._needs.get(key, 0))
        shown = chosen_layout(self.columns, self.scrollable_content_region.width, hidden, self.chosen, self._needs)
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
        self.lay_out()

    def watch_show_vertical_scrollbar(self) -> None:
        """The scrollbar takes a column, and gives it back."""
        self.call_after_refresh(self.lay_out)
