"""Bad nodes and bad links in simulated clusters: 2 % noise, bad nodes 15 to 50 % slower."""

from __future__ import annotations

import random

import pytest

from mltop.probes.judge.probes.pairs import judge_pairs
from tests.builders.simulated_pairs import Cluster, run


def accused(cluster: Cluster, round_robin: bool = False) -> tuple[set[str], int]:
    results, rounds = run(cluster, round_robin)
    return {suspect.node for suspect in judge_pairs(cluster.nodes, results).suspects}, rounds


def some_bad(count: int, how_many: int, seed: object) -> Cluster:
    dice = random.Random(f"{count} {how_many} {seed}")
    names = Cluster(count).nodes
    return Cluster(count, {name: dice.uniform(0.5, 0.85) for name in dice.sample(names, how_many)}, seed=seed)


@pytest.mark.parametrize(("count", "trials"), [(16, 200), (64, 200), (256, 200)])
def test_one_to_four_bad_nodes_are_found_exactly(count: int, trials: int) -> None:
    many_rounds = 0
    for trial in range(trials):
        cluster = some_bad(count, 1 + trial % 4, trial)
        found, rounds = accused(cluster)
        assert found == set(cluster.bad), trial
        many_rounds += rounds > 3
    assert count == 16 or many_rounds == 0


@pytest.mark.parametrize(("count", "bad"), [(2, 0), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3), (8, 4)])
def test_half_of_few_nodes_may_be_bad(count: int, bad: int) -> None:
    for trial in range(100):
        cluster = some_bad(count, bad, trial)
        found, rounds = accused(cluster)
        assert found == set(cluster.bad), trial
        doubted = count in (3, 4)  # one good pair is left: it is measured once more
        assert rounds == (count if count % 2 else count - 1) + doubted


def test_half_of_more_nodes_may_be_bad_nearly_always() -> None:
    """When half of the first pairs are bad, the good ones may be too: every pair is measured (else 43 are exact)."""
    exact = 0
    for trial in range(60):
        cluster = some_bad(12, 6, trial)
        exact += accused(cluster)[0] == set(cluster.bad)
    assert exact >= 54


@pytest.mark.parametrize("count", [2, 3, 4, 8, 9, 16, 17, 64])
def test_all_good_or_all_equally_bad_accuses_nobody(count: int) -> None:
    for trial in range(40):
        good = Cluster(count, seed=trial)
        assert accused(good)[0] == set(), trial
        assert accused(good, round_robin=True)[0] == set() if count <= 16 else True
        assert accused(Cluster(count, dict.fromkeys(good.nodes, 0.4), seed=trial))[0] == set(), trial


@pytest.mark.parametrize("count", [8, 16])
@pytest.mark.parametrize("links", [1, 2])
def test_bad_links_are_found_by_every_pair(count: int, links: int) -> None:
    for trial in range(40):
        dice = random.Random(f"links {count} {links} {trial}")
        names = Cluster(count).nodes
        chosen = dice.sample(names, 2 * links)
        bad = {frozenset(chosen[place : place + 2]): dice.uniform(0.4, 0.8) for place in range(0, 2 * links, 2)}
        found, rounds = accused(Cluster(count, links=bad, seed=trial), round_robin=True)
        assert found == {" – ".join(sorted(pair)) for pair in bad}, trial
        assert rounds == count - 1


def test_a_bad_node_and_a_bad_link_are_told_apart() -> None:
    for trial in range(40):
        links = {frozenset(("h003", "h009")): 0.6}
        found, _ = accused(Cluster(16, {"h005": 0.7}, links, seed=trial), round_robin=True)
        assert found == {"h005", "h003 – h009"}, trial


def test_a_node_that_fails_is_found() -> None:
    for trial in range(20):
        cluster = Cluster(16, dead=f"h{trial % 16:03}", seed=trial)
        assert accused(cluster)[0] == {cluster.dead}, trial


def test_a_crowded_network_accuses_nobody() -> None:
    """Half of the pairs are slow when many run at once: measured again, a quarter of all at a time, they are fine."""
    for trial in range(20):
        found, rounds = accused(Cluster(64, crowd=10, seed=trial))
        assert found == set(), trial
        assert rounds == 1 + 2
