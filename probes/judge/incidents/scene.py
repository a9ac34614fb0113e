"""All that is known at one moment of nodes and jobs, before it is joined: what each source said, by node and by job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from mltop.probes.judge.deaths import Death
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Culprit, Finding, JobKey, JobMotion, JobReport, PlacedJob, RankDeath, RankSample, Sample
from mltop.probes.model.sample import START_SLACK_S, is_of_one_machine
from mltop.probes.model.vocabulary import CulpritKind

AGAIN_S = 1.5  # a process that wraps a rank ends with it; one that was started again dies later
OF_STATES = frozenset(("node.lost", "node.refused"))
ENDING_S = 15.0  # from the last rank's end until it is known how the first one ended
MOST_CHILDREN = 256  # of one rank: a loader starts new workers in every epoch


class Place(NamedTuple):
    """Where one rank runs, or ran: ``gpus`` are the indexes on its node."""

    node: str
    pid: int
    rank: int | None
    gpus: tuple[int, ...] = ()
    children: tuple[int, ...] = ()

    def culprit(self, reason: str, how: CulpritKind, where: str = "") -> Culprit:
        """The rank as one who holds the job up; ``reason`` tells where it stands."""
        return Culprit(self.rank, self.node, self.pid, reason, where, True, next(iter(self.gpus), None), how)


@dataclass(frozen=True)
class NodeScene:
    """One node at its newest sample (``at``: unix s of the watcher's clock). ``skew_s``: how far its own is ahead, by
    which its findings, deaths and ranks tell times. ``findings``: folded, firing and ended.
    ``children``: by a rank's pid, those that it has or had lately: a worker that was killed is in no sample any more.
    ``own_jobs``: those that it has, or had, that meet at a loopback address: of that name every node may have its own.
    """

    node: str
    at: float
    findings: tuple[Finding, ...] = ()
    ranks: tuple[RankSample, ...] = ()
    deaths: tuple[RankDeath, ...] = ()
    gpus: int = 0
    children: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    own_jobs: frozenset[JobKey] = frozenset()
    skew_s: float = 0.0

    @classmethod
    def of(cls, sample: Sample, findings: tuple[Finding, ...], before: NodeScene | None = None) -> NodeScene:
        skew_s = sample.clock_skew_s or 0.0
        ranks = tuple(rank for rank in sample.ranks if rank.job)
        had = before.children if before is not None else {}
        parents = (rank for rank in ranks if rank.children or rank.pid in had)
        children = {rank.pid: _family(had.get(rank.pid, ()), rank.children) for rank in parents}
        for death in sample.deaths:
            if death.pid in had:
                children.setdefault(death.pid, had[death.pid])
        own = frozenset([rank.job_key for rank in ranks if rank.is_here_only])
        if before is not None and before.own_jobs:
            elsewhere = {rank.job_key for rank in ranks} - own
            dead = {JobKey(death.job, death.uid) for death in sample.deaths}
            own |= (before.own_jobs & dead) - elsewhere
        at, deaths, gpus = sample.sampled_at - skew_s, tuple(sample.deaths), len(sample.gpus)
        return cls(sample.node, at, findings, ranks, deaths, gpus, children, own, skew_s)


def _family(had: tuple[int, ...], children: Sequence[int]) -> tuple[int, ...]:
    if had[: len(children)] == (own := tuple(children)):
        return had
    present = set(own)
    return (*own, *(pid for pid in had if pid not in present))[:MOST_CHILDREN]


class Stacks(NamedTuple):
    """What stacks said of a job, and when the last of them was taken, unix s."""

    report: JobReport
    at: float


@dataclass
class JobScene:
    """One job: the ranks that live, and what each source says of it. ``findings``: of rules about the whole job.
    ``place``: the node of a job that meets at a loopback address, else "". ``deaths``: by the watcher's clock, and none
    of an earlier start. ``began_at``: when the first of those that live was started, unix s. ``skews``: of its nodes'
    clocks.
    """

    key: JobKey
    place: str = ""
    at: float = 0.0
    user: str = ""
    ranks: list[Place] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    motion: JobMotion | None = None
    still: JobMotion | None = None  # when it was last seen to stand still, if only for seconds
    stacks: Stacks | None = None
    world_size: int | None = None
    began_at: float | None = None
    skews: dict[str, float] = field(default_factory=dict)
    orphans: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)  # children of the dead

    @cached_property
    def nodes(self) -> dict[str, None]:
        """Those that it runs, or ran, on, in order."""
        named = [place.node for place in self.ranks] + [death.node for death in self.deaths]
        return dict.fromkeys([*named, *(self.motion.nodes if self.motion else ())])

    @cached_property
    def places(self) -> list[Place]:
        """Those of its ranks that live, and of those that have died."""
        dead = (
            Place(
                death.node,
                death.report.pid,
                death.rank,
                tuple(death.report.gpus),
                self.orphans.get((death.node, death.report.pid), ()),
            )
            for death in self.deaths
        )
        return [*self.ranks, *dead]

    @cached_property
    def by_node(self) -> dict[str, list[Place]]:
        """``places``, asked for with every finding of every node."""
        return grouped(self.places, lambda place: place.node)

    @cached_property
    def gpus(self) -> set[tuple[str, int]]:
        return {(place.node, gpu) for place in self.places for gpu in place.gpus}

    @cached_property
    def by_pid(self) -> dict[tuple[str, int], Place]:
        return {(place.node, place.pid): place for place in reversed(self.places)}

    @cached_property
    def by_rank(self) -> dict[int, Place]:
        return {place.rank: place for place in reversed(self.places) if place.rank is not None}

    def time_of(self, finding: Finding) -> tuple[float | None, float | None]:
        """Since and until when, by the watcher's clock."""
        skew_s = 0.0 if finding.id in OF_STATES else self.skews.get(finding.node, 0.0)  # those are by our clock
        return _by_ours(finding.since, skew_s), _by_ours(finding.until, skew_s)

    def forget_earlier_starts(self) -> None:
        """The deaths of ranks that live again, and of all before those were started, or before one that died again."""
        living = {place.rank for place in self.ranks if place.rank is not None}
        began_at = float("-inf") if self.began_at is None else self.began_at - START_SLACK_S
        # By node, too: where ranks are numbered wrongly, two nodes may have the same, or one has it twice at a time.
        numbered = [death for death in self.deaths if death.rank is not None and death.report.at is not None]
        for ends in grouped(numbered, lambda death: (death.node, death.rank)).values():
            started = max(known(death.report.started_at for death in ends), default=float("-inf")) if ends[1:] else 0.0
            if any((death.report.at or 0.0) <= started for death in ends):
                began_at = max(began_at, started - START_SLACK_S)
        self.deaths = [
            death
            for death in self.deaths
            if death.rank not in living and (death.report.at is None or death.report.at >= began_at)
        ]


def _by_ours(at: float | None, skew_s: float) -> float | None:
    return None if at is None else at - skew_s


@dataclass
class Scene:
    """Everything at one moment: ``at``, the newest sample's time, unix s. ``jobs``: those that something is said of."""

    nodes: dict[str, NodeScene] = field(default_factory=dict)
    jobs: dict[PlacedJob, JobScene] = field(default_factory=dict)
    several_jobs: bool = False

    def placed(self, key: JobKey, node: str) -> PlacedJob:
        """Which job it is that ``node`` speaks of by this name."""
        is_own = node in self.nodes and (key in self.nodes[node].own_jobs or is_of_one_machine(key.name))
        return PlacedJob(key.name, key.uid, node if is_own else "")

    def of_motion(self, motion: JobMotion) -> PlacedJob:
        return self.placed(motion.job_key, motion.place or next(iter(motion.nodes), ""))

    def share_a_job(self, node: str, other: str) -> bool:
        jobs = [{rank.job_key for rank in self.nodes[name].ranks} for name in (node, other) if name in self.nodes]
        return len(jobs) == 2 and bool(jobs[0] & jobs[1])

    @cached_property
    def of_servers(self) -> dict[str, list[Finding]]:
        """What all nodes say of each file server."""
        of_nodes = (finding for node in self.nodes.values() for finding in node.findings if finding.server)
        return grouped(of_nodes, lambda finding: finding.server)

    @cached_property
    def at(self) -> float:
        return max((node.at for node in self.nodes.values()), default=0.0)


def scene_of(
    nodes: Iterable[NodeScene],
    job_findings: Iterable[Finding] = (),
    motions: Sequence[JobMotion] = (),
    stacks: Mapping[PlacedJob, Stacks] | None = None,
    stood: Mapping[PlacedJob, JobMotion] | None = None,
    *,
    still: Mapping[PlacedJob, JobMotion] | None = None,
) -> Scene:
    """``stacks``: the newest of each job, as ``stacks_of`` has them. ``stood``: how jobs stood when last seen,
    of those that no rank is left of; ``still``: how those did that stood still lately. Ranks of jobs that nobody says
    anything bad of are not looked at.
    """
    scene = Scene({node.node: node for node in nodes})
    for node in scene.nodes.values():
        for death in node.deaths:
            _take_death(scene, node, death)
    for finding in job_findings:
        _job(scene, scene.placed(JobKey(finding.job, finding.uid), finding.node), scene.at).findings.append(finding)
    moved = {scene.of_motion(motion): motion for motion in motions}
    moved |= _still_standing(scene, moved, stood or {})
    for key, motion in moved.items():
        if motion.phase == "stalled" or motion.slowdown is not None:
            _job(scene, key, motion.at)
    for key, of_job in (stacks or {}).items():
        job = _job(scene, scene.placed(JobKey(key.name, key.uid), key.node), of_job.at)
        job.stacks = of_job if job.stacks is None or of_job.at >= job.stacks.at else job.stacks
    seen = set(scene.jobs) | set(moved)
    for node in scene.nodes.values() if scene.jobs else ():
        for rank in node.ranks:
            key = scene.placed(rank.job_key, node.node)
            seen.add(key)
            if key in scene.jobs:
                _take_rank(scene.jobs[key], node, rank)
    for key, job in scene.jobs.items():
        job.forget_earlier_starts()
        moves = moved.get(key)
        if moves is not None:
            job.motion, job.user, job.world_size = moves, job.user or moves.user, job.world_size or moves.world_size
        job.world_size = job.world_size or (job.stacks.report.world_size if job.stacks is not None else None)
        job.still = (still or {}).get(key)
    scene.several_jobs = len(seen) > 1
    return scene


def _still_standing(
    scene: Scene, moved: Mapping[PlacedJob, JobMotion], stood: Mapping[PlacedJob, JobMotion]
) -> dict[PlacedJob, JobMotion]:
    """Of jobs that stood and are ending, or over: what killed their ranks may be known a moment after they are gone."""
    return {
        key: motion
        for key, motion in stood.items()
        if (key not in moved or moved[key].phase == "unknown")
        and (key in scene.jobs or scene.at - motion.at <= ENDING_S)
    }


def _job(scene: Scene, key: PlacedJob, at: float) -> JobScene:
    job = scene.jobs.setdefault(key, JobScene(JobKey(key.name, key.uid), key.node))
    job.at = max(job.at, at)
    return job


def _take_death(scene: Scene, node: NodeScene, report: RankDeath) -> None:
    at, started_at = _by_ours(report.at, node.skew_s), _by_ours(report.started_at, node.skew_s)
    job = _job(scene, scene.placed(JobKey(report.job, report.uid), node.node), at or node.at)
    job.deaths.append(Death(node.node, report if at == report.at else replace(report, at=at, started_at=started_at)))
    job.orphans[node.node, report.pid] = node.children.get(report.pid, ())
    job.skews[node.node] = node.skew_s


def _take_rank(job: JobScene, node: NodeScene, rank: RankSample) -> None:
    job.at = max(job.at, node.at)
    job.user, job.world_size = job.user or rank.user, max(job.world_size or 0, rank.world_size or 0) or None
    job.skews[node.node] = node.skew_s
    if rank.state not in ("Z", "X"):
        began_at = _by_ours(rank.started_at, node.skew_s)
        job.began_at = min(known((job.began_at, began_at)), default=None)
        children = node.children.get(rank.pid, ()) or tuple(rank.children)
        job.ranks.append(Place(node.node, rank.pid, rank.rank, tuple(rank.gpus), children))


def stacks_of(reports: Sequence[JobReport]) -> dict[PlacedJob, Stacks]:
    """By the job, and its node where it is on one only: of jobs that meet at a loopback address each has its own."""
    newest_of = {}
    for report in reports:
        nodes = {digest.node for digest in report.digests}
        place = next(iter(nodes)) if len(nodes) == 1 else ""
        newest = max(known(digest.taken_at for digest in report.digests), default=0.0)
        newest_of[PlacedJob(report.job, report.uid, place)] = Stacks(report, newest)
    return newest_of
