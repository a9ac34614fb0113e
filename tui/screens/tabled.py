"""What the views of a pane have in common: filter, sort, cursor and focus; and what keys do with what is under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from mltop.probes.model.text import clean
from mltop.tui.app.navigation import gpu_of_row
from mltop.tui.app.selection import Looked
from mltop.tui.filters import Filter, meanwhile, parse
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.empty import empty_text
from mltop.tui.render.guarded import guarded
from mltop.tui.render.rows import Sort
from mltop.tui.screens.bars import FilterBox, Notice
from mltop.tui.screens.rows import FindingsOf, by_node, first_sort, narrowed, next_sort, why_empty
from mltop.tui.screens.tables import rank_of
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import About, CursorScreen, CursorView, FailSafe
from mltop.tui.widgets.line_table import LineTable

if TYPE_CHECKING:
    from mltop.tui.app.app import MltopApp

Lines = list[list[Cell]]
COPIED = "copied (OSC 52): "
MOST_SHOWN = 60  # characters of what was copied


class RankTable(LineTable):
    """The ranks of some nodes: ``tables.rank_rows``."""

    about = "rank"

    def __init__(self, **options: Any) -> None:
        super().__init__(empty_text=empty_text("ranks"), kind="ranks", **options)


class GpuTable(LineTable):
    """All GPUs of one node: ``tables.gpu_rows``."""

    about = "gpu"

    def __init__(self, **options: Any) -> None:
        super().__init__(kind="gpus", **options)


class TabledScreen(FailSafe, CursorScreen):
    """Tables are filled through ``put``: filter and sort act on them. What is looked at has the cursor of all panes."""

    focus_follows = True  # the view of what is looked at gets the focus when the user comes here
    lines_are = ""  # what this pane shows where that has no fields: a filter looks for words only

    def __init__(self) -> None:
        super().__init__()
        self.filter = Filter()  # what holds now
        self.counts: tuple[int, int] | None = None  # rows of the table that was filled first: shown, all
        self._draft = self.filter  # what is being typed
        self._refused = False  # Enter was pressed on a draft that is no filter
        self._focus_moved = False  # by the user
        self._to_place = True  # the user has just come to this pane
        self._looked_here = Looked()  # what its cursors are on

    @property
    def mltop(self) -> MltopApp:
        return cast("MltopApp", self.app)

    @property
    def is_composed(self) -> bool:
        """Whether all parts are there: a picture may arrive while they are mounted, or removed at the app's end."""
        return self.app.is_running and self.is_mounted and self.query_one_optional("#keys") is not None

    def draw(self) -> None:
        """Draw everything from the app's picture."""
        raise NotImplementedError

    def _findings_by_node(self) -> FindingsOf:
        return by_node(self.mltop.picture.findings) if self.mltop.picture is not None else {}

    # Tables.

    def tables(self) -> Sequence[LineTable]:
        """The tables that are shown, the main one first."""
        return [table for table in self.query(LineTable) if table.display]

    def put(self, table: LineTable, columns: Sequence[Column], rows: Sequence[Row], empty_text: str = "") -> None:
        """Put filtered and sorted rows into a table of this pane; lazy ones stay lazy where nothing is asked of them.

        An expression with fields is asked of ``SubjectRows`` only: other rows have no fields, and all stay.
        ``empty_text`` is shown in an empty table in place of the table's own text.
        """
        guarded(f"a table of {self.mltop.trail.here.title}", lambda: self._put(table, columns, rows, empty_text), None)

    def _put(self, table: LineTable, columns: Sequence[Column], rows: Sequence[Row], empty_text: str) -> None:
        findings = self._findings_by_node()
        if table.kind:
            table.set_sort(self.mltop.shapes.sorts.get(table.kind))
            table.choose(self.chosen_columns(table.kind))
        shown = narrowed(rows, self.filter, table.sort, findings)
        if self.counts is None and rows:
            self.counts = (len(shown), len(rows))
        table.set_table(columns, shown, why_empty(rows, self.filter, findings) if rows and not shown else empty_text)

    def chosen_columns(self, kind: str) -> Sequence[str]:
        """The columns of a table of this kind, in their order; none: all, as they come."""
        return self.mltop.shapes.columns.get(kind, ())

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

    def set_part(self, selector: str, lines: Lines) -> int:
        """Put lines into a part, which is as high as they are and hidden where there are none; returns how many."""
        part = self.query_one(selector, CellLines)
        part.display = bool(lines)
        part.styles.height = len(lines)
        part.set_lines(lines)
        return len(lines)

    def action_sort(self) -> None:
        table = self.table_at_cursor()
        if table is not None:
            self._sort(table, next_sort(table.columns, table.size.width, table.sort))
        else:
            self.mltop.tell(Notice("no table here can be sorted", "warn"))

    def action_reverse(self) -> None:
        table = self.table_at_cursor()
        if table is not None and table.sort is not None:
            self._sort(table, table.sort.reversed())
        else:
            self.mltop.tell(Notice("not sorted yet: s sorts by the next column", "warn"))

    def on_line_table_header_clicked(self, event: LineTable.HeaderClicked) -> None:
        table = event.view
        if isinstance(table, LineTable) and table.sortable:
            again = table.sort if table.sort is not None and table.sort.column == event.key else None
            self._sort(table, again.reversed() if again is not None else first_sort(table.columns, event.key))

    def _sort(self, table: LineTable, sort: Sort | None) -> None:
        if table.kind:
            self.mltop.shapes.sort(table.kind, sort)
        table.set_sort(sort)
        self.draw()

    def set_filter(self, text: str) -> None:
        """As if it had been typed and kept."""
        self._draft = parse(text)
        if self._draft.problem:
            self.mltop.tell(Notice(self._draft.problem, "warn"))
        else:
            self.filter = self._draft
            self.draw()

    def sortable_tables(self) -> Sequence[LineTable]:
        """The table with the focus first, then the main one."""
        tables = [table for table in self.tables() if table.sortable and table.columns]
        return sorted(tables, key=lambda table: table is not self.focused)

    def table_at_cursor(self) -> LineTable | None:
        """The table with the focus, or the main one."""
        return next(iter(self.sortable_tables()), None)

    def user_moved(self) -> None:
        """The focus stays where the user has brought it."""
        self._focus_moved = True

    def action_next_table(self) -> None:
        self._focus_moved = True
        if len([part for part in self.focus_chain if isinstance(part, CursorView)]) > 1:
            self.focus_next()
        else:
            self.mltop.tell(Notice("there is nothing else here to go to", "warn"))

    def on_click(self) -> None:
        self._focus_moved = True

    # The filter.

    def keeps(self, text: str) -> bool:
        """Whether the filter lets this line of text, which has no fields, through."""
        return self.filter.row(text)

    @property
    def filtering(self) -> bool:
        """Whether the filter's line is open."""
        return self.is_composed and bool(self.query_one(FilterBox).display)

    def action_filter(self) -> None:
        """Open the filter's line at once, so that what is typed right after the key is not taken for keys."""
        self._draft, self._refused = self.filter, False
        box = self.query_one(FilterBox)
        box.open_with(self.filter.text)
        self.set_focus(box)
        self.draw()

    def on_input_changed(self, event: FilterBox.Changed) -> None:
        """Until what is typed makes sense, the last filter that did stays in force."""
        if not isinstance(event.input, FilterBox):
            return
        self._draft, self._refused = parse(event.value), False
        self.filter = meanwhile(self.filter, self._draft, fields=not self.lines_are)
        self.draw()

    def keep_typed(self, text: str) -> None:
        """Enter in the filter's line."""
        self._draft = parse(text)  # the last letter may not have been reported yet
        self._refused = bool(self._draft.problem)
        if not self._refused:
            self.filter = self._draft  # also a word that might have become the name of a field
            self.mltop.filter_history.add(self.filter.text)
            self._close_filter()
        self.draw()

    def clear_filter(self) -> bool:
        """Forget the filter and close its line; False when there was none."""
        had_one = not self.filter.empty or self.filtering
        self.filter = Filter()
        if had_one:
            self._close_filter()
        return had_one

    def _close_filter(self) -> None:
        self.query_one(FilterBox).display = False
        tables = self.tables()
        if tables:
            self.set_focus(tables[0])  # at once: what is pressed next is a key, not text
        self.draw()

    # The cursor.

    def node_at_cursor(self) -> str:
        """The node that the cursor is on; "" when this pane has none."""
        return ""

    def views(self) -> list[CursorView]:
        """Those that are shown and have something to select, the active one first."""
        found = [view for view in self.query(CursorView) if view.display and view.cursor_key is not None]
        return sorted(found, key=lambda view: view is not self.active_view)

    def view_at_cursor(self) -> CursorView | None:
        """That in which the user is, or the first that could be."""
        if self.active_view is not None and self.active_view.display:
            return self.active_view
        return next(iter(self.views()), None)

    # What is looked at.

    def looked_by(self, view: CursorView, key: str) -> Looked | None:
        """What an item is about; None where that is no node, GPU or process."""
        if view.about == "gpu":
            return Looked(self.node_at_cursor(), gpu_of_row(key))
        if view.about == "node":
            return Looked(key)
        if view.about != "rank":
            return None
        node, _, pid = key.rpartition("/")
        views = self.mltop.picture.view.nodes if self.mltop.picture is not None else ()
        rank = rank_of(next((each for each in views if each.node == node), None), int(pid)) if pid.isdecimal() else None
        return Looked(node, rank.gpus[0] if rank is not None and rank.gpus else None, rank.pid if rank else 0)

    def cursor_moved(self, view: CursorView, key: str) -> None:
        looked = self.looked_by(view, key)
        if looked is not None and looked.node:
            self.mltop.looked = self._looked_here = looked

    def place_cursors(self) -> None:
        """Once after the user has come here: put the cursors on what is looked at."""
        looked = self.mltop.looked
        if not self._to_place or looked == self._looked_here:
            return
        self._to_place, self._looked_here = False, looked
        placed: dict[About, CursorView] = {}
        for view in self.query(CursorView):
            if view.display and (key := self.key_looked_at(view, looked)) and view.move_cursor(key):
                placed.setdefault(view.about, view)
        order: tuple[About, ...] = ("rank", "gpu", "node") if looked.pid else ("gpu", "node", "rank")
        nearest = next((placed[about] for about in order if about in placed), None)
        if self.focus_follows and nearest is not None and nearest.focusable:
            self.set_focus(nearest)

    def key_looked_at(self, view: CursorView, looked: Looked) -> str:
        """The item that is about it; "" where there can be none."""
        if view.about == "node":
            return looked.node
        if view.about == "rank":
            return f"{looked.node}/{looked.pid}" if looked.pid else ""
        on_this = view.about == "gpu" and looked.gpu is not None and looked.node == self.node_at_cursor()
        return str(looked.gpu) if on_this else ""

    def on_screen_resume(self) -> None:
        self._to_place = True
        self.draw()

    # Keys.

    def copy_text(self) -> str:
        """What `y` copies: all that is under the cursor."""
        view = self.view_at_cursor()
        return view.text_at_cursor() if view is not None else ""

    def export(self) -> dict[str, object]:
        """What `e` writes: the whole pane. Values are strings, numbers, lists and dicts of them."""
        tables = {
            table.kind or table.id or f"table {number}": table.as_data() for number, table in enumerate(self.tables())
        }
        lines = [line for view in self.query(CursorView) if not isinstance(view, LineTable) for line in view.texts()]
        return {"tables": tables, "lines": [line for line in lines if line]}

    def action_copy(self) -> None:
        """The terminal copies it (OSC 52): over ssh that is the user's own clipboard, where the terminal allows it."""
        text = "\n".join(map(clean, self.copy_text().splitlines()))  # it may be pasted into a shell
        if not text:
            self.mltop.tell(Notice("nothing is under the cursor to copy", "warn"))
            return
        self.mltop.copy_to_clipboard(text)
        first, *more = text.splitlines()
        count = f" and {len(more)} more lines" if more else ""
        self.mltop.tell(Notice(f"{COPIED}{first[:MOST_SHOWN]}{count}", "accent"))

    def action_export(self) -> None:
        self.mltop.export(self.export())

    def action_describe(self) -> None:
        """As Enter."""
        view = self.view_at_cursor()
        if view is not None:
            view.action_select()
        else:
            self.mltop.tell(Notice("nothing is under the cursor", "warn"))

    def action_next_match(self, step: int) -> None:
        """To the next row of those that the filter leaves, from the last to the first."""
        view = self.view_at_cursor()
        if self.filter.empty:
            self.mltop.tell(Notice(f"nothing was looked for: {KEYCAPS['filter']} filters", "warn"))
        elif view is not None:
            view.step_around(step)

    def action_log(self) -> None:
        self.mltop.tell(
            Notice(f"no log here: {KEYCAPS['ranks']} shows ranks, and there {KEYCAPS['log']} the log of one", "warn")
        )

    def action_tree(self) -> None:
        self.mltop.tell(Notice(f"no tree here: {KEYCAPS['ranks']} shows processes", "warn"))

    def action_no_signal(self) -> None:
        self.mltop.tell(Notice(f"no signal was sent: {KEYCAPS['signal']} asks which, on a rank", "warn"))

    def action_shell(self) -> None:
        self.mltop.ask_shell(self.node_at_cursor())

    def action_columns(self) -> None:
        """Tick the columns that the table is to have."""
        table = self.table_at_cursor()
        if table is None or not table.kind:
            self.mltop.tell(Notice("no table here has columns to choose", "warn"))
            return
        from mltop.tui.screens.columns import ColumnList

        self.mltop.push_screen(ColumnList(table, self.mltop.shapes, self.draw))
