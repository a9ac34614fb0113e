"""Which node of many is bad: an all-reduce in pairs of nodes, round after round.

Disjoint random pairs first, then each suspect with a node that is known to be good. Where no good node can be told,
or paths between nodes are in question, every pair once (the circle method of round-robin tournaments).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mltop.probes.judge.active.pair_levels import Levels, pair_of
from mltop.probes.model.probe import PairResult

Pair = tuple[str, str]

ALWAYS_ALL = 4  # so few nodes: every pair at once tells more than any search
ALL_WHEN_UNCLEAR = 8  # so few nodes: every pair when many of the first ones are bad
CROWDED_SHARE = 0.3  # of a round's pairs: more bad ones may be the shared network, not so many nodes
CROWDED_PAIRS = 8  # at once, at least
QUARTER = 4
UNCLEAR_ROUNDS = 8  # of the circle, when half of many nodes' pairs are bad
TRIES = 3  # of one node with good ones, in which every pair was cleared by another: then it is enough


@dataclass(frozen=True)
class PairSearch:
    """The plan. It keeps nothing: what to do next follows from the results so far.

    ``at_once``: most pairs of one round, 0: as many as there are. ``round_robin``: every pair, for faults of links.
    """

    nodes: tuple[str, ...]
    round_robin: bool = False
    at_once: int = 0

    def next_round(self, results: Sequence[PairResult]) -> list[Pair]:
        """Pairs to measure at the same time; [] when it is finished.

        ``results``: of every pair of every round before, in their order, ``round`` counting the rounds.
        """
        plan = _Plan(self, results)
        if len(self.nodes) < 2:
            return []
        if self.round_robin or len(self.nodes) <= ALWAYS_ALL:
            return plan.circle(len(self.nodes))
        return plan.first() or plan.crowded() or plan.unclear() or plan.suspects()

    def most_rounds(self) -> int:
        """How many rounds it takes when nothing has to be repeated: 3, or one for each node."""
        count = len(self.nodes)
        if count < 2:
            return 0
        if self.round_robin or count <= ALWAYS_ALL:
            rounds = count - 1 + count % 2
            return rounds * math.ceil((count // 2) / self.at_once) if self.at_once else rounds
        return 3

    def shuffled(self) -> list[str]:
        """Neighbours in a rack are often bad together: their order says nothing here. Equal for equal names."""
        order = sorted(self.nodes)
        random.Random(",".join(order)).shuffle(order)
        return order


def circle_rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Every pair once: n-1 rounds of n/2 pairs, n rounds for an odd n, where one node rests in each."""
    seats: list[str | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    rounds = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append([(one, other) for one, other in pairs if one is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


class _Plan:
    """One look at the results so far."""

    def __init__(self, search: PairSearch, results: Sequence[PairResult]) -> None:
        self.order = search.shuffled()
        self.at_once = search.at_once or max(1, len(self.order) // 2)
        self.results = list(results)
        self.levels = Levels(self.order, results)
        self.together: dict[int, int] = {}
        self.times: dict[frozenset[str], list[int]] = {}
        for result in results:
            self.together[result.round] = self.together.get(result.round, 0) + 1
        for result in results:
            self.times.setdefault(pair_of(result.nodes), []).append(self.together[result.round])

    def first(self) -> list[Pair]:
        """Disjoint pairs; with an odd number of nodes the last one meets the first in a round of its own."""
        return self._unmeasured(self._disjoint()) or self._unmeasured(self._left_over())

    def crowded(self) -> list[Pair]:
        """The first pairs again, a quarter of them at once, when many are bad and many were measured at once."""
        pairs = self._disjoint()
        if len(pairs) < CROWDED_PAIRS or self._bad_share(pairs, of_first=True) <= CROWDED_SHARE:
            return []
        quarter = max(1, min(self.at_once, len(pairs)) // QUARTER)
        again = [pair for pair in pairs if len(self.times[frozenset(pair)]) < 2]
        return again[:quarter]

    def unclear(self) -> list[Pair]:
        """Every pair when so many are bad that the best ones may be bad too; of many nodes some rounds of them."""
        pairs = self._disjoint()
        count = len(self.order)
        share = self._bad_share(pairs)
        if count <= ALL_WHEN_UNCLEAR and share > CROWDED_SHARE:
            return self.circle(count)
        if share > 0.5 or self.levels.nothing_good(pairs):
            return self.circle(count if count <= 2 * ALL_WHEN_UNCLEAR else UNCLEAR_ROUNDS)
        return []

    def suspects(self) -> list[Pair]:
        """Each node without a good pair, with a good node that it has not met, until two or three such agree."""
        good = self.levels.good_nodes()
        free = [node for node in self.order if node in good]
        pairs: list[Pair] = []
        for node in self.order:
            if node in good or not self.levels.unsettled(node, good, TRIES):
                continue
            partner = next((one for one in free if frozenset((node, one)) not in self.times), None)
            if partner is not None:
                free.remove(partner)
                pairs.append((node, partner))
        return pairs[: self._few()]

    def circle(self, rounds: int) -> list[Pair]:
        for pairs in circle_rounds(self.order)[:rounds]:
            left = self._unmeasured(pairs)
            if left:
                return left
        return []

    def _disjoint(self) -> list[Pair]:
        return list(zip(self.order[::2], self.order[1::2], strict=False))

    def _left_over(self) -> list[Pair]:
        return [(self.order[-1], self.order[0])] if len(self.order) % 2 else []

    def _unmeasured(self, pairs: Iterable[Pair]) -> list[Pair]:
        return [pair for pair in pairs if frozenset(pair) not in self.times][: self._few()]

    def _few(self) -> int:
        """Once a crowded round has been seen, a quarter of it at once."""
        crowded = any(len(times) > 1 for times in self.times.values())
        return max(1, self.at_once // QUARTER) if crowded else self.at_once

    def _bad_share(self, pairs: Sequence[Pair], of_first: bool = False) -> float:
        levels = self.levels if not of_first else Levels(self.order, self._first_measured())
        return sum(not levels.is_good(*pair) for pair in pairs) / len(pairs) if pairs else 0.0

    def _first_measured(self) -> list[PairResult]:
        seen: dict[frozenset[str], PairResult] = {}
        for result in self.results:
            seen.setdefault(pair_of(result.nodes), result)
        return list(seen.values())
