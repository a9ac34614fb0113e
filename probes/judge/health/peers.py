"""What is usual among the nodes watched: medians and majorities of facts about like things.

Modules of rules name facts: ``facts(sample)`` yields (topic, group, value), e.g. ("gpu.driver", "NVIDIA H100", "570").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_low
from typing import Any

from mltop.probes.model import Sample

REFRESH_S = 5.0  # of the samples' time: what is usual changes slowly
NODES_AT_LEAST = 3  # before something is called usual among them
MOST_FACTS = 4096  # of one node, several times what a large one has

Fact = tuple[str, str, Any]
Facts = Callable[[Sample], Iterable[Fact]]


@dataclass(frozen=True)
class Typical:
    """``value`` is usual: ``count`` of ``of`` have it."""

    value: Any
    count: int
    of: int

    def __str__(self) -> str:
        return f"{self.count} of {self.of} like nodes"


@dataclass(eq=False)
class Peers:
    """All facts by topic and group; each node contributes its newest. ``nodes``: how many there are."""

    nodes: int = 0
    _values: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _medians: dict[tuple[str, str], float] = field(default_factory=dict)
    _commons: dict[tuple[str, str], Typical | None] = field(default_factory=dict)  # with three values or more

    def median(self, topic: str, group: str, at_least: int) -> float | None:
        """The lower median of numbers; None with fewer than ``at_least`` of them."""
        key = (topic, group)
        values = self._values.get(key, ())
        if len(values) < at_least:
            return None
        if key not in self._medians:
            self._medians[key] = median_low(values)
        return self._medians[key]

    def common(self, topic: str, group: str) -> Typical | None:
        """The value that more than half have; None when none does, or with fewer than three values."""
        key = (topic, group)
        if key not in self._commons:
            values = self._values.get(key, ())
            ((value, count),) = Counter(values).most_common(1) or [(None, 0)]
            is_usual = len(values) >= NODES_AT_LEAST and count > len(values) / 2
            self._commons[key] = Typical(value, count, len(values)) if is_usual else None
        return self._commons[key]

    @classmethod
    def of(cls, facts_by_node: Mapping[str, Iterable[Fact]]) -> Peers:
        values: dict[tuple[str, str], list[Any]] = {}
        for facts in facts_by_node.values():
            for topic, group, value in facts:
                values.setdefault((topic, group), []).append(value)
        return cls(len(facts_by_node), values)


NO_PEERS = Peers()


class PeerBook:
    """Keeps every node's newest facts; ``peers`` is made anew at most every REFRESH_S.

    ``failed``: readers that raised an exception on the sample that was seen last.
    """

    def __init__(self, readers: Iterable[Facts]) -> None:
        self._readers = tuple(readers)
        self._by_node: dict[str, list[Fact]] = {}
        self._peers = NO_PEERS
        self._made_at = float("-inf")
        self.failed: list[tuple[Facts, Exception]] = []

    def see(self, sample: Sample) -> Peers:
        new = sample.node not in self._by_node
        self._by_node[sample.node] = self._facts(sample)
        # While a fleet connects, a few nodes more do not change what is usual.
        grown = new and len(self._by_node) < 16
        at = sample.sampled_at - (sample.clock_skew_s or 0.0)  # one node's wrong clock makes no work
        if grown or abs(at - self._made_at) >= REFRESH_S:
            self._peers = Peers.of(self._by_node)
            self._made_at = at
        return self._peers

    def learn(self, samples: Iterable[Sample]) -> None:
        """Facts of many nodes at once."""
        for sample in samples:
            self._by_node[sample.node] = self._facts(sample)
        self._peers = Peers.of(self._by_node)

    def forget(self, node: str) -> None:
        self._by_node.pop(node, None)

    def _facts(self, sample: Sample) -> list[Fact]:
        self.failed = []
        facts: list[Fact] = []
        for read in self._readers:
            try:
                facts.extend(islice(read(sample), max(0, MOST_FACTS - len(facts))))
            except Exception as error:  # noqa: BLE001 - said of the node, and the other readers go on
                self.failed.append((read, error))
        return facts
