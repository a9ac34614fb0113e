"""Samples in, the motion of every job out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.judge.stall.activity import CALLS, CPU, GPU, MAIN, POLLS, RESIDENT, STILL, TRAFFIC, IdlePower
from mltop.probes.judge.stall.job import ANEW_S, Job, Part
from mltop.probes.judge.stall.node import SET_BACK_S, NodeMotion
from mltop.probes.judge.stall.odd import odd_ranks
from mltop.probes.judge.stall.surroundings import History
from mltop.probes.model import JobMotion, LogLine, PlacedJob, RankDeath, Sample, Slowdown
from mltop.probes.model.news.judged import JobPart, PartNumbers
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.vocabulary import MotionPhase

_STANDS: frozenset[MotionPhase] = frozenset(("quiet", "stalled"))


class JobMotions:
    """How all jobs get on. There is no clock: the time is that of the samples, by the watcher's clock where the node's
    is known to differ. For one thread. ``turned``: how often any job fell still or went on.

    ``see`` takes samples of any nodes, each node's in the order of time. ``take`` takes what a node made of its own.
    """

    def __init__(self) -> None:
        self.turned = 0
        self._idle = IdlePower()
        self._nodes: dict[str, NodeMotion] = {}  # of those whose samples are seen here
        self._at: dict[str, float] = {}
        self._parts: dict[str, set[PlacedJob]] = {}
        self._reported: dict[str, tuple[Sequence[RankDeath], Sequence[LogLine]]] = {}  # of its newest whole sample
        self._jobs: dict[PlacedJob, Job] = {}
        self._made: dict[PlacedJob, JobMotion] = {}
        self._history = History()
        self._bases: dict[PlacedJob, object] = {}  # what a motion was made of
        self._touched: set[PlacedJob] = set()
        self._motions: tuple[JobMotion, ...] = ()

    def see(self, sample: Sample) -> None:
        """Take the next sample of its node."""
        node = self._nodes.get(sample.node)
        if node is None:
            if not sample.ranks:
                return
            node = self._nodes[sample.node] = NodeMotion(sample.node, self._idle)
        if isfinite(sample.sampled_at) and node.see(sample):
            self.take_whole(sample)
            self.take(sample.node, sample.sampled_at, sample.clock_skew_s or 0.0, node.parts, node.numbers)

    def take(
        self, node: str, sampled_at: float, skew_s: float, parts: Sequence[JobPart], numbers: Sequence[PartNumbers]
    ) -> None:
        """What a node's own NodeMotion made of its newest sample. Where its clock was set back, the node is watched
        from there on.
        """
        at = sampled_at - skew_s
        newest = self._at.get(node, -inf)
        if at <= newest:
            if at >= newest - SET_BACK_S:
                return
            self._drop(node)
            newest = -inf
        self._at[node] = at
        present = set()
        for part, of_part in zip(parts, numbers):
            here = Part.of(part, of_part, node, sampled_at, skew_s)
            if here.ranks or here.key in self._jobs:
                present.add(here.key)
                if here.key not in self._jobs:
                    self._jobs[here.key] = Job(here.key, at)
                self._jobs[here.key].take(here, newest)
        for key in self._parts.get(node, set()) - present:
            self._leave(key, node)
        self._parts[node] = present
        self._take_reported(node, skew_s)
        for key in present:
            job = self._jobs[key]
            job.at = max(job.at, at)
            if job.parts and job.at - job.evaluated_at >= limit.EVALUATE_S:
                self._evaluate(job)
            self._touched.add(key)
            self._forget_empty(job)

    def take_whole(self, sample: Sample) -> None:
        """What a whole sample says beside: ends of ranks, what logs say, and what is around the ranks."""
        lines = [line for line in sample.log_lines if line.kind in ("timeout", "names")]
        self._reported[sample.node] = sample.deaths, lines
        self._history.see(sample, sample.sampled_at - (sample.clock_skew_s or 0.0))

    def _leave(self, key: PlacedJob, node: str) -> None:
        job = self._jobs.get(key)
        if job is not None:
            job.remove(node)
            self._touched.add(key)
            self._forget_empty(job)

    def _take_reported(self, node: str, skew_s: float) -> None:
        """Ends of ranks, and what their logs say of waits in vain."""
        deaths, lines = self._reported.get(node, ((), ()))
        for death in deaths:
            for job in self._named(death.job, death.uid, node):
                job.take_death(node, death if death.at is None else replace(death, at=death.at - skew_s))
        for line in lines:
            for job in self._named(line.job, line.uid, node):
                job.take_log_line(line.at - skew_s, line.waited_s)

    def _named(self, name: str, uid: int | None, node: str) -> list[Job]:
        keys = (PlacedJob(name, uid, ""), PlacedJob(name, uid, node))
        return [self._jobs[key] for key in keys if key in self._jobs]

    def _evaluate(self, job: Job) -> None:
        before = job.phase
        job.evaluate()
        self.turned += job.phase != before and not _STANDS.isdisjoint((before, job.phase))

    def forget(self, node: str) -> None:
        """It is not watched any more: its ranks are neither still nor gone."""
        self._nodes.pop(node, None)
        self._at.pop(node, None)
        self._reported.pop(node, None)
        self._drop(node)

    def _drop(self, node: str) -> None:
        self._history.forget(node)
        for key in self._parts.pop(node, ()):
            self._leave(key, node)

    def motions(self) -> tuple[JobMotion, ...]:
        """Of every job that has a living rank, by name; the same tuple while no sample has come."""
        if not self._touched and len(self._made) == len(self._jobs):
            return self._motions
        for key in self._touched & self._jobs.keys():
            job = self._jobs[key]
            if job.at > job.evaluated_at or not job.seen:
                self._evaluate(job)
            self._made[key] = self._motion(job)
        self._made = {key: motion for key, motion in self._made.items() if key in self._jobs}
        self._touched.clear()
        order = sorted(self._made, key=lambda key: (key.name, -1 if key.uid is None else key.uid, key.node))
        self._motions = tuple(self._made[key] for key in order)
        return self._motions

    def _motion(self, job: Job) -> JobMotion:
        """Made anew only where more than the time has changed: there may be thousands, asked for every second."""
        parts = job.parts.values()
        stands = job.phase in _STANDS
        look = (
            int(job.still_s / ANEW_S) if stands or any(part.numbers.facts for part in parts) else job.still_s >= ANEW_S
        )
        state = (job.phase, job.since, job.seen, len(parts), job.why, len(job.gone), len(job.deaths), look)
        basis = (state, job.series.rhythm, job.patience_s, job.pace.slower)
        motion = self._made.get(job.key)
        if motion is None or self._bases.get(job.key) != basis:
            self._bases[job.key] = basis
            motion = _motion(job)
            motion.slowdown = self._slowdown(job)
            return motion
        fresh = object.__new__(JobMotion)
        fresh.__dict__ = {**vars(motion), "at": job.at}
        return fresh

    def _slowdown(self, job: Job) -> Slowdown | None:
        slower = job.pace.slower
        if slower is None:
            return None
        before_s, now_s = (1 / slower.before, 1 / slower.now) if slower.by == "steps" else (1.0, slower.factor)
        beside = self._history.beside((part.node for part in job.fresh()), slower.since)
        return Slowdown(before_s, now_s, slower.since, self._history.stragglers(job), beside)

    def _forget_empty(self, job: Job) -> None:
        if not job.parts:
            self._jobs.pop(job.key, None)
            self._bases.pop(job.key, None)


def _motion(job: Job) -> JobMotion:
    stands = job.phase in _STANDS
    parts = job.fresh()
    motion = JobMotion(
        job.key.name,
        job.key.uid,
        user=next((part.user for part in parts if part.user), ""),
        phase=job.phase,
        at=job.at,
        since=job.moved_at if stands else job.since,
        patience_s=job.patience_s,
        rhythm=job.series.rhythm,
        ranks_seen=job.seen,
        world_size=job.world_size,
        nodes=sorted(part.node for part in parts),
        odd=odd_ranks(job),
        place=job.key.node,
    )
    if stands:
        still = [track for _, track in job.tracks() if track.level == STILL]
        motion.ranks = Ranges.of(track.rank for track in still if track.rank is not None and track.rank >= 0)
        motion.signals = _signals([(track.flat, track.gpu_state) for track in still])
    elif job.why:
        motion.signals = [job.why]
    return motion


def _signals(flats: list[tuple[int, int]]) -> list[str]:
    """What stands still on nearly all of these ranks."""
    enough = limit.STILL_SHARE * len(flats)

    def holds(bit: int) -> bool:
        return sum((flat & bit) != 0 for flat, _ in flats) >= enough

    phrases = []
    if flats and holds(MAIN):
        polls = holds(POLLS)
        phrases.append("main threads only poll" if polls else "main threads make no context switches")
    if flats and holds(CALLS):
        phrases.append("no read or write calls")
    if flats and holds(CPU):
        phrases.append("no processor time used")
    if flats and holds(GPU):
        resident = sum(state == RESIDENT for _, state in flats) >= enough
        phrases.append("GPUs run a kernel that does no work" if resident else "GPUs do no work")
    if flats and holds(TRAFFIC):
        phrases.append("no traffic on NVLink and ports")
    return phrases
