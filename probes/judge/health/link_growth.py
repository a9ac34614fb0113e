"""How fast counters of links grow, without being fooled by pauses between samples."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.rule import Moment
from mltop.probes.judge.health.trails import Increase
from mltop.probes.model import Sample

RATE_S = 10.0  # rates per second are taken over so long: a single burst is not a rate
MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0

_WATCH, _CLOCK = "links", "clock"
_EXACT_S = 120.0
NOTHING = Increase(0.0, HOUR_S)


def clock(sample: Sample) -> Iterator[tuple[str, str, float]]:
    """A counter of seconds. What grew while nobody looked is seen all at once; the clock then grew as much."""
    yield _WATCH, _CLOCK, sample.sampled_at


def grown(moment: Moment, subject: str, name: str, over_s: float) -> Increase:
    """What came in the last ``over_s``. Its ``over_s`` is never less than asked for, so that no burst right after the
    start is made into a rate, and longer where the samples are further apart. Nothing of a counter never seen.
    """
    increase = moment.increase(subject, name, over_s)
    if increase is None or not increase.amount:
        return NOTHING
    watched = moment.increase(_WATCH, _CLOCK, over_s)
    covered_s = (moment.passed_s or 0.0) if watched is None else watched.amount
    if over_s > _EXACT_S and covered_s < 2 * over_s:
        covered_s = over_s  # the clock's older points are thinned out
    return Increase(increase.amount, max(over_s, covered_s))


def per_second(moment: Moment, subject: str, name: str) -> float:
    return grown(moment, subject, name, RATE_S).per(1.0)


def has_grown(moment: Moment, subject: str, name: str, over_s: float) -> bool:
    """The cheap question before the others."""
    increase = moment.increase(subject, name, over_s)
    return increase is not None and increase.amount > 0


def rate_text(per_s: float) -> str:
    """``140/s``, or ``12/min`` below one a second."""
    return f"{per_s:.0f}/s" if per_s >= 1 else f"{per_s * 60:.0f}/min"
