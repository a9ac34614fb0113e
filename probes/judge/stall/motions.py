"""Samples in, the motion of every job out."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.judge.stall.activity import CALLS, CPU, GPU, MAIN, POLLS, RESIDENT, STILL, TRAFFIC, IdlePower
from mltop.probes.judge.stall.job import Job
from mltop.probes.judge.stall.node import COARSE_S, NodeTrack, Part
from mltop.probes.judge.stall.odd import odd_ranks
from mltop.probes.judge.stall.surroundings import History
from mltop.probes.model import JobMotion, PlacedJob, Sample, Slowdown
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.vocabulary import MotionPhase

_STANDS: frozenset[MotionPhase] = frozenset(("quiet", "stalled"))
SET_BACK_S = 30.0  # more than samples are late


class JobMotions:
    """How all jobs get on. ``see`` takes samples of any nodes, each node's in the order of time; there is no clock: the
    time is that of the samples, by the watcher's clock where the node's is known to differ.

    Costs some 2 µs per rank and sample. For one thread. ``turned``: how often any job fell still or went on.
    """

    def __init__(self) -> None:
        self.turned = 0
        self._idle = IdlePower()
        self._nodes: dict[str, NodeTrack] = {}
        self._jobs: dict[PlacedJob, Job] = {}
        self._told: dict[PlacedJob, JobMotion] = {}
        self._history = History()
        self._bases: dict[PlacedJob, object] = {}  # what a motion was made of
        self._touched: set[PlacedJob] = set()
        self._motions: tuple[JobMotion, ...] = ()

    def see(self, sample: Sample) -> None:
        """Take the next sample of its node. One that is not newer than the last is left out; one that is much older is
        by a clock that was set back: the node is watched from there on.
        """
        skew_s = sample.clock_skew_s or 0.0
        at = sample.sampled_at - skew_s
        if not isfinite(at):
            return
        node = self._node(sample, at)
        if node is None:
            return
        before = dict(node.parts)
        node.see(sample, at, self._join)
        for key, part in before.items():
            if key not in node.parts:
                self._leave(part)
        self._take_told(sample, skew_s)
        self._history.see(sample, at)
        for key in node.parts:
            job = self._jobs[key]
            job.at = max(job.at, at)
            filled = node.bins.pop(key, None) if node.bins else None
            if filled is not None:
                job.take_bin(filled)
            if job.at - job.evaluated_at >= limit.EVALUATE_S:
                self._evaluate(job)
            self._touched.add(key)
        if not node.parts:
            del self._nodes[sample.node]
            self._history.forget(sample.node)

    def _take_told(self, sample: Sample, skew_s: float) -> None:
        """Ends of ranks, and what their logs say of waits in vain."""
        for death in sample.deaths:
            for job in self._named(death.job, death.uid, sample.node):
                job.take_death(sample.node, death if death.at is None else replace(death, at=death.at - skew_s))
        for line in sample.log_lines:
            if line.kind in ("timeout", "names"):
                for job in self._named(line.job, line.uid, sample.node):
                    job.take_log_line(line.at - skew_s, line.waited_s)

    def _named(self, name: str, uid: int | None, node: str) -> list[Job]:
        keys = (PlacedJob(name, uid, ""), PlacedJob(name, uid, node))
        return [self._jobs[key] for key in keys if key in self._jobs]

    def _evaluate(self, job: Job) -> None:
        before = job.phase
        job.evaluate()
        self.turned += job.phase != before and not _STANDS.isdisjoint((before, job.phase))

    def _node(self, sample: Sample, at: float) -> NodeTrack | None:
        """What is remembered of its node; None where nothing is to be taken."""
        node = self._nodes.get(sample.node)
        if node is not None and at < node.at - SET_BACK_S:
            self.forget(sample.node)
            node = None
        if node is None and sample.ranks:
            node = self._nodes[sample.node] = NodeTrack(sample.node, self._idle)
            return node
        return None if node is None or at <= node.at else node

    def forget(self, node: str) -> None:
        """It is not watched any more: its ranks are neither still nor gone."""
        self._history.forget(node)
        track = self._nodes.pop(node, None)
        for part in track.parts.values() if track is not None else ():
            part.gone.clear()
            self._leave(part)

    def motions(self) -> tuple[JobMotion, ...]:
        """Of every job that has a living rank, by name; the same tuple while no sample has come."""
        if not self._touched and len(self._told) == len(self._jobs):
            return self._motions
        for key in self._touched & self._jobs.keys():
            job = self._jobs[key]
            if job.at > job.evaluated_at or not job.seen:
                self._evaluate(job)
            self._told[key] = self._motion(job)
        self._told = {key: motion for key, motion in self._told.items() if key in self._jobs}
        self._touched.clear()
        self._motions = tuple(self._told[key] for key in sorted(self._told, key=_order))
        return self._motions

    def _motion(self, job: Job) -> JobMotion:
        """Made anew only where more than the time has changed: there may be thousands, asked for every second."""
        parts = job.parts.values()
        stands = job.phase in _STANDS
        look = int(job.still_s / COARSE_S) if stands or any(part.facts for part in parts) else job.still_s >= COARSE_S
        state = (job.phase, job.since, job.seen, len(parts), job.why, len(job.gone), len(job.deaths), look)
        basis = (state, job.series.rhythm, job.patience_s, job.pace.slower)
        told = self._told.get(job.key)
        if told is None or self._bases.get(job.key) != basis:
            self._bases[job.key] = basis
            told = _motion(job)
            told.slowdown = self._slowdown(job)
            return told
        fresh = object.__new__(JobMotion)
        fresh.__dict__ = {**vars(told), "at": job.at}
        return fresh

    def _slowdown(self, job: Job) -> Slowdown | None:
        slower = job.pace.slower
        if slower is None:
            return None
        before_s, now_s = (1 / slower.before, 1 / slower.now) if slower.by == "steps" else (1.0, slower.factor)
        beside = self._history.beside((part.node for part in job.fresh()), slower.since)
        return Slowdown(before_s, now_s, slower.since, self._history.stragglers(job), beside)

    def _join(self, part: Part) -> None:
        job = self._jobs.get(part.key)
        if job is None:
            job = self._jobs[part.key] = Job(part.key, part.at)
        job.add(part)
        self._touched.add(part.key)

    def _leave(self, part: Part) -> None:
        job = self._jobs[part.key]
        job.remove(part)
        self._touched.add(part.key)
        if not job.parts:
            del self._jobs[part.key]
            self._bases.pop(part.key, None)


def _order(key: PlacedJob) -> tuple[str, int, str]:
    return key.name, -1 if key.uid is None else key.uid, key.node


def _motion(job: Job) -> JobMotion:
    stands = job.phase in _STANDS
    parts = job.fresh()
    told = JobMotion(
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
        told.ranks = Ranges.of(track.rank for track in still if track.rank is not None and track.rank >= 0)
        told.signals = _signals([(track.flat, track.gpu_state) for track in still])
    elif job.why:
        told.signals = [job.why]
    return told


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
