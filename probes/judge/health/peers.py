"""What is usual among the nodes watched: medians and majorities of facts about like things.

Modules of rules name facts: ``facts(sample)`` yields (topic, group, value), e.g. ("gpu.driver", "NVIDIA H100", "570").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mltop.probes.judge.values import low_median_of
from mltop.probes.model import Sample
from mltop.probes.model.news.judged import Fact

# Of the samples' time: what is usual changes slowly, and among hundreds of nodes one alone changes nothing.
REFRESH_S, REFRESH_S_PER_NODE = 5.0, 0.05
SET_BACK_S = 60.0  # more than nodes' times differ: a clock was set back
NODES_AT_LEAST = 3  # before something is called usual among them
MOST_FACTS = 4096  # of one node, several times what a large one has

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
    _medians: dict[tuple[str, str], float | None] = field(default_factory=dict)
    _commons: dict[tuple[str, str], Typical | None] = field(default_factory=dict)  # with three values or more

    def median(self, topic: str, group: str, at_least: int) -> float | None:
        """The lower median of numbers; None with fewer than ``at_least`` of them."""
        key = (topic, group)
        if len(self._values.get(key, ())) < at_least:
            return None
        if key not in self._medians:
            numbers = [value for value in self._values[key] if isinstance(value, (int, float))]
            self._medians[key] = low_median_of(numbers) if len(numbers) >= at_least else None
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
        """A node counts for as many like things as nodes usually have: one that lies may name thousands."""
        by_key: dict[tuple[str, str], list[list[Any]]] = {}
        for facts in facts_by_node.values():
            own: dict[tuple[str, str], list[Any]] = {}
            for topic, group, value in facts:
                own.setdefault((topic, group), []).append(value)
            for key, values in own.items():
                by_key.setdefault(key, []).append(values)
        every: dict[tuple[str, str], list[Any]] = {}
        for key, of_nodes in by_key.items():
            most = int(low_median_of(map(len, of_nodes)))
            every[key] = [value for values in of_nodes for value in values[:most]]
        return cls(len(facts_by_node), every)


NO_PEERS = Peers()


class PeerBook:
    """Keeps every node's newest facts; what is usual is made anew every few seconds at most."""

    def __init__(self) -> None:
        self._by_node: dict[str, list[Fact]] = {}
        self._peers = NO_PEERS
        self._made_at = float("-inf")

    def take(self, node: str, facts: Iterable[Fact], at: float) -> Peers:
        """``at``: by the watcher's clock, so that one node's wrong clock makes no work."""
        new = node not in self._by_node
        self._by_node[node] = [*islice(facts, MOST_FACTS)]
        # While a fleet connects, a few nodes more do not change what is usual.
        grown = new and len(self._by_node) < 16
        refresh_s = max(REFRESH_S, REFRESH_S_PER_NODE * len(self._by_node))
        if grown or not -SET_BACK_S < at - self._made_at < refresh_s:
            self._peers = Peers.of(self._by_node)
            self._made_at = at
        return self._peers

    def learn(self, facts_by_node: Mapping[str, list[Fact]]) -> None:
        """Facts of many nodes at once."""
        self._by_node.update(facts_by_node)
        self._peers = Peers.of(self._by_node)

    def forget(self, node: str) -> None:
        self._by_node.pop(node, None)
