"""The screen: takes pictures from the feed, shows the pane the user is in, and starts what keys ask for.

Everything slow happens elsewhere: views and health rules in the feed's thread, stacks and probes in the session's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from textual.actions import ActionError
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.events import Key
from textual.message import Message
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES

from mltop.tui.app.feed import Feed, Picture
from mltop.tui.app.history import History
from mltop.tui.app.keys import APP_BINDINGS, PANES, PaneScreen, first_keys
from mltop.tui.app.navigation import Location, Trail
from mltop.tui.app.output import say, say_crash
from mltop.tui.app.selection import ProbeScope, Selection, dump_scope, probe_scope, retry_scope
from mltop.tui.app.session import (
    CaptureDone,
    DumpProgressed,
    Investigation,
    PastResultsRead,
    ProbeProgressed,
    Probes,
    Probing,
    Retries,
    Session,
)
from mltop.tui.render.guarded import FAILURES, guarded
from mltop.tui.render.trends import Trends
from mltop.tui.screens.bars import FilterHistory, Notice, TypedBox, end_of_capture, end_of_dump, end_of_probe
from mltop.tui.screens.lines import StatesSince
from mltop.tui.widgets.cell_view import FailSafe

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeWanted
    from mltop.probes.model import ProbeKind
    from mltop.probes.reach.view import FleetView

HUNG_UP_S = 5.0  # from the loss of the terminal to the end, however that goes
CLOSE_S = 1.0  # how long leaving waits for the session; its agents end anyway when their input does
RETRY_S = 0.05  # between two looks whether the terminal has taken the last frame
READ_ONLY = Notice("read-only: dumps, captures and probes are off (started with --read-only)", "warn")
CANNOT_PROBE = Notice("probes need live nodes: what is shown here cannot run any", "warn")
# Dark blue on black cannot be read; cyan can.
TERMINAL_THEME = replace(BUILTIN_THEMES["ansi-dark"], name="terminal", primary="ansi_cyan")


class NewPicture(Message):
    """Brings the newest picture; of several that wait, only the last is handled."""

    def __init__(self, picture: Picture) -> None:
        super().__init__()
        self.picture = picture

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, NewPicture)


class MltopApp(FailSafe, App[None]):
    """Shows a session. ``read_only`` refuses what touches a process or writes a file (``t``, ``c``, ``M``, ``A``).

    At most one dump, one capture and one probe run at a time; what they bring arrives as messages.

    ``run()`` returns when the user leaves; the session is closed then, whatever happened before.
    """

    TITLE = "mltop"
    CSS = """
    CellView { scrollbar-color: $foreground 25%; scrollbar-background: $background; }
    CellView:ansi { scrollbar-color: ansi_bright_black; scrollbar-background: ansi_default; }
    """
    BINDINGS = APP_BINDINGS  # type: ignore[assignment]
    DEFAULT_MODE = "overview"

    def __init__(self, session: Session, *, mouse: bool = True, read_only: bool = False) -> None:
        few = few_colours()
        super().__init__(ansi_color=True if few else None)
        if few:
            self.register_theme(TERMINAL_THEME)
            self.theme = TERMINAL_THEME.name
        several = len(session.view().nodes) > 1  # that are asked for: this does not change
        for entry in PANES:
            self.add_mode(entry.name, partial(entry.make, several))
        self.session = session
        self.read_only = read_only
        self.investigation = Investigation(session, self._post)
        self.probing = Probing(session, self._post)
        self.selection = Selection()
        self.picture: Picture | None = None  # that is shown; None before the first
        self.newest: Picture | None = None  # the same, unless the screen is paused
        self.trends = Trends()
        self.history = History()  # panes hold a copy of what they show while the screen is paused
        self.trail = Trail(Location("overview"))
        self.paused = False
        self.notice: Notice | None = None
        self.since = StatesSince()
        self.filter_history = FilterHistory()
        self._mouse = mouse
        self._feed = Feed(session, lambda picture: self.post_message(NewPicture(picture)))
        self._live_trends = self.trends
        self._retrying = False
        self._closer: threading.Thread | None = None

    @property
    def pane(self) -> PaneScreen:
        """The pane of the current mode, also while the command palette lies over it."""
        return cast(PaneScreen, self.screen_stack[0])

    def run(self, **options: Any) -> None:
        """As ``App.run``, then waits at most ``CLOSE_S`` for the session to close.

        A bug in the screen costs the row or the part that it is in; standard error says it once more at the end. One
        that ends the program nevertheless makes ``return_code`` 1.
        """
        FAILURES.forget()
        try:
            super().run(mouse=self._mouse, **options)
        finally:
            self._close_session().join(CLOSE_S)
        for sentence, error in FAILURES.all():
            say_crash(error)
            say(sentence)
        if (crash := self._exception) is not None:
            say_crash(crash)
            say(f"the screen failed: {type(crash).__name__}: {crash} (please report)")

    def _fatal_error(self) -> None:
        """Textual's own prints every local variable, which may hold the user's data; ``run`` prints it without."""
        self._close_messages_no_wait()

    def on_mount(self) -> None:
        FAILURES.listen(lambda: self.call_later(self.redraw))  # also for what no pane draws
        self._feed.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Outside the main thread nobody can catch signals; whoever runs the app there ends it by exit().
            with suppress(RuntimeError, ValueError):
                loop.add_signal_handler(number, self._leave, number)

    def _leave(self, number: int) -> None:
        """End by a signal. A terminal that is gone takes nothing more: Textual's writer may wait for it for ever."""
        if number == signal.SIGHUP:
            at_last = threading.Timer(HUNG_UP_S, os._exit, (128 + number,))
            at_last.daemon = True
            at_last.start()
        self.exit()

    def on_unmount(self) -> None:
        self._feed.stop()
        self._close_session()

    def _close_session(self) -> threading.Thread:
        if self._closer is None:
            self._closer = threading.Thread(target=self.session.close, name="close", daemon=True)
            self._closer.start()
        return self._closer

    # What arrives.

    def _post(self, message: Message) -> None:
        """May be called from any thread."""
        self.post_message(message)

    def on_new_picture(self, message: NewPicture) -> None:
        self.newest, view = message.picture, message.picture.view
        guarded("the trends", lambda: self._live_trends.feed(view), None)
        guarded("the history", lambda: self.history.feed(view), None)
        guarded("the states", lambda: self.since.feed(view), None)
        if not self.paused:
            self.picture = message.picture
            self.redraw()

    def on_dump_progressed(self, message: DumpProgressed) -> None:
        taken_at = self.newest.view.taken_at if self.newest else 0.0
        if self.investigation.take_progress(message, taken_at):
            self.tell(end_of_dump(message.report))
        else:
            self.redraw()

    def on_capture_done(self, message: CaptureDone) -> None:
        self.investigation.take_capture(message)
        self.tell(end_of_capture(message.report))

    def on_probe_progressed(self, message: ProbeProgressed) -> None:
        if self.probing.take(message) and self.trail.here.pane != "probes":
            self.tell(end_of_probe(message.report))
        else:
            self.redraw()

    def on_past_results_read(self, message: PastResultsRead) -> None:
        self.probing.take_past(message)
        self.redraw()

    def on_key(self, event: Key) -> None:
        """Handles what no widget has: a letter that was typed right after "/" belongs to the filter."""
        if isinstance(self.focused, TypedBox) and self.focused.take(event):
            event.prevent_default()

    # What is shown.

    def redraw(self) -> None:
        """Draw the pane now, or a little later when the terminal still takes the last frame."""
        if not self.is_running or not self.screen_stack:
            return  # what arrives while the app starts or ends
        if not terminal_busy(self):
            self.pane.draw()
        elif not self._retrying:
            self._retrying = True
            self.set_timer(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self.redraw()

    def tell(self, notice: Notice | None) -> None:
        self.notice = notice
        self.redraw()

    def tell_failures(self) -> None:
        """Put what has failed since the last time into the line of notices of the pane that is being drawn, once."""
        if sentence := FAILURES.unsaid():
            self.notice = Notice(sentence, "crit")

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

    def drill(self, location: Location) -> None:
        """Go deeper; Esc comes back here."""
        self.trail.drill(location)
        self._arrive()

    def action_pane(self, name: str) -> None:
        self.trail.jump(Location(name, self._node_looked_at() if name in ("node", "links") else ""))
        self._arrive()

    def _node_looked_at(self) -> str:
        """The node that is shown, that under the cursor, or the first."""
        nodes = self.picture.view.nodes if self.picture is not None else ()
        return self.trail.here.node or self.pane.node_at_cursor() or (nodes[0].node if nodes else "")

    def action_help(self) -> None:
        self.drill(Location("help"))

    def action_go_back(self) -> None:
        """Take one step back: close the filter's line, cancel, clear it, leave; marks, which other panes use, last."""
        if self.pane.typing:
            self.pane.clear_filter()
        elif self.cancel_work():
            return
        elif self.pane.clear_filter():
            self.redraw()
        elif self.trail.back():
            self._arrive()
        elif self.selection.clear():
            self.redraw()
        else:
            self.tell(None)

    def _arrive(self) -> None:
        self.notice = None
        self.call_later(self._show_here)

    async def _show_here(self) -> None:
        """Show the pane where the user is now: several keys may have come since this call was made."""
        if self.current_mode != self.trail.here.pane:
            await self.switch_mode(self.trail.here.pane)
        else:
            self.redraw()

    # What the user starts.

    def action_pause(self) -> None:
        """Freeze the picture, which keeps its history whatever arrives meanwhile; or go on."""
        self.paused = not self.paused
        if self.paused:
            self.trends = deepcopy(self._live_trends)
        else:
            self.picture, self.trends = self.newest, self._live_trends
        self.redraw()

    def action_refresh_now(self) -> None:
        self._feed.poke()
        self.refresh(layout=True)
        self.redraw()

    def action_retry(self) -> None:
        scope = retry_scope(self.session.view(), self.selection)
        if scope.nodes and isinstance(self.session, Retries):
            self.session.retry(scope.nodes)
        again = isinstance(self.session, Retries) or not scope.nodes
        self.tell(Notice(scope.words if again else "nodes of this session are tried again by themselves", "accent"))

    def action_dump(self) -> None:
        if self.investigation.dumping:
            self.investigation.cancel_dump()
            return
        if self.read_only:
            self.tell(READ_ONLY)
            return
        scope = dump_scope(self.newest_view(), self.selection, not self.pane.filter.empty)
        self.investigation.start_dump(scope.nodes, scope.words)
        if self.trail.here.pane not in ("stacks", "rank"):
            self.drill(Location("stacks"))
        self.tell(None)

    def action_capture(self) -> None:
        if self.investigation.capturing:
            return
        if self.read_only:
            self.tell(READ_ONLY)
            return
        self.investigation.start_capture()
        self.tell(Notice("capturing: stacks, samples and verdict (Esc cancels)", "accent"))

    def action_probe(self, kind: ProbeKind) -> None:
        """Ask what exactly to measure, and whether; one probe at a time."""
        if self.probing.running is not None:
            self._show_probes()
            self.tell(Notice("a probe runs already, one at a time: Esc cancels it", "warn"))
        elif self.read_only:
            self.tell(READ_ONLY)
        elif not isinstance(self.session, Probes):
            self.tell(CANNOT_PROBE)
        else:
            from mltop.tui.screens.probes.question import ConfirmProbe

            self.push_screen(ConfirmProbe(kind, self._probe_scope), self._start_probe)

    def _probe_scope(self, kind: ProbeKind) -> ProbeScope:
        here = self.trail.here
        return probe_scope(self.newest_view(), self.selection, kind, here.node, here.gpu)

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
        elif self.investigation.capturing:
            self.investigation.cancel_capture()
            self.tell(Notice("capture: cancelling, what is known is kept", "warn"))
        elif self.probing.cancel():
            self.redraw()
        else:
            return False
        return True

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:  # noqa: ARG002
        """The palette has every action that has a key here, and the themes."""
        for binding in first_keys(Binding.make_bindings([*self.pane.pane_bindings(), *APP_BINDINGS])):
            if binding.action != "command_palette":
                yield SystemCommand(binding.description, binding.tooltip, partial(self.pane.perform, binding.action))
        yield SystemCommand("theme", "change the colours", self.action_change_theme)

    def newest_view(self) -> FleetView:
        return self.newest.view if self.newest is not None else self.session.view()


def few_colours() -> bool:
    """Whether only the terminal's own 16 colours, or none, can be told apart.

    In 16 colours the other themes' warning and error become one and the same red; NO_COLOR leaves them grey.
    """
    console = Console(force_terminal=True, legacy_windows=False)
    return console.no_color or console.color_system in (None, "standard")


def terminal_busy(app: App[Any]) -> bool:
    """True while output still waits to be written: drawing now would only delay what the next key shows.

    Textual's writer thread holds at most 30 writes and then blocks the whole loop, and no public API tells
    how many wait (``textual.drivers._writer_thread``). Where that thread does not exist, the answer is False.
    """
    writer = getattr(getattr(app, "_driver", None), "_writer_thread", None)
    queue_size = getattr(getattr(writer, "_queue", None), "qsize", None)
    return queue_size is not None and queue_size() > 0
