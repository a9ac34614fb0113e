"""How good each pair and each node is, relative to the best quarter of the nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mltop.probes.model.probe import PairResult

GOOD = 0.91  # of the reference; healthy pairs vary by 2 %, a bad node costs 15 % and more
REFERENCE = 0.75  # of the nodes' best values lie below the reference: up to that many may be bad
SETTLED_PAIRS = 2  # bad ones, one of them with a good node: then a node is bad

PairKey = frozenset[str]


def pair_of(nodes: Iterable[str]) -> PairKey:
    return frozenset(nodes)


class Levels:
    """Of each pair the best measurement counts (of the largest size): a slow one may have been disturbed.

    ``values``: busbw by pair, None where it failed; ``results``: what they come from; ``measured``: how often;
    ``reference``: None when nothing worked.
    """

    def __init__(self, nodes: Sequence[str], results: Sequence[PairResult]) -> None:
        self.nodes = list(nodes)
        self.results: dict[PairKey, PairResult] = {}
        rounds: dict[PairKey, set[int]] = {}
        self._all: list[tuple[PairKey, float]] = []
        for result in results:
            key = pair_of(result.nodes)
            rounds.setdefault(key, set()).add(result.round)
            self._all.append((key, result.busbw_bytes_per_s or 0.0))
            if key not in self.results or _worth(result) > _worth(self.results[key]):
                self.results[key] = result
        self.measured = {key: len(of_key) for key, of_key in rounds.items()}
        self.values = {key: result.busbw_bytes_per_s for key, result in self.results.items()}
        self.best = dict.fromkeys(nodes, 0.0)
        for key, value in self.values.items():
            for node in key:
                self.best[node] = max(self.best.get(node, 0.0), value or 0.0)
        self.reference = self._reference()

    def is_good(self, one: str, other: str) -> bool:
        value = self.values.get(frozenset((one, other)))
        return value is not None and self.reference is not None and value >= GOOD * self.reference

    def good_nodes(self) -> set[str]:
        """Nodes with a good pair."""
        if self.reference is None:
            return set()
        return {node for node in self.nodes if self.best[node] >= GOOD * self.reference}

    def only_good(self) -> PairKey | None:
        """The pair that alone was good, and once: all that is said of the others rests on that measurement."""
        found = [key for key, value in self._all if self.reference is not None and value >= GOOD * self.reference]
        return found[0] if len(found) == 1 else None

    def values_of(self, pair: PairKey) -> list[float]:
        """Of this pair what was measured, in order; failures are left out."""
        return [value for key, value in self._all if key == pair and value]

    def works(self, node: str) -> bool:
        """With somebody: then it is slow at most, which may be noise; a failure is not."""
        return self.best[node] > 0

    def partners(self, node: str) -> list[str]:
        """Whom it was measured with."""
        return [other for key in self.values if node in key for other in key if other != node]

    def settled(self, node: str, good: set[str]) -> bool:
        """Whether a node without a good pair is known to be bad: in pairs enough, one of them with a good node."""
        partners = self.partners(node)
        return len(partners) >= SETTLED_PAIRS and any(other in good for other in partners)

    def _reference(self) -> float | None:
        """The third quartile of the nodes' best values (nearest rank), of those that were measured at all."""
        seen = {node for key in self.values for node in key}
        best = sorted(self.best[node] for node in self.nodes if node in seen)
        if not best:
            return None
        value = best[max(0, math.ceil(REFERENCE * len(best)) - 1)]
        return value if value > 0 else next((one for one in best if one > 0), None)


def _worth(result: PairResult) -> tuple[bool, int, float]:
    return (result.busbw_bytes_per_s is not None, result.size_bytes, result.busbw_bytes_per_s or 0.0)
