"""What every pane has: the header with crumbs, a filter, sorting, the status line and the key bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from mltop.probes.reach.view import NodeView
from mltop.tui.app.keys import APP_BINDINGS, PANE_BINDINGS, first_keys
from mltop.tui.app.navigation import Location
from mltop.tui.filters import Filter, meanwhile, parse
from mltop.tui.render.cells import Cell, Column, Row, line_width
from mltop.tui.render.fleet.header import header_cells
from mltop.tui.render.guarded import guarded
from mltop.tui.screens.bars import (
    FilterBox,
    KeyBar,
    connecting_line,
    dump_line,
    filter_line,
    notice_line,
    probe_line,
    typing_line,
    waiting_for,
)
from mltop.tui.screens.rows import FindingsOf, by_node, first_sort, narrowed, next_sort, why_empty
from mltop.tui.screens.tables import rank_of
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import MOVES, FailSafe
from mltop.tui.widgets.line_table import LineTable, Sort

if TYPE_CHECKING:
    from mltop.tui.app.app import MltopApp
    from mltop.tui.app.feed import Picture


MIN_WIDTH, MIN_HEIGHT = 16, 4
LOW_HEIGHT = 10  # below it the second header line goes
ROOMY_HEIGHT = 30  # from here on blank lines separate tables

Lines = list[list[Cell]]
Made = TypeVar("Made")


class Memo(Generic[Made]):
    """What was made last: made anew only when what it is made from is something else."""

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], Made] | None = None

    def get(self, source: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """``source``: figures, names and tuples of them are compared by value; other objects are the same or not."""
        if self._last is None or not all(map(_same, source, self._last[0])):
            self._last = source, make()
        return self._last[1]


def _same(new: object, old: object) -> bool:
    return new is old or (isinstance(new, (int, float, str, tuple)) and new == old)


class TextLines(CellLines, can_focus=False):
    """Lines that are only read: Tab goes past them."""


class Pane(FailSafe, Screen[None]):
    """Subclasses compose ``body`` and fill it in ``fill``, tables through ``put``: filter and sort act on them."""

    BINDINGS: ClassVar[list[BindingType]] = PANE_BINDINGS  # type: ignore[assignment]
    AUTO_FOCUS = "LineTable"
    DEFAULT_CSS = """
    Pane { background: $background; overflow: hidden; layers: base notice; }
    Pane #head { height: 2; }
    Pane.-low #head { height: 1; }
    Pane #status { height: 1; display: none; }
    Pane .section { height: auto; }
    Pane.-roomy .gap-above { margin-top: 1; }
    Pane #too-small { display: none; layer: notice; dock: top; height: 100%; }
    Pane.-too-small #too-small { display: block; }
    Pane #host { height: 1; }
    Pane.-low #host { display: none; }
    """

    lines_are = ""  # what this pane shows where that has no fields: a filter looks for words only

    def __init__(self) -> None:
        super().__init__()
        self.filter = Filter()  # what holds now
        self.counts: tuple[int, int] | None = None  # rows of the table that was filled first: shown, all
        self._draft = self.filter  # what is being typed
        self._refused = False  # Enter was pressed on a draft that is no filter
        self._focus_moved = False  # by the user

    @property
    def mltop(self) -> MltopApp:
        return cast("MltopApp", self.app)

    def compose(self) -> ComposeResult:
        yield TextLines(id="too-small")
        yield TextLines(id="head")
        yield from self.body()
        yield FilterBox(self.mltop.filter_history, id="filter")
        yield TextLines(id="status")
        yield KeyBar(self.perform, id="keys")

    def body(self) -> Iterable[Widget]:
        """The widgets between header and status line."""
        raise NotImplementedError

    def fill(self, picture: Picture) -> None:
        """Show this picture in them."""
        raise NotImplementedError

    def node_at_cursor(self) -> str:
        """The node that the cursor is on, for the node pane; "" when this pane has none."""
        return ""

    def node_view(self, name: str) -> NodeView | None:
        """A node as it is shown; None for one that is not watched."""
        return next((node for node in self.nodes if node.node == name), None)

    @property
    def nodes(self) -> Sequence[NodeView]:
        """All nodes as they are shown."""
        return self.mltop.picture.view.nodes if self.mltop.picture is not None else ()

    def open_rank(self, key: str) -> None:
        """Drill into the stack of a rank; ``key`` is "node/pid" as in the rank table."""
        node, _, pid = key.partition("/")
        rank = rank_of(self.node_view(node), int(pid))
        number = "?" if rank is None or rank.rank is None else str(rank.rank)
        self.mltop.drill(Location("rank", node, pid=int(pid), label=f"rank {number}"))

    # Marks.

    def action_mark(self) -> None:
        """Where one node is watched there is nothing to choose."""
        node = self.node_at_cursor()
        if node and len(self.nodes) > 1:
            self.mltop.selection.toggle(node)
            self.draw()

    def action_mark_shown(self) -> None:
        if len(self.nodes) > 1:
            self.mltop.selection.mark(self.nodes_shown())
            self.draw()

    def action_unmark(self) -> None:
        self.mltop.selection.clear()
        self.draw()

    def nodes_shown(self) -> list[str]:
        """The nodes that the filter of this pane lets through."""
        findings = self._findings_by_node()
        return [view.node for view in self.nodes if self.filter.node(view, findings.get(view.node, ()))]

    def _findings_by_node(self) -> FindingsOf:
        return by_node(self.mltop.picture.findings) if self.mltop.picture is not None else {}

    # Drawing.

    def chrome_height(self) -> int:
        """Lines that header, status line, key bar and blank lines take."""
        gaps = sum(part.display for part in self.query(".gap-above")) if self.has_class("-roomy") else 0
        head = 1 if self.has_class("-low") else 2
        return head + 1 + gaps + bool(self.query_one("#status").display)

    @property
    def is_composed(self) -> bool:
        """Whether all parts are there: a picture may arrive while they are mounted, or removed at the app's end."""
        return self.app.is_running and self.is_mounted and bool(self.query("#keys"))

    def draw(self) -> None:
        """Draw everything from the app's picture; called once per frame and on every arrival."""
        if not self.is_composed:
            return
        picture = self.mltop.picture
        failed = [[Cell(self.mltop.trail.crumbs(), "title")], [Cell("the totals could not be made", "crit")]]
        self.query_one("#head", CellLines).set_lines(guarded("the header", lambda: self._head_lines(picture), failed))
        self.query_one(KeyBar).set_hints(self.hints(), f"pane('{self.mltop.trail.here.pane}')")
        if picture is not None:
            self.counts = None
            self.part("", lambda: self.fill(picture))
        self.mltop.tell_failures()
        guarded("the status line", self._draw_status, None)  # how many rows the filter keeps is known only now

    def part(self, name: str, draw: Callable[[], object]) -> None:
        """Draw a part of this pane: when that fails, the others are drawn nevertheless."""
        guarded(f"{name or 'a part'} of the pane {self.mltop.trail.here.pane}", draw, None)

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

    def _head_lines(self, picture: Picture | None) -> Lines:
        width, crumbs = self.size.width, self.mltop.trail.crumbs()
        if picture is None:
            return [[Cell(crumbs, "title")], [Cell("connecting", "accent")]]
        titles = [f"{crumbs}  {self.mltop.session.title}", crumbs, self.mltop.trail.here.title]
        if line_width([Cell(titles[0])]) > width // 2:
            titles.pop(0)
        return header_cells(
            picture.view,
            titles[0],
            self.mltop.paused,
            width,
            shorter=titles[1:],
            findings=picture.findings,
            marked=len(self.mltop.selection),
        )

    def _draw_status(self) -> None:
        line = self._status_line()
        self.set_part("#status", [line] if line is not None else [])

    def _status_line(self) -> list[Cell] | None:
        app, dump, width = self.mltop, self.mltop.investigation, self.size.width
        if self.typing:
            return typing_line(self._draft, self._refused, width)
        if dump.dumping and dump.progress is not None:
            waiting = waiting_for(dump.progress, app.newest.view, dump.nodes) if app.newest is not None else ""
            return dump_line(dump.progress, width, waiting, dump.scope)
        if app.probing.running is not None and app.trail.here.pane != "probes":
            return probe_line(app.probing.running, app.probing.cancelling, width)
        if app.notice is not None:
            return notice_line(app.notice, width)
        if not self.filter.empty:
            return filter_line(self.filter, width, self.counts, self.lines_are)
        return connecting_line(app.picture.view, width) if app.picture is not None else None

    # Tables.

    def tables(self) -> Sequence[LineTable]:
        """The tables that are shown, the main one first."""
        return [table for table in self.query(LineTable) if table.display]

    def put(self, table: LineTable, columns: Sequence[Column], rows: Sequence[Row], empty_text: str = "") -> None:
        """Put filtered and sorted rows into a table of this pane; lazy ones stay lazy where nothing is asked of them.

        An expression with fields is asked of ``SubjectRows`` only: other rows have no fields, and all stay.
        ``empty_text`` stands in an empty table in place of the table's own text.
        """
        guarded(f"a table of {self.mltop.trail.here.title}", lambda: self._put(table, columns, rows, empty_text), None)

    def _put(self, table: LineTable, columns: Sequence[Column], rows: Sequence[Row], empty_text: str) -> None:
        findings = self._findings_by_node()
        shown = narrowed(rows, self.filter, table.sort, findings)
        if self.counts is None and rows:
            self.counts = (len(shown), len(rows))
        table.set_table(columns, shown, why_empty(rows, self.filter, findings) if rows and not shown else empty_text)

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
        table = self._active_table()
        if table is not None:
            self._sort(table, next_sort(table.columns, table.size.width, table.sort))

    def action_reverse(self) -> None:
        table = self._active_table()
        if table is not None and table.sort is not None:
            self._sort(table, table.sort.reversed())

    def on_line_table_header_clicked(self, event: LineTable.HeaderClicked) -> None:
        table = event.view
        if isinstance(table, LineTable) and table.sortable:
            again = table.sort if table.sort is not None and table.sort.column == event.key else None
            self._sort(table, again.reversed() if again is not None else first_sort(table.columns, event.key))

    def _sort(self, table: LineTable, sort: Sort | None) -> None:
        table.set_sort(sort)
        self.draw()

    def _active_table(self) -> LineTable | None:
        """The table with the focus, or the main one."""
        tables = [table for table in self.tables() if table.sortable and table.columns]
        return next((table for table in tables if table is self.focused), tables[0] if tables else None)

    def action_next_table(self) -> None:
        self._focus_moved = True
        self.focus_next()

    def on_click(self) -> None:
        self._focus_moved = True

    # Keys.

    @classmethod
    def pane_bindings(cls) -> list[Binding]:
        """The bindings of this kind of pane, its own first."""
        by_key: dict[str, Binding] = {}
        for base in cls.__mro__:
            if base in (Screen, object):
                break
            for binding in Binding.make_bindings(base.__dict__.get("BINDINGS", [])):
                by_key.setdefault(binding.key, binding)
        return list(by_key.values())

    def hints(self) -> list[Binding]:
        """What the key bar shows, in its order."""
        here = Binding.make_bindings([*MOVES, *self.pane_bindings()])
        everywhere = [binding for binding in Binding.make_bindings(APP_BINDINGS) if binding.show]
        panes = [binding for binding in everywhere if binding.action.startswith("pane(")]
        own = [binding for binding in here if binding.show or binding.action == "select"]
        return first_keys([*panes, *own, *everywhere])

    async def perform(self, action: str) -> None:
        """Run the action of a binding wherever it belongs: the focused widget, this pane, or the app."""
        method = "action_" + action.partition("(")[0]
        for owner in (self.focused, self, self.app):
            if owner is not None and hasattr(owner, method):
                await self.app.run_action(action, owner)
                return

    # The filter.

    def keeps(self, text: str) -> bool:
        """Whether the filter lets this line of text, which has no fields, through."""
        return self.filter.row(text)

    @property
    def typing(self) -> bool:
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
        self._draft, self._refused = parse(event.value), False
        self.filter = meanwhile(self.filter, self._draft, fields=not self.lines_are)
        self.draw()

    def on_input_submitted(self) -> None:
        self._refused = bool(self._draft.problem)
        if not self._refused:
            self.filter = self._draft  # also a word that might have become the name of a field
            self.mltop.filter_history.add(self.filter.text)
            self._close_filter()
        self.draw()

    def clear_filter(self) -> bool:
        """Forget the filter and close its line; False when there was none."""
        had_one = not self.filter.empty or self.typing
        self.filter = Filter()
        if had_one:
            self._close_filter()
        return had_one

    def _close_filter(self) -> None:
        self.query_one(FilterBox).display = False
        tables = self.tables()
        if tables:
            tables[0].focus()
        self.draw()


class OneNodePane(Pane):
    """A pane about one node: which one that is, and the keys to its neighbours."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "neighbour(1)", "next node", show=False, tooltip="to the next node"),
        Binding("N", "neighbour(-1)", "node before", show=False, tooltip="to the node before"),
    ]

    def node_here(self) -> NodeView | None:
        """The node that the pane was opened for, or the first one."""
        return self.node_view(self.mltop.trail.here.node) or next(iter(self.nodes), None)

    def node_at_cursor(self) -> str:
        node = self.node_here()
        return node.node if node is not None else ""

    def action_neighbour(self, step: int) -> None:
        """Go to the next node, from the last one to the first."""
        names = [node.node for node in self.nodes]
        if names:
            name = names[(names.index(self.node_at_cursor()) + step) % len(names)]
            self.mltop.trail.replace(Location(self.mltop.trail.here.pane, name))
            self.draw()
