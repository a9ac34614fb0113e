"""A simulated cluster on which a search over pairs is run to its end."""

from __future__ import annotations

import random
from collections.abc import Mapping

from mltop.probes.judge.probes.pairs import PairSearch
from mltop.probes.model.probe import PairResult

SPEED = 48e9
MOST_ROUNDS = 400


class Cluster:
    """``bad``: share of the speed that is left, by node; ``links``: likewise by pair; ``dead``: pairs with it fail.

    ``crowd``: with more pairs than this at once, every second one has half of its speed.
    """

    def __init__(
        self,
        count: int,
        bad: Mapping[str, float] | None = None,
        links: Mapping[frozenset[str], float] | None = None,
        dead: str = "",
        noise: float = 0.02,
        crowd: int = 0,
        seed: object = 0,
    ) -> None:
        self.nodes = [f"h{number:03}" for number in range(count)]
        self.bad, self.links, self.dead = bad or {}, links or {}, dead
        self.noise, self.crowd = noise, crowd
        self.dice = random.Random(str(seed))

    def measure(self, number: int, pairs: list[tuple[str, str]]) -> list[PairResult]:
        crowded = bool(self.crowd) and len(pairs) > self.crowd
        found = []
        for place, (one, other) in enumerate(pairs):
            if self.dead in (one, other):
                found.append(PairResult(number, [one, other], 1 << 28, None, "cannot connect: timed out"))
                continue
            share = min(self.bad.get(one, 1.0), self.bad.get(other, 1.0)) * self.links.get(frozenset((one, other)), 1.0)
            share *= 0.5 if crowded and place % 2 else 1.0
            found.append(PairResult(number, [one, other], 1 << 28, SPEED * share * self.dice.gauss(1, self.noise)))
        return found


def run(cluster: Cluster, round_robin: bool = False) -> tuple[list[PairResult], int]:
    """All results, and after how many rounds the search was finished. No node may be in two pairs of one round."""
    search = PairSearch(cluster.nodes, round_robin)
    results: list[PairResult] = []
    for number in range(1, MOST_ROUNDS):
        pairs = search.next_round(results)
        if not pairs:
            return results, number - 1
        assert len({node for pair in pairs for node in pair}) == 2 * len(pairs)
        results += cluster.measure(number, pairs)
    raise AssertionError("the search does not end")
