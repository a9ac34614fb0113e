"""Looks at this machine once a second as the screen does, and notes when it first says that a job stands still."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import psutil

from mltop.probes.investigate.diagnosis import Diagnosis
from mltop.probes.investigate.session import LiveSession
from mltop.probes.investigate.stacks import StackRequest
from mltop.probes.judge.health.fleet import Health
from mltop.probes.model import Incident, JobKey, JobMotion, JobReport, Sample
from mltop.probes.model.encoding import to_json
from mltop.probes.reach.targets import TargetOptions, channels, resolve

LOOK_S = 0.2
STACKS_S = 60.0
OF_NODES = ("node", "starved")  # hardware and systems: no job is said to are stuck


@dataclass
class Watched:
    """Unix s of the first word. ``incidents`` of jobs that were told from outside alone, as they were last, each with
    ``first_at``; ``with_stacks`` those that rest on ``reports`` too, of stacks taken as soon as a job stood still.
    """

    quiet_at: float | None = None
    stalled_at: float | None = None
    incidents: dict[str, dict[str, Any]] = field(default_factory=dict)
    with_stacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    stacks_s: float | None = None
    phases: list[dict[str, Any]] = field(default_factory=list)  # every change of a job's phase
    failed: str = ""


class Watch:
    """A thread of its own from ``with`` on. Of jobs that descendants of this process run: there may be others here.
    ``since``: what is said before is none of the case.
    """

    def __init__(self) -> None:
        options = TargetOptions()
        targets = resolve(options)
        self._session = LiveSession(targets.title, channels(targets, options), 1.0, lambda *_: "")
        # Two that see the same samples: one is told nothing else, the other the stacks, too.
        self._outside, self._with_stacks = Diagnosis(Health(eager=True)), Diagnosis(Health(eager=True))
        self._seen_at: dict[str, float] = {}
        self._phases: dict[str, str] = {}
        self._ours: set[JobKey] = set()
        self._dumping: threading.Thread | None = None
        self._dumped = threading.Event()
        self._reports: list[JobReport] = []
        self._stop, self._told = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.since, self.stacks_wanted = float("inf"), True
        self.watched = Watched()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10.0)
        self._session.close()

    def until_told(self, since: float, until: float) -> None:
        """Returns with the first incident of a job after ``since``, or at ``until``; unix s."""
        self.since = since
        self._told.wait(max(0.0, until - time.time()))

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_S):
                samples = [view.sample for view in self._session.view().nodes]
                newer = [
                    one for one in samples if one is not None and one.sampled_at > self._seen_at.get(one.node, 0.0)
                ]
                for sample in newer:
                    self._see(sample)
                if newer:
                    self._judge(max(sample.sampled_at for sample in newer))
        except Exception as error:
            self.watched.failed = repr(error)
            self._told.set()
            raise

    def _see(self, sample: Sample) -> None:
        self._seen_at[sample.node] = sample.sampled_at
        started_here = {child.pid for child in psutil.Process().children(recursive=True)}
        self._ours |= {rank.job_key for rank in sample.ranks if rank.pid in started_here}
        self._outside.see(sample)
        self._with_stacks.see(sample)

    def _judge(self, at: float) -> None:
        for motion in self._outside.motions.motions():
            if motion.job_key in self._ours:
                self._note_phase(motion, at)
        for incident in self._outside.incidents():
            self._note_incident(incident, at, self.watched.incidents)
        if self._dumping is None and self.watched.quiet_at is not None and self.stacks_wanted:
            self._dumping = threading.Thread(target=self._dump, name="dump", daemon=True)
            self._dumping.start()
        if self._dumped.is_set():
            for incident in self._with_stacks.incidents(self._new_reports()):
                self._note_incident(incident, at, self.watched.with_stacks)
        if self.watched.incidents and at >= self.since and (self._dumping is None or self._dumped.is_set()):
            self._told.set()

    def _dump(self) -> None:
        """What the screen does of itself once a job stands still, where its user has allowed that."""
        began = time.monotonic()
        run = self._session.dump_stacks(None, lambda _: None, StackRequest())
        run.wait(STACKS_S)
        self.watched.stacks_s = time.monotonic() - began
        self._reports = list(run.reports)
        self.watched.reports = json.loads(to_json(run.reports))
        self._dumped.set()

    def _new_reports(self) -> list[JobReport]:
        reports, self._reports = self._reports, []
        return reports

    def _note_phase(self, motion: JobMotion, at: float) -> None:
        if self._phases.get(motion.job) != motion.phase:
            self._phases[motion.job] = motion.phase
            self.watched.phases.append({"at": at, **json.loads(to_json(motion))})
        if at < self.since:
            return
        if motion.phase in ("quiet", "stalled") and self.watched.quiet_at is None:
            self.watched.quiet_at = at
        if motion.phase == "stalled" and self.watched.stalled_at is None:
            self.watched.stalled_at = at

    def _note_incident(self, incident: Incident, at: float, noted: dict[str, dict[str, Any]]) -> None:
        if JobKey(incident.job, incident.uid) not in self._ours or incident.kind in OF_NODES:
            return
        before = noted.get(incident.id)
        first_at = before["first_at"] if before else at
        noted[incident.id] = {**json.loads(to_json(incident)), "first_at": first_at}
