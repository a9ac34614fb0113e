"""Which pairs are measured next, and what is said in the end."""

from __future__ import annotations

from itertools import combinations

import pytest

from mltop.probes.judge.probes.hardware.peaks import Expected
from mltop.probes.judge.probes.pairs import PairSearch, circle_rounds, judge_pairs
from mltop.probes.model.probe import PairResult
from tests.builders.simulated_pairs import Cluster, run


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 16])
def test_the_circle_has_every_pair_once(count: int) -> None:
    nodes = [f"h{number}" for number in range(count)]
    rounds = circle_rounds(nodes)
    assert len(rounds) == (count if count % 2 else count - 1)
    for pairs in rounds:
        met = [node for pair in pairs for node in pair]
        assert len(met) == len(set(met)) == count - count % 2
    every = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(every) == len(set(every))
    assert set(every) == {frozenset(pair) for pair in combinations(nodes, 2)}


@pytest.mark.parametrize("nodes", [[], ["h1"]])
def test_one_node_has_no_pair(nodes: list[str]) -> None:
    assert PairSearch(nodes).next_round([]) == []
    assert PairSearch(nodes, round_robin=True).next_round([]) == []


def test_the_first_round_depends_on_the_names_alone() -> None:
    names = Cluster(16).nodes
    assert PairSearch(names).next_round([]) == PairSearch(names[::-1]).next_round([])
    neighbours = [tuple(names[place : place + 2]) for place in range(0, 16, 2)]
    assert PairSearch(names).next_round([]) != neighbours


def test_good_nodes_are_measured_once() -> None:
    results, rounds = run(Cluster(64))
    assert (len(results), rounds) == (32, 1)
    assert run(Cluster(17))[1] == 2  # the odd one meets another in a round of its own


def test_each_suspect_meets_a_good_node() -> None:
    cluster = Cluster(64, {"h007": 0.6})
    results, rounds = run(cluster)
    assert rounds == 2
    first = next(one.nodes for one in results if "h007" in one.nodes)
    second = [one.nodes for one in results if one.round == 2]
    assert len(second) == 2
    assert {node for pair in second for node in pair} > set(first)
    assert sorted(first) not in [sorted(pair) for pair in second]


def test_many_bad_pairs_are_measured_again_fewer_at_once() -> None:
    results, rounds = run(Cluster(64, crowd=10))
    assert rounds == 3
    assert [sum(one.round == number for one in results) for number in range(1, 4)] == [32, 8, 8]
    assert "16 of them twice" in " ".join(judge_pairs(Cluster(64).nodes, results).details)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 9, 64])
def test_most_rounds_is_enough_for_one_bad_node(count: int) -> None:
    cluster = Cluster(count, {"h001": 0.5} if count > 2 else {})
    search = PairSearch(cluster.nodes)
    assert (run(cluster)[1] if count else 0) <= search.most_rounds()


def test_a_bad_node_in_words() -> None:
    cluster = Cluster(16, {"h005": 0.6}, noise=0.0)
    verdict = judge_pairs(cluster.nodes, run(cluster)[0])
    assert verdict.text == (
        "15 of 16 nodes fine in pairs: 48.0 GB/s busbw at 256 MiB; h005 is 40 % slower than the others in all 2 of its "
        "pairs"
    )
    assert "ibstat" in verdict.suspects[0].action


def of_pairs(*values: tuple[str, str, float | None]) -> list[PairResult]:
    """One result in each round."""
    return [PairResult(number, [a, b], 1 << 20, value) for number, (a, b, value) in enumerate(values, 1)]


NOISY = [
    ("n1", "n4", 0.61e9), ("n2", "n3", 0.70e9), ("n1", "n2", 0.53e9),
    ("n3", "n4", 0.52e9), ("n1", "n3", 0.51e9), ("n2", "n4", 0.49e9),
]  # fmt: skip


def test_the_only_good_pair_is_measured_again_before_others_are_accused_by_it() -> None:
    names = ["n1", "n2", "n3", "n4"]
    results = of_pairs(*NOISY)
    once = judge_pairs(names, results)
    assert (once.suspects, once.text) == ([], "nobody can be accused: only n2 – n3 was fast, and was measured once")
    assert PairSearch(names).next_round(results) == [("n2", "n3")]

    noise = of_pairs(*NOISY, ("n2", "n3", 0.54e9))
    verdict = judge_pairs(names, noise)
    assert verdict.suspects == []
    assert verdict.text == ("nobody can be accused: only n2 – n3 was fast, and not each time (0.70 GB/s and 0.54 GB/s)")
    assert PairSearch(names).next_round(noise) == []

    sure = judge_pairs(names, of_pairs(*NOISY, ("n2", "n3", 0.69e9)))
    assert [suspect.node for suspect in sure.suspects] == ["n1", "n4"]


def test_one_that_fails_with_both_others_is_accused_by_a_single_pair() -> None:
    results = of_pairs(("n1", "n2", 1e9), ("n1", "n3", None), ("n2", "n3", None))
    assert PairSearch(["n1", "n2", "n3"]).next_round(results) == []
    assert [suspect.node for suspect in judge_pairs(["n1", "n2", "n3"], results).suspects] == ["n3"]


def test_a_node_that_fails_in_words() -> None:
    cluster = Cluster(16, dead="h005", noise=0.0)
    verdict = judge_pairs(cluster.nodes, run(cluster)[0])
    assert "h005 fails in all 2 of its pairs: cannot connect: timed out" in verdict.text


def test_a_bad_link_in_words() -> None:
    cluster = Cluster(8, links={frozenset(("h001", "h006")): 0.5}, noise=0.0)
    verdict = judge_pairs(cluster.nodes, run(cluster, round_robin=True)[0])
    assert verdict.text == (
        "8 of 8 nodes fine in pairs: 48.0 GB/s busbw at 256 MiB; the path between h001 and h006 is slow, both ends are "
        "fine with others"
    )
    assert [one.node for one in verdict.suspects] == ["h001 – h006"]


def test_two_parts_of_a_network_that_are_badly_connected() -> None:
    names = Cluster(8).nodes
    links = {frozenset((one, other)): 0.5 for one in names[:4] for other in names[4:]}
    cluster = Cluster(8, links=links, noise=0.0)
    verdict = judge_pairs(names, run(cluster, round_robin=True)[0])
    assert "the path between h[000-003] and h[004-007] is slow" in verdict.text
    assert len(verdict.suspects) == 16


def test_a_node_that_is_slow_with_most_others_is_the_bad_one() -> None:
    names = Cluster(16).nodes
    links = {frozenset(("h004", other)): 0.5 for other in names[5:16]}
    verdict = judge_pairs(names, run(Cluster(16, links=links, noise=0.0), round_robin=True)[0])
    assert [one.node for one in verdict.suspects] == ["h004"]
    assert "h004 is 50 % slower than the others in 11 of its 15 pairs" in verdict.text


@pytest.mark.parametrize(
    ("expected", "in_text", "in_details"),
    [
        (Expected(96e9, "a source", True), "all are slow: 50 % of the 96.0 GB/s known for two (a source)", ""),
        (Expected(96e9, "a source", False), "", "that figure is not certain"),
        (Expected(50e9, "a source", True), "", "96 % of the 50.0 GB/s known for two (a source)"),
        (None, "", ""),
    ],
)
def test_all_alike_beside_the_figure_for_two_nodes(expected: Expected | None, in_text: str, in_details: str) -> None:
    cluster = Cluster(4, noise=0.0)
    verdict = judge_pairs(cluster.nodes, run(cluster)[0], expected)
    assert not verdict.suspects
    assert verdict.text.startswith("4 nodes alike in pairs: 48.0 GB/s busbw at 256 MiB")
    assert in_text in verdict.text
    assert ("slow" in verdict.text) == bool(in_text)
    assert in_details in " ".join(verdict.details)


def test_nothing_worked() -> None:
    failed = [
        PairResult(1, ["a", "b"], 1 << 20, None, "NCCL: no route"),
        PairResult(1, ["c", "d"], 1 << 20, None, "NCCL: no route"),
    ]
    verdict = judge_pairs(["a", "b", "c", "d"], failed)
    assert verdict.text == "none of 2 pairs worked: NCCL: no route"
    assert not verdict.suspects
    assert judge_pairs(["a", "b"], []).text == "no pair was measured"


def test_a_search_that_was_ended_early_accuses_no_one_it_has_not_confirmed() -> None:
    cluster = Cluster(16, {"h005": 0.6}, noise=0.0)
    results = [one for one in run(cluster)[0] if one.round == 1]
    verdict = judge_pairs(cluster.nodes, results)
    assert not verdict.suspects
    assert any("unclear" in line and "005" in line for line in verdict.details)


def test_one_bad_pair_is_too_little_to_accuse() -> None:
    """The odd node's only pair, with a good node, is bad: it meets another before anybody is accused."""
    names = Cluster(17).nodes
    first = PairSearch(names).next_round([])
    odd = (set(names) - {node for pair in first for node in pair}).pop()
    good = Cluster(17, noise=0.0).measure(1, first)
    (pair,) = PairSearch(names).next_round(good)
    assert odd in pair
    cluster = Cluster(17, links={frozenset(pair): 0.5}, noise=0.0)
    verdict = judge_pairs(names, run(cluster)[0])
    assert [one.node for one in verdict.suspects] == [" – ".join(sorted(pair))]
    assert not judge_pairs(names, [*good, *cluster.measure(2, [pair])]).suspects


def test_when_no_first_pair_may_be_good_every_pair_is_measured() -> None:
    first = PairSearch(Cluster(12).nodes).next_round([])
    bad = {pair[0]: share for pair, share in zip(first, (0.85, 0.8, 0.72, 0.65, 0.6, 0.5), strict=True)}
    verdict = judge_pairs(Cluster(12).nodes, run(Cluster(12, bad, noise=0.0))[0])
    assert {one.node for one in verdict.suspects} == set(bad)


def test_nodes_that_were_not_measured_are_named() -> None:
    verdict = judge_pairs(["a", "b", "c"], [PairResult(1, ["a", "b"], 1 << 20, 48e9)])
    assert "not measured: c" in verdict.details


def test_of_several_sizes_the_largest_counts() -> None:
    small = [PairResult(1, ["a", "b"], 1 << 20, 5e9), PairResult(1, ["c", "d"], 1 << 20, 1e9)]
    large = [PairResult(1, ["a", "b"], 1 << 28, 48e9), PairResult(1, ["c", "d"], 1 << 28, 48e9)]
    assert not judge_pairs(["a", "b", "c", "d"], small + large).suspects
