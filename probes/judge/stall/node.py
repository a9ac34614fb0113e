"""The ranks of one node, by job, and what they did in its newest sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.hang.evidence import is_here_only
from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.judge.stall.activity import RESIDENT, TRAFFIC, UNREAD, WORKED, IdlePower, RankTrack
from mltop.probes.judge.stall.devices import Devices
from mltop.probes.model import PlacedJob, RankSample, Sample

DEAD = frozenset("ZX")
_STANDING_STATES = frozenset("TtD")
SENTINELS = 2  # ranks of a node that stand for all of them while they work
CALM_LOOKS = 3  # at all ranks, which all worked: then sentinels are enough
COARSE_S, COARSE_SAMPLES = 5.0, 2.5  # of a job that stands, all ranks are looked at as often
MATCH_S = 30.0  # pids are matched at least as often: one may be another process's


@dataclass(slots=True)
class Bin:
    """What a node's ranks of one job did together in the ``seconds`` before ``at``; None where it cannot be read."""

    at: float
    seconds: float
    switches: float
    calls: float
    main_cpu_s: float
    power_share: float | None = None
    sm: float | None = None
    link_bytes: float | None = None


@dataclass(slots=True)
class Gone:
    """A rank whose process is not there any more. ``told``: only by its death; nobody saw it alive."""

    rank: int | None
    pid: int
    gpu: int | None
    node: str
    at: float
    zombie: bool = False
    told: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """What one node has of a job: its ranks by pid, and how many of them did what lately.

    ``recent``: ranks that worked within the window; ``stepped``: those that did not just load; ``computed``: on their
    GPUs. ``worked_at``: when any rank last did. ``facts``: ranks in states that are worth a look. ``gone``: since they
    were last asked for.

    A job keeps step: while two ranks of a node work (``sentinels``), the others are not looked at. ``wide``: they are,
    ``coarse``: now and then, as the job stands anyway. ``starting``: the job was not seen to step, all is looked at.
    """

    key: PlacedJob
    node: str
    tracks: dict[int, RankTrack] = field(default_factory=dict)
    user: str = ""
    world_size: int | None = None
    at: float = 0.0
    interval_s: float = 1.0
    recent: int = 0
    stepped: int = 0
    computed: int = 0
    on_gpus: int = 0
    spinning: int = 0
    facts: int = 0
    worked_at: float = 0.0
    oldest_start: float | None = None
    gone: list[Gone] = field(default_factory=list)
    skew_s: float = 0.0  # of its node's clock, by which its ranks' starts are told
    is_reference: bool = False
    starting: bool = True
    wide: bool = True
    coarse: bool = False
    places: list[tuple[int, RankTrack]] = field(default_factory=list)  # where in the sample which rank is
    sentinels: list[tuple[int, RankTrack]] = field(default_factory=list)
    most_sentinels: int = SENTINELS
    _calm: int = 0
    _wide_at: float = 0.0

    def place(self, places: list[tuple[int, RankTrack]]) -> None:
        self.places = places
        self.sentinels = [places[0], places[-1]][: self.most_sentinels] if len(places) > 1 else places

    def look(self, ranks: Sequence[RankSample], at: float, devices: Devices) -> bool:
        """Look at its ranks in the newest sample; False where one of them is dead."""
        seconds, self.at = at - self.at, at
        if seconds <= 0.0:
            return True
        self.interval_s = seconds
        is_due = at - self._wide_at >= max(COARSE_S, COARSE_SAMPLES * seconds)
        looks_at_all = is_due if self.coarse else self.wide or self.starting
        since = at - max(limit.WINDOW_S, limit.WINDOW_SAMPLES * seconds)
        before = self.recent, self.stepped, self.computed, self.on_gpus, self.spinning, self.facts
        self.recent = self.stepped = self.computed = self.on_gpus = self.spinning = self.facts = 0
        working, alive = 0, True
        for index, track in self.places if looks_at_all else self.sentinels:
            rank = ranks[index]
            if rank.state in DEAD:
                alive = False
                continue
            self._look(rank, track, at, devices)
            working += track.level == WORKED
            self._count(track, since)
        if looks_at_all:
            self._calm = self._calm + 1 if working == len(self.places) else 0
            self.wide, self._wide_at = self._calm < CALM_LOOKS, at
        elif working == len(self.sentinels):
            self._assume(len(self.places) // len(self.sentinels))
        elif self.coarse:
            self.recent, self.stepped, self.computed, self.on_gpus, self.spinning, self.facts = before
        else:
            self._widen(ranks, at)
        return alive

    def _look(self, rank: RankSample, track: RankTrack, at: float, devices: Devices) -> None:
        if at <= track.at:
            return
        level = track.look(rank, at)
        gpu = devices.of(rank.gpus) if level != WORKED or self.starting else UNREAD
        track.settle(level, gpu, at)
        if gpu != UNREAD:
            self.on_gpus += 1
            if gpu <= RESIDENT and devices.silent:
                track.flat |= TRAFFIC

    def _count(self, track: RankTrack, since: float) -> None:
        """Count a rank by what it did since then."""
        if track.worked_at > since:
            self.recent += 1
            self.worked_at = max(self.worked_at, track.worked_at)
            self.stepped += track.stepped_at > since
            self.computed += track.computed_at > since
        elif track.spun_at > since:
            self.spinning += 1
        if track.state in _STANDING_STATES:
            self.facts += 1

    def _assume(self, times: int) -> None:
        """What holds of the sentinels holds of all."""
        self.recent, self.stepped = len(self.places), self.stepped * times

    def _widen(self, ranks: Sequence[RankSample], at: float) -> None:
        """From the next sample on all are looked at: they count from here. Until now they did as the sentinels did."""
        self.wide, self._calm = True, 0
        self._assume(1)
        for index, track in self.places:
            if track.at < at:
                track.worked_at = max(track.worked_at, self.worked_at)
                track.keep(ranks[index], at)


class NodeTrack:
    """What is remembered of one node. ``idle`` is shared by all of them."""

    __slots__ = ("_idle", "_matched_at", "_memory", "_of_pid", "_pids", "at", "bins", "name", "parts", "skew_s")

    def __init__(self, name: str, idle: IdlePower) -> None:
        self.name, self._idle = name, idle
        self.at = self._matched_at = self.skew_s = 0.0
        self.parts: dict[PlacedJob, Part] = {}
        self.bins: dict[PlacedJob, Bin] = {}  # of the newest sample, of the jobs that this node is the reference of
        self._of_pid: dict[int, Part] = {}
        self._pids: list[int] = []
        self._memory: dict[int, int | None] = {}

    def see(self, sample: Sample, at: float, join: Callable[[Part], None]) -> None:
        """Take the newest sample; ``join`` is called with each part that is new."""
        ranks = sample.ranks
        pids = [rank.pid for rank in ranks]
        self.at, self.skew_s = at, sample.sampled_at - at
        if pids != self._pids or at - self._matched_at >= MATCH_S:
            self._pids = pids
            self._match(ranks, at, join)
        devices = Devices(sample, self._idle, self._memory, len(self.parts) < 2)
        alive = True
        for part in self.parts.values():
            before_at = part.at
            alive &= part.look(ranks, at, devices)
            if part.is_reference and at > before_at:
                self.bins[part.key] = _bin(part, at, at - before_at, devices)
        devices.remember()
        if not alive:
            self._match(ranks, at, join)

    def _match(self, ranks: Sequence[RankSample], at: float, join: Callable[[Part], None]) -> None:
        """Which rank of the sample is which of ours: some are new, some are gone."""
        self._matched_at = at
        found: dict[Part, list[tuple[int, RankTrack]]] = {}
        zombies = {rank.pid for rank in ranks if rank.state in DEAD}
        for index, rank in enumerate(ranks):
            if rank.pid in zombies:
                continue
            part = self._of_pid.get(rank.pid)
            track = part.tracks.get(rank.pid) if part is not None else None
            if part is None or track is None or not track.is_of(rank):
                part, track = self._new(rank, at, join)
            found.setdefault(part, []).append((index, track))
        for part in list(self.parts.values()):
            places = found.get(part, [])
            if len(places) < len(part.tracks):
                self._lose(part, {track.pid for _, track in places}, zombies, at)
            if places:
                part.place(places)
            else:
                del self.parts[part.key]
                self.bins.pop(part.key, None)

    def _new(self, rank: RankSample, at: float, join: Callable[[Part], None]) -> tuple[Part, RankTrack]:
        key = PlacedJob(rank.job, rank.uid, self.name if is_here_only(rank) else "")
        part = self.parts.get(key)
        if part is None:
            part = self.parts[key] = Part(key, self.name, user=rank.user, at=at)
            join(part)
        before = self._of_pid.get(rank.pid)
        if before is not None:
            known = before.tracks.pop(rank.pid)
            if known.rank is not None and not known.is_same_process(
                rank
            ):  # else more is known of it now, and it belongs to another job
                before.gone.append(_gone(known, self.name, at))
        track = part.tracks[rank.pid] = RankTrack(rank, at)
        part.skew_s = self.skew_s
        part.world_size = rank.world_size or part.world_size
        part.wide = True
        if rank.started_at is not None:
            began_at = rank.started_at - self.skew_s
            part.oldest_start = min(part.oldest_start or began_at, began_at)
        self._of_pid[rank.pid] = part
        return part, track

    def _lose(self, part: Part, living: set[int], zombies: set[int], at: float) -> None:
        for pid in part.tracks.keys() - living:
            track = part.tracks.pop(pid)
            if track.rank is not None:  # else nobody can tell when another process has taken its place
                part.gone.append(_gone(track, self.name, at, zombie=pid in zombies))
            self._of_pid.pop(pid, None)


def _gone(track: RankTrack, node: str, at: float, zombie: bool = False) -> Gone:
    return Gone(track.rank, track.pid, track.gpu, node, at, zombie)


def _bin(part: Part, at: float, seconds: float, devices: Devices) -> Bin:
    """Of the sentinels alone: they are looked at every time."""
    switched = called = 0
    ran_s = 0.0
    gpus: set[int] = set()
    for _, track in part.sentinels:
        switched += track.switched
        called += track.called
        ran_s += track.ran_s
        if track.gpu is not None:
            gpus.add(track.gpu)
    filled = Bin(at, seconds, switched, called, ran_s)
    if gpus:
        filled.power_share, filled.sm = devices.shares(gpus)
    moved = devices.link_bytes_per_s()
    filled.link_bytes = None if moved is None else moved * seconds
    return filled
