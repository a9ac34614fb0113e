"""What is done when a job stands still: stacks, if the user has allowed it, and a capture where that was asked for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.model import PlacedJob
from mltop.probes.model.incident import JobMotion
from mltop.probes.model.sample import JobKey
from mltop.probes.model.units import counted
from mltop.probes.model.vocabulary import MotionPhase
from mltop.tui.app.session import Investigation
from mltop.tui.config.settings import AutoDump
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, clip, flow
from mltop.tui.screens.bars import Notice

StallAnswer = Literal["once", "always", "no"]

HOUR_S = 3600.0
MOST_NAME, LEAST_NAME = 80, 6  # cells of a job's name
_GOES_ON = ("starting", "moving")  # phases after which standing still is a stall of its own


class NewStalls:
    """Tells each stall once: from when a job is in one of ``phases`` until it moves again, or is gone."""

    def __init__(self, phases: Container[MotionPhase] = ("stalled",)) -> None:
        self._phases = phases
        self._stalled: set[PlacedJob] = set()

    def see(self, motions: Sequence[JobMotion]) -> list[JobMotion]:
        by_job = {motion.placed: motion for motion in motions}
        self._stalled = {key for key in self._stalled if key in by_job and by_job[key].phase not in _GOES_ON}
        new = [motion for key, motion in by_job.items() if motion.phase in self._phases and key not in self._stalled]
        self._stalled.update(motion.placed for motion in new)
        return new


class AutoStacks:
    """Whether the stacks of a job that stands still are dumped. ``always``: the user has allowed it, once and for all;
    ``asked``: the jobs of the question that is open; ``never``: there is none.
    """

    def __init__(self, always: bool = False, never: bool = False) -> None:
        self.always, self._never = always, never
        self.asked: tuple[JobMotion, ...] = ()
        self._stalls = NewStalls(("quiet", "stalled"))  # the sooner, the less has changed since it fell still
        self._surely = NewStalls()
        self._due: list[PlacedJob] = []
        self._told: set[PlacedJob] = set()  # of those that are quiet, while they are
        self._pauses: set[PlacedJob] = set()  # jobs that went on by themselves, or of which the user wanted nothing
        self._newest: dict[PlacedJob, JobMotion] = {}
        self._dumped: dict[PlacedJob, float] = {}  # when the last dump that shows the job began, unix s

    def see(self, motions: Sequence[JobMotion], busy: bool = False) -> list[JobMotion]:
        """The jobs to dump now; none while another dump runs (``busy``). A question about a job that goes on, or is
        gone, is over.
        """
        self._newest = {motion.placed: motion for motion in motions}
        self._dumped = {key: began_at for key, began_at in self._dumped.items() if key in self._newest}
        standing = {motion.placed: motion for motion in motions if motion.phase not in _GOES_ON}
        self.asked = tuple(standing[motion.placed] for motion in self.asked if motion.placed in standing)
        new = [] if self._never else [motion for motion in self._new(motions) if not self._is_dumped(motion)]
        if self.always:
            self._due += [motion.placed for motion in new]
        else:
            self.asked += tuple(new)
        self._due = [key for key in dict.fromkeys(self._due) if key in standing]
        if busy:
            return []
        due, self._due = self._due, []
        return [standing[key] for key in due]

    def dumped(self, jobs: Container[JobKey], nodes: Sequence[str], began_at: float) -> None:
        """Stacks of ``jobs`` on ``nodes`` (none given: all) are there, from ``began_at`` (unix s) on: nobody is asked
        for them again.
        """
        for key in self._newest:
            if JobKey(key.name, key.uid) in jobs and (not key.node or not nodes or key.node in nodes):
                self._dumped[key] = began_at
        self.asked = tuple(motion for motion in self.asked if not self._is_dumped(motion))
        self._due = [key for key in self._due if key in self._newest and not self._is_dumped(self._newest[key])]

    def _is_dumped(self, motion: JobMotion) -> bool:
        """Whether a dump was begun after it had fallen still."""
        began_at = self._dumped.get(motion.placed)
        return began_at is not None and motion.since is not None and motion.since <= began_at

    def _new(self, motions: Sequence[JobMotion]) -> list[JobMotion]:
        """A job that has once gone on after it was quiet pauses so: from then on it is told when it is stalled."""
        by_job = {motion.placed: motion for motion in motions}
        self._pauses |= {key for key in self._told if key in by_job and by_job[key].phase in _GOES_ON}
        self._told = {key for key in self._told if key in by_job and by_job[key].phase == "quiet"}
        surely = {motion.placed for motion in self._surely.see(motions)}
        new = [motion for motion in self._stalls.see(motions) if motion.placed not in self._pauses]
        new += [by_job[key] for key in surely if key in self._pauses]
        self._told |= {motion.placed for motion in new if motion.phase == "quiet"}
        self._pauses &= by_job.keys()
        return new

    def answer(self, answer: StallAnswer, busy: bool = False) -> list[JobMotion]:
        """The jobs to dump now; those of an answer during another dump come after it."""
        jobs, self.asked = list(self.asked), ()
        self.always = self.always or answer == "always"
        if answer == "no":
            self._pauses |= {job.placed for job in jobs}
            return []
        if busy:
            self._due += [job.placed for job in jobs]
            return []
        return jobs


class CaptureOnHang:
    """Decides when a capture is written into ``directory``: once for each stall. ``clock``: monotonic s.
    ``least_free_bytes``: must be free before one begins.

    A capture is of all nodes: jobs that stand still at the same time are in one.
    """

    def __init__(
        self,
        directory: Path,
        most_per_hour: int = 4,
        least_free_bytes: int = 2 << 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory, self.least_free_bytes = directory, least_free_bytes
        self._most_per_hour, self._clock = most_per_hour, clock
        self._stalls = NewStalls()
        self._due: list[JobMotion] = []
        self._began_at: deque[float] = deque()
        self._said = ""  # the last complaint
        self.complaint = ""  # to be said now

    def see(self, motions: Sequence[JobMotion], busy: bool = False) -> list[JobMotion]:
        """The jobs for which a capture is to begin now; none while something else runs (``busy``)."""
        self._due += self._stalls.see(motions)
        self.complaint = ""
        if not self._due or busy:
            return []
        jobs, self._due = self._due, []
        now = self._clock()
        while self._began_at and now - self._began_at[0] >= HOUR_S:
            self._began_at.popleft()
        if len(self._began_at) >= self._most_per_hour:
            most = counted(self._most_per_hour, "capture")
            self._complain(f"no capture of {names_of(jobs)}: {most} within an hour are the most")
            return []
        self._began_at.append(now)
        return jobs

    def ended(self, result: CaptureResult) -> Notice | None:
        """What to say of a capture's end; a failure that was said is not said again."""
        if result.error:
            self._complain(f"no capture of the stall: {result.error}")
            return Notice(self.complaint, "crit") if self.complaint else None
        self._said = ""
        return Notice("capture saved: ", "warn" if result.problems else "ok", str(result.directory))

    def _complain(self, sentence: str) -> None:
        self.complaint = "" if sentence == self._said else sentence
        self._said = sentence


@dataclass(frozen=True)
class Stalls:
    """What the user wants when a job stands still. ``remember_always``: writes that down; may be slow."""

    dump: AutoDump = "ask"
    captures: CaptureOnHang | None = None
    remember_always: Callable[[], None] = lambda: None


class StallWatch:
    """Both of them for the screen."""

    def __init__(self, investigation: Investigation, wanted: Stalls) -> None:
        self.stacks = AutoStacks(wanted.dump == "always", wanted.dump == "never")
        self.captures, self._remember = wanted.captures, wanted.remember_always
        self._investigation = investigation
        self._capturing = False

    def see(self, motions: Sequence[JobMotion]) -> Notice | None:
        """Starts what is to be started; what there is to say."""
        notice = None
        if dumps := self.stacks.see(motions, self._investigation.dumping):
            notice = self._dump(dumps)
        if self.captures is not None:
            busy = self._investigation.dumping or self._investigation.capturing
            if jobs := self.captures.see(motions, busy):
                self._capturing = True
                self._investigation.start_capture(self.captures.directory, self.captures.least_free_bytes)
                notice = Notice(f"{names_of(jobs)} is stuck: capturing ({KEYCAPS['back']} cancels)", "accent")
            elif self.captures.complaint:
                notice = Notice(self.captures.complaint, "warn")
        return notice

    def answer(self, answer: StallAnswer) -> Notice | None:
        jobs = self.stacks.answer(answer, self._investigation.dumping)
        if answer == "always":
            self._remember()
        return self._dump(jobs) if jobs else None

    def end_of_capture(self, result: CaptureResult) -> tuple[bool, Notice | None]:
        """Whether it was one of ours, and what to say of it."""
        ours, self._capturing = self._capturing, False
        return (True, self.captures.ended(result)) if ours and self.captures is not None else (False, None)

    def _dump(self, jobs: Sequence[JobMotion]) -> Notice:
        nodes = tuple(dict.fromkeys(node for job in jobs for node in job.nodes))
        self._investigation.start_dump(nodes, f"of {names_of(jobs)}")
        return Notice(f"{names_of(jobs)} is stuck: stacks dumped, {KEYCAPS['stacks']} shows them", "accent")


def names_of(jobs: Sequence[JobMotion], most: int = MOST_NAME) -> str:
    """ "train-70b", "train-70b and 2 more jobs". ``most``: cells of the name."""
    name = clip(jobs[0].job, most).rstrip() or "a job without a name"
    return name if len(jobs) == 1 else f"{name} and {counted(len(jobs) - 1, 'more job')}"


def question_line(jobs: Sequence[JobMotion], width: int) -> list[Cell]:
    """ "train-70b is stuck: dump stacks?  y once  a always  n no": a long name gives way to what follows it."""
    verb = "is" if len(jobs) == 1 else "are"
    keys = ((KEYCAPS["dump_once"], "once"), (KEYCAPS["always"], "always"), (KEYCAPS["no_dump"], "no"))
    rest = f"{names_of(jobs, 1)} {verb} stuck: dump stacks?" + "".join(f"  {key} {what}" for key, what in keys)
    name = names_of(jobs, min(MOST_NAME, max(LEAST_NAME, width - len(rest) + 1)))
    parts = [(0, [Cell(f"{name} {verb} stuck: ", "bold"), Cell("dump stacks?", "warn")])]
    parts += [(0, [Cell(key, "accent"), Cell(f" {what}", "dim")]) for key, what in keys]
    return flow(parts, width)
