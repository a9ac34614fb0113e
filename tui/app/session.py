"""What runs of a session for the screen: at most one stack dump, one capture and one probe.

``Investigation`` and ``Probing`` live in the UI loop only. A session calls back from a thread of its own; ``Later``
has that done in the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.judge.values import grouped
from mltop.probes.model import JobReport, NodeState
from mltop.probes.reach.view import FleetView

if TYPE_CHECKING:
    from pathlib import Path

    from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
    from mltop.probes.investigate.progress import Run
    from mltop.probes.investigate.ras import RasTold
    from mltop.probes.investigate.session import LiveSession
    from mltop.probes.model.probe import PastResult


MOST_RUNS = 20  # of probes, to look back at
MOST_DUMPS = 4  # of stacks, likewise: they may be of thousands of ranks

Report = TypeVar("Report")


class Session(Protocol):
    """Machines (``LiveSession``), or a recording in their place (``Recorded``)."""

    title: str  # "this machine", "job 4711", "demo"

    def view(self) -> FleetView:
        """The newest state of every node."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """``on_change`` is called after any node changed, from another thread; call ``view()`` then."""

    def close(self) -> None:
        """End every agent and connection; returns within a second, where a capture is being written within some."""


Later = Callable[..., None]  # has a function called in the UI loop, with these arguments; from any thread


def newest_only(later: Later, take: Callable[[Report], None]) -> Callable[[Report], None]:
    """A callback for a session: of several reports that wait for the UI loop only the newest is taken."""
    newest: list[Report] = []

    def deliver(report: Report) -> None:
        if report is newest[0]:
            take(report)

    def arrive(report: Report) -> None:
        newest[:] = [report]
        later(deliver, report)

    return arrive


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
    """At most one dump and one capture at a time; late progress of an earlier dump is dropped.

    ``live``: None for a recording, of which nothing can be asked. ``now``: the unix time of the newest view.
    ``on_dump`` gets each report of the dump that runs, ``on_capture`` the end of every capture, once it is known here.
    """

    def __init__(
        self,
        live: LiveSession | None,
        later: Later,
        now: Callable[[], float] = lambda: 0.0,
        on_dump: Callable[[StackProgress], None] = lambda _: None,
        on_capture: Callable[[CaptureResult], None] = lambda _: None,
    ) -> None:
        self._live, self._later, self._now = live, later, now
        self._on_dump, self._on_capture = on_dump, on_capture
        self._run = 0
        self._capture_run = self._captured_run = 0
        self._cancelled = False
        self._dump: Run | None = None
        self._capture: Run | None = None
        self._complete: DumpResult | None = None
        self._latest: DumpResult | None = None
        self.progress: StackProgress | None = None
        self.nodes: tuple[str, ...] = ()  # that are dumped; none: all
        self.scope = ""  # the same in words, where it needs saying
        self.moment: float | None = None  # of the past that the screen shows; None: now
        self._earlier: list[DumpResult] = []  # complete ones

    @property
    def dumping(self) -> bool:
        return self._dump is not None

    @property
    def cancelling(self) -> bool:
        """Whether the dump was cancelled, and what it has so far is still being judged."""
        return self.dumping and self._cancelled

    @property
    def capturing(self) -> bool:
        return self._capture is not None

    @property
    def writing(self) -> bool:
        """Whether a capture is being written, also one that was cancelled."""
        return self._capture_run > self._captured_run

    @property
    def result(self) -> DumpResult | None:
        """The last complete dump, else what one has so far that runs or was cancelled; None before the first. In the
        past: the last one before that moment that is kept.
        """
        if self.moment is not None:
            moment = self.moment
            return next((dump for dump in reversed(self._earlier) if dump.taken_at <= moment), None)
        return self._complete or self._latest

    def start_dump(self, nodes: Sequence[str] = (), scope: str = "") -> None:
        """Dump these nodes, none given: all."""
        self._run += 1
        self.nodes, self.scope = tuple(nodes), scope
        run = self._run
        self.progress = StackProgress(phase="dumping")
        self._latest, self._cancelled = None, False

        def take(progress: StackProgress) -> None:
            if run == self._run and self.dumping:
                self.take_progress(progress, self._now())
                self._on_dump(progress)

        assert self._live is not None
        self._dump = self._live.dump_stacks(self.nodes or None, newest_only(self._later, take))

    def cancel_dump(self) -> None:
        if self._dump is not None:
            self._cancelled = True
            self._dump.cancel()

    def leave(self) -> None:
        """The program ends: what runs for the screen is to stop. A capture is still written."""
        if not self.writing:
            self.cancel_dump()

    def take_progress(self, progress: StackProgress, now: float) -> None:
        """A report of the dump that runs; the last one ends it."""
        self.progress = progress
        if progress.reports or progress.phase == "done":
            self._latest = DumpResult(
                progress.reports, progress.not_answered, now, progress.elapsed_s, progress.phase != "done", self.nodes
            )
        if progress.finished:
            self._dump = None
        if progress.phase == "done":
            self._complete = self._latest
            if self._latest is not None:
                self.keep(self._latest)

    def keep(self, complete: DumpResult) -> None:
        """Remember a complete dump, for looks at the past."""
        self._earlier = [*self._earlier[1 - MOST_DUMPS :], complete]

    def take_ras(self, told: RasTold) -> JobReport | None:
        """Joins what RAS told of a job with the newest stacks; their report, None where they tell nothing of it."""
        self._latest, joined = _with_ras(self._latest, told)
        self._complete, of_complete = _with_ras(self._complete, told)
        return of_complete or joined

    def start_capture(self, parent: Path | None = None, least_free_bytes: int = 0) -> None:
        self._capture_run += 1
        run = self._capture_run

        def take(result: CaptureResult) -> None:
            self._captured_run = max(self._captured_run, run)
            if run == self._capture_run:
                self._capture = None
            self._on_capture(result)

        assert self._live is not None
        done = partial(self._later, take)
        self._capture = self._live.capture(done, parent=parent, least_free_bytes=least_free_bytes)

    def cancel_capture(self) -> None:
        """A cancelled capture still reports: what is known is written."""
        if self._capture is not None:
            self._capture.cancel()
            self._capture = None


def _with_ras(result: DumpResult | None, told: RasTold) -> tuple[DumpResult | None, JobReport | None]:
    """The stacks with what RAS told, and the report of its job."""
    from mltop.probes.investigate.ras import joined_with

    if result is None:
        return None, None
    reports = tuple(joined_with(report, (told,)) for report in result.reports)
    joined = next((new for new, old in zip(reports, result.reports, strict=True) if new is not old), None)
    return replace(result, reports=reports), joined


class Probing:
    """At most one probe at a time; late progress of an earlier one is dropped.

    ``past``: earlier results by device (uuid), the oldest first. ``on_report`` is called when either has changed.
    """

    def __init__(
        self, live: LiveSession | None, later: Later, on_report: Callable[[ProbeProgress | None], None]
    ) -> None:
        self._live, self._later, self._on_report = live, later, on_report
        self._run = 0
        self._probe: Run | None = None
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
        """To be called only while none runs, of live machines."""
        from mltop.probes.investigate.probing.wanted import ProbeProgress

        assert self._live is not None and self._probe is None
        self._run += 1
        run = self._run
        self._runs = [*self._runs[-MOST_RUNS + 1 :], ProbeProgress(wanted, "connecting")]
        self._looked_at, self.cancelling = -1, False

        def take(progress: ProbeProgress) -> None:
            if run != self._run or self._probe is None:
                return
            self._runs[-1] = progress
            if progress.finished:
                self._probe, self.cancelling = None, False
                self._read_past()
            self._on_report(progress)

        self._probe = self._live.run_probe(wanted, newest_only(self._later, take))

    def cancel(self) -> bool:
        """Cancel what runs; False where nothing does, or it is being cancelled already."""
        if self._probe is None or self.cancelling:
            return False
        self.cancelling = True
        self._probe.cancel()
        return True

    def want_past(self) -> None:
        """Have earlier results read, once."""
        if not self._past_wanted:
            self._past_wanted = True
            self._read_past()

    def _read_past(self) -> None:
        """Have them read in a thread of its own: this may read files."""
        if (live := self._live) is None:
            return

        def take(results: Sequence[PastResult]) -> None:
            self.past = grouped(sorted(results, key=lambda result: result.at), lambda result: result.uuid)
            self._on_report(None)

        threading.Thread(target=lambda: self._later(take, live.past()), name="past-probes", daemon=True).start()
