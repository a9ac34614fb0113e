"""What counters and gauges did so far: every absolute threshold on a counter is wrong, only its growth tells.

Modules of rules name what is to be remembered: ``counters(sample)`` yields (subject, name, value), ``gauges(sample)``
yields (subject, name, value, keep_s), ``values(sample)`` as well, of what hardly ever changes and is no number;
``seen(sample)`` yields (subject, name) of what is remembered once it was so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from mltop.probes.model import Sample

KEPT_S = 86_400.0
MOST_POINTS = 256  # of one counter: then each second one of the oldest half is forgotten
MOST_TRAILS = 4096  # of one kind and node, four times what a large one has: what it names beyond is not remembered
SERIES_POINTS = 120
STEADY = 0.5  # of a slope
RATE_S = 10.0  # rates per second are taken over so long: a single burst is not a rate
_EXACT_S = 120.0  # so far back the watching clock's points are all kept
FORGET_EVERY_S = 600.0
_FLEETING = ("pid ", "/")  # subjects: processes, cgroups and mounts

Key = tuple[str, str]
Counted = tuple[str, str, float]
Gauged = tuple[str, str, float, float]
Valued = tuple[str, str, Any, float]
Counters = Callable[[Sample], Iterable[Counted]]
Gauges = Callable[[Sample], Iterable[Gauged]]
Values = Callable[[Sample], Iterable[Valued]]
Seen = Callable[[Sample], Iterable[Key]]


@lru_cache(maxsize=1024)
def rate_key(bits_per_s: float | None, what: str = "") -> str:
    """What is remembered of a port once it was seen at this rate."""
    return f"{what}seen at {(bits_per_s or 0.0) / 1e9:g} Gb/s"


@dataclass(frozen=True)
class Increase:
    """``amount`` in ``over_s``: as long as asked for, or since the counter is watched if that is less."""

    amount: float
    over_s: float

    def per(self, seconds: float) -> float:
        """The rate per so many seconds; 0 while nothing can be said."""
        return self.amount / self.over_s * seconds if self.over_s > 0 else 0.0


@dataclass(frozen=True)
class Series:
    """Values of a gauge, the oldest first; they are thinned evenly, the newest is the last."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def span_s(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    def slope_per_s(self) -> float | None:
        """Least squares; None with fewer than three values."""
        count = len(self.times)
        if count < 3 or self.span_s <= 0:
            return None
        mean_t, mean_v = sum(self.times) / count, sum(self.values) / count
        spread = sum((time - mean_t) ** 2 for time in self.times)
        pairs = zip(self.times, self.values)
        return sum((time - mean_t) * (value - mean_v) for time, value in pairs) / spread

    def steady_slope_per_s(self, least_span_s: float) -> float | None:
        """A rise that goes on: the last half grows at least STEADY as fast as the whole; None of any other."""
        slope = self.slope_per_s() if self.span_s >= least_span_s else None
        half = len(self.values) // 2
        passed_s = self.times[-1] - self.times[half] if self.times else 0.0
        if slope is None or slope <= 0 or passed_s <= 0:
            return None
        return slope if (self.values[-1] - self.values[half]) / passed_s > STEADY * slope else None

    def share(self, holds: Callable[[float], bool]) -> float:
        """The share of the values that ``holds`` is true of: 0..1."""
        return sum(map(holds, self.values)) / len(self.values) if self.values else 0.0


_NOTHING = Increase(0.0, 0.0)


class _Counter:
    """``grown`` since it is watched; a counter that starts anew has grown by what it now shows."""

    __slots__ = ("changes", "first_at", "grown", "last")

    def __init__(self, first_at: float, last: float) -> None:
        self.first_at, self.last, self.grown = first_at, last, 0.0
        self.changes: list[tuple[float, float]] | None = None  # (at, grown by then); most counters never change

    def see(self, at: float, value: float) -> None:
        if value == self.last:
            return
        self.grown += value - self.last if value > self.last else value
        self.last = value
        changes = self.changes = self.changes or []
        changes.append((at, self.grown))
        if len(changes) > MOST_POINTS:
            self.changes = [*changes[: MOST_POINTS // 2 : 2], *changes[MOST_POINTS // 2 :]]
        elif changes[0][0] < at - KEPT_S and len(changes) > 1:
            del changes[0]

    def grown_by(self, at: float) -> float:
        changes = self.changes or []
        count = bisect_right(changes, (at, float("inf")))
        return changes[count - 1][1] if count else 0.0


class _Gauge:
    __slots__ = ("newest", "points", "step_s")

    def __init__(self, at: float, value: float, keep_s: float) -> None:
        self.step_s, self.newest = keep_s / SERIES_POINTS, (at, value)
        self.points = [(at, value)]  # a deque of two takes 700 bytes; a node has hundreds of gauges

    def see(self, at: float, value: float, keep_s: float) -> None:
        self.newest = (at, value)
        if at - self.points[-1][0] >= self.step_s:
            self.points.append(self.newest)
            while self.points[0][0] < at - keep_s:
                del self.points[0]


class _Value:
    """``changes``: (at, value from then on), one more than is needed to know what it was ``keep_s`` ago."""

    __slots__ = ("changes",)

    def __init__(self, at: float, value: Any, _: float) -> None:
        self.changes = [(at, value)]

    def see(self, at: float, value: Any, keep_s: float) -> None:
        newest = self.changes[-1][1]
        if value is newest or value == newest:
            return
        self.changes.append((at, value))
        while len(self.changes) > 2 and (self.changes[1][0] <= at - keep_s or len(self.changes) > SERIES_POINTS):
            del self.changes[0]


class Trails:
    """What is remembered of one node since it is watched, or since its reboot, by (subject, name)."""

    def __init__(self) -> None:
        self.failed: list[tuple[Any, Exception]] = []  # readers that raised an exception at the newest sample
        self._now = 0.0
        self._changed_at: dict[Any, float] = {}  # when a counter of a reader has changed last
        self._counters: dict[Key, _Counter] = {}
        self._gauges: dict[Key, _Gauge] = {}
        self._values: dict[Key, _Value] = {}
        self._seen: set[Key] = set()
        self._watched: _Counter | None = None  # counts seconds
        self._forgot_at = float("-inf")

    @property
    def is_full(self) -> bool:
        """Whether there may be more to remember than is."""
        return max(len(self._counters), len(self._gauges), len(self._values), len(self._seen)) >= MOST_TRAILS

    def see(
        self,
        sample: Sample,
        counters: Sequence[Counters],
        gauges: Sequence[Gauges],
        values: Sequence[Values] = (),
        seen: Sequence[Seen] = (),
    ) -> None:
        at = self._now = sample.sampled_at
        self.failed = []
        self._watched = self._watched or _Counter(at, at)
        self._watched.see(at, at)
        kinds: list[tuple[Sequence[Any], Callable[[Any, Sample], None]]] = [
            (counters, self._see_counters),
            (gauges, partial(self._see_kept, self._gauges, _Gauge)),
            (values, partial(self._see_kept, self._values, _Value)),
            (seen, self._see_seen),
        ]
        for readers, see in kinds:
            for read in readers:
                try:
                    see(read, sample)
                except Exception as error:  # noqa: BLE001 - the owner says it, and the other readers go on
                    self.failed.append((read, error))
        if abs(at - self._forgot_at) >= FORGET_EVERY_S and not self.failed:
            self._forgot_at = at
            self._forget_gone(
                {(entry[0], entry[1]) for readers, _ in kinds for read in readers for entry in read(sample)}
            )

    def _see_counters(self, read: Counters, sample: Sample) -> None:
        counters, at = self._counters, self._now
        for subject, name, value in read(sample):
            key = (subject, name)
            counter = counters.get(key)
            if counter is None:
                if len(counters) < MOST_TRAILS:
                    counters[key] = _Counter(at, value)
            elif value != counter.last:
                counter.see(at, value)
                self._changed_at[read] = at

    def _see_seen(self, read: Seen, sample: Sample) -> None:
        self._seen.update(islice((key for key in read(sample) if key not in self._seen), MOST_TRAILS - len(self._seen)))

    def _see_kept(self, kept: dict[Key, Any], make: Callable[..., Any], read: Gauges | Values, sample: Sample) -> None:
        for subject, name, value, keep_s in read(sample):
            trail = kept.get((subject, name))
            if trail is not None:
                trail.see(self._now, value, keep_s)
            elif len(kept) < MOST_TRAILS:
                kept[subject, name] = make(self._now, value, keep_s)

    def _forget_gone(self, present: set[Key]) -> None:
        """Processes and cgroups come and go: of those that are gone nothing is kept, nor of others when it is full."""
        for trails in (self._counters, self._gauges, self._values):
            full = len(trails) >= MOST_TRAILS
            for key in [key for key in trails if key not in present and (full or key[0].startswith(_FLEETING))]:
                del trails[key]

    def has_seen(self, subject: str, name: str) -> bool:
        """Whether it was ever seen, or is counted."""
        return (subject, name) in self._seen or (subject, name) in self._counters

    def any_grew(self, counters: Counters, over_s: float) -> bool:
        """The cheap question before the others: whether anything of these counters has changed lately."""
        return self._changed_at.get(counters, float("-inf")) > self._now - over_s

    def increase(self, subject: str, name: str, over_s: float) -> Increase:
        """How much a counter has grown in the last ``over_s``; nothing of one never seen."""
        counter = self._counters.get((subject, name))
        if counter is None:
            return _NOTHING
        before = counter.grown_by(self._now - over_s)
        return Increase(counter.grown - before, min(over_s, self._now - counter.first_at))

    def grown(self, subject: str, name: str, over_s: float) -> Increase:
        """What came in the last ``over_s``, without being fooled by pauses between samples. Its ``over_s`` is never
        less than asked for, so that no burst right after the start is made into a rate, and longer where the samples
        are further apart: what grew while nobody looked is seen all at once.
        """
        amount = self.increase(subject, name, over_s).amount
        if not amount or self._watched is None:
            return Increase(0.0, over_s)
        covered_s = self._watched.grown - self._watched.grown_by(self._now - over_s)
        if over_s > _EXACT_S and covered_s < 2 * over_s:
            covered_s = over_s  # the older points are thinned out
        return Increase(amount, max(over_s, covered_s))

    def per_second(self, subject: str, name: str) -> float:
        return self.grown(subject, name, RATE_S).per(1.0)

    def earlier_rate(self, port: str, own: float, times: Iterable[float], what: str = "") -> float:
        """The higher rate (bits/s) that a port had; 0 for none."""
        return next((more * own for more in times if self.has_seen(port, rate_key(more * own, what))), 0.0)

    def ends(self, subject: str, name: str) -> tuple[tuple[float, float], tuple[float, float]] | None:
        """The oldest and the newest (at, value) of a gauge: a first look that costs nothing."""
        gauge = self._gauges.get((subject, name))
        return (gauge.points[0], gauge.newest) if gauge is not None else None

    def series(self, subject: str, name: str) -> Series | None:
        """The recent values of a gauge."""
        gauge = self._gauges.get((subject, name))
        if gauge is None:
            return None
        points = [*gauge.points, *([gauge.newest] if gauge.newest[0] > gauge.points[-1][0] else [])]
        return Series(tuple(at for at, _ in points), tuple(value for _, value in points))

    def was(self, subject: str, name: str, ago_s: float) -> Any:
        """What a value was so long ago, or when it was first seen since; None of what was never seen."""
        value, at = self._values.get((subject, name)), self._now - ago_s
        if value is None:
            return None
        return next((was for since, was in reversed(value.changes) if since <= at), value.changes[0][1])
