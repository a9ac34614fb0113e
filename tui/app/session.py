"""What the screen asks of the machines, and what runs for it: at most one stack dump, one capture and one probe.

``Session`` is fulfilled by probes.investigate.session, and by fakes in tests. ``Investigation`` and ``Probing`` live in
the UI loop only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from textual.message import Message

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.model import JobReport, NodeState
from mltop.probes.reach.view import FleetView

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
    from mltop.probes.model.probe import PastResult


MOST_RUNS = 20  # of probes, to look back at

Report = TypeVar("Report")


class Cancellable(Protocol):
    def cancel(self) -> None:
        """Stop as soon as possible; the callback still gets a last, finished report. Safe to call twice."""


class Session(Protocol):
    """All callbacks come from another thread; no method blocks."""

    title: str  # "this machine", "job 4711", "demo"

    def view(self) -> FleetView:
        """The newest state of every node."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """``on_change`` is called after any node changed; call ``view()`` then."""

    def dump_stacks(self, nodes: Sequence[str] | None, on_progress: Callable[[StackProgress], None]) -> Cancellable:
        """Dump all ranks of these nodes (None: all), judge them, report progress until ``finished``."""

    def capture(self, on_done: Callable[[CaptureResult], None]) -> Cancellable:
        """Write a capture directory of everything known, dumping stacks first when there is no recent dump."""

    def close(self) -> None:
        """End every agent and connection; returns within a second."""


@runtime_checkable
class Retries(Protocol):
    """A session that can be told to try nodes again; one without this tries by itself."""

    def retry(self, nodes: Sequence[str] = ()) -> None:
        """Try these lost or refused nodes (none given: all of them) now. May be called from any thread."""


@runtime_checkable
class Probes(Protocol):
    """A session that can put load on its machines; a recording cannot."""

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> Cancellable:
        """Measure, report progress at least once a second until ``finished``. Devices in use are refused."""


@runtime_checkable
class RemembersProbes(Protocol):
    """A session that keeps the results of probes."""

    def past(self) -> Sequence[PastResult]:
        """All results. May read files: it is called from a thread of its own."""


class _RunMessage(Message, Generic[Report]):
    """What run number ``run`` reports, posted from the session's thread."""

    def __init__(self, run: int, report: Report) -> None:
        super().__init__()
        self.run = run
        self.report = report


class DumpProgressed(_RunMessage[StackProgress]):
    """Progress of a stack dump."""


class CaptureDone(_RunMessage[CaptureResult]):
    """The end of a capture."""


class ProbeProgressed(_RunMessage["ProbeProgress"]):
    """Progress of a probe; of several that wait the last is enough."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ProbeProgressed)


class PastResultsRead(Message):
    """What probes measured before."""

    def __init__(self, past: Sequence[PastResult]) -> None:
        super().__init__()
        self.past = past


@dataclass(frozen=True)
class DumpResult:
    """The reports of one dump. ``partial``: cancelled, failed or still running. ``taken_at``: unix s.

    ``nodes``: those that were dumped, none: all that are watched.
    """

    reports: tuple[JobReport, ...]
    not_answered: tuple[NodeState, ...]
    taken_at: float
    took_s: float
    partial: bool
    nodes: tuple[str, ...] = ()


class Investigation:
    """At most one dump and one capture at a time; late progress of an earlier dump is dropped."""

    def __init__(self, session: Session, post: Callable[[Message], None]) -> None:
        self._session = session
        self._post = post
        self._run = 0
        self._capture_run = 0
        self._dump: Cancellable | None = None
        self._capture: Cancellable | None = None
        self._complete: DumpResult | None = None
        self._latest: DumpResult | None = None
        self.progress: StackProgress | None = None
        self.nodes: tuple[str, ...] = ()  # that are dumped; none: all
        self.scope = ""  # the same in words, where it needs saying

    @property
    def dumping(self) -> bool:
        return self._dump is not None

    @property
    def capturing(self) -> bool:
        return self._capture is not None

    @property
    def result(self) -> DumpResult | None:
        """What the running dump has so far, else the last complete dump, else a partial one; None before the first."""
        if self.dumping and self._latest is not None and self._latest.reports:
            return self._latest
        return self._complete or self._latest

    def start_dump(self, nodes: Sequence[str] = (), scope: str = "") -> None:
        """Dump these nodes, none given: all."""
        self._run += 1
        self.nodes, self.scope = tuple(nodes), scope
        run = self._run
        self.progress = StackProgress(phase="dumping")
        self._latest = None
        self._dump = self._session.dump_stacks(
            self.nodes or None, lambda progress: self._post(DumpProgressed(run, progress))
        )

    def cancel_dump(self) -> None:
        if self._dump is not None:
            self._dump.cancel()

    def take_progress(self, message: DumpProgressed, now: float) -> bool:
        """True for the last report of a dump, which ends it. ``now`` is the unix time of the newest view."""
        if message.run != self._run or not self.dumping:
            return False
        progress = self.progress = message.report
        if progress.reports or progress.phase == "done":
            self._latest = DumpResult(
                progress.reports, progress.not_answered, now, progress.elapsed_s, progress.phase != "done", self.nodes
            )
        if progress.finished:
            self._dump = None
        if progress.phase == "done":
            self._complete = self._latest
        return progress.finished

    def start_capture(self) -> None:
        self._capture_run += 1
        run = self._capture_run
        self._capture = self._session.capture(lambda result: self._post(CaptureDone(run, result)))

    def cancel_capture(self) -> None:
        """A cancelled capture still reports: what is known is written."""
        if self._capture is not None:
            self._capture.cancel()
            self._capture = None

    def take_capture(self, message: CaptureDone) -> None:
        if message.run == self._capture_run:
            self._capture = None


class Probing:
    """At most one probe at a time; late progress of an earlier one is dropped.

    ``past``: earlier results by device (uuid), the oldest first.
    """

    def __init__(self, session: Session, post: Callable[[Message], None]) -> None:
        self._session = session
        self._post = post
        self._run = 0
        self._probe: Cancellable | None = None
        self._runs: list[ProbeProgress] = []
        self._looked_at = -1  # in _runs, from the end
        self._past_wanted = False
        self.cancelling = False
        self.past: Mapping[str, Sequence[PastResult]] = {}

    @property
    def running(self) -> ProbeProgress | None:
        """How far the running probe is; None while none runs."""
        return self._runs[-1] if self._probe is not None else None

    @property
    def shown(self) -> ProbeProgress | None:
        """The run that the user looks at: the newest, unless ``look`` was used."""
        return self._runs[self._looked_at] if self._runs else None

    @property
    def looked_at(self) -> tuple[int, int]:
        """The number of the run that ``shown`` is, from 1, and how many there are."""
        return len(self._runs) + self._looked_at + 1, len(self._runs)

    def look(self, step: int) -> None:
        """Look at the run before (-1) or after (1)."""
        self._looked_at = min(-1, max(-len(self._runs), self._looked_at + step)) if self._runs else -1

    def start(self, wanted: ProbeWanted) -> None:
        """To be called only while none runs, of a session that can run probes."""
        from mltop.probes.investigate.probing.wanted import ProbeProgress

        assert isinstance(self._session, Probes) and self._probe is None
        self._run += 1
        run = self._run
        self._runs = [*self._runs[-MOST_RUNS + 1 :], ProbeProgress(wanted, "connecting")]
        self._looked_at, self.cancelling = -1, False
        self._probe = self._session.run_probe(wanted, lambda progress: self._post(ProbeProgressed(run, progress)))

    def cancel(self) -> bool:
        """Cancel what runs; False where nothing does, or it is being cancelled already."""
        if self._probe is None or self.cancelling:
            return False
        self.cancelling = True
        self._probe.cancel()
        return True

    def take(self, message: ProbeProgressed) -> bool:
        """True for the last report of a probe, which ends it."""
        if message.run != self._run or self._probe is None:
            return False
        self._runs[-1] = message.report
        if message.report.finished:
            self._probe, self.cancelling = None, False
            self._read_past()
        return message.report.finished

    def want_past(self) -> None:
        """Have earlier results read, once; ``PastResultsRead`` brings them."""
        if not self._past_wanted:
            self._past_wanted = True
            self._read_past()

    def take_past(self, message: PastResultsRead) -> None:
        by_device: dict[str, list[PastResult]] = {}
        for result in sorted(message.past, key=lambda result: result.at):
            by_device.setdefault(result.uuid, []).append(result)
        self.past = by_device

    def _read_past(self) -> None:
        """Have them read in a thread of its own: this may read files."""
        session = self._session
        if isinstance(session, RemembersProbes):
            threading.Thread(
                target=lambda: self._post(PastResultsRead(session.past())), name="past-probes", daemon=True
            ).start()
