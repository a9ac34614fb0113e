"""Which node of many is bad: an all-reduce in pairs of nodes, round after round.

Disjoint random pairs first, then each suspect with a node that is known to be good. Where no good node can be told,
or paths between nodes are in question, every pair once (the circle method of round-robin tournaments).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mltop.probes.judge.active.pair_levels import Levels, PairKey, pair_of
from mltop.probes.judge.active.pair_verdict import judge_pairs
from mltop.probes.model.probe import PairResult

__all__ = ["Pair", "PairSearch", "circle_rounds", "judge_pairs"]

Pair = tuple[str, str]

ALWAYS_ALL = 8  # so few nodes: half of them may be bad, and every pair takes seven rounds
MAY_DOUBT = (3, 4)  # so few nodes, half of them bad: one good pair is left
CROWDED_SHARE = 0.3  # of a round's pairs: more bad ones may be the shared network, not so many nodes
CROWDED_PAIRS = 8  # at once, at least
QUARTER = 4
UNCLEAR_SHARE = 0.5  # of the first pairs, at least, are bad: the best ones may be bad too
ALL_IF_HALF_BAD = 16  # so few nodes: every pair then
UNCLEAR_ROUNDS = 8  # of the circle, of more nodes


@dataclass(frozen=True)
class PairSearch:
    """The plan. It keeps nothing: what to do next follows from the results so far.

    ``at_once``: most pairs of one round, 0: as many as there are. ``round_robin``: every pair, for faults of links.
    """

    nodes: Sequence[str]
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
            first_round = circle_rounds(plan.order)[0]
            found = plan.unmeasured(first_round) or plan.crowded(first_round) or plan.circle(len(self.nodes))
        else:
            found = plan.first() or plan.crowded(plan.disjoint()) or plan.unclear() or plan.suspects()
        return found or plan.doubted()

    def most_rounds(self) -> int:
        """How many rounds it takes when nothing has to be repeated: 3, or one for each node and one for a doubt."""
        count = len(self.nodes)
        if count < 2:
            return 0
        if self.round_robin or count <= ALWAYS_ALL:
            rounds = count - 1 + count % 2 + (count in MAY_DOUBT)
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
        self.levels = Levels(self.order, results)
        seen: dict[PairKey, int] = {}
        self.firsts = [one for one in results if seen.setdefault(pair_of(one.nodes), one.round) == one.round]

    def first(self) -> list[Pair]:
        """Disjoint pairs; with an odd number of nodes the last one meets the first in a round of its own."""
        left_over = [(self.order[-1], self.order[0])] if len(self.order) % 2 else []
        return self.unmeasured(self.disjoint()) or self.unmeasured(left_over)

    def crowded(self, pairs: Sequence[Pair]) -> list[Pair]:
        """These pairs again, a quarter of them at once, when many are bad and many were measured at once."""
        together = min(self.at_once, len(pairs))
        if together < CROWDED_PAIRS or self._bad_share(pairs, self._levels_at_first) <= CROWDED_SHARE:
            return []
        again = [pair for pair in pairs if self.levels.measured[frozenset(pair)] < 2]
        return again[: max(1, together // QUARTER)]

    def unclear(self) -> list[Pair]:
        """Every pair when so many are bad that the best ones may be bad too; of many nodes some rounds of them."""
        count = len(self.order)
        if self._bad_share(self.disjoint(), self.levels) < UNCLEAR_SHARE:
            return []
        return self.circle(count if count <= ALL_IF_HALF_BAD else UNCLEAR_ROUNDS)

    def suspects(self) -> list[Pair]:
        """Each node without a good pair, with a good node that it has not met, until it is known to be bad or good."""
        good = self.levels.good_nodes()
        free = [node for node in self.order if node in good]
        pairs: list[Pair] = []
        for node in self.order:
            if node in good or self.levels.settled(node, good):
                continue
            met = set(self.levels.partners(node))
            partner = next((one for one in free if one not in met), None)
            if partner is not None:
                free.remove(partner)
                pairs.append((node, partner))
        return pairs[: self._few]

    def doubted(self) -> list[Pair]:
        """The only good pair once more, when nodes are slow by comparison with nothing but that."""
        only, good = self.levels.only_good(), self.levels.good_nodes()
        slow = [node for node in self.order if node not in good and self.levels.works(node)]
        if only is None or self.levels.measured[only] > 1 or not any(self.levels.settled(node, good) for node in slow):
            return []
        one, other = sorted(only)
        return [(one, other)]

    def circle(self, rounds: int) -> list[Pair]:
        for pairs in circle_rounds(self.order)[:rounds]:
            left = self.unmeasured(pairs)
            if left:
                return left
        return []

    def disjoint(self) -> list[Pair]:
        return list(zip(self.order[::2], self.order[1::2], strict=False))

    def unmeasured(self, pairs: Iterable[Pair]) -> list[Pair]:
        return [pair for pair in pairs if frozenset(pair) not in self.levels.values][: self._few]

    @cached_property
    def _few(self) -> int:
        """A quarter at once from then on, when a repetition has shown that fewer at once are faster."""
        again = [(*sorted(key),) for key, count in self.levels.measured.items() if count > 1]
        if not again:
            return self.at_once
        before, now = self._levels_at_first, self.levels
        return self.at_once if 2 * _bad(again, now) > _bad(again, before) else max(1, self.at_once // QUARTER)

    @cached_property
    def _levels_at_first(self) -> Levels:
        return Levels(self.order, self.firsts)

    def _bad_share(self, pairs: Sequence[Pair], levels: Levels) -> float:
        return _bad(pairs, levels) / len(pairs) if pairs else 0.0


def _bad(pairs: Iterable[Sequence[str]], levels: Levels) -> int:
    return sum(not levels.is_good(*pair) for pair in pairs)
