"""What the ranks of one node did in its newest sample, job by job: all that a node can say of itself alone. Python 3.9.

Runs in the agent; of recordings, at the centre. Times are by the node's clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.judge.stall.activity import RESIDENT, TRAFFIC, UNREAD, IdlePower, RankTrack
from mltop.probes.judge.stall.devices import Devices
from mltop.probes.model import RankSample, Sample
from mltop.probes.model.news.judged import Gone, JobPart, PartNumbers

DEAD = frozenset("ZX")
_STANDING_STATES = frozenset("TtD")
REMEMBERED_S = 60.0  # ranks that are gone, and a part without ranks: a frame with them may be lost
SET_BACK_S = 30.0  # more than samples are late


class NodeMotion:
    """What is remembered of one node. ``parts``: what it has of each job, ``numbers``: what these did, in their order.

    ``idle``: what idle GPUs draw, where several nodes learn it together.
    """

    def __init__(self, name: str, idle: IdlePower | None = None) -> None:
        self._name, self._idle = name, idle or IdlePower()
        self._at = float("-inf")
        self.parts: list[JobPart] = []
        self.numbers: list[PartNumbers] = []
        self._tracks: dict[int, RankTrack] = {}
        self._part_of: dict[int, JobPart] = {}
        self._by_job: dict[tuple[str, int | None, bool], JobPart] = {}
        self._worked_at: dict[int, float] = {}  # by the part's id
        self._memory: dict[int, int | None] = {}

    def see(self, sample: Sample) -> bool:
        """Take the newest sample; False for one that is not newer than the last. One that is much older is by a clock
        that was set back: the node is watched from there on.
        """
        at = sample.sampled_at
        if at < self._at - SET_BACK_S:
            self.__init__(self._name, self._idle)  # type: ignore[misc]
        if at <= self._at:
            return False
        seconds, self._at = at - self._at, at
        zombies = {rank.pid for rank in sample.ranks if rank.state in DEAD}
        living, known = [rank for rank in sample.ranks if rank.pid not in zombies], len(self.parts)
        found: dict[int, list[tuple[RankSample, RankTrack]]] = {}
        for rank in living:
            track = self._track(rank, at)
            found.setdefault(id(self._part_of[rank.pid]), []).append((rank, track))
        for pid in self._tracks.keys() - {rank.pid for rank in living}:
            self._lose(pid, at, zombie=pid in zombies)
        devices = Devices(sample, self._idle, self._memory, len(found) < 2)
        self.numbers = [
            self._look(part, found.get(id(part), ()), at, seconds if number < known else 0.0, devices)
            for number, part in enumerate(self.parts)
        ]
        devices.remember()
        self._forget(at)
        return True

    def _look(
        self,
        part: JobPart,
        samples: Sequence[tuple[RankSample, RankTrack]],
        at: float,
        seconds: float,
        devices: Devices,
    ) -> PartNumbers:
        part.ranks = [track for _, track in samples]
        if not samples or not seconds:
            return PartNumbers()
        since = at - max(limit.WINDOW_S, limit.WINDOW_SAMPLES * seconds)
        recent = stepped = computed = on_gpus = spinning = facts = 0
        worked_at = self._worked_at.get(id(part))
        for rank, track in samples:
            if at > track.at:
                on_gpus += _settle(track, rank, devices, at) != UNREAD
            if track.worked_at > since:
                recent += 1
                worked_at = max(worked_at or 0.0, track.worked_at)
                stepped += track.stepped_at > since
                computed += track.computed_at > since
            elif track.spun_at > since:
                spinning += 1
            facts += track.state in _STANDING_STATES
        if worked_at is not None:
            self._worked_at[id(part)] = worked_at
        ends = [samples[0][1], samples[-1][1]] if len(samples) > 1 else [samples[0][1]]
        gpus = {track.gpu for track in ends if track.gpu is not None}
        power_share, sm = devices.shares(gpus) if gpus else (None, None)
        moved = devices.link_bytes_per_s()
        return PartNumbers(
            recent,
            stepped,
            computed,
            on_gpus,
            spinning,
            facts,
            None if worked_at is None else at - worked_at,
            seconds,
            sum(track.switched for track in ends),
            sum(track.called for track in ends),
            sum(track.ran_s for track in ends),
            power_share,
            sm,
            None if moved is None else moved * seconds,
        )

    def _track(self, rank: RankSample, at: float) -> RankTrack:
        """What is remembered of this process."""
        known = self._tracks.get(rank.pid)
        if known is not None and known.is_of(rank):
            return known
        if known is not None and known.rank is not None and not known.is_same_process(rank):
            self._lose(rank.pid, at)  # else more is known of it now, and it belongs to another job
        key = (rank.job, rank.uid, rank.is_here_only)
        part = self._by_job.get(key)
        if part is None:
            part = self._by_job[key] = JobPart(*key)
            self.parts.append(part)
        part.user, part.world_size = part.user or rank.user, rank.world_size or part.world_size
        if rank.started_at is not None:
            part.oldest_start = min(part.oldest_start or rank.started_at, rank.started_at)
        self._part_of[rank.pid] = part
        track = self._tracks[rank.pid] = RankTrack(rank, at)
        return track

    def _lose(self, pid: int, at: float, zombie: bool = False) -> None:
        track, part = self._tracks.pop(pid), self._part_of.pop(pid)
        if track.rank is not None:  # else nobody can tell when another process has taken its place
            part.gone = [*part.gone, Gone(track.rank, pid, track.gpu, self._name, at, zombie)]

    def _forget(self, at: float) -> None:
        for part in self.parts:
            if part.gone and part.gone[0].at < at - REMEMBERED_S:
                part.gone = [gone for gone in part.gone if gone.at >= at - REMEMBERED_S]
        if any(not part.ranks and not part.gone for part in self.parts):
            kept = [(part, numbers) for part, numbers in zip(self.parts, self.numbers) if part.ranks or part.gone]
            self.parts, self.numbers = [part for part, _ in kept], [numbers for _, numbers in kept]
            self._by_job = {key: part for key, part in self._by_job.items() if part.ranks or part.gone}
            self._worked_at = {
                id(part): self._worked_at[id(part)] for part in self.parts if id(part) in self._worked_at
            }


def _settle(track: RankTrack, rank: RankSample, devices: Devices, at: float) -> int:
    """Learn what this rank did; returns what its GPUs did."""
    gpu = devices.of(rank.gpus)
    track.settle(track.look(rank, at), gpu, at)
    if gpu != UNREAD and gpu <= RESIDENT and devices.silent:
        track.flat |= TRAFFIC
    return gpu
