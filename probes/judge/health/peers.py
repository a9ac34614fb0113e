"""What is usual among the nodes watched: medians and majorities of facts about like things.

Modules of rules name facts: ``FACTS(sample)`` yields (topic, group, value), e.g. ("gpu.driver", "NVIDIA H100", "570").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from mltop.probes.model import Sample

REFRESH_S = 5.0  # of the samples' time: what is usual changes slowly

Fact = tuple[str, str, Any]
Facts = Callable[[Sample], Iterable[Fact]]


@dataclass(frozen=True)
class Typical:
    """``value`` is usual: ``count`` of ``of`` have it (a median: all of them count)."""

    value: Any
    count: int
    of: int


@dataclass(eq=False)
class Peers:
    """All facts by topic and group; each node contributes its newest. ``nodes``: how many there are."""

    nodes: int = 0
    _values: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _medians: dict[tuple[str, str], float] = field(default_factory=dict)
    _counts: dict[tuple[str, str], Counter[Any]] = field(default_factory=dict)

    def median(self, topic: str, group: str, at_least: int = 3) -> Typical | None:
        """Of numbers; None with fewer than ``at_least`` of them."""
        values = self._values.get((topic, group), ())
        if len(values) < at_least:
            return None
        if (topic, group) not in self._medians:
            self._medians[topic, group] = median_low(values)
        return Typical(self._medians[topic, group], len(values), len(values))

    def common(self, topic: str, group: str, at_least: int = 3) -> Typical | None:
        """The value that more than half have; None when none does, or with fewer than ``at_least`` values."""
        values = self._values.get((topic, group), ())
        if len(values) < at_least:
            return None
        counts = self._counts.get((topic, group))
        if counts is None:
            counts = self._counts[topic, group] = Counter(values)
        ((value, count),) = counts.most_common(1)
        return Typical(value, count, len(values)) if count > len(values) / 2 else None

    @classmethod
    def of(cls, facts_by_node: Mapping[str, Iterable[Fact]]) -> Peers:
        values: dict[tuple[str, str], list[Any]] = {}
        for facts in facts_by_node.values():
            for topic, group, value in facts:
                values.setdefault((topic, group), []).append(value)
        return cls(len(facts_by_node), values)


NO_PEERS = Peers()


class PeerBook:
    """Keeps every node's newest facts; ``peers`` is made anew at most every REFRESH_S."""

    def __init__(self, readers: Iterable[Facts]) -> None:
        self._readers = tuple(readers)
        self._by_node: dict[str, list[Fact]] = {}
        self._peers = NO_PEERS
        self._made_at = float("-inf")

    def see(self, sample: Sample) -> Peers:
        new = sample.node not in self._by_node
        self._by_node[sample.node] = [fact for read in self._readers for fact in read(sample)]
        # While a fleet connects, a few nodes more do not change what is usual.
        grown = new and len(self._by_node) < 16
        if grown or abs(sample.sampled_at - self._made_at) >= REFRESH_S:
            self._peers = Peers.of(self._by_node)
            self._made_at = sample.sampled_at
        return self._peers

    def learn(self, samples: Iterable[Sample]) -> None:
        """Facts of many nodes at once."""
        for sample in samples:
            self._by_node[sample.node] = [fact for read in self._readers for fact in read(sample)]
        self._peers = Peers.of(self._by_node)

    def forget(self, node: str) -> None:
        self._by_node.pop(node, None)
