"""One job over all nodes that it is seen on: when it last moved, and which phase that makes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from mltop.probes.judge.deaths import ended_well
from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.judge.stall.activity import STILL
from mltop.probes.judge.stall.droop import Pace
from mltop.probes.judge.stall.rhythm import Series
from mltop.probes.judge.values import known
from mltop.probes.model import PlacedJob, RankDeath
from mltop.probes.model.news.judged import Gone, JobPart, PartNumbers, RankMotion
from mltop.probes.model.vocabulary import MotionPhase

_TERM = 15  # SIGTERM: what launchers, schedulers and people end jobs with
ANEW_S = 5.0  # so often it is asked again of a job that stands who differs, and whether that is proven
_SIGNALS = [bin(flat & 31).count("1") for flat in range(64)]


@dataclass(frozen=True, eq=False)
class Part:
    """What one node has of a job at its newest sample, ``at``. All times are by the watcher's clock, but those of
    ``ranks``: the node's, which is ``skew_s`` ahead.
    """

    key: PlacedJob
    node: str
    at: float
    user: str = ""
    world_size: int | None = None
    oldest_start: float | None = None
    ranks: Sequence[RankMotion] = ()
    gone: Sequence[Gone] = ()
    numbers: PartNumbers = field(default_factory=PartNumbers)
    skew_s: float = 0.0

    @classmethod
    def of(cls, part: JobPart, numbers: PartNumbers, node: str, sampled_at: float, skew_s: float) -> Part:
        """``sampled_at``: by the node's clock, as all times of ``part``; ``skew_s``: how far that one is ahead."""
        key = PlacedJob(part.job, part.uid, node if part.is_here_only else "")
        oldest_start, gone = part.oldest_start, part.gone
        if skew_s:
            oldest_start = _by_ours(oldest_start, skew_s)
            gone = [replace(one, at=one.at - skew_s) for one in gone]
        at = sampled_at - skew_s
        return cls(key, node, at, part.user, part.world_size, oldest_start, part.ranks, gone, numbers, skew_s)

    @cached_property
    def tracks(self) -> Sequence[RankMotion]:
        """Its ranks, by the watcher's clock."""
        return [_shifted(rank, self.skew_s) for rank in self.ranks] if self.skew_s else self.ranks

    @property
    def worked_at(self) -> float:
        """When any of its ranks last worked; 0.0: not yet."""
        return 0.0 if self.numbers.worked_ago_s is None else self.at - self.numbers.worked_ago_s

    @property
    def interval_s(self) -> float:
        return self.numbers.seconds or 1.0


def _by_ours(at: float | None, skew_s: float) -> float | None:
    return None if at is None else at - skew_s


def _shifted(rank: RankMotion, skew_s: float) -> RankMotion:
    values = {item.name: getattr(rank, item.name) for item in fields(RankMotion)}
    started_at, state_since = _by_ours(rank.started_at, skew_s), rank.state_since - skew_s
    return RankMotion(**{**values, "started_at": started_at, "state_since": state_since})


class Job:
    """``at``: the newest sample's time, ``moved_at``: when it last moved, ``since``: when its phase began (unix s).

    ``stepped``: it was seen to step. ``why``: why its phase is unknown. ``version`` grows with every change.
    """

    def __init__(self, key: PlacedJob, at: float) -> None:
        self.key = key
        self.parts: dict[str, Part] = {}
        self.gone: dict[tuple[str, int], Gone] = {}
        self.deaths: dict[tuple[str, int], RankDeath] = {}
        self.at = self.evaluated_at = self.moved_at = self.first_at = self.since = at
        self.phase: MotionPhase = "starting"
        self.stepped = False
        self.seen = 0
        self.why = ""
        self.series = Series()
        self.pace = Pace()
        self.reference: str | None = None  # the node by whose samples its rhythm is learned
        self._pauses: deque[float] = deque(maxlen=limit.MOST_PAUSES)
        self._run: tuple[float, int] | None = None  # since when all ranks work, and how often that was seen
        self._minority_at: float | None = None
        self._minority_moves = False
        self._spins = False
        self._proven_at = 0.0
        self._is_new = False  # ranks that were not there at the last look
        self._logged_at: float | None = None  # when a log said that what ranks wait for does not come

    # What comes in

    def take(self, part: Part, after: float) -> None:
        """What a node has of it in its newest sample, or no more. ``after``: when the node was seen before: ranks that
        were gone by then are known.
        """
        gone = [one for one in part.gone if one.at > after]
        self._is_new |= part.node not in self.parts or bool(gone)
        self.gone.update(((one.node, one.pid), one) for one in gone)
        if not part.ranks:
            self.remove(part.node)
            return
        self.parts[part.node] = part
        self.reference = self.reference or part.node
        if part.numbers.seconds and part.node == self.reference:
            self._take_numbers(part.at, part.numbers)

    def remove(self, node: str) -> None:
        """It has no rank of it any more, or is not watched any more."""
        self.parts.pop(node, None)
        self.evaluated_at = 0.0  # its clock may have been the farthest
        if self.reference == node:
            self.series.clear()
            self.pace.clear()
            self.reference = next(iter(self.parts), None)

    def _take_numbers(self, at: float, numbers: PartNumbers) -> None:
        """What the reference node did since its sample before."""
        if at - self.moved_at <= max(limit.PATIENCE_S, self.quiet_s):
            self.series.add(at, numbers)
            self.stepped = self.stepped or self.series.rhythm is not None
        if self.stepped and at - self.moved_at <= max(limit.PAUSE_LEAST_S, numbers.seconds + limit.SLACK_S):
            self.pace.add(at, numbers, None if self.series.rhythm is None else self.series.rhythm.step_s)

    def take_death(self, node: str, death: RankDeath) -> None:
        """Of a rank of this job, maybe of one that was never seen alive."""
        key = (node, death.pid)
        self.deaths[key] = death
        part = self.parts.get(node)
        began_at = min((part.oldest_start for part in self.parts.values() if part.oldest_start), default=None)
        seen = key in self.gone or (part is not None and any(death.pid == track.pid for track in part.ranks))
        if not seen and death.at is not None and began_at is not None and death.at >= began_at:
            self.gone[key] = Gone(death.rank, death.pid, None, node, death.at, reported=True)
            self._is_new = True

    def take_log_line(self, at: float, waited_s: float | None) -> None:
        """A log of one of its ranks says at ``at`` that it has waited in vain for ``waited_s``."""
        if (self._logged_at or 0.0) >= at or at < self.moved_at - limit.TELLING_S or (waited_s or 0.0) < limit.QUIET_S:
            return
        self._logged_at = at
        self.moved_at = min(self.moved_at, at - (waited_s or 0.0))

    @property
    def _is_logged(self) -> bool:
        """Whether it still stands as its log said."""
        return (
            self._logged_at is not None
            and self.moved_at <= self._logged_at
            and self.at - self._logged_at <= limit.TOLD_S
        )

    # What is made of it

    def evaluate(self) -> None:
        """Tell the phase anew, as of the newest sample of those nodes that are still watched."""
        at = max((part.at for part in self.parts.values()), default=self.at)
        self.at = self.evaluated_at = at
        self.moved_at = min(self.moved_at, at)  # a node's clock was set back
        seen = recent = stepped = computed = on_gpus = spinning = 0
        worked_at = 0.0
        for part in self.parts.values():
            if self._is_stale(part):
                continue
            numbers = part.numbers
            seen += len(part.ranks)
            if numbers.recent:
                recent += numbers.recent
                stepped += numbers.stepped
                computed += numbers.computed
                worked_at = max(worked_at, part.worked_at)
            on_gpus += numbers.on_gpus
            spinning += numbers.spinning
        if self.gone and (self._is_new or seen != self.seen):
            self._drop_replaced()
        self._is_new = False
        self.seen, self._spins = seen, spinning > 0
        self._note_movement(seen, recent, worked_at)
        if not self.stepped:
            if recent + spinning >= seen > 0:  # all may be at work: nothing tells an unknown job's steps from a loop
                self.moved_at = at
            needs_gpus = on_gpus >= limit.GPU_RANKS * seen > 0
            computes = not needs_gpus or computed >= limit.GPU_RANKS * seen
            self._note_step(seen > 0 and stepped >= limit.STILL_SHARE * seen and computes)
        phase = self._tell_phase()
        if phase != self.phase:
            self.phase, self.since = phase, self.at

    def _is_stale(self, part: Part) -> bool:
        return part.at < self.at - max(limit.STALE_S, limit.STALE_SAMPLES * part.interval_s)

    def fresh(self) -> list[Part]:
        return [part for part in self.parts.values() if not self._is_stale(part)]

    def tracks(self) -> Iterator[tuple[str, RankMotion]]:
        for part in self.fresh():
            for track in part.tracks:
                yield part.node, track

    def _drop_replaced(self) -> None:
        """Ranks that live again under another pid: the job was started anew, and begins with its libraries. It may have
        fewer of them now: of those that went before all that live were started, nobody waits for one.
        """
        tracks = [track for _, track in self.tracks()]
        living = {track.rank for track in tracks if track.rank is not None}
        starts = [track.started_at for track in tracks]
        began_at = min(known(starts)) if starts and None not in starts else float("-inf")
        replaced = [key for key, gone in self.gone.items() if gone.rank in living or self._alive_at(gone) < began_at]
        if any(not self.gone[key].reported for key in replaced):
            self.stepped, self._run = False, None
            self.moved_at = self.first_at = self.at
            self._logged_at = None
            self._pauses.clear()
            self.series.clear()
            self.pace.clear()
        for key in replaced:
            del self.gone[key]
            self.deaths.pop(key, None)

    def _alive_at(self, gone: Gone) -> float:
        """When it was last seen, as far as that is known: its end is noticed by the sample after it."""
        return gone.at if gone.reported else gone.at - self._interval_s

    def _note_movement(self, seen: int, recent: int, worked_at: float) -> None:
        """Few ranks that move once are a watchdog's lines in a log; few that go on do what the others wait for."""
        self._minority_moves = False
        if recent > (1 - limit.STILL_SHARE) * seen:
            self._minority_at = None
        elif recent == 0:
            self._minority_at = None
            return
        elif self._minority_at is None or worked_at < self._minority_at + limit.MOVES_APART_S:
            self._minority_at = worked_at if self._minority_at is None else self._minority_at
            self._minority_moves = worked_at > self.moved_at
            return
        if (
            self._logged_at is not None
            and self._logged_at - limit.TELLING_S <= worked_at <= self._logged_at + limit.RECORDING_S
        ):
            return  # what ranks do when they tell it
        if worked_at > self.moved_at:
            pause_s = worked_at - self.moved_at
            if pause_s >= max(limit.PAUSE_LEAST_S, limit.WINDOW_SAMPLES * self._interval_s):
                self._pauses.append(pause_s)
            self.moved_at = worked_at

    @property
    def _interval_s(self) -> float:
        return self.parts[self.reference].interval_s if self.reference is not None else 1.0

    def _note_step(self, all_work: bool) -> None:
        if not all_work:
            self._run = None
            return
        began_at, looks = self._run or (self.at, 0)
        self._run = began_at, looks + 1
        if self.at - began_at >= limit.STEPPING_S and looks + 1 >= limit.STEPPING_LOOKS:
            self.stepped = True

    # Phases

    @property
    def still_s(self) -> float:
        return self.at - self.moved_at

    @property
    def quiet_s(self) -> float:
        """Standing still for so long is worth a question."""
        usual_s = limit.QUIET_S
        if self.series.rhythm is not None:
            usual_s = max(usual_s, limit.QUIET_RHYTHMS * self.series.rhythm.step_s)
        longest = sorted(self._pauses)[-limit.RECURRING :]
        if len(longest) == limit.RECURRING:
            usual_s = max(usual_s, limit.QUIET_RHYTHMS * longest[0])
        return min(usual_s, limit.QUIET_MOST_S)

    @property
    def patience_s(self) -> float:
        """Standing still for longer is a stall."""
        if not self.stepped:
            patience_s = limit.UNKNOWN_PATIENCE_S
        else:
            rhythm_s = 0.0 if self.series.rhythm is None else self.series.rhythm.step_s
            longest_s = max(self._pauses, default=0.0)
            patience_s = max(limit.PATIENCE_S, limit.PATIENCE_RHYTHMS * rhythm_s, limit.PATIENCE_PAUSES * longest_s)
        if self._spins:
            patience_s = max(patience_s, limit.SPIN_PATIENCE_S)
        return min(patience_s, limit.PATIENCE_MOST_S)

    def _tell_phase(self) -> MotionPhase:
        self.why = ""
        is_logged = self._is_logged and self.seen > 0
        if is_logged or self._is_ending():
            return "stalled" if is_logged else "unknown"
        if self.stepped and self.still_s < limit.QUIET_S - limit.SLACK_S:
            return "moving"
        quiet_s = self.quiet_s
        if self._spins:
            quiet_s = max(quiet_s, limit.SPIN_QUIET_S)
        still_s = self.still_s + limit.SLACK_S
        # A rank has ended that should not have, while others live and are left alone.
        settled = self.at - max((gone.at for gone in self.gone.values()), default=0.0) >= limit.CRASH_SETTLED_S
        has_crashed = settled and any(not has_ended_well(self.deaths.get(key)) for key in self.gone)
        if not self.stepped:
            alone = self.seen < 2 and not self.gone and (self.world_size or 1) < 2
            if alone or still_s < (quiet_s if has_crashed else self.patience_s):
                return self._not_stepped()
        elif still_s < quiet_s or (self._minority_moves and self.phase == "moving"):
            return "moving"
        if not self._is_proven():
            self.why = "too few of its counters can be read"
            return "unknown"
        return "stalled" if has_crashed or still_s >= self.patience_s else "quiet"

    def _not_stepped(self) -> MotionPhase:
        began_at = min((part.oldest_start for part in self.parts.values() if part.oldest_start), default=None)
        if began_at is not None and self.at - began_at >= limit.YOUNG_S:
            self.why = "it has not been seen to step yet"
            return "unknown"
        return "starting"

    def _is_ending(self) -> bool:
        """Whether it is over, or being ended: its ranks go one after the other."""
        lost = len(self.gone)
        if not lost:
            return False
        ends_now = self.at - max(gone.at for gone in self.gone.values()) < limit.TEARDOWN_S
        if not self.seen or (ends_now and lost >= limit.ENDING_SHARE * (self.seen + lost)):
            self.why = f"{lost} of its {self.seen + lost} ranks have ended"
            return True
        recent = [key for key, gone in self.gone.items() if gone.at >= self.at - limit.TEARDOWN_S]
        deaths = [self.deaths[key] for key in recent if key in self.deaths]
        ended = any(death.how == "stopped" or (death.how == "signal" and death.code == _TERM) for death in deaths)
        if ended and len(recent) > 1:
            self.why = "its ranks are being ended"
            return True
        return False

    def _is_proven(self) -> bool:
        """Whether enough independent signals stand still, on enough of the ranks; looked at anew every few seconds."""
        if self.phase in ("quiet", "stalled") and self.at - self._proven_at < ANEW_S:
            return True
        total = proven = 0
        for _, track in self.tracks():
            total += 1
            proven += track.level != STILL or _SIGNALS[track.flat] >= limit.LEAST_SIGNALS
        if total == 0 or proven < limit.STILL_SHARE * total:
            return False
        self._proven_at = self.at
        return True

    @property
    def world_size(self) -> int | None:
        return max((part.world_size for part in self.parts.values() if part.world_size is not None), default=None)


def has_ended_well(death: RankDeath | None) -> bool:
    return death is not None and ended_well(death)
