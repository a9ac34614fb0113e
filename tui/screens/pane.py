"""What every pane has: the header with crumbs, a filter, sorting, the status line and the key bar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from mltop.tui.keys import APP_BINDINGS, PANE_BINDINGS, first_keys
from mltop.tui.place import Place
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.filtering import matches
from mltop.tui.render.header import header_cells
from mltop.tui.screens.key_bar import KeyBar
from mltop.tui.screens.sorting import Sort, first_sort, next_sort, sorted_rows
from mltop.tui.status import dump_line, notice_line, waiting_for
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import MOVES
from mltop.tui.widgets.line_table import LineTable

if TYPE_CHECKING:
    from mltop.tui.app import MltopApp
    from mltop.tui.feed import Picture

MIN_WIDTH, MIN_HEIGHT = 16, 4
LOW_HEIGHT = 10  # below it the second header line goes
ROOMY_HEIGHT = 30  # from here on blank lines separate tables


class TextLines(CellLines, can_focus=False):
    """Lines that are only read: Tab goes past them."""


class Pane(Screen[None]):
    """Subclasses compose ``body`` and fill it in ``fill``; ``tables`` are what filter and sort act on."""

    BINDINGS: ClassVar[list[BindingType]] = PANE_BINDINGS  # type: ignore[assignment]
    AUTO_FOCUS = "LineTable"
    DEFAULT_CSS = """
    Pane { background: $background; overflow: hidden; layers: base notice; }
    Pane #head { height: 2; }
    Pane.-low #head { height: 1; }
    Pane #status { height: 1; display: none; }
    Pane #filter { height: 1; border: none; padding: 0; display: none; background: $background; }
    Pane .section { height: auto; }
    Pane.-roomy .gap-above { margin-top: 1; }
    Pane #too-small { display: none; layer: notice; dock: top; height: 100%; }
    Pane.-too-small #too-small { display: block; }
    Pane.-low HostLine { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.query_text = ""
        self._focus_moved = False  # by the user
        self._sorts: dict[LineTable, Sort | None] = {}
        self._columns: dict[LineTable, Sequence[Column]] = {}
        self._empty_texts: dict[LineTable, str] = {}

    @property
    def mltop(self) -> MltopApp:
        return cast("MltopApp", self.app)

    def compose(self) -> ComposeResult:
        yield TextLines(id="too-small")
        yield TextLines(id="head")
        yield from self.body()
        yield TextLines(id="status")
        yield KeyBar(self.perform, id="keys")

    def body(self) -> Iterable[Widget]:
        """The widgets between header and status line."""
        raise NotImplementedError

    def fill(self, picture: Picture) -> None:
        """Show a picture."""
        raise NotImplementedError

    def tables(self) -> Sequence[LineTable]:
        """The tables that are shown, the main one first."""
        return [table for table in self.query(LineTable) if table.display]

    def node_at_cursor(self) -> str:
        """The node that the cursor is on, for the node pane; "" when this pane has none."""
        return ""

    def open_rank(self, key: str) -> None:
        """Drill into the stack of a rank; ``key`` is "node/pid" as in the rank table."""
        node, _, pid = key.partition("/")
        picture = self.mltop.picture
        views = [view for view in picture.view.nodes if view.node == node] if picture else []
        ranks = [rank for view in views if view.sample for rank in view.sample.ranks if rank.pid == int(pid)]
        number = "?" if not ranks or ranks[0].rank is None else str(ranks[0].rank)
        self.mltop.drill(Place("rank", node, pid=int(pid), label=f"rank {number}"))

    # Drawing.

    def chrome_height(self) -> int:
        """Lines that header, status line, key bar and blank lines take."""
        gaps = sum(part.display for part in self.query(".gap-above")) if self.has_class("-roomy") else 0
        head = 1 if self.has_class("-low") else 2
        return head + 1 + gaps + bool(self.query_one("#status").display)

    def draw(self) -> None:
        """Everything from the app's picture; called once per frame and on every arrival."""
        if not self.is_mounted:
            return
        picture = self.mltop.picture
        self._draw_head(picture)
        self._draw_status()
        self.query_one(KeyBar).set_hints(self.hints(), f"pane('{self.mltop.trail.here.pane}')")
        if picture is not None:
            self.fill(picture)

    def on_screen_resume(self) -> None:
        self.draw()

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        small = width < MIN_WIDTH or height < MIN_HEIGHT
        self.set_class(small, "-too-small")
        self.set_class(height < LOW_HEIGHT, "-low")
        self.set_class(height >= ROOMY_HEIGHT, "-roomy")
        if small:
            self.query_one("#too-small", CellLines).set_lines([[Cell("too small", "warn")]])
        self.call_after_refresh(self.draw)

    def _draw_head(self, picture: Picture | None) -> None:
        head = self.query_one("#head", CellLines)
        width, crumbs = self.size.width, self.mltop.trail.crumbs()
        if picture is None:
            head.set_lines([[Cell(crumbs, "title")], [Cell("connecting", "accent")]])
            return
        titles = [f"{crumbs}  {self.mltop.session.title}", crumbs, self.mltop.trail.here.title]
        if len(titles[0]) > width // 2:
            titles.pop(0)
        head.set_lines(header_cells(picture.view, titles[0], self.mltop.paused, width, titles[1:]))

    def _draw_status(self) -> None:
        app, line = self.mltop, None
        if app.investigation.dumping and app.investigation.progress is not None:
            progress = app.investigation.progress
            waiting = waiting_for(progress, app.newest.view) if app.newest is not None else ""
            line = dump_line(progress, self.size.width, waiting)
        elif app.notice is not None:
            line = notice_line(app.notice, self.size.width)
        elif self.query_text and not any(box.display for box in self.query(Input)):
            line = [Cell("filter: ", "dim"), Cell(self.query_text, "accent"), Cell("  Esc clears", "dim")]
        status = self.query_one("#status", CellLines)
        status.display = line is not None
        if line is not None:
            status.set_lines([line])

    # Keys.

    @classmethod
    def pane_bindings(cls) -> list[Binding]:
        """The bindings of this kind of pane, its own first."""
        found: dict[str, Binding] = {}
        for base in cls.__mro__:
            if base in (Screen, object):
                break
            for binding in Binding.make_bindings(base.__dict__.get("BINDINGS", [])):
                found.setdefault(binding.key, binding)
        return list(found.values())

    def hints(self) -> list[Binding]:
        """What the key bar shows, in its order."""
        everywhere = Binding.make_bindings(APP_BINDINGS)
        here = Binding.make_bindings([*MOVES, *self.pane_bindings()])
        panes: list[Binding] = []
        rest: list[Binding] = []
        for binding in (binding for binding in everywhere if binding.show):
            (panes if binding.action.startswith("pane(") else rest).append(binding)
        own = [binding for binding in here if binding.show or binding.action == "select"]
        return first_keys([*panes, *own, *rest])

    async def perform(self, action: str) -> None:
        """Run the action of a binding wherever it belongs: the focused widget, this pane, or the app."""
        method = "action_" + action.partition("(")[0]
        for owner in (self.focused, self, self.app):
            if owner is not None and hasattr(owner, method):
                await self.app.run_action(action, owner)
                return

    # Sorting.

    def put(self, table: LineTable, columns: Sequence[Column], rows: Sequence[Row], empty_text: str = "") -> None:
        """Filtered and sorted rows into a table of this pane; lazy rows stay lazy where nothing is asked of them.

        ``empty_text`` stands in an empty table in place of the table's own text.
        """
        self._columns[table] = columns
        own_text = self._empty_texts.setdefault(table, table.empty_text)
        table.empty_text = f"no row matches {self.query_text!r}" if self.query_text else empty_text or own_text
        sort = self._sorts.get(table)
        if self.query_text or sort is not None:
            rows = sorted_rows(columns, (row for row in rows if self.keeps(row.text)), sort)
        table.set_table(columns, rows)

    def action_sort(self) -> None:
        table = self._active_table()
        if table is not None:
            self._sort(table, next_sort(self._columns[table], table.size.width, self._sorts.get(table)))

    def action_reverse(self) -> None:
        table = self._active_table()
        sort = self._sorts.get(table) if table is not None else None
        if table is not None and sort is not None:
            self._sort(table, Sort(sort.column, not sort.reverse))

    def on_line_table_header_clicked(self, event: LineTable.HeaderClicked) -> None:
        if event.table not in self._columns:
            return
        now, first = self._sorts.get(event.table), first_sort(self._columns[event.table], event.key)
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
        if came and untouched and not self._focus_moved and self.tables()[0] is table:
            table.focus()
        return height

    def _active_table(self) -> LineTable | None:
        """The table with the focus, or the main one."""
        if isinstance(self.focused, LineTable) and self.focused in self._columns:
            return self.focused
        return next((table for table in self.tables() if table in self._columns), None)

    # The filter.

    def keeps(self, text: str) -> bool:
        """Whether the filter lets this line through."""
        return not self.query_text or matches(text, self.query_text)

    async def action_filter(self) -> None:
        boxes = self.query(Input)
        if not boxes:
            box = Input(self.query_text, placeholder="filter: words, !word excludes", id="filter", compact=True)
            await self.mount(box, before="#status")
        box = self.query_one(Input)
        box.display = True
        box.value = self.query_text
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_text = event.value
        self.draw()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def clear_filter(self) -> bool:
        """Forget the filter and close its line; False when there was none."""
        box = next(iter(self.query(Input)), None)
        had_one = bool(self.query_text) or (box is not None and bool(box.display))
        self.query_text = ""
        if had_one:
            self._close_filter()
        return had_one

    def _close_filter(self) -> None:
        for box in self.query(Input):
            box.display = False
        tables = self.tables()
        if tables:
            tables[0].focus()
        self.draw()
