"""Many rules ask the same of one sample or one set of peers, one right after the other: the newest answer is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Generic, TypeVar

from mltop.probes.judge.health.peers import Peers, Typical
from mltop.probes.judge.health.rule import Moment
from mltop.probes.model import Sample

T = TypeVar("T")


def once_per_moment(function: Callable[[Moment], T]) -> Callable[[Moment], T]:
    """Several rules ask the same of one moment, one after the other: the newest answer is kept, and never changed."""
    kept: list[tuple[Moment, T]] = []

    @wraps(function)
    def remembered(moment: Moment) -> T:
        newest = kept[0] if kept else None
        if newest is None or newest[0] is not moment:
            newest = (moment, function(moment))
            kept[:] = [newest]
        return newest[1]

    return remembered


class OfNewest(Generic[T]):
    """``read`` of the sample that was last asked about. ``afresh`` is for who sees a sample first: it may have been
    changed in place since it was last judged.
    """

    def __init__(self, read: Callable[[Sample], T]) -> None:
        self._read = read
        self._kept: tuple[Sample, T] | None = None

    def __call__(self, sample: Sample) -> T:
        kept = self._kept  # one look: another thread may put another sample there
        return kept[1] if kept is not None and kept[0] is sample else self.afresh(sample)

    def afresh(self, sample: Sample) -> T:
        found = self._read(sample)
        self._kept = sample, found
        return found


class _Usual:
    def __init__(self) -> None:
        self._kept: tuple[Peers, dict[tuple[str, str], Typical | None]] = Peers(), {}

    def __call__(self, peers: Peers, topic: str, group: str) -> Typical | None:
        """``peers.common``, which finds the majority anew each time: peers stay the same for seconds."""
        if not peers.nodes:
            return None
        if self._kept[0] is not peers:
            self._kept = peers, {}
        known, key = self._kept[1], (topic, group)
        if key not in known:
            known[key] = peers.common(topic, group)
        return known[key]


usual = _Usual()
