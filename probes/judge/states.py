"""What each rank and each GPU does, in one word, from all that is known of its job: motion, incidents, stacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Incident, JobMotion, JobReport
from mltop.probes.model.gpu import IDLE_SM
from mltop.probes.model.incident import IDLE, NO_PROCESS, UNKNOWN_DOING, WORKS, Doing
from mltop.probes.model.sample import PlacedJob
from mltop.probes.model.vocabulary import WorkState

# Of throttle reasons those that cost what the hardware could give; a power cap under load is how it is meant to work.
_SLOWED_BY = ("hw_thermal", "power_brake", "sw_thermal", "hw_slowdown")
LEAST_BUSY = 0.02
HELD_BYTES = 256 << 20  # a CUDA context alone takes as much: with less there is no process of a job
_DEAD = ("Z", "X")


class AnyRank(Protocol):
    """What is asked of a rank: RankSample has it, and views of many nodes."""

    @property
    def pid(self) -> int: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def job(self) -> str: ...
    @property
    def uid(self) -> int | None: ...


class AnyGpu(Protocol):
    """What is asked of a GPU: GpuSample and GpuSummary have it."""

    @property
    def state(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def busy(self) -> float | None: ...
    @property
    def sm_active(self) -> float | None: ...
    @property
    def memory_used_bytes(self) -> int | None: ...
    @property
    def throttle_reasons(self) -> Sequence[str] | None: ...


@dataclass(frozen=True)
class JobStates:
    """``usual``: what every rank does of which nothing else is known. ``ranks``: by number, ``processes``: by node and
    pid, ``gpus``: by node and index what single ones do.
    """

    usual: Doing
    ranks: Mapping[int, Doing] = field(default_factory=dict)
    processes: Mapping[tuple[str, int], Doing] = field(default_factory=dict)
    gpus: Mapping[tuple[str, int], Doing] = field(default_factory=dict)

    @property
    def stands(self) -> bool:
        return self.usual.state in ("waits", "stalled", "quiet")


@dataclass(frozen=True)
class States:
    """Of all jobs. ``known`` is what ``states_of`` found."""

    known: Mapping[PlacedJob, JobStates] = field(default_factory=dict)

    def job(self, node: str, job: str, uid: int | None) -> JobStates | None:
        """That of a rank on this node; None: nothing is known of how it gets on."""
        return self.known.get(PlacedJob(job, uid, "")) or self.known.get(PlacedJob(job, uid, node))

    def is_placed(self, node: str, job: str, uid: int | None) -> bool:
        """Whether it is a job of this node only, which others may have by the same name."""
        return PlacedJob(job, uid, node) in self.known

    def rank(self, node: str, rank: AnyRank, state: str = "") -> Doing:
        """``state``: the process's, as the kernel prints it."""
        if state[:1] in _DEAD:
            return Doing("ended")
        of_job = self.job(node, rank.job, rank.uid)
        if of_job is None:
            return UNKNOWN_DOING
        own = of_job.processes.get((node, rank.pid))
        if own is None and rank.rank is not None:
            own = of_job.ranks.get(rank.rank)
        return own or of_job.usual

    def gpu(self, node: str, gpu: AnyGpu, ranks: Sequence[AnyRank], processes: Sequence[object] | None = None) -> Doing:
        """``ranks``: those that use it; ``processes``: all that hold it, None: not known."""
        if gpu.state != "ok":
            return Doing("lost" if gpu.state == "lost" else "error")
        of_ranks = self._of_ranks(node, gpu, ranks)
        if of_ranks.state in _GRAVITY:
            return of_ranks
        slowed = next((reason for reason in _SLOWED_BY if reason in (gpu.throttle_reasons or ())), None)
        works = is_working(gpu)
        if slowed is not None and works is not False:
            return Doing("throttled", where=slowed)
        if of_ranks.state != "unknown":
            return IDLE if of_ranks.state == "works" and works is False else of_ranks
        if not works and not ranks and _is_free(gpu, works, processes):
            return NO_PROCESS
        return UNKNOWN_DOING if works is None else WORKS if works else IDLE

    def _of_ranks(self, node: str, gpu: AnyGpu, ranks: Sequence[AnyRank]) -> Doing:
        """Of several ranks on one GPU the one in the gravest state speaks for it."""
        doing: list[Doing] = []
        for rank in ranks:
            of_job = self.job(node, rank.job, rank.uid)
            if of_job is not None and (node, gpu.index) in of_job.gpus:
                return of_job.gpus[node, gpu.index]
            doing.append(self.rank(node, rank))
        return min(doing, key=lambda one: _GRAVITY.get(one.state, len(_GRAVITY)), default=UNKNOWN_DOING)


_GRAVITY: Mapping[WorkState, int] = {"stands": 0, "alone": 1, "waits": 2, "stalled": 3, "quiet": 4, "starved": 5}


def _is_free(gpu: AnyGpu, works: bool | None, processes: Sequence[object] | None) -> bool:
    """Whether nobody holds it, as far as is known."""
    held = gpu.memory_used_bytes
    if processes or (held is not None and held >= HELD_BYTES):  # in a container NVML may list none of others' processes
        return False
    return processes is not None or (works is False and held is not None)


def is_working(gpu: AnyGpu) -> bool | None:
    """Whether anything runs on it; None: not known."""
    if gpu.sm_active is None and gpu.busy is None:
        return None
    return (gpu.sm_active or 0.0) >= IDLE_SM or (gpu.busy or 0.0) >= LEAST_BUSY


def holds_gpu(gpu: AnyGpu, gpus: int, ranks: int) -> bool:
    """Whether one of a node's ``ranks`` uses it, where only the numbers of both are known."""
    if ranks >= gpus or gpu.memory_used_bytes is None:
        return ranks > 0
    return ranks > 0 and gpu.memory_used_bytes >= HELD_BYTES


def states_of(motions: Sequence[JobMotion], incidents: Sequence[Incident], reports: Sequence[JobReport] = ()) -> States:
    """``reports``: what the newest stacks said of each job."""
    of_jobs = (incident for incident in incidents if incident.until is None and incident.job)
    firing = grouped(of_jobs, lambda incident: (incident.job, incident.uid))
    by_job = {(report.job, report.uid): report for report in reports}
    known: dict[PlacedJob, JobStates] = {}
    watched = {(motion.job, motion.uid) for motion in motions}
    unwatched = [JobMotion(job, uid) for job, uid in firing if (job, uid) not in watched]  # known by stacks alone
    for motion in (*motions, *unwatched):
        key = motion.job, motion.uid
        own = [one for one in firing.get(key, ()) if _is_about(one, motion)]
        known[motion.placed] = _of_job(motion, own, by_job.get(key))
    return States(known)


def _is_about(incident: Incident, motion: JobMotion) -> bool:
    """A job that is on one node only shares its name with those of others."""
    places = {culprit.node for culprit in incident.culprits if culprit.node}
    return not motion.place or not places or motion.place in places


def _of_job(motion: JobMotion, incidents: Sequence[Incident], report: JobReport | None) -> JobStates:
    hang = next((one for one in incidents if one.kind in ("hang", "crash")), None)
    seen = report is not None and _is_of_now(report, motion)  # stacks know of a hang before the counters do
    if motion.phase in ("quiet", "stalled") or (hang is not None and (seen or motion.phase != "moving")):
        return _standing(motion, hang, report)
    if motion.phase == "starting":
        return JobStates(Doing("starting", motion.since))
    starved = next((one for one in incidents if one.kind == "starved"), None)
    if starved is not None:
        return JobStates(Doing("starved", starved.since))
    if motion.phase != "moving":
        return JobStates(UNKNOWN_DOING)
    return JobStates(WORKS)


def _standing(motion: JobMotion, hang: Incident | None, report: JobReport | None) -> JobStates:
    fell = motion.since if motion.phase in ("quiet", "stalled") or hang is None else None
    since = min(known((fell, hang.since if hang is not None else None)), default=None)  # as incidents have it
    culprits = list(hang.culprits) if hang is not None else []
    verdict = report.verdict if report is not None and _is_of_now(report, motion) else None
    if not culprits and verdict is not None and verdict.kind == "suspect":
        culprits = verdict.culprits
    suspects = [one.rank for one in verdict.culprits] if verdict is not None and verdict.kind == "suspect" else []
    alone = bool(suspects) and all(one.rank in suspects for one in culprits)
    waits = _waiting(report, since) if verdict is not None and report is not None else {}
    if not culprits and not waits:
        return JobStates(Doing("quiet" if motion.phase == "quiet" else "stalled", since))
    stands = Doing("alone" if alone else "stands", since)
    named = [culprit for culprit in culprits if culprit.how != "dead"]
    ranks = {**waits, **{culprit.rank: stands for culprit in named if culprit.rank is not None}}
    dead = {one.rank: Doing("ended", since) for one in culprits if one.how == "dead" and one.rank is not None}
    return JobStates(
        Doing("waits" if culprits else "stalled", since),
        {**ranks, **dead},
        {(one.node, one.pid): stands for one in named if one.pid is not None},
        {(one.node, one.gpu): stands for one in named if one.gpu is not None},
    )


def _is_of_now(report: JobReport, motion: JobMotion) -> bool:
    """Whether its stacks were taken after the job last moved; of stacks without a time nobody knows that."""
    taken = [digest.taken_at for digest in report.digests if digest.taken_at is not None]
    return report.verdict.stands_still and (motion.since is None or max(taken, default=-math.inf) >= motion.since)


def _waiting(report: JobReport, since: float | None) -> dict[int, Doing]:
    """By rank: in which collective it waits."""
    waits: dict[int, Doing] = {}
    for stack in report.classes:
        if stack.waiting_in:
            doing = Doing("waits", since, stack.waiting_in)
            waits.update((rank, doing) for rank in stack.ranks)
    return waits
