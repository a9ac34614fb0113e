"""What every pane has: the answer, the header with crumbs, the status line and the key bar; marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.model.units import clock_time, counted
from mltop.probes.model.vocabulary import Act
from mltop.probes.reach.view import NodeView
from mltop.tui.app.keys import ASKS, PANE_BINDINGS, named
from mltop.tui.app.navigation import Location
from mltop.tui.app.past.track import DRAWN_S, ShownHistory
from mltop.tui.app.resources import Scene
from mltop.tui.app.stalls import question_line
from mltop.tui.render.advice import KEYCAPS, keys_on
from mltop.tui.render.answer import Answer, answer_of
from mltop.tui.render.cells import Cell
from mltop.tui.render.fleet.header import header_cells
from mltop.tui.render.guarded import FAILURES, guarded
from mltop.tui.render.story import Scope, Story, stories_of
from mltop.tui.screens.bars import (
    FilterBox,
    Notice,
    connecting_line,
    dump_line,
    filter_line,
    notice_line,
    probe_line,
    typing_line,
    waiting_for,
)
from mltop.tui.screens.command_line import CommandBox, CommandList
from mltop.tui.screens.key_bar import Hint, KeyBar, hints_of
from mltop.tui.screens.problems import Problems
from mltop.tui.screens.tabled import TabledScreen
from mltop.tui.screens.tables import RowContext, rank_of
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

if TYPE_CHECKING:
    from mltop.tui.app.feed import Picture


MIN_WIDTH, MIN_HEIGHT = 16, 4
ONE_NODE = Notice("one node is watched: there is nothing to mark", "warn")
LOW_HEIGHT = 10  # below it the second header line goes
ROOMY_HEIGHT = 30  # from here on blank lines separate tables

Made = TypeVar("Made")


class Memo(Generic[Made]):
    """What was made last: made anew only when what it is made from is something else."""

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], Made] | None = None

    def get(self, source: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """``source``: figures, names and tuples of them are compared by value; other objects are the same or not."""
        before = self._last[0] if self._last is not None else (None,) * len(source)
        pairs = zip(source, before, strict=True)
        same = all(new is old or (isinstance(new, (int, float, str, tuple)) and new == old) for new, old in pairs)
        if self._last is None or not same:
            self._last = source, make()
        return self._last[1]


def _same(new: object, old: object) -> bool:
    return new is old or (isinstance(new, (int, float, str, tuple)) and new == old)


class TextLines(CellLines, can_focus=False):
    """Lines that are only read: Tab goes past them."""


class AnswerLine(TextLines):
    """Line 1."""

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if isinstance(self.screen, Pane) and self.screen.mltop.picture is not None:
            self.screen.mltop.action_pane("incidents")


# Of panes in which ranks can be selected, of those about one node, and of those about something that a node has.
RANK_KEYS: list[BindingType] = [
    Binding("f9,K", "signal", "signal", tooltip=f"send a signal to the selected ranks{ASKS}"),
    Binding("C", "native", "C frames", show=False, tooltip="dump the selected rank once more, with the frames of C"),
]
NODE_KEYS: list[BindingType] = [
    Binding("n", "neighbour(1)", "next node", show=False, tooltip="to the next node"),
    Binding("N", "neighbour(-1)", "node before", show=False, tooltip="to the node before"),
]
DIAGNOSE = Binding("H", "diagnose", "diagnose", show=False, tooltip=f"run dcgmi diag -r 1 on this node{ASKS}")


class Pane(TabledScreen):
    """Subclasses compose ``body`` and fill it in ``fill``, tables through ``put``: filter and sort act on them.
    ``of_node``: it is about one node.
    """

    of_node = False

    BINDINGS: ClassVar[list[BindingType]] = PANE_BINDINGS  # type: ignore[assignment]
    AUTO_FOCUS = "LineTable"
    DEFAULT_CSS = """
    Pane { background: $background; overflow: hidden; layers: base notice; }
    Pane #answer { height: 1; }
    Pane #head { height: 1; }
    Pane.-low #head { display: none; }
    Pane #status { dock: bottom; height: 1; margin-bottom: 1; display: none; }
    Pane .section { height: auto; }
    Pane.-roomy .gap-above { margin-top: 1; }
    Pane #too-small { display: none; layer: notice; dock: top; height: 100%; }
    Pane.-too-small #too-small { display: block; }
    Pane #host { height: 1; }
    Pane.-low #host { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._history = ShownHistory()
        self._wrong = Memo[list[Story]]()
        self.status_height = 0  # lines

    def __init_subclass__(cls, **options: Any) -> None:
        """A pane's own keys can be given to other keys by the configuration, too."""
        own = cls.__dict__.get("BINDINGS")
        if own is not None:
            cls.BINDINGS = list(named(Binding.make_bindings(own)))
        super().__init_subclass__(**options)

    def compose(self) -> ComposeResult:
        yield TextLines(id="too-small")
        yield AnswerLine(id="answer")
        yield TextLines(id="head")
        yield from self.body()
        yield FilterBox(self.mltop.filter_history, self.keep_typed, id="filter")
        yield TextLines(id="status")
        yield KeyBar(self.perform, id="keys")
        yield CommandList(id="offers")
        yield CommandBox(self.mltop.command_history, self.mltop.run_order, self._command_closed, id="command")

    def body(self) -> Iterable[Widget]:
        """The widgets between header and status line."""
        raise NotImplementedError

    def fill(self, picture: Picture) -> None:
        """Show this picture in them."""
        raise NotImplementedError

    def prepare(self, picture: Picture) -> Iterator[None]:  # noqa: ARG002 - most show little
        """What takes long of ``fill`` and can be done before, a step at a time: keys go between the steps."""
        yield from ()

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

    # The command line.

    @property
    def typing(self) -> bool:
        """Whether what is pressed is text."""
        return self.filtering or (self.is_composed and bool(self.query_one(CommandBox).display))

    def open_command_line(self, text: str, scene: Scene) -> None:
        self.query_one(CommandBox).open_on(text, scene)

    def _command_closed(self) -> None:
        if (view := self.view_at_cursor()) is not None:
            self.set_focus(view)
        self.draw()

    def clear_filter(self) -> bool:
        """Or only closes the command line."""
        if self.typing and not self.filtering:
            self.query_one(CommandBox).close()
            return True
        return super().clear_filter()

    def node_here(self) -> NodeView | None:
        """The node that the pane was opened for, or the first one."""
        return self.node_view(self.mltop.trail.here.node) or next(iter(self.nodes), None)

    def node_at_cursor(self) -> str:
        node = self.node_here() if self.of_node else None
        return node.node if node is not None else ""

    def action_neighbour(self, step: int) -> None:
        """Go to the next node, from the last one to the first."""
        names = [node.node for node in self.nodes]
        if len(names) > 1:
            name = names[(names.index(self.node_at_cursor()) + step) % len(names)]
            self.mltop.beside(Location(self.mltop.trail.here.pane, name))
        else:
            self.mltop.tell(Notice("one node is watched: there is no next one", "warn"))

    # Ranks.

    def ranks_selected(self) -> list[RankProcess]:
        """Those that a key of RANK_KEYS goes to."""
        return []

    def ranks_of_keys(self, keys: Iterable[str]) -> list[RankProcess]:
        """The ranks of rows of a rank table ("node/pid"), as they are now."""
        places = [key.rpartition("/") for key in keys]
        ranks = [(node, rank_of(self.node_view(node), int(pid))) for node, _, pid in places if pid.isdecimal()]
        return [RankProcess.of(node, rank) for node, rank in ranks if rank is not None]

    def action_signal(self) -> None:
        if ranks := self.ranks_selected():
            self.mltop.ask_signal(ranks)
        else:
            self.mltop.tell(Notice(f"no rank is selected: {KEYCAPS['next_table']} goes to the ranks", "warn"))

    def action_native(self) -> None:
        ranks = self.ranks_selected()
        if len(ranks) == 1:
            self.mltop.dump_native(ranks[0], self.open_rank)
        else:
            self.mltop.tell(Notice(f"C frames are dumped of one rank, {len(ranks) or 'none'} are selected", "warn"))

    # Marks.

    def action_mark(self) -> None:
        """Where one node is watched there is nothing to choose."""
        node = self.node_at_cursor()
        if len(self.nodes) < 2:
            self.mltop.tell(ONE_NODE)
        elif node:
            self.mltop.selection.symmetric_difference_update((node,))
            self.draw()
        else:
            self.mltop.tell(Notice("no node is under the cursor", "warn"))

    def action_mark_shown(self) -> None:
        if len(self.nodes) > 1:
            self.mltop.selection.update(self.nodes_shown())
            self.draw()
        else:
            self.mltop.tell(ONE_NODE)

    def action_unmark(self) -> None:
        if self.mltop.selection.unmark():
            self.draw()
        else:
            self.mltop.tell(Notice("no node is marked", "warn"))

    def culprits(self) -> list[str]:
        """The nodes that this pane accuses; most accuse none."""
        return []

    def action_drain(self) -> None:
        """Show what takes nodes out of Slurm: those accused here, else the marked, else that under the cursor."""
        nodes = self.culprits() or [view.node for view in self.nodes if view.node in self.mltop.selection]
        nodes = nodes or list(filter(None, [self.node_at_cursor()]))
        if nodes:
            self.mltop.show_slurm_lines(nodes)
        else:
            self.mltop.tell(Notice("no node is under the cursor, and none is marked", "warn"))

    def action_diagnose(self) -> None:
        self.mltop.ask_diagnosis(self.node_at_cursor())

    def nodes_shown(self) -> list[str]:
        """The nodes that the filter of this pane lets through."""
        findings = self._findings_by_node()
        return [view.node for view in self.nodes if self.filter.node(view, findings.get(view.node, ()))]

    # Drawing.

    def chrome_height(self) -> int:
        """Lines that header, status line, key bar and blank lines take."""
        gaps = sum(part.display for part in self.query(".gap-above")) if self.has_class("-roomy") else 0
        return self.size.height - self.rows + gaps

    @property
    def rows(self) -> int:
        """Lines that are left for what the pane is about."""
        return self.size.height - 3 - self.status_height - self.filtering + self.has_class("-low")

    def draw(self) -> None:
        """Draw everything from the app's picture; called once per frame and on every arrival."""
        if not self.is_composed:
            return
        picture = self.mltop.picture
        failed = [Cell(self.mltop.trail.here.title, "title"), Cell("  the totals could not be made", "crit")]
        self.query_one("#head", CellLines).set_lines([guarded("the header", lambda: self._head_line(picture), failed)])
        if picture is not None:
            self._fill(picture)
            self.part("the cursor", self.place_cursors)
        self.show_keys()  # which key opens line 1 is known only now
        if sentence := FAILURES.unsaid():
            self.mltop.notice = Notice(sentence, "crit")
        height = self.status_height
        guarded("the status line", self._draw_status, None)  # how many rows the filter keeps is known only now
        if picture is not None and self.status_height != height:
            self._fill(picture)  # in one line more or less

    def show_keys(self) -> None:
        """What line 1 and the key bar say depends on where the cursor is."""
        guarded("the answer", lambda: self._show_answer(self.mltop.picture), None)
        self.query_one(KeyBar).set_hints(self.hints(), f"pane('{self.mltop.trail.here.pane}')", self.mltop.config.keys)

    def _show_answer(self, picture: Picture | None) -> None:
        """Line 1, and the same as the terminal's title."""
        answer = answer_of(picture)
        nothing: tuple[str, str] = "", ""
        key, does = guarded("the key of line 1", lambda: self._leads_on(answer), nothing)
        if self.has_class("-low") and picture is not None:  # line 2, which says it, is not there
            key, does = self._not_now(picture) or (key, does)
        shown = self.query_one(AnswerLine)
        shown.over = answer.over
        shown.set_lines([answer.line(self.size.width, key, does)])
        self.mltop.set_terminal_title(answer.title)

    def _leads_on(self, answer: Answer) -> tuple[str, str]:
        """Which key shows all of what line 1 says, and what that key does; "" where it is shown."""
        if self.mltop.player is not None:
            return KEYCAPS["pause"], "stops" if self.mltop.player.playing else "plays"
        if self.mltop.moment is not None:
            return KEYCAPS["now"], "live"
        return answer.key or self.opens(answer)

    def _not_now(self, picture: Picture) -> tuple[str, str] | None:
        """What nobody may take for real and present."""
        if self.mltop.moment is not None:
            return clock_time(self.mltop.moment), f"{KEYCAPS['now']}: live"
        simulated = any(view.whole.simulated for view in picture.view.nodes[:1] if view.whole is not None)
        return ("SIM", "") if simulated else None

    def graph_clicked(self, at: float) -> None:
        self.mltop.go_to(at)

    def on_descendant_focus(self) -> None:
        if self.is_composed and self.mltop.picture is not None:
            self.show_keys()

    def on_cursor_view_highlighted(self, event: CursorView.Highlighted) -> None:
        if isinstance(event.view, CellLines):  # lines of what is wrong are such
            self.on_descendant_focus()

    def _fill(self, picture: Picture) -> None:
        self.counts = None
        self.part("", lambda: self.fill(picture))

    def opens(self, answer: Answer) -> tuple[str, str]:
        """Enter, while the cursor is on what line 1 says; else the pane that lists it."""
        is_there = any(part.display and part.is_at(answer.about) for part in self.query(Problems))
        return KEYCAPS["open" if is_there else "incidents"], "opens"

    @property
    def acts(self) -> Mapping[Act, str]:
        """What mltop itself would do about what is wrong, as this pane says it."""
        app = self.mltop
        dumped = app.investigation.result is not None and bool(app.investigation.result.reports)
        return keys_on(app.trail.here.pane, dumped=dumped, recorded=app.player is not None)

    def stories(
        self,
        picture: Picture,
        nodes: Sequence[str] = (),
        *,
        one: bool = False,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Story]:
        """What is wrong, with these ``nodes``, in the words of this pane; built when it changes. ``one``: all that is
        shown is one node; ``names``: shown for nodes' names.
        """
        scope = Scope(names, one or len(picture.view.nodes) == 1, self.acts)
        source = picture.incidents, picture.findings, tuple(nodes), scope.one, names, tuple(scope.acts.items())
        made = partial(stories_of, picture.incidents, picture.findings, scope, nodes)
        none: list[Story] = []
        return guarded("the problems", lambda: self._wrong.get(source, made), none)

    def context(self, picture: Picture) -> RowContext:
        """What rows of GPUs and ranks are made of."""
        app = self.mltop
        track = partial(self._history.track, app.history, app.paused, span_s=DRAWN_S, ahead_s=app.ahead_s)
        settled = app.moment is None or app.history.is_settled(app.moment)
        return RowContext(picture, app.earlier, track, app.paused, settled)

    def part(self, name: str, draw: Callable[[], object]) -> None:
        """Draw a part of this pane: when that fails, the others are drawn nevertheless."""
        guarded(f"{name or 'a part'} of the pane {self.mltop.trail.here.pane}", draw, None)

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        small = width < MIN_WIDTH or height < MIN_HEIGHT
        self.set_class(small, "-too-small")
        self.set_class(height < LOW_HEIGHT, "-low")
        self.set_class(height >= ROOMY_HEIGHT, "-roomy")
        if small:
            self.query_one("#too-small", CellLines).set_lines([[Cell("too small", "warn")]])
        self.call_after_refresh(self.draw)

    def _head_line(self, picture: Picture | None) -> list[Cell]:
        app, width = self.mltop, self.size.width
        if picture is None:
            return [Cell(app.session.title, "title")]
        clock = Cell(f" {chip} ", "chip-time") if (chip := app.chip()) else None
        view, marked, motions, totals = picture.view, len(app.selection), picture.motions, picture.totals
        titles = self.titles(picture)
        return header_cells(view, titles, width, clock=clock, marked=marked, motions=motions, totals=totals)

    def titles(self, picture: Picture) -> list[str]:
        """What line 2 begins with, the longest first: what is watched, and where the user is."""
        nodes = picture.view.nodes
        watched = counted(len(nodes), "node") if len(nodes) != 1 else nodes[0].node
        if self.mltop.trail.here.pane == "overview":
            return [watched]
        crumbs = self.mltop.trail.crumbs()
        here = self.mltop.trail.here.title
        return [f"{watched} > {crumbs}", crumbs, here] if crumbs != watched else [crumbs, here]

    def _draw_status(self) -> None:
        app, doing = self.mltop, self._doing_line()
        lines = [doing if doing is not None else self._quiet_line(self.size.width)]
        if doing is not None and app.notice is not None and not self.filtering:
            lines.append(notice_line(app.notice, self.size.width))  # the answer to a key is seen at once
        self.status_height = self.set_part("#status", [line for line in lines if line is not None])

    def _doing_line(self) -> list[Cell] | None:
        """What is typed, runs or is asked."""
        app, dump, width = self.mltop, self.mltop.investigation, self.size.width
        if self.filtering:
            return typing_line(self._draft, self._refused, width)
        if dump.dumping and dump.progress is not None:
            waiting = waiting_for(dump.progress, app.newest.view, dump.nodes) if app.newest is not None else ""
            return dump_line(dump.progress, width, waiting, dump.scope, cancelling=dump.cancelling)
        if app.probing.running is not None and app.trail.here.pane != "probes":
            return probe_line(app.probing.running, app.probing.cancelling, width)
        if (asked := app.stalls.stacks.asked) and app.moment is None:
            return question_line(asked, width)
        return None

    def _quiet_line(self, width: int) -> list[Cell] | None:
        """What the status line shows while nothing runs and nothing is asked."""
        app = self.mltop
        if app.notice is not None:
            return notice_line(app.notice, width)
        if not self.filter.empty:
            return filter_line(self.filter, width, self.counts, self.lines_are)
        if app.picture is None:
            return None
        hint = Notice(app.hint(app.picture) if app.trail.here.pane == "overview" else "", "accent")
        return connecting_line(app.picture.view, width) or (notice_line(hint, width) if hint.text else None)

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

    def hints(self) -> list[Hint]:
        """What the key bar shows at its right, in its order."""
        app = self.mltop
        hints = hints_of(self.pane_bindings(), app.trail.depth > 1, app.moment is not None, app.config.keys)
        # A signal is offered only with the cursor on a rank.
        return [hint for hint in hints if hint.kind != "signal" or (self.nodes and self.ranks_selected())]

    async def perform(self, action: str) -> None:
        """Run the action of a binding wherever it belongs: the focused widget, this pane, or the app."""
        method = "action_" + action.partition("(")[0]
        for owner in (self.focused, self, self.app):
            if owner is not None and hasattr(owner, method):
                await self.app.run_action(action, owner)
                return
