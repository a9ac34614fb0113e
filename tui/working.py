"""What the user starts from any pane: stack dumps, captures, probes, trying nodes again. The app is made of this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App

from mltop.tui.investigation import Captured, DumpProgress, Investigation
from mltop.tui.place import Place
from mltop.tui.probing import PastRead, ProbeMoved, Probing
from mltop.tui.scope import dump_scope, retry_scope
from mltop.tui.selection import Selection
from mltop.tui.session import Probes, Retries, Session
from mltop.tui.status import Notice, end_of_capture, end_of_dump, end_of_probe

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeWanted
    from mltop.probes.reach.view import FleetView
    from mltop.tui.feed import Picture
    from mltop.tui.place import Trail
    from mltop.tui.screens.pane import Pane

READ_ONLY = Notice("read-only: dumps, captures and probes are off (started with --read-only)", "warn")
CANNOT_PROBE = Notice("probes need live nodes: what is shown here cannot run any", "warn")


class WorkingApp(App[None]):
    """At most one dump, one capture and one probe run at a time; what they bring arrives as messages."""

    trail: Trail
    newest: Picture | None

    def __init__(self, session: Session, *, read_only: bool, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self.session = session
        self.read_only = read_only
        self.investigation = Investigation(session, self.post_message)
        self.probing = Probing(session, self.post_message)
        self.selection = Selection()

    @property
    def pane(self) -> Pane:
        """The pane the user is in."""
        raise NotImplementedError

    def tell(self, notice: Notice | None) -> None:
        """Show a sentence, or none any more."""
        raise NotImplementedError

    def drill(self, place: Place) -> None:
        """Go deeper; Esc comes back here."""
        raise NotImplementedError

    def newest_view(self) -> FleetView:
        return self.newest.view if self.newest is not None else self.session.view()

    # What arrives.

    def on_dump_progress(self, message: DumpProgress) -> None:
        was_dumping = self.investigation.dumping
        taken_at = self.newest.view.taken_at if self.newest else 0.0
        self.investigation.take_progress(message, taken_at)
        if was_dumping and not self.investigation.dumping:
            self.tell(end_of_dump(message.progress))
        else:
            self.redraw()

    def on_captured(self, message: Captured) -> None:
        self.investigation.take_capture(message)
        self.tell(end_of_capture(message.result))

    def on_probe_moved(self, message: ProbeMoved) -> None:
        was_running = self.probing.running is not None
        self.probing.take(message)
        if was_running and self.probing.running is None and self.trail.here.pane != "probes":
            self.tell(end_of_probe(message.progress))
        else:
            self.redraw()

    def on_past_read(self, message: PastRead) -> None:
        self.probing.take_past(message)
        self.redraw()

    def redraw(self) -> None:
        """Draw what is shown now."""
        raise NotImplementedError

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

    # What is started.

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
            self.drill(Place("stacks"))
        self.tell(None)

    def action_capture(self) -> None:
        if self.investigation.capturing:
            return
        if self.read_only:
            self.tell(READ_ONLY)
            return
        self.investigation.start_capture()
        self.tell(Notice("capturing: stacks, samples and verdict (Esc cancels)", "accent"))

    def action_probe(self, kind: str) -> None:
        """Ask what exactly, and whether; one probe at a time."""
        if self.probing.running is not None:
            self._show_probes()
            self.tell(Notice("a probe runs already, one at a time: Esc cancels it", "warn"))
        elif self.read_only:
            self.tell(READ_ONLY)
        elif not isinstance(self.session, Probes):
            self.tell(CANNOT_PROBE)
        else:
            from mltop.tui.screens.confirm import ConfirmProbe
            from mltop.tui.screens.gpu_place import GpuPlace

            here = self.trail.here
            gpu = here.gpu if isinstance(here, GpuPlace) else None
            self.push_screen(ConfirmProbe(kind, here.node, gpu), self._start_probe)

    def _start_probe(self, wanted: ProbeWanted | None) -> None:
        if wanted is None or self.probing.running is not None:
            return
        self.probing.start(wanted)
        self.tell(None)
        self._show_probes()

    def _show_probes(self) -> None:
        if self.trail.here != Place("probes"):
            self.drill(Place("probes"))
