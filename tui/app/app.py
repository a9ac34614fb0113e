"""The screen: takes pictures from the feed, shows the pane the user is in, and starts what keys ask for.

Everything slow happens elsewhere: views and health rules in the feed's thread, stacks and probes in the session's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.actions import ActionError
from textual.events import Key
from textual.message import Message
from textual.scrollbar import ScrollBar
from textual.theme import Theme

from mltop.probes.model.text import clean
from mltop.tui.app.acting import READ_ONLY, Acting
from mltop.tui.app.feed import Feed, Picture
from mltop.tui.app.keys import APP_BINDINGS, PANES, key_name
from mltop.tui.app.lasting import LastingApp
from mltop.tui.app.looks import TERMINAL_LIGHT, TERMINAL_THEME, THEMES, AsciiScrollBar, few_colours, is_light
from mltop.tui.app.navigation import Location, Trail
from mltop.tui.app.output import title_sequence
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.travel import TICK_S, Recorded
from mltop.tui.app.selection import Looked, ProbeScope, Selection, dump_scope, probe_scope, retry_scope
from mltop.tui.app.session import Investigation, Probing
from mltop.tui.app.shapes import Remember, Shapes
from mltop.tui.app.stalls import StallAnswer, Stalls, StallWatch
from mltop.tui.config.settings import DEFAULTS, Config
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import printable
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.guarded import FAILURES, guarded
from mltop.tui.screens.bars import LineHistory, Notice, TypedBox, end_of_capture, end_of_dump, end_of_probe
from mltop.tui.terminal.painting import terminal_busy
from mltop.tui.widgets.cell_view import FailSafe
from mltop.tui.widgets.steps import Steps

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
    from mltop.probes.investigate.progress import CaptureResult, StackProgress
    from mltop.probes.investigate.session import LiveSession
    from mltop.probes.model import JobReport, ProbeKind
    from mltop.probes.model.incident import JobMotion
from mltop.probes.reach.view import FleetView

RETRY_S = 0.05  # between two looks whether the terminal has taken the last frame
MOST_TITLE = 200  # characters

Hint = Callable[[Picture], str]


class NewPicture(Message):
    """There is a picture that has not been looked at."""


class MltopApp(FailSafe, LastingApp):
    """Shows a session. ``read_only`` refuses what touches a process or writes a file (``t``, ``c``, ``M``, ``A``).

    At most one dump, one capture and one probe run at a time; what they bring arrives as messages.

    ``run()`` returns when the user leaves; the session is closed then, whatever happened before.
    """

    TITLE = "mltop"
    CSS = """
    CursorView { scrollbar-color: $foreground 25%; scrollbar-background: $background; }
    CursorView:ansi { scrollbar-color: ansi_bright_black; scrollbar-background: ansi_default; }
    """
    ENABLE_COMMAND_PALETTE = False  # ":" is our own
    BINDINGS = APP_BINDINGS  # type: ignore[assignment]
    DEFAULT_MODE = "overview"

    def __init__(
        self,
        session: LiveSession | Recorded,
        config: Config = DEFAULTS,
        *,
        read_only: bool = False,
        stalls: Stalls | None = None,
        remember: Remember = lambda _: None,
        hint: Hint = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``remember`` writes down what is chosen on the screen; may be called from the UI loop. ``hint``: for the
        overview's status line while nothing else is there. ``clock``: the feed's, monotonic s.
        """
        few = few_colours()
        super().__init__(ansi_color=True if few else None)
        self._choose_theme(few, config.theme)
        self.ramp = config.ramp
        several = len(session.view().nodes) > 1  # that are asked for: this does not change
        for entry in PANES:
            self.add_mode(entry.name, partial(entry.make, several))
        self.session, self.live = session, None if isinstance(session, Recorded) else session
        self.read_only = read_only
        self.investigation = Investigation(self.live, self.later, self._newest_at, self._take_dump, self._take_capture)
        self.probing = Probing(self.live, self.later, self._take_probe)
        self.acting = Acting()
        self.stalls = StallWatch(self.investigation, stalls or Stalls())
        self.selection = Selection()
        self.looked, self.unbound = Looked(), ""
        self.picture: Picture | None = None  # that is shown; None before the first
        self._arrived: Picture | None = None  # the newest that the feed has brought
        self._announced = False  # whether a NewPicture is under way
        self.newest: Picture | None = None  # the same, unless the screen is paused
        self.earlier = EarlierRanks()
        self.history = Past()
        self.trail = Trail(Location("overview"))
        self.notice: Notice | None = None
        self.hint = hint
        self.filter_history, self.command_history = LineHistory(), LineHistory()
        self.config, self.shapes = config, Shapes(config, remember)
        self._terminal_title = ""
        self._own_themes: dict[str, Theme] | None = None
        self.set_keymap(dict(config.keys))
        KEYCAPS.use({action: key_name(keys.split(",")[0].strip()) for action, keys in config.keys.items()})
        self.feed = self._feed_of(session, clock)
        self._live_earlier = self.earlier
        self._retrying = False
        self._drawing = Steps(self)

    def _feed_of(self, session: LiveSession | Recorded, clock: Callable[[], float]) -> Feed:
        def post(picture: Picture) -> None:
            self._arrived = picture
            if not self._announced:  # while the loop is busy one waits, not all
                self._announced = True
                self.post_message(NewPicture())

        if isinstance(session, Recorded):
            self.history, self.player = session.past, session.player
            return session.feed(post, partial(self.later, self.take_read), self.config.thresholds)
        feed = Feed(session, post, self.config.thresholds, self.history.see, clock)
        session.joined_with, session.motions = feed.health.joined_with, lambda: feed.health.motions
        return feed

    def on_mount(self) -> None:
        FAILURES.listen(lambda: self.call_later(self.redraw))  # also for what no pane draws
        self.feed.start()
        if isinstance(self.session, Recorded):
            self.show_recorded(self.session.first_moment)
            self.set_interval(TICK_S, self.play)

    # What arrives.

    def on_new_picture(self) -> None:
        self._announced = False  # first: what comes from here on is announced anew
        newest = self.newest = self._arrived
        if newest is None:
            return
        view = newest.view
        if self.live is not None:
            self.live.watch([node for node in (self.looked.node,) if node])
        guarded("the ranks before", lambda: self._live_earlier.feed(view), None)
        guarded("what stands still", lambda: self.see_motions(newest.motions), None)
        if not self.paused:
            self.picture = newest
        elif self.player is not None:
            self._show_moment()  # the rules have gone on
        if self.picture is not None and self.is_running and self.screen_stack and not self.is_lent:
            self._drawing.take("what is drawn next", self.pane.prepare(self.picture), self.redraw)

    def _take_dump(self, progress: StackProgress) -> None:
        if not progress.finished:
            self.redraw()
            return
        self.feed.take_stacks(progress.reports)
        if progress.phase == "done":
            jobs = {report.job_key for report in progress.reports if not report.error}
            self.stalls.stacks.dumped(jobs, self.investigation.nodes, self._newest_at() - progress.elapsed_s)
        self.tell(end_of_dump(progress))

    def _take_capture(self, result: CaptureResult) -> None:
        by_itself, notice = self.stalls.end_of_capture(result)
        self.tell(notice if by_itself else end_of_capture(result))

    def _take_probe(self, progress: ProbeProgress | None) -> None:
        if progress is not None and progress.finished and self.trail.here.pane != "probes":
            self.tell(end_of_probe(progress))
        else:
            self.redraw()

    def _newest_at(self) -> float:
        return self.newest.view.taken_at if self.newest is not None else 0.0

    def on_key(self, event: Key) -> None:
        """Handles what no widget has: a letter that was typed right after "/" belongs to the filter."""
        if isinstance(self.focused, TypedBox) and self.focused.take(event):
            event.prevent_default()
        else:
            self.say_if_unbound(event)

    # What is shown.

    def redraw(self) -> None:
        """Draw the pane now, or a little later when the terminal still takes the last frame."""
        if not self.is_running or not self.screen_stack or self.is_lent:
            return  # what arrives while the app starts or ends, or a shell has the terminal
        if not terminal_busy(self):
            self.pane.draw()
        elif not self._retrying:
            self._retrying = True
            self.set_timer(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self.redraw()

    def _choose_theme(self, few: bool, wanted: str) -> None:
        """``few``: colours, of which the user has chosen in the terminal's own settings."""
        terminal = TERMINAL_LIGHT if is_light() else TERMINAL_THEME
        for theme in (terminal, *([] if few else THEMES.values())):
            self.register_theme(theme)
        self.theme = terminal.name if few else wanted or ("light" if is_light() else "dark")
        if GLYPHS.ascii_only:
            ScrollBar.renderer = AsciiScrollBar

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Textual's own were not made for what is drawn here; it wants them itself while it is being made. It asks
        for all of them with every widget that it paints.
        """
        if not hasattr(self, "session"):
            return super().available_themes
        if self._own_themes is None:
            ours = {theme.name for theme in (TERMINAL_THEME, TERMINAL_LIGHT, *THEMES.values())}
            self._own_themes = {name: theme for name, theme in super().available_themes.items() if name in ours}
        return self._own_themes

    def set_terminal_title(self, title: str) -> None:
        """Sets the title of the window or the tab, unless it is the same."""
        text = printable(clean(f"mltop: {title}", MOST_TITLE))
        if (
            self.config.terminal_title
            and text != self._terminal_title
            and self._driver is not None
            and not self.is_headless
        ):
            self._terminal_title = text
            self._driver.write(title_sequence(text))

    def tell(self, notice: Notice | None) -> None:
        self.notice = notice
        self.redraw()

    async def run_action(self, *action: Any, **options: Any) -> bool:
        """As ``App.run_action``; what fails costs the key what it was to do."""
        try:
            return await super().run_action(*action, **options)
        except ActionError:
            raise
        except Exception as error:  # noqa: BLE001 - likewise
            FAILURES.take("this key", error)
            self.redraw()
            return True

    # Where the user goes.

    def action_pane(self, name: str) -> None:
        self.trail.jump(Location(name, self._node_looked_at() if name in ("node", "links") else ""))
        self.arrive()

    def _node_looked_at(self) -> str:
        """The node that is shown, that is looked at, that under the cursor, or the first."""
        nodes = [view.node for view in self.picture.view.nodes] if self.picture is not None else []
        looked = self.looked.node if self.looked.node in nodes else ""
        return self.trail.here.node or looked or self.pane.node_at_cursor() or next(iter(nodes), "")

    def action_help(self) -> None:
        """All keys; again: back to where the user was."""
        if self.trail.here.pane == "help":
            self.action_go_back()
        else:
            self.drill(Location("help"))

    def action_go_back(self) -> None:
        """Take one step back: close the filter's line, leave the past, cancel, clear the filter, leave; marks, which
        other panes use, last.
        """
        if self.pane.typing:
            self.pane.clear_filter()
        elif self.paused and self.player is None:
            self.action_go_live()
        elif self.cancel_work():
            return
        elif self.pane.clear_filter():
            self.redraw()
        elif self.trail.back():
            self.arrive()
        elif self.selection.unmark():
            self.redraw()
        else:
            self.tell(None)

    # What the user starts.

    def action_refresh_now(self) -> None:
        self.feed.poke()
        self.forget_terminal()
        self.refresh(layout=True)
        self.redraw()

    def action_retry(self) -> None:
        if self.live is None:
            self.only_now()
            return
        scope = retry_scope(self.session.view(), self.selection)
        if scope.nodes:
            self.live.retry(scope.nodes)
        self.tell(Notice(scope.words, "accent"))

    def action_dump(self) -> None:
        if self.investigation.dumping:
            self.investigation.cancel_dump()
            return
        if self.may_act() is None:
            return
        scope = dump_scope(self.newest_view(), self.selection, not self.pane.filter.empty)
        self.investigation.start_dump(scope.nodes, scope.words)
        if self.trail.here.pane not in ("stacks", "rank"):
            self.drill(Location("stacks"))
        self.tell(None)

    def action_capture(self) -> None:
        if self.investigation.capturing:
            return
        if self.may_act() is None:
            return
        self.investigation.start_capture()
        self.tell(Notice(f"capturing: stacks, samples and verdict ({KEYCAPS['back']} cancels)", "accent"))

    def action_probe(self, kind: ProbeKind) -> None:
        """Ask what exactly to measure, and whether; one probe at a time."""
        if self.probing.running is not None:
            self._show_probes()
            self.tell(Notice(f"a probe runs already, one at a time: {KEYCAPS['back']} cancels it", "warn"))
        elif self.read_only:
            self.tell(READ_ONLY)
        elif self.only_now():
            from mltop.tui.screens.probes.question import ConfirmProbe

            def scope(kind: ProbeKind) -> ProbeScope:
                return probe_scope(self.newest_view(), self.selection, kind, self.trail.here.node, self.trail.here.gpu)

            self.push_screen(ConfirmProbe(kind, scope), self._start_probe)

    def see_motions(self, motions: Sequence[JobMotion]) -> None:
        """How the jobs get on, with every picture: one that stands still is dumped, captured, or asked about."""
        if not self.read_only and (notice := self.stalls.see(motions)):
            self.tell(notice)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """The keys of the question only mean its answers while it is seen, and those out of the past only there."""
        at_the_pane = len(self.screen_stack) == 1 and not self.pane.typing
        if action in ("go_live", "go_first"):
            return self.paused and at_the_pane
        return action != "answer_stall" or (bool(self.stalls.stacks.asked) and at_the_pane and not self.paused)

    def action_answer_stall(self, answer: StallAnswer) -> None:
        notice = self.stalls.answer(answer)
        if answer == "once" and notice is not None and self.trail.here.pane not in ("stacks", "rank"):
            self.drill(Location("stacks"))
        self.tell(self.notice if answer == "no" else notice if answer == "always" else None)

    def _start_probe(self, wanted: ProbeWanted | None) -> None:
        if wanted is None or self.probing.running is not None:
            return
        self.probing.start(wanted)
        self.tell(None)
        self._show_probes()

    def _show_probes(self) -> None:
        if self.trail.here != Location("probes"):
            self.drill(Location("probes"))

    def cancel_work(self) -> bool:
        """Cancel what runs, the dump first; False when nothing does, or the probe is being cancelled already."""
        if self.investigation.dumping:
            self.investigation.cancel_dump()
            self.redraw()
        elif self.investigation.capturing:
            self.investigation.cancel_capture()
            self.tell(Notice("capture: cancelling, what is known is kept", "warn"))
        elif self.probing.cancel():
            self.redraw()
        else:
            return False
        return True

    def join_stacks(self, reports: Sequence[JobReport]) -> None:
        self.feed.take_stacks(reports)

    def newest_view(self) -> FleetView:
        return self.newest.view if self.newest is not None else self.session.view()
