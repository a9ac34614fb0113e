"""Slower than what: a device's own history first, then its peers. Higher is better in all of it.

Healthy GPUs of one model differ by 5 % and more (ml-engineering book), so a device is only slow among its peers when
it is unusual among them and also clearly below: the modified z-score of Iglewicz and Hoaglin (1993) above 3.5, and
more than 5 % under the median. z alone accuses somebody on 8 % of healthy nodes of eight.

And what of a report is worth keeping for that, and under which name it is found again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.values import median_of
from mltop.probes.model.probe import CollectiveResult, DeviceResult, PastResult, ProbeReport

PEERS_AT_LEAST = 4  # it is one of them
UNUSUAL_Z = 3.5
PEER_GAP = 0.05
PAST_GAP = 0.03
PAST_AT_LEAST = 2
PAST_AT_MOST = 10
PAST_SPREAD_AT_LEAST = 5  # so many tell how far a device's results lie apart by themselves

K = TypeVar("K")


@dataclass(frozen=True)
class Comparison:
    """``share``: of ``usual``, the median of ``count`` values; 0.79 is 21 % below. ``slow`` None: unknown, ``why``."""

    value: float
    usual: float | None = None
    count: int = 0
    slow: bool | None = None
    why: str = ""

    @property
    def share(self) -> float | None:
        return self.value / self.usual if self.usual else None

    @property
    def slower(self) -> float:
        """How much below, 0.21 for 21 %; 0 where it is unknown."""
        return 0.0 if self.share is None else 1 - self.share


NO_COMPARISON = Comparison(0.0)


def slower_than_peers(values: Mapping[K, float]) -> dict[K, Comparison]:
    """Who is slow among equals. The caller takes care that they are: model, dtype, shape, power limit.

    With fewer than 4 values nobody is: ``slow`` is None.
    """
    count = len(values)
    if not values:
        return {}
    usual = statistics.median(values.values())
    if count < PEERS_AT_LEAST:
        why = f"{count} alike: at least {PEERS_AT_LEAST} are needed to call one slow"
        return {key: Comparison(value, usual, count, None, why) for key, value in values.items()}
    spread = _spread(list(values.values()), usual)
    return {
        key: Comparison(value, usual, count, value < (1 - PEER_GAP) * usual and _z(value, usual, spread) > UNUSUAL_Z)
        for key, value in values.items()
    }


def against_past(
    uuid: str, key: str, value: float, versions: Mapping[str, str], past: Sequence[PastResult]
) -> Comparison:
    """A result against the last 10 of the same device, key and versions: slow is more than 3 % under their median.

    Of a device whose results lie far apart (a CPU with other work), it must be unusual among them too.
    """
    of_device = [result for result in past if result.uuid == uuid and result.key == key and result.value > 0]
    same = sorted((result for result in of_device if result.versions == dict(versions)), key=lambda result: result.at)
    earlier = [result.value for result in same[-PAST_AT_MOST:]]
    usual = median_of(earlier)
    if usual is None or len(earlier) < PAST_AT_LEAST:
        return Comparison(value, usual, len(earlier), None, _too_little(len(earlier), len(of_device)))
    slow = value < (1 - PAST_GAP) * usual
    if slow and len(earlier) >= PAST_SPREAD_AT_LEAST:
        slow = _z(value, usual, _spread(earlier, usual)) > UNUSUAL_Z
    return Comparison(value, usual, len(earlier), slow)


def _too_little(same: int, of_device: int) -> str:
    if of_device == 0:
        return "no earlier result"
    if same == 0:
        return "earlier results only with other versions"
    return f"{same} earlier result with these versions: at least {PAST_AT_LEAST} are needed"


def _spread(values: Sequence[float], usual: float) -> float:
    """The median distance from the median (MAD)."""
    return statistics.median(abs(value - usual) for value in values)


def _z(value: float, usual: float, spread: float) -> float:
    """How far below, in units of the normal distribution's deviation; infinite where half of all are equal."""
    return 0.6745 * (usual - value) / spread if spread > 0 else float("inf")


def past_of(report: ProbeReport) -> list[PastResult]:
    """Every value that later runs compare themselves with; nothing of a simulation, of pairs, or of corrupt results.

    ``at`` is the report's start (unix s).
    """
    return [
        PastResult(subject, key, value, report.started_at, dict(getattr(result, "versions", {})))
        for result in (() if report.simulated else report.results)
        for subject, key, value in kept_of(result)
        if value is not None and value > 0
    ]


def kept_of(result: object) -> Iterator[tuple[str, str, float | None]]:
    """What may be kept of one result: whose it is, its key, its value."""
    if isinstance(result, DeviceResult) and not result.is_wrong:
        yield from ((result.subject, result.key(what), getattr(result, name)) for what, name in result.KEPT.items())
    elif isinstance(result, CollectiveResult) and not result.wrong:
        yield group_subject(result), collective_key(result), result.busbw_bytes_per_s


def group_subject(result: CollectiveResult) -> str:
    """``PastResult.uuid`` of a collective: the nodes that took part."""
    return f"nodes {folded(result.nodes, 10_000)}"


def collective_key(result: CollectiveResult) -> str:
    return f"{result.collective} {result.backend} {result.size_bytes} ranks {result.ranks}"
