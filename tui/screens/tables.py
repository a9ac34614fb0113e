"""What a pane does with its tables: the filter in force, the order of each table, their heights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from textual.screen import Screen

from mltop.tui.filters import Filter
from mltop.tui.mishaps import spared
from mltop.tui.render.cells import Column, Row, row_keys
from mltop.tui.screens.narrowing import by_node, narrowed, why_empty
from mltop.tui.screens.sorting import Sort, first_sort, next_sort
from mltop.tui.widgets.line_table import LineTable
from mltop.tui.widgets.unbroken import Unbroken

if TYPE_CHECKING:
    from mltop.tui.app import MltopApp


class TableScreen(Unbroken, Screen[None]):
    """``filter`` is what holds now; fill tables through ``put`` and it is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = Filter()
        self.kept: tuple[int, int] | None = None  # rows of the table that was filled first: shown, and all
        self._focus_moved = False  # by the user
        self._sorts: dict[LineTable, Sort | None] = {}
        self._columns: dict[LineTable, Sequence[Column]] = {}
        self._empty_texts: dict[LineTable, str] = {}
        self._shown_keys: dict[LineTable, Sequence[str]] = {}

    @property
    def mltop(self) -> MltopApp:
        return cast("MltopApp", self.app)

    def tables(self) -> Sequence[LineTable]:
        """The tables that are shown, the main one first."""
        return [table for table in self.query(LineTable) if table.display]

    def draw(self) -> None:
        """Everything from the app's picture."""
        raise NotImplementedError

    def put(self, table: LineTable, columns: Sequence[Column], rows: Sequence[Row], empty_text: str = "") -> None:
        """Filtered and sorted rows into a table of this pane; lazy rows stay lazy where nothing is asked of them.

        An expression with fields is asked of ``SubjectRows`` only: other rows have no fields, and all stay.
        ``empty_text`` stands in an empty table in place of the table's own text.
        """
        self._columns[table] = columns
        spared(f"a table of {self.mltop.trail.here.title}", lambda: self._put(table, columns, rows, empty_text), None)

    def _put(self, table: LineTable, columns: Sequence[Column], rows: Sequence[Row], empty_text: str) -> None:
        own_text = self._empty_texts.setdefault(table, table.empty_text)
        findings = by_node(self.mltop.picture.findings) if self.mltop.picture is not None else {}
        shown = narrowed(columns, rows, self.filter, self.sort_of(table), findings)
        nothing_left = rows and not shown
        table.empty_text = why_empty(rows, self.filter, findings) if nothing_left else empty_text or own_text
        self._shown_keys[table] = row_keys(shown)
        if self.kept is None and rows:
            self.kept = (len(shown), len(rows))
        table.set_table(columns, shown)

    def shown_keys(self, table: LineTable) -> Sequence[str]:
        """The keys of the rows that the filter lets through, in order."""
        return self._shown_keys.get(table, ())

    def sort_of(self, table: LineTable) -> Sort | None:
        """By which column the user has sorted it; None: not at all."""
        return self._sorts.get(table)

    def action_sort(self) -> None:
        table = self._active_table()
        if table is not None:
            self._sort(table, next_sort(self._columns[table], table.size.width, self.sort_of(table)))

    def action_reverse(self) -> None:
        table = self._active_table()
        sort = self.sort_of(table) if table is not None else None
        if table is not None and sort is not None:
            self._sort(table, Sort(sort.column, not sort.reverse))

    def on_line_table_header_clicked(self, event: LineTable.HeaderClicked) -> None:
        if event.table not in self._columns:
            return
        now, first = self.sort_of(event.table), first_sort(self._columns[event.table], event.key)
        again = now is not None and now.column == event.key
        self._sort(event.table, Sort(event.key, not now.reverse) if again and now is not None else first)

    def _sort(self, table: LineTable, sort: Sort | None) -> None:
        self._sorts[table] = sort
        table.set_sort(sort.column if sort else "", sort.reverse if sort else False)
        self.draw()

    def action_next_table(self) -> None:
        self._focus_moved = True
        self.focus_next()

    def on_click(self) -> None:
        self._focus_moved = True

    def limit_height(self, table: LineTable, height: int) -> int:
        """Give a table ``height`` lines, hide it at 0; returns the height.

        The main table gets the focus when it comes late, unless the user has begun elsewhere.
        """
        came = height > 0 and not table.display
        table.display = height > 0
        table.styles.height = height
        untouched = self.focused is None or (isinstance(self.focused, LineTable) and self.focused.at_top)
        if came and untouched and not self._focus_moved and self.tables()[:1] == [table]:
            table.focus()
        return height

    def _active_table(self) -> LineTable | None:
        """The table with the focus, or the main one."""
        if isinstance(self.focused, LineTable) and self.focused in self._columns:
            return self.focused
        return next((table for table in self.tables() if table in self._columns), None)
