"""The stack dump and the capture that run, and what the last ones brought. Lives in the UI loop only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.message import Message

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.model import JobReport, NodeState
from mltop.tui.session import Cancellable, Session


class DumpProgress(Message):
    """Progress of dump number ``run``, posted from the session's thread."""

    def __init__(self, run: int, progress: StackProgress) -> None:
        super().__init__()
        self.run = run
        self.progress = progress


class Captured(Message):
    def __init__(self, run: int, result: CaptureResult) -> None:
        super().__init__()
        self.run = run
        self.result = result


@dataclass(frozen=True)
class DumpResult:
    """The reports of one dump. ``partial``: cancelled, failed or still running. ``taken_at``: unix s.

    ``nodes``: those that were asked, none: all that are watched.
    """

    reports: tuple[JobReport, ...]
    not_answered: tuple[NodeState, ...]
    taken_at: float
    took_s: float
    partial: bool
    nodes: tuple[str, ...] = ()


class Investigation:
    """At most one dump and one capture at a time; late progress of an earlier dump is dropped."""

    def __init__(self, session: Session, post: Callable[[Message], bool]) -> None:
        self._session = session
        self._post = post
        self._run = 0
        self._capture_run = 0
        self._dump: Cancellable | None = None
        self._capture: Cancellable | None = None
        self._complete: DumpResult | None = None
        self._latest: DumpResult | None = None
        self.progress: StackProgress | None = None
        self.nodes: tuple[str, ...] = ()  # that the last dump asked; none: all
        self.scope = ""  # the same in words, where it needs saying

    @property
    def dumping(self) -> bool:
        return self._dump is not None

    @property
    def capturing(self) -> bool:
        return self._capture is not None

    @property
    def result(self) -> DumpResult | None:
        """What to show: what the running dump has so far, else the last complete dump, else a partial one."""
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

        def on_progress(progress: StackProgress) -> None:
            self._post(DumpProgress(run, progress))

        self._dump = self._session.dump_stacks(self.nodes or None, on_progress)

    def cancel_dump(self) -> None:
        if self._dump is not None:
            self._dump.cancel()

    def take_progress(self, message: DumpProgress, now: float) -> None:
        """``now`` is the unix time of the newest view. The last report of a dump ends it."""
        if message.run != self._run or not self.dumping:
            return
        progress = message.progress
        self.progress = progress
        if progress.reports or progress.phase == "done":
            self._latest = DumpResult(
                progress.reports, progress.not_answered, now, progress.elapsed_s, progress.phase != "done", self.nodes
            )
        if progress.finished:
            self._dump = None
        if progress.phase == "done":
            self._complete = self._latest

    def start_capture(self) -> None:
        self._capture_run += 1
        run = self._capture_run

        def on_done(result: CaptureResult) -> None:
            self._post(Captured(run, result))

        self._capture = self._session.capture(on_done)

    def cancel_capture(self) -> None:
        """It still reports: what was known is written."""
        if self._capture is not None:
            self._capture.cancel()
            self._capture = None

    def take_capture(self, message: Captured) -> None:
        if message.run == self._capture_run:
            self._capture = None
