"""A recording or a capture in place of a session: no machine is asked anything; time goes as the user wants."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mltop.probes.investigate.capture import material_of
from mltop.probes.investigate.material import judge
from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.judge.health import Expectations
from mltop.probes.model import Incident, JobMotion, JobReport, NodeState
from mltop.probes.model.units import counted
from mltop.probes.reach.view import FleetView
from mltop.probes.record import BadRecording, OpenRecording, Saved
from mltop.probes.record.recordings import left_out_words
from mltop.tui.app.feed import SWITCH_S, Picture
from mltop.tui.app.past.recorded import RecordedPast
from mltop.tui.app.past.travel import Player
from mltop.tui.app.session import Cancellable, DumpResult, RecordingRead
from mltop.tui.render.guarded import guarded

FIRST_S = 0.2  # a recording is shown once so long was read of it


class NoRun:
    """Of what a recording cannot do."""

    def cancel(self) -> None:
        """Nothing runs."""


class ReplaySession:
    """Fulfils ``Session``. ``past`` has all of it; ``player`` says how it is to be shown first: a recording from its
    beginning, a capture, which was made because of its end, there.
    """

    def __init__(self, path: Path, saved: Saved, job: str | None = None, rest: OpenRecording | None = None) -> None:
        """Raises BadRecording for one without samples. ``rest``: what is still to be read of a recording; ``saved`` has
        its samples so far.
        """
        self.title = path.name
        self.rest = rest
        self._view = FleetView(0.0, ())
        self._saved, self._job = saved, job
        stacks_at = max((dump.taken_at or 0.0 for dump in saved.dumps), default=0.0)
        self.past = RecordedPast(saved.samples, saved.nodes, stacks_at)
        self.past.is_complete = rest is None
        self.is_capture = bool(saved.dumps or saved.incidents)
        self.player = Player(playing=not self.is_capture)
        self.stopped = threading.Event()

    @classmethod
    def reading(cls, recording: OpenRecording, job: str | None = None) -> ReplaySession:
        """A recording whose first samples are read here, and the rest in the feed's thread. Raises BadRecording."""
        try:
            until, more = time.monotonic() + FIRST_S, True
            while more and (time.monotonic() < until or not recording.samples):
                more = recording.read(1)
            if not recording.samples:
                raise BadRecording(f"{recording.path}: there are no samples in it")
            saved = Saved([NodeState(node, "live") for node in recording.samples], recording.samples)
            return cls(recording.path, saved, job, recording)
        except BadRecording:
            recording.close()
            raise

    @property
    def first_moment(self) -> float:
        """What is shown first."""
        return self.past.newest_at if self.is_capture else self.past.all_seen_at

    def view(self) -> FleetView:
        """Its end, as far as it is read; made anew when there are more nodes, for which it is asked."""
        if len(self._view.nodes) != len(self.past.nodes):
            self._view = self.past.picture(self.past.newest_at).view
        return self._view

    def feed(
        self,
        post: Callable[[Picture], object],
        post_read: Callable[[RecordingRead], object],
        thresholds: Mapping[str, float],
    ) -> ReplayFeed:
        return ReplayFeed(self, post, post_read, thresholds)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Nothing changes."""

    def dump_stacks(
        self,
        nodes: Sequence[str] | None,  # noqa: ARG002
        on_progress: Callable[[StackProgress], None],
    ) -> Cancellable:
        on_progress(StackProgress("failed", error="a recording has no processes that could be dumped"))
        return NoRun()

    def capture(
        self,
        on_done: Callable[[CaptureResult], None],
        *,
        parent: Path | None = None,  # noqa: ARG002
        least_free_bytes: int = 0,  # noqa: ARG002
    ) -> Cancellable:
        on_done(CaptureResult(Path(), error="this is a recording already"))
        return NoRun()

    def close(self) -> None:
        self.stopped.set()

    def reports(self) -> tuple[JobReport, ...]:
        """The verdicts on the recorded stacks, made anew. Takes as long as `mltop stacks --recording`."""
        return tuple(judge(material_of(self._saved), self._job)) if self._saved.dumps else ()

    @property
    def told(self) -> Sequence[Incident]:
        """What was told when it was captured."""
        job = self._job
        return [one for one in self._saved.incidents if job is None or one.job == job]

    @property
    def dumped_at(self) -> float:
        return max((dump.taken_at or 0.0 for dump in self._saved.dumps), default=self.past.newest_at)

    @property
    def not_answered(self) -> tuple[NodeState, ...]:
        return tuple(self._saved.not_answered)


class ReplayFeed:
    """In place of ``Feed``: has the rules go over the recording, in a thread of its own."""

    def __init__(
        self,
        session: ReplaySession,
        post: Callable[[Picture], object],
        post_read: Callable[[RecordingRead], object],
        thresholds: Mapping[str, float],
    ) -> None:
        self._session, self._post, self._post_read = session, post, post_read
        self._thresholds = thresholds
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def stop(self) -> None:
        """Nobody waits for the rules: they end with the sample that they are at."""
        self._session.stopped.set()

    def poke(self) -> None:
        """Nothing is newer."""

    def take_stacks(self, reports: Sequence[JobReport]) -> None:
        """Nobody dumps here."""

    def joined_with(self, reports: Sequence[JobReport]) -> Sequence[Incident]:  # noqa: ARG002
        return ()

    def motions(self) -> Sequence[JobMotion]:
        return ()

    def _run(self) -> None:
        past = self._session.past
        self._tell()
        if (rest := self._session.rest) is not None:
            with rest:
                problem = guarded(
                    "reading the recording", lambda: past.read_on(rest, self._session.stopped, self._tell), ""
                )
            problems = [problem] * bool(problem) + [left_out_words(*one) for one in rest.samples.left_out]
            for problem in problems:
                self._post_read(RecordingRead(problem=problem))
        guarded(
            "judging the recording",
            lambda: past.judge(
                self._session.stopped,
                self._tell,
                Expectations(thresholds=self._thresholds),
                self._reports,
                self._session.told,
            ),
            None,
        )
        if past.unreadable:
            self._post_read(RecordingRead(problem=f"{counted(past.unreadable, 'sample')} in it cannot be read"))

    def _tell(self) -> None:
        picture = guarded(
            "the end of the recording", lambda: self._session.past.picture(self._session.past.newest_at), None
        )
        if picture is not None:
            self._post(picture)

    def _reports(self) -> Sequence[JobReport]:
        session = self._session
        reports = session.reports()
        if reports:
            result = DumpResult(reports, session.not_answered, session.dumped_at, 0.0, False)
            self._post_read(RecordingRead(result))
        return reports
