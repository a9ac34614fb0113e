"""Whether a job has become slower: its step time, or where no step can be seen the rate of what it does in each step.

Minutes in which it moved are compared with the best settled stretch of the last hour. What a job does in an evaluation
differs in kind: one rate falls and another rises; of a job that became slower all fall alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from mltop.probes.model.news.judged import PartNumbers

MINUTE_S, WATCHED_LEAST = 60.0, 0.7  # of a minute in which it moved: else it tells nothing
KEPT = 66  # minutes
WARM_S = 300.0  # caches fill, sequences grow
BASE, STEADY = 10, 0.04  # minutes; median deviation of the median
SUSTAINED, SUSTAINED_ALONE = 5, 10  # minutes, where several rates agree, and where there is only one
MOST_SUSTAINED = 30
SLOWER = 0.10
NEARLY = 0.07  # every one of the minutes is slower by so much
RECOVERED = 0.05
ALIKE = 0.12  # rates fell alike
UNMOVED = 0.03  # a rate that does not depend on the steps at all: polls, a thread that spins
LEAST_PER_S = 1.0  # of calls and switches; less is nothing to go by


@dataclass
class Minute:
    """Rates, per second; 0: unknown. ``steps``: by the rhythm."""

    at: float
    steps: float
    link_bytes: float
    calls: float
    switches: float


@dataclass(frozen=True)
class Slower:
    """``before``, ``now``: steps, or what stands for them, per second; ``by``: which field of Minute."""

    before: float
    now: float
    since: float
    by: str

    @property
    def factor(self) -> float:
        return self.before / self.now


_RATES = ("steps", "link_bytes", "calls", "switches")


class Pace:
    """The minutes of one job. ``slower``: what is the matter now, None: nothing."""

    def __init__(self) -> None:
        self.slower: Slower | None = None
        self._minutes: deque[Minute] = deque(maxlen=KEPT)
        self._began_at: float | None = None
        self._open_at = 0.0
        self._seconds = self._link_bytes = self._calls = self._switches = 0.0
        self._links_known = True
        self._least_minutes = SUSTAINED

    def clear(self) -> None:
        """Another node, or a new start: nothing before can be compared."""
        self.__init__()  # type: ignore[misc]

    def add(self, at: float, filled: PartNumbers, step_s: float | None) -> None:
        """What was done since the sample before, in a time in which the job moved."""
        if self._began_at is None:
            self._began_at = self._open_at = at
        if at - self._open_at >= MINUTE_S:
            self._close(at, step_s)
        self._seconds += filled.seconds
        self._calls += filled.calls
        self._switches += filled.switches
        self._link_bytes += filled.link_bytes or 0.0
        self._links_known &= filled.link_bytes is not None

    def _close(self, at: float, step_s: float | None) -> None:
        seconds = self._seconds
        warm = self._began_at is not None and self._open_at - self._began_at >= WARM_S
        if warm and seconds >= WATCHED_LEAST * MINUTE_S:
            links = self._link_bytes / seconds if self._links_known else 0.0
            steps = 1.0 / step_s if step_s else 0.0
            minute = Minute(self._open_at, steps, links, self._calls / seconds, self._switches / seconds)
            self._minutes.append(minute)
            self._judge()
        self._open_at = at
        self._seconds = self._link_bytes = self._calls = self._switches = 0.0
        self._links_known = True

    def _judge(self) -> None:
        before, self.slower = self.slower, self._found()
        if before is not None and self.slower is None:
            lasted = round((self._minutes[-1].at - before.since) / MINUTE_S)
            self._least_minutes = min(MOST_SUSTAINED, max(self._least_minutes, 2 * lasted))

    def _found(self) -> Slower | None:
        if self.slower is not None:
            return self._still_slower(self.slower)
        minutes = list(self._minutes)
        if len(minutes) < BASE + self._least_minutes:
            return None
        chosen = next((found for by in _RATES if (found := _compared(minutes, by, self._least_minutes))), None)
        if chosen is None:
            return None
        slower, base = chosen
        agreeing = 0
        for by in _RATES:
            factor = _factor(minutes, by, base, self._least_minutes)
            if factor is None:
                continue
            if factor >= 1 + SLOWER / 2 and abs(factor / slower.factor - 1) <= ALIKE:
                agreeing += 1
            elif by != "steps" and abs(factor - 1) > UNMOVED:
                return None  # it does something else
        alone = agreeing < 2 and slower.by != "steps"
        lasting = sum(minute.at >= slower.since for minute in minutes)
        return slower if lasting >= (max(SUSTAINED_ALONE, self._least_minutes) if alone else 0) else None

    def _still_slower(self, slower: Slower) -> Slower | None:
        now = median(getattr(minute, slower.by) for minute in list(self._minutes)[-3:])
        if now <= 0 or slower.before / now < 1 + RECOVERED:
            return None
        return Slower(slower.before, now, slower.since, slower.by)


def _compared(minutes: Sequence[Minute], by: str, count: int) -> tuple[Slower, int] | None:
    """The last ``count`` minutes beside the best settled stretch before, and where that begins; None: not slower."""
    rates = [getattr(minute, by) for minute in minutes]
    recent = rates[-count:]
    if min(recent) <= 0 or (by in ("calls", "switches") and max(rates) < LEAST_PER_S):
        return None
    firsts = range(len(rates) - count - BASE + 1)
    best, base = max((_settled(rates[first : first + BASE]), -first) for first in firsts)
    now, nearly = median(recent), best / (1 + NEARLY)
    if best / now < 1 + SLOWER or max(recent) > nearly:
        return None
    first = len(rates) - 1
    while first > 0 and 0 < rates[first - 1] <= nearly:
        first -= 1
    return Slower(best, now, minutes[first].at, by), -base


def _factor(minutes: Sequence[Minute], by: str, base: int, count: int) -> float | None:
    """How much a rate fell since that stretch; None where it is unknown, or was not settled then."""
    rates = [getattr(minute, by) for minute in minutes]
    before, now = _settled(rates[base : base + BASE]), median(rates[-count:])
    if before <= 0 or (by in ("calls", "switches") and before < LEAST_PER_S):
        return None
    return before / now if now > 0 else float("inf")


def _settled(rates: Sequence[float]) -> float:
    """The usual rate of a stretch, 0 of one that goes up and down."""
    usual = median(rates)
    if usual <= 0 or min(rates) <= 0:
        return 0.0
    return usual if median(abs(rate - usual) for rate in rates) <= STEADY * usual else 0.0
