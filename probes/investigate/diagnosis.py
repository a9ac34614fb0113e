"""All evidence of some samples and stacks, live or from a file, as incidents: the judges put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.rule import NO_EXPECTATIONS, Expectations
from mltop.probes.judge.incidents.join import by_work_stopped
from mltop.probes.judge.incidents.watch import IncidentWatch
from mltop.probes.judge.stall.motions import JobMotions
from mltop.probes.model import Incident, JobReport, Sample

JUDGED_EVERY_S = 5.0  # of the samples' time: incidents of jobs that are over in a recording


class Diagnosis:
    """Runs the health rules and joins what they say; samples come in the order of time. ``health``: to be fed here."""

    def __init__(self, health: Health, *, whole_recording: bool = False) -> None:
        self.health = health
        self.motions = JobMotions()
        self._watch = IncidentWatch(keep_s=None) if whole_recording else IncidentWatch()
        self._judged_at: float | None = None

    def see(self, sample: Sample) -> None:
        """Judges a sample; from time to time also what the jobs' ranks add up to."""
        self.health.see(sample)
        at = sample.sampled_at
        self.motions.see(sample)
        self._watch.see(sample, ())
        if self._judged_at is None or at - self._judged_at >= JUDGED_EVERY_S:
            self._judged_at = at
            self.incidents()

    def incidents(self, reports: Sequence[JobReport] = ()) -> list[Incident]:
        """Those that hold at the newest sample, and those that are over, the gravest first."""
        self._watch.take_stacks(reports)
        for node in self._watch.nodes:
            self._watch.update(node, self.health.of(node))
        now = self._watch.incidents(self.health.of_jobs(), self.motions.motions())
        return [*now, *reversed(self._watch.ended)]


def with_told(judged: Sequence[Incident], told: Sequence[Incident], job: str | None = None) -> list[Incident]:
    """What is judged anew of a capture, with what was ``told`` then by who had watched for longer than is kept.

    What is not seen anew is as it was; of the same, judged anew, what then was known besides. ``job``: only this one.
    """
    before = {one.id: one for one in told if job is None or one.job == job}
    known_again = {one.id for one in judged}
    jobs = {(one.job, one.uid) for one in judged if one.kind != "node"}
    left = [
        one
        for one in before.values()
        if one.id not in known_again and (one.kind == "node" or (one.job, one.uid) not in jobs)
    ]
    return sorted([*(_as_told(one, before.get(one.id)) for one in judged), *left], key=by_work_stopped)


def _as_told(judged: Incident, told: Incident | None) -> Incident:
    """The incident with what only the one of then knows: a beginning before what is kept, who it was, whole sources."""
    if told is None:
        return judged
    if told.culprits and not judged.culprits:
        return told
    sources = {line.source for line in judged.evidence}
    lines = [line for line in told.evidence if line.source not in sources]
    since = min((at for at in (judged.since, told.since) if at is not None), default=None)
    return replace(judged, since=since, evidence=[*judged.evidence, *lines])


def diagnosed(samples: Iterable[Sample], thresholds: Mapping[str, float] = NO_EXPECTATIONS.thresholds) -> Diagnosis:
    """Of ``samples``: the newest of each node, or all of the last minutes, in any order. ``thresholds``: the user's."""
    ordered = sorted(samples, key=lambda sample: sample.sampled_at)
    diagnosis = Diagnosis(Health(Expectations(thresholds=thresholds), eager=True))
    diagnosis.health.compare({sample.node: sample for sample in reversed(ordered)}.values())
    for sample in ordered:
        diagnosis.see(sample)
    diagnosis.health.settle()
    return diagnosis
