"""How often a job steps, learned from what comes and goes with each step: switches, calls, processor time, SMs, power.

Only what was added up between two samples is looked at: then a step shorter than two samples leaves something in every
sample, and cannot pass for a longer one. What is sampled more coarsely than its steps has no rhythm here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import cos, log, pi, sqrt
from operator import mul
from statistics import fmean, median

from mltop.probes.model import Rhythm
from mltop.probes.model.news.judged import PartNumbers

MOST_BINS, LEAST_BINS = 256, 24
EVERY, OFTEN, SELDOM = 12, 24, 240  # samples between two looks; seldom, once a whole series had nothing
UNEVEN = 0.4  # of an interval: samples that come so much too early or late break the series
MOST_MISSED = 3  # intervals in one: what was counted meanwhile is spread over them
SILENT = 0.25  # of the high level: lower than this between two bursts
FULL = 0.5  # of all SMs, of the power limit: dips differ from bursts where as much is in use
MOST_DUTY = 0.49  # of the high level on average: steps below two samples come to a half and more
RUN = 0.35  # of a burst's height: what is higher belongs to it
LEAST_GAPS, MOST_OUT, LEAST_PERIOD = 8, 0.2, 3.5  # periods in samples
LONG_PERIOD, LONG_GAPS, LONG_OUT = 8.0, 5, 0.1  # of those, fewer gaps that are more alike
SHORT_BINS, LEAST_LAG, MOST_LAG = 48, 2, 8  # shorter periods: by autocorrelation
CORRELATION, TROUGH = 0.45, 0.15
LIKENESS = 0.2  # half of the share of the period in all that goes up and down, over the first steps
MOST_SPREAD, MOST_SPREAD_TOLD = 0.25, 0.1  # more is no rhythm; near two samples, little looks like much
NEAR_LIMIT = 2.3  # samples
SPREAD_OVER = 5  # steps: two stretches of likeness are compared
FITTED, FINE = 10, 0.02  # the period is fitted over so many of them, in steps of so much of a sample
AGREE = 0.15  # two looks in a row, that far apart at most: it is the rhythm
KEEP_S = 120.0  # and this long, or twenty steps, it is believed when a look fails
# The least that a burst comes to, per sample: what makes less is a poll. Then whether the signal is a share of all.
_SIGNALS = ((4.0, False), (4.0, False), (0.002, False), (0.0, True), (0.0, True))


class Series:
    """The last samples of one node of a job, and the rhythm in them; ``rhythm`` is None where there is none."""

    def __init__(self) -> None:
        self.rhythm: Rhythm | None = None
        self._signals = [array("f") for _ in _SIGNALS]
        self._interval_s = 0.0
        self._fresh, self._taken, self._pause = 0, 0, EVERY
        self._guess: Rhythm | None = None
        self._seen_at = 0.0

    def add(self, at: float, filled: PartNumbers) -> None:
        """The next sample's; its rhythm is looked for now and then."""
        share = filled.seconds / self._interval_s if self._interval_s else 0.0
        count = round(share)
        if not 1 <= count <= MOST_MISSED or abs(share - count) > UNEVEN * count:
            for signal in self._signals:
                del signal[:]
            self._interval_s = filled.seconds
            return
        counts = (filled.switches, filled.calls, filled.main_cpu_s)
        values = (*(number / count for number in counts), filled.sm, filled.power_share)
        for signal, value in zip(self._signals, values):
            signal.extend([-1.0 if value is None else value] * count)
            if len(signal) > MOST_BINS:
                del signal[:32]
        self._interval_s += (filled.seconds / count - self._interval_s) / min(64.0, len(self._signals[0]) + 1.0)
        self._fresh += 1
        self._taken += 1
        if self._fresh >= self._pause and len(self._signals[0]) >= LEAST_BINS:
            self._fresh = 0
            self._look(at)

    def clear(self) -> None:
        """What came before says nothing of what comes."""
        self.__init__()  # type: ignore[misc]

    def _look(self, at: float) -> None:
        found = find(self._signals, self._interval_s)
        before, self._guess = self._guess, found
        if found is not None and before is not None and abs(found.step_s - before.step_s) <= AGREE * before.step_s:
            self.rhythm, self._seen_at = found, at
            self._pause = 2 * EVERY
        elif found is not None:
            self._pause = EVERY
        else:
            self._pause = min(OFTEN if self._taken < 3 * MOST_BINS else SELDOM, 2 * self._pause)
        if self.rhythm is not None and at - self._seen_at > max(KEEP_S, 20 * self.rhythm.step_s):
            self.rhythm = None


def find(signals: Sequence[Sequence[float]], interval_s: float) -> Rhythm | None:
    """The rhythm of the signal that has the steadiest one. Of a value that is not known: below 0."""
    found = []
    for values, (least, is_share) in zip(signals, _SIGNALS):
        shape = _shape(values, least, is_share)
        if shape is not None:
            rhythm = _by_gaps(shape, interval_s) or _by_correlation(shape, interval_s)
            if rhythm is not None:
                found.append(rhythm)
    return min(found, key=lambda rhythm: rhythm.spread, default=None)


def _shape(values: Sequence[float], least: float, is_share: bool) -> list[float] | None:
    """From 0 (between the bursts, or without a dip) to 1; None where nothing comes and goes."""
    ordered = sorted(values)
    if len(ordered) < LEAST_BINS or ordered[0] < 0:
        return None
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 48]
    if high <= 0 or high < least or low > SILENT * high:
        return None
    span = high - low
    shape = [min(1.0, max(0.0, (value - low) / span)) for value in values]
    duty = fmean(values) / high
    if duty <= MOST_DUTY:
        return shape
    return [1.0 - value for value in shape] if is_share and high >= FULL and 1.0 - duty <= MOST_DUTY else None


def _by_gaps(shape: list[float], interval_s: float) -> Rhythm | None:
    """Of bursts that lie apart: from the middle of one to that of the next."""
    middles = _middles(shape)
    gaps = [later - earlier for earlier, later in zip(middles, middles[1:])]
    if len(gaps) < LONG_GAPS:
        return None
    usual = median(gaps)
    few = len(gaps) < LEAST_GAPS
    if usual < (LONG_PERIOD if few else LEAST_PERIOD):
        return None
    alike = [gap for gap in gaps if abs(gap - usual) <= (LONG_OUT if few else MOST_OUT) * usual]
    if len(gaps) - len(alike) > max(0, len(gaps) - LEAST_GAPS) // 5:
        return None
    step = fmean(alike)
    # Where in its sample a burst lies is known to a sample's width: both ends of a gap bring a twelfth of its square,
    # a quarter of that where bursts lie in several samples.
    unsure = 1 / 6 if sum(shape) < 1.5 * len(middles) else 1 / 24
    scatter = max(0.0, fmean((gap - step) ** 2 for gap in alike) - unsure)
    return Rhythm(step * interval_s, sqrt(scatter) / step, len(alike))


def _middles(shape: list[float]) -> list[float]:
    middles: list[float] = []
    weight = moment = 0.0
    for place, value in enumerate(shape):
        if value >= RUN:
            weight += value
            moment += value * place
        elif weight:
            middles.append(moment / weight)
            weight = moment = 0.0
    return middles[1:]  # the first may have begun before the first sample


def _by_correlation(shape: list[float], interval_s: float) -> Rhythm | None:
    """Of steps of two to eight samples, whose bursts touch."""
    if len(shape) < SHORT_BINS:
        return None
    middle = fmean(shape)
    values = [value - middle for value in shape]
    power = sum(map(mul, values, values)) / len(values)
    if power <= 0:
        return None
    reach = min(len(values) // 2, FITTED * MOST_LAG)
    alike = [1.0] + [sum(map(mul, values, values[lag:])) / (len(values) - lag) / power for lag in range(1, reach)]
    first = _first_peak(alike)
    if first is None:
        return None
    period = _sharpened(alike, first)
    if _likeness(alike, period, 1) < LIKENESS:
        return None
    spread = _spread(alike, period)
    if spread > MOST_SPREAD and period > NEAR_LIMIT:
        return None
    return Rhythm(period * interval_s, min(spread, MOST_SPREAD_TOLD), int(len(shape) / period))


def _spread(alike: Sequence[float], period: float) -> float:
    """Steps that differ by a share s lose exp(-2 (pi s)^2) of their likeness with each step."""
    near, far = (_likeness(alike, period, first) for first in (1, round(SPREAD_OVER * period) + 1))
    return sqrt(log(min(1e3, max(1.0, near / max(far, 1e-3)))) / (2 * SPREAD_OVER)) / pi


def _likeness(alike: Sequence[float], period: float, first: int) -> float:
    lags = range(first, min(len(alike), first + round(SPREAD_OVER * period)))
    return sum(alike[lag] * cos(2 * pi * lag / period) for lag in lags) / max(1, len(lags))


def _first_peak(alike: Sequence[float]) -> int | None:
    for lag in range(LEAST_LAG, min(MOST_LAG + 1, len(alike) - 1)):
        if alike[lag] >= CORRELATION and alike[lag] >= alike[lag + 1] and min(alike[1:lag]) <= TROUGH:
            return lag
    return None


def _sharpened(alike: Sequence[float], first: int) -> float:
    """The period near ``first`` with the most power in it: lags are whole samples, and a period is not. Of two and a
    half samples the first lag that is alike is twice that.
    """
    reach = min(len(alike), FITTED * first + 1)
    weighted = [(lag, alike[lag] * (1 - lag / reach)) for lag in range(1, reach)]
    periods = [
        (first + step * FINE) / parts
        for parts in (1, 2, 3)
        for step in range(-round(0.6 / FINE), round(0.6 / FINE) + 1)
        if (first + step * FINE) / parts >= LEAST_LAG
    ]

    def power(period: float) -> float:
        turn = 2 * pi / period
        return sum(value * cos(turn * lag) for lag, value in weighted)

    return max(periods, key=power)
