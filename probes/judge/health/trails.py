"""What counters and gauges did so far: every absolute threshold on a counter is wrong, only its growth tells.

Modules of rules name what is to be remembered: ``counters(sample)`` yields (subject, name, value), ``gauges(sample)``
yields (subject, name, value, keep_s), ``values(sample)`` as well, of what hardly ever changes and is no number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mltop.probes.model import Sample

KEPT_S = 86_400.0
MOST_POINTS = 256  # of one counter: then each second one of the oldest half is forgotten
MOST_TRAILS = 4096  # of one kind and node, four times what a large one has: what it names beyond is not remembered
SERIES_POINTS = 120
STEADY = 0.5  # of a slope
FORGET_EVERY_S = 600.0
_FLEETING = ("pid ", "/")  # subjects: processes, cgroups and mounts

Key = tuple[str, str]
Counted = tuple[str, str, float]
Gauged = tuple[str, str, float, float]
Valued = tuple[str, str, Any, float]
Counters = Callable[[Sample], Iterable[Counted]]
Gauges = Callable[[Sample], Iterable[Gauged]]
Values = Callable[[Sample], Iterable[Valued]]


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
        pairs = zip(self.times, self.values, strict=True)
        return sum((time - mean_t) * (value - mean_v) for time, value in pairs) / spread

    def steady_slope_per_s(self, least_span_s: float) -> float | None:
        """A rise that goes on: the last half grows at least STEADY as fast as the whole. None: falling, over, or seen
        for less than ``least_span_s``.
        """
        slope = self.slope_per_s() if self.span_s >= least_span_s else None
        half = len(self.values) // 2
        passed_s = self.times[-1] - self.times[half] if self.times else 0.0
        if slope is None or slope <= 0 or passed_s <= 0:
            return None
        return slope if (self.values[-1] - self.values[half]) / passed_s > STEADY * slope else None

    def share(self, holds: Callable[[float], bool]) -> float:
        """The share of the values that ``holds`` is true of: 0..1."""
        return sum(map(holds, self.values)) / len(self.values) if self.values else 0.0


@dataclass(slots=True)
class _Counter:
    """``grown`` since it is watched; a counter that starts anew has grown by what it now shows."""

    first_at: float
    last: float
    grown: float = 0.0
    changes: list[tuple[float, float]] | None = None  # (at, grown by then); most counters never change

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
        count = bisect_right(changes, at, key=lambda change: change[0])
        return changes[count - 1][1] if count else 0.0


@dataclass(slots=True)
class _Gauge:
    step_s: float
    points: list[tuple[float, float]]  # a deque of two takes 700 bytes, and a node has hundreds of gauges
    newest: tuple[float, float] = (0.0, 0.0)

    def see(self, at: float, value: float, keep_s: float) -> None:
        if not self.points or at - self.points[-1][0] >= self.step_s:
            self.points.append((at, value))
            while self.points[0][0] < at - keep_s:
                del self.points[0]
        self.newest = (at, value)


@dataclass(slots=True)
class _Value:
    """``changes``: (at, value from then on), one more than is needed to know what it was ``keep_s`` ago."""

    changes: list[tuple[float, Any]]

    def see(self, at: float, value: Any, keep_s: float) -> None:
        newest = self.changes[-1][1]
        if value is newest or value == newest:
            return
        self.changes.append((at, value))
        while len(self.changes) > 2 and (self.changes[1][0] <= at - keep_s or len(self.changes) > SERIES_POINTS):
            del self.changes[0]

    def at(self, at: float) -> Any:
        """The value at this time; before the first change that one's."""
        return next((value for since, value in reversed(self.changes) if since <= at), self.changes[0][1])


class Trails:
    """What is remembered of one node since it is watched, or since its reboot. ``failed``: readers that raised an
    exception lately; ``changed_at``: when a counter of a reader has changed last.
    """

    def __init__(self) -> None:
        self.failed: list[tuple[Any, Exception]] = []
        self.changed_at: dict[Any, float] = {}
        self._counters: dict[Key, _Counter] = {}
        self._gauges: dict[Key, _Gauge] = {}
        self._values: dict[Key, _Value] = {}
        self._watched: _Counter | None = None  # counts seconds
        self._forgot_at = float("-inf")

    @property
    def is_full(self) -> bool:
        """Whether there may be more to remember than is."""
        return max(len(self._counters), len(self._gauges), len(self._values)) >= MOST_TRAILS

    def see(
        self, sample: Sample, counters: Iterable[Counters], gauges: Iterable[Gauges], values: Iterable[Values] = ()
    ) -> None:
        at, self.failed = sample.sampled_at, []
        self._watched = self._watched or _Counter(at, at)
        self._watched.see(at, at)
        readers: list[tuple[Any, Callable[[Any, Sample, float], None]]] = [
            *((read, self._see_counters) for read in counters),
            *((read, self._see_gauges) for read in gauges),
            *((read, self._see_values) for read in values),
        ]
        for read, see in readers:
            try:
                see(read, sample, at)
            except Exception as error:  # noqa: BLE001 - the owner says it, and the other readers go on
                self.failed.append((read, error))
        if abs(at - self._forgot_at) >= FORGET_EVERY_S and not self.failed:
            self._forgot_at = at
            self._forget_gone({(subject, name) for read, _ in readers for subject, name, *_ in read(sample)})

    def _see_counters(self, read: Counters, sample: Sample, at: float) -> None:
        counters = self._counters
        for subject, name, value in read(sample):
            key = (subject, name)
            counter = counters.get(key)
            if counter is None:
                if len(counters) < MOST_TRAILS:
                    counters[key] = _Counter(at, value)
            elif value != counter.last:
                counter.see(at, value)
                self.changed_at[read] = at

    def _see_gauges(self, read: Gauges, sample: Sample, at: float) -> None:
        for subject, name, value, keep_s in read(sample):
            gauge = self._gauges.get((subject, name))
            if gauge is None and len(self._gauges) < MOST_TRAILS:
                gauge = self._gauges[subject, name] = _Gauge(keep_s / SERIES_POINTS, [])
            if gauge is not None:
                gauge.see(at, value, keep_s)

    def _see_values(self, read: Values, sample: Sample, at: float) -> None:
        for subject, name, value, keep_s in read(sample):
            trail = self._values.get((subject, name))
            if trail is not None:
                trail.see(at, value, keep_s)
            elif len(self._values) < MOST_TRAILS:
                self._values[subject, name] = _Value([(at, value)])

    def _forget_gone(self, present: set[Key]) -> None:
        """Processes and cgroups come and go: of those that are gone nothing is kept, nor of others when it is full."""
        for trails in (self._counters, self._gauges, self._values):
            full = len(trails) >= MOST_TRAILS
            for key in [key for key in trails if key not in present and (full or key[0].startswith(_FLEETING))]:
                del trails[key]

    def increase(self, subject: str, name: str, now: float, over_s: float) -> Increase | None:
        """None of a counter that was never seen."""
        counter = self._counters.get((subject, name))
        if counter is None:
            return None
        before = counter.grown_by(now - over_s)
        return Increase(counter.grown - before, min(over_s, now - counter.first_at))

    def watched_s(self, now: float, over_s: float) -> float:
        """How long the samples of the last ``over_s`` reach back: what grew while nobody looked is seen all at once."""
        return self._watched.grown - self._watched.grown_by(now - over_s) if self._watched is not None else 0.0

    def ends(self, subject: str, name: str) -> tuple[tuple[float, float], tuple[float, float]] | None:
        """The oldest and the newest (at, value) of a gauge: a first look that costs nothing."""
        gauge = self._gauges.get((subject, name))
        return (gauge.points[0], gauge.newest) if gauge is not None else None

    def series(self, subject: str, name: str) -> Series | None:
        gauge = self._gauges.get((subject, name))
        if gauge is None:
            return None
        points = [*gauge.points, *([gauge.newest] if gauge.newest[0] > gauge.points[-1][0] else [])]
        return Series(tuple(at for at, _ in points), tuple(value for _, value in points))

    def was(self, subject: str, name: str, at: float) -> Any:
        """The value at that time, of what was seen later only the first; None of what was never seen."""
        value = self._values.get((subject, name))
        return None if value is None else value.at(at)
