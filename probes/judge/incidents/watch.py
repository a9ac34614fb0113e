"""Incidents over time: what the nodes' newest samples, the jobs' motion and the last stacks say, joined when asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from mltop.probes.judge.incidents.causes import CLOSE_S
from mltop.probes.judge.incidents.join import by_work_stopped, incidents_of
from mltop.probes.judge.incidents.loss import STOPS, still_holds
from mltop.probes.judge.incidents.scene import ENDING_S, NodeScene, Scene, Stacks, scene_of, stacks_of
from mltop.probes.judge.values import known
from mltop.probes.model import Finding, Incident, JobKey, JobMotion, JobReport, PlacedJob, Sample

KEPT_S = 3600.0  # an incident of a job that is over
MOST_KEPT = 256
MOVES_AGAIN_S = 5.0  # a rank that ends moves for less
MOST_REMEMBERED = 16_384  # findings


class IncidentWatch:
    """Takes what the other judges say of each node and job. No clock: times are those of the samples.

    An incident keeps its ``id`` while it lasts, also where a node's fault turns out to have stopped a job, and its
    ``since`` while it comes to the same: a job that was slow for an hour and hangs now has hung since it hangs. When it
    is over, it is kept among ``ended`` for an hour (of a recording for good: ``keep_s`` None).
    """

    def __init__(self, keep_s: float | None = KEPT_S) -> None:
        self._keep_s = keep_s
        self._nodes: dict[str, NodeScene] = {}
        self._at: dict[str, float] = {}  # when they were seen last, where that is later than their newest sample
        self._stacks: dict[PlacedJob, Stacks] = {}
        self._states: tuple[Finding, ...] = ()
        self._stood: dict[PlacedJob, JobMotion] = {}  # jobs that stood still when they were last seen
        self._still: dict[PlacedJob, JobMotion] = {}  # jobs that stood still, if only for seconds, and have not gone on
        self._firing: dict[str, Incident] = {}  # by id
        self._names = _Names()
        self.ended: list[Incident] = []  # of jobs, the oldest first

    @property
    def nodes(self) -> Iterable[str]:
        return self._nodes.keys()

    def see(self, sample: Sample, findings: tuple[Finding, ...]) -> None:
        """One node's newest sample and what the health rules say of the node."""
        self._nodes[sample.node] = NodeScene.of(sample, findings, self._nodes.get(sample.node))

    def see_at(self, node: str, at: float) -> None:
        """A node is as its newest sample said, by ``at`` (unix s, the watcher's clock)."""
        self._at[node] = at

    def update(self, node: str, findings: tuple[Finding, ...]) -> None:
        """What the health rules say of a node by now."""
        if self._nodes[node].findings is not findings:
            self._nodes[node] = replace(self._nodes[node], findings=findings)

    def take_stacks(self, reports: Sequence[JobReport]) -> None:
        """What a dump said; of each job the newest counts. One that tells no time is of the newest sample's."""
        newest = max((node.at for node in self._nodes.values()), default=0.0) if reports else 0.0
        for key, newer in stacks_of(reports).items():
            stacks = newer if newer.at else newer._replace(at=newest)
            before = self._stacks.get(key)
            if before is None or stacks.at >= before.at:
                self._stacks[key] = stacks

    def take_states(self, states: tuple[Finding, ...]) -> bool:
        """All that do not answer (``node.lost``, ``node.refused``); whether they are others than before."""
        before, self._states = self._states, states
        return before is not states

    def forget(self, node: str) -> None:
        """A node that is not watched any more."""
        self._nodes.pop(node, None)
        self._at.pop(node, None)

    def incidents_with(
        self, reports: Sequence[JobReport], job_findings: Iterable[Finding] = (), motions: Sequence[JobMotion] = ()
    ) -> list[Incident]:
        """What it would come to with these stacks; nothing is remembered. From any thread."""
        stacks = {**self._stacks, **stacks_of(reports)}
        incidents = incidents_of(
            scene_of(self._with_states(), job_findings, motions, stacks, {**self._stood}, still={**self._still})
        )
        return sorted(self._names.copy().named(incidents), key=by_work_stopped)

    def incidents(self, job_findings: Iterable[Finding] = (), motions: Sequence[JobMotion] = ()) -> list[Incident]:
        """Those that hold now, and those of nodes that are over, the gravest first."""
        scene = scene_of(self._with_states(), job_findings, motions, self._stacks, self._stood, still=self._still)
        self._remember_jobs(scene, motions)
        incidents = self._names.named(self._without_ended(incidents_of(scene)))
        incidents = sorted(map(self._since_first_seen, incidents), key=by_work_stopped)
        firing = {incident.id: incident for incident in incidents if incident.until is None}
        self._end(scene, firing)
        self._firing = firing
        self._names.forget({incident.id for incident in (*incidents, *self.ended)})
        return incidents

    def _with_states(self) -> list[NodeScene]:
        nodes = {
            name: node if self._at.get(name, node.at) <= node.at else replace(node, at=self._at[name])
            for name, node in self._nodes.items()
        }
        for state in self._states:
            if state.severity == "critical":
                node = nodes.get(state.node) or NodeScene(state.node, state.since or 0.0)
                nodes[state.node] = replace(node, findings=(*node.findings, state))
        return list(nodes.values())

    def _without_ended(self, incidents: list[Incident]) -> list[Incident]:
        """Without faults that are over and belong to what a job has lost, which is over, too."""
        listed = {_identity(finding) for ended in self.ended for finding in ended.findings}
        left, over = [], {}
        for incident in incidents:
            own = {_identity(finding): finding for finding in incident.findings}
            if incident.kind == "node" and incident.until is not None and own.keys() <= listed:
                over.update(own)
            else:
                left.append(incident)
        if over:
            self.ended = [_with_ends(ended, over) for ended in self.ended]
        return left

    def _since_first_seen(self, incident: Incident) -> Incident:
        before = self._firing.get(incident.id)
        if before is None or before.since is None or incident.until is not None:
            return incident
        if not _goes_on_from(before, incident):
            return incident
        since = min(known((before.since, incident.since)), default=None)
        return incident if since == incident.since else replace(incident, since=since)

    def _end(self, scene: Scene, firing: dict[str, Incident]) -> None:
        """Of nodes the findings say when they were over; of jobs nobody else does."""
        over = [incident for name, incident in self._firing.items() if name not in firing and incident.kind != "node"]
        self.ended += [replace(incident, until=scene.at) for incident in over]
        if self._keep_s is not None:
            oldest = scene.at - self._keep_s
            self.ended = [incident for incident in self.ended if (incident.until or 0.0) >= oldest][-MOST_KEPT:]

    def _remember_jobs(self, scene: Scene, motions: Sequence[JobMotion]) -> None:
        """Which jobs stand still: what they did last, when none of their ranks is left. No stacks of a job that has got
        on since, or of which nothing is left.
        """
        for key, stacks in [*self._stacks.items()]:
            job = scene.jobs[scene.placed(JobKey(key.name, key.uid), key.node)]
            over = not job.ranks and not job.deaths and scene.at - stacks.at > ENDING_S
            if over or not still_holds(job, stacks):
                del self._stacks[key]
                job.stacks = None if job.stacks is stacks else job.stacks
        for motion in motions:
            key = scene.of_motion(motion)
            stood = self._stood.get(key)
            if motion.phase in ("quiet", "stalled"):
                self._still[key] = motion
            elif motion.phase == "moving" and motion.at - (motion.since or 0.0) >= MOVES_AGAIN_S:
                self._still.pop(key, None)
            if motion.phase == "stalled":
                self._stood[key] = motion
            elif stood is not None and motion.phase != "unknown" and (motion.since or 0.0) > (stood.since or 0.0):
                del self._stood[key]
        for kept in (self._stood, self._still):
            for key, motion in [*kept.items()]:
                if scene.at - motion.at > KEPT_S:
                    del kept[key]


def _goes_on_from(before: Incident, now: Incident) -> bool:
    """Whether it comes to the same, or began with that fault: a job that hung and then crashed has got nothing done
    since it hung.
    """
    if before.kind == "node" and now.since is not None:
        return now.since - (before.since or 0.0) <= CLOSE_S
    return (before.kind in STOPS) == (now.kind in STOPS)


def _with_ends(ended: Incident, over: Mapping[tuple[object, ...], Finding]) -> Incident:
    """Its findings as they are by now."""

    def by_now(findings: list[Finding]) -> list[Finding]:
        ends = [over.get(_identity(finding), finding).until for finding in findings]
        return [replace(finding, until=until) for finding, until in zip(findings, ends, strict=True)]

    if all(_identity(finding) not in over or finding.until is not None for finding in ended.findings):
        return ended
    return replace(ended, causes=by_now(ended.causes), effects=by_now(ended.effects))


def _identity(finding: Finding) -> tuple[object, ...]:
    """Equal for a finding that fires and the same when it is over."""
    return finding.id, finding.node, finding.subject, finding.key, finding.job, finding.uid, finding.since


@dataclass
class _Names:
    """Gives incidents their ids: one that lasts keeps its own, one that comes again gets another ("…#2").

    ``of_jobs``: by what is found of the job; ``of_findings``: by what an incident of a node is made of.
    """

    of_jobs: dict[str, str] = field(default_factory=dict)
    of_findings: dict[tuple[object, ...], str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)

    def copy(self) -> _Names:
        return _Names(dict(self.of_jobs), dict(self.of_findings), set(self.given))

    def named(self, incidents: list[Incident]) -> list[Incident]:
        """Jobs choose first: the fault that stopped one goes on as its incident."""
        taken: set[str] = set()
        of_jobs: dict[str, str] = {}
        named: dict[int, str] = {}
        for incident in sorted(incidents, key=lambda incident: incident.kind == "node"):
            own = self.of_jobs.get(incident.id) if incident.kind != "node" else None
            made_of = [_identity(each) for one in incident.findings for each in (one, *one.explains)]
            names = (own, *map(self.of_findings.get, made_of))
            name = next((name for name in names if name is not None and name not in taken), None)
            if name is None:
                name = self._new(incident.id, taken)
            taken.add(name)
            named[id(incident)] = name
            if incident.kind == "node":
                self.of_findings.update((each, name) for each in made_of)
            else:
                of_jobs[incident.id] = name
                for each in made_of:  # what is left when the job is over is listed anew
                    self.of_findings.pop(each, None)
        self.of_jobs = of_jobs
        return [
            incident if named[id(incident)] == incident.id else replace(incident, id=named[id(incident)])
            for incident in incidents
        ]

    def _new(self, wanted: str, taken: set[str]) -> str:
        names = chain((wanted,), (f"{wanted}#{number}" for number in count(2)))
        name = next(name for name in names if name not in taken and name not in self.given)
        self.given.add(name)
        return name

    def forget(self, kept: set[str]) -> None:
        """Names that nothing has any more."""
        if len(self.given) > 2 * len(kept) + MOST_KEPT or len(self.of_findings) > MOST_REMEMBERED:
            self.given &= kept
            self.of_findings = {made_of: name for made_of, name in self.of_findings.items() if name in kept}
