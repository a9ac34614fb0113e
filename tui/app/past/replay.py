"""A recording or a capture in place of a session: no machine is asked anything; time goes as the user wants."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from mltop.probes.investigate.capture import material_of
from mltop.probes.investigate.material import judge
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.model import JobReport, NodeState
from mltop.probes.model.units import counted
from mltop.probes.reach.view import FleetView
from mltop.probes.record import BadRecording, OpenRecording, Saved
from mltop.tui.app.feed import Feed, Picture
from mltop.tui.app.past.recorded import RecordedPast
from mltop.tui.app.past.travel import Player
from mltop.tui.app.session import DumpResult
from mltop.tui.render.guarded import guarded

FIRST_S = 0.2  # a recording is shown once so long was read of it


class ReplayFeed(Feed):
    """Has the rules go over the recording; nothing is newer."""

    def __init__(
        self,
        session: ReplaySession,
        post: Callable[[Picture], object],
        post_read: Callable[[DumpResult | str], object],
        thresholds: Mapping[str, float],
    ) -> None:
        super().__init__(session, post)
        self._recording, self._post_read, self._thresholds = session, post_read, thresholds

    def _run(self) -> None:
        past, saved, job = self._recording.past, self._recording.saved, self._recording.job
        self._tell()
        if (rest := self._recording.rest) is not None:
            with rest:
                problem = guarded("reading the recording", lambda: past.read_on(rest, self._stopped, self._tell), "")
            if problem:
                self._post_read(problem)
        told = [one for one in saved.incidents if job is None or one.job == job]
        expected = Expectations(thresholds=self._thresholds)
        judging = partial(past.judge, self._stopped, self._tell, expected, self._reports, told)
        guarded("judging the recording", judging, None)
        if past.unreadable:
            self._post_read(f"{counted(len(past.unreadable), 'sample')} in it cannot be read")

    def _tell(self) -> None:
        past = self._recording.past
        picture = guarded("the end of the recording", lambda: past.picture(past.newest_at), None)
        if picture is not None:
            self._post(picture)

    def _reports(self) -> Sequence[JobReport]:
        """The verdicts on the recorded stacks, made anew. Takes as long as `mltop stacks --recording`."""
        saved = self._recording.saved
        reports = tuple(judge(material_of(saved), self._recording.job)) if saved.dumps else ()
        if reports:
            dumped_at = max((dump.taken_at or 0.0 for dump in saved.dumps), default=self._recording.past.newest_at)
            self._post_read(DumpResult(reports, tuple(saved.not_answered), dumped_at, 0.0, False))
        return reports


class ReplaySession:
    """Fulfils ``Recorded``. ``past`` has all of it; ``player`` says how it is to be shown first: a recording from its
    beginning, a capture, which was made because of its end, there.
    """

    def __init__(self, path: Path, saved: Saved, job: str | None = None, rest: OpenRecording | None = None) -> None:
        """Raises BadRecording for one without samples. ``rest``: what is still to be read of a recording; ``saved`` has
        its samples so far.
        """
        self.title = path.name
        self.rest = rest
        self.saved, self.job = saved, job
        stacks_at = max((dump.taken_at or 0.0 for dump in saved.dumps), default=0.0)
        self.past = RecordedPast(saved.samples, saved.nodes, stacks_at)
        self.past.is_complete = rest is None
        self.is_capture = bool(saved.dumps or saved.incidents)
        self.player = Player(playing=not self.is_capture)
        self.feed = partial(ReplayFeed, self)

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
        """Its end, as far as it is read."""
        return self.past.picture(self.past.newest_at).view

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Nothing changes."""

    def close(self) -> None:
        """Nothing is open."""
