"""The slow rank is who comes last, not who waits; what is missing is said; sentences of a deadline."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from mltop.probes.investigate.probing.member import Joining, Member, joined_sentence
from mltop.probes.judge.probes.collective import (
    arrivals,
    busbw_factor,
    find_late,
    judge_collective,
    merge_times,
    with_expected,
)
from mltop.probes.judge.probes.hardware.peaks import Expected
from mltop.probes.model.probe import CollectiveResult, PastResult, ProbeFailure, RankArrival, RankTimes
from tests.builders.gloo_times import EIGHT, EIGHT_SLOW, TWO, TWO_SLOW

MIB = 1 << 20


def measured(rows: Sequence[Sequence[float]], size: int = 16 * MIB, **more: object) -> list[RankTimes]:
    """One row of ms for each rank, all on h01."""
    return [
        replace(RankTimes(1, 0, "all-reduce", size, rank, len(rows), "h01", times_s=[one / 1e3 for one in row]), **more)
        for rank, row in enumerate(rows)
    ]


def simulated(
    ranks: int,
    delays: Mapping[int, float] | None = None,
    noise_s: float = 0.005,
    hit: float = 1.0,
    iterations: int = 20,
    sizes: int = 3,
    seed: object = 0,
    per_node: int = 2,
    work_s: float | None = None,
) -> list[RankTimes]:
    """Ranks start when their work is done: the scheduler delays each with probability ``hit``, ``delays`` always."""
    dice = random.Random(f"{ranks} {seed}")
    found = []
    for place in range(sizes):
        rows: list[list[float]] = [[] for _ in range(ranks)]
        for _ in range(iterations):
            starts = [
                (dice.expovariate(1 / noise_s) if noise_s and dice.random() < hit else 0.0)
                + (delays or {}).get(rank, 0.0)
                for rank in range(ranks)
            ]
            end = max(starts) + 0.01 * 4**place * (1 + abs(dice.gauss(0, 0.1)))
            for rank, row in enumerate(rows):
                row.append(end - starts[rank] + (dice.expovariate(5 / noise_s) if noise_s else 0.0))
        for rank, row in enumerate(rows):
            own = None if work_s is None else work_s + (delays or {}).get(rank, 0.0)
            node = f"h{rank // per_node + 1:02}"
            found.append(RankTimes(1, 0, "all-reduce", MIB << (4 * place), rank, ranks, node, times_s=row, work_s=own))
    return found


def late(times: Sequence[RankTimes], backend: str = "gloo") -> set[int]:
    return {one.rank for one in find_late(merge_times(times, backend))}


def test_bandwidths_are_those_of_nccl_tests() -> None:
    (result,) = merge_times(measured([[10.0, 12.0, 11.0], [11.0, 10.0, 30.0]]), "nccl")
    assert result.time_s == pytest.approx(0.012)  # the slowest rank's: 11, 12, 30
    assert (result.best_s, result.p95_s, result.iterations) == (pytest.approx(0.011), pytest.approx(0.030), 3)
    assert result.algbw_bytes_per_s == pytest.approx(16 * MIB / 0.012)
    assert result.busbw_bytes_per_s == pytest.approx(16 * MIB / 0.012)  # 2(2-1)/2
    assert (result.path, result.nodes, result.wrong, result.gaps) == ("NCCL", ["h01"], 0, {})


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all-reduce", 1.75), ("all-gather", 0.875), ("reduce-scatter", 0.875), ("all-to-all", 0.875), ("broadcast", 1.0)],
)
def test_factors_of_eight_ranks(collective: str, factor: float) -> None:
    assert busbw_factor(collective, 8) == factor


def test_each_round_group_collective_and_size_is_a_result() -> None:
    first = measured([[1.0] * 5] * 2, MIB)
    others = [
        replace(one, **change) for one in first for change in ({"group": 1}, {"round": 2}, {"collective": "all-gather"})
    ]
    results = merge_times([*first, *measured([[2.0] * 5] * 2, 4 * MIB), *others], "gloo")
    assert len(results) == 5
    assert [one.size_bytes for one in results[:2]] == [MIB, 4 * MIB]
    assert results[0].path == "gloo over TCP: not the training path"


def test_missing_ranks_and_iterations_are_said() -> None:
    times = measured([[10.0] * 20, [10.0] * 20, [10.0] * 18, []])
    (result,) = merge_times(times, "gloo")
    assert result.gaps == {
        "ranks": "rank 3 of 4 gave no times: those of the others count",
        "iterations": "rank 2 gave 18 of 20 iterations: the first 18 count",
    }
    assert (result.ranks, result.iterations, [one.rank for one in result.arrivals]) == (4, 18, [0, 1, 2])
    assert set(judge_collective([result]).details) >= set(result.gaps.values())


def test_no_times_no_result() -> None:
    (result,) = merge_times(measured([[], []]), "gloo")
    assert (result.time_s, result.busbw_bytes_per_s, result.arrivals) == (None, None, [])
    assert judge_collective([result]).text == "no collective was measured"
    assert merge_times([], "gloo") == []


def test_one_rank_has_no_bus() -> None:
    (result,) = merge_times(measured([[1.0] * 5]), "gloo")
    assert result.busbw_bytes_per_s is None
    assert judge_collective([result]).text.startswith("1 rank on 1 node: all-reduce of 16 MiB in 1.00 ms")


def test_who_comes_last_has_the_shortest_time() -> None:
    """As measured: medians of 31.6, 1.4 and 31.6 ms when rank 1 is delayed by 30 ms."""
    found = arrivals(measured([[31.6] * 20, [1.4] * 20, [31.6] * 20]))
    assert [one.lag_s for one in found] == [0.0, pytest.approx(0.0302), 0.0]
    assert [one.late_share for one in found] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("rows", "expected"), [(EIGHT, set()), (EIGHT_SLOW, {1}), (TWO, set()), (TWO_SLOW, {1})])
def test_measured_on_two_cores(rows: Sequence[Sequence[float]], expected: set[int]) -> None:
    assert late(measured(rows)) == expected


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize(("noise_s", "hit"), [(0.005, 1.0), (0.005, 0.3), (0.01, 1.0)])
def test_30_ms_are_found_and_noise_is_not(ranks: int, noise_s: float, hit: float) -> None:
    accused = 0
    for trial in range(25):
        slow = trial % ranks
        assert late(simulated(ranks, {slow: 0.03}, noise_s, hit, seed=trial)) == {slow}, trial
        for sizes, iterations in ((3, 20), (1, 20), (1, 5)):
            quiet = simulated(ranks, None, noise_s, hit, iterations, sizes, seed=trial)
            accused += bool(late(quiet))
    assert accused <= 1  # of 75


@pytest.mark.parametrize(("ranks", "slow"), [(4, {0, 3}), (8, {1, 2, 6}), (8, {0, 1, 2, 3})])
def test_several_late_ranks(ranks: int, slow: set[int]) -> None:
    assert late(simulated(ranks, dict.fromkeys(slow, 0.03))) == slow


def test_when_most_are_late_nobody_is_accused_but_it_is_said() -> None:
    verdict = judge_collective(merge_times(simulated(8, dict.fromkeys(range(1, 8), 0.03), 0.001), "gloo"))
    assert not verdict.suspects
    assert "most ranks are late: rank 0 waits for them (clearly earlier in most collectives)" in verdict.details


def lags(one_ms: float, others_ms: float, share: float, usual_share: float) -> list[CollectiveResult]:
    """8 ranks, of which rank 5 comes by so much later than the first."""
    found = [
        RankArrival(rank, "h01", None, 0.05, one_ms / 1e3 if rank == 5 else others_ms / 1e3, None, usual_share)
        for rank in range(8)
    ]
    found[5].late_share = share
    return [CollectiveResult("all-reduce", "gloo", MIB, 8, ["h01"], 20, time_s=0.05, arrivals=found)]


@pytest.mark.parametrize(
    ("one_ms", "others_ms", "share", "usual_share", "expected"),
    [
        (30.0, 1.0, 1.0, 0.0, [5]),
        (30.0, 1.0, 0.6, 0.05, [5]),  # a rank that stalls now and then is late too
        (30.0, 1.0, 0.6, 0.5, []),  # by luck
        (4.0, 0.0, 1.0, 0.0, []),  # less than a scheduler's slice
        (22.0, 12.0, 1.0, 0.1, []),  # where every rank lags by 12 ms
        (32.0, 12.0, 1.0, 0.1, [5]),
    ],
)
def test_how_late_is_late(
    one_ms: float, others_ms: float, share: float, usual_share: float, expected: list[int]
) -> None:
    assert [one.rank for one in find_late(lags(one_ms, others_ms, share, usual_share))] == expected


def test_a_lag_must_show_at_most_sizes() -> None:
    slow, quiet = lags(30.0, 1.0, 1.0, 0.0), lags(1.0, 1.0, 0.1, 0.1)
    assert find_late([*slow, *quiet, *quiet, *quiet]) == []
    assert [one.rank for one in find_late([*slow, *slow, *quiet])] == [5]


def test_gpus_are_judged_more_finely() -> None:
    times = simulated(8, {5: 0.003}, noise_s=0.00005)
    assert late(times, "nccl") == {5}
    assert late(times, "gloo") == set()


def test_a_late_rank_in_words() -> None:
    slow = simulated(8, {5: 0.03}, noise_s=0.0, work_s=0.002)
    verdict = judge_collective(merge_times(slow, "gloo"))
    assert verdict.text.endswith(
        "; rank 5 (h03) comes 30.0 ms late to every collective, the others wait: its own work takes 32.0 ms, the "
        "others' 2.00 ms"
    )
    assert [(one.node, one.rank, one.gpu) for one in verdict.suspects] == [("h03", 5, None)]
    without = [replace(one, work_s=0.002, gpu=one.rank) for one in slow]
    assert "rank 5 (GPU 5 on h03) comes 30.0 ms late to every collective, the others wait (its own work is as fast" in (
        judge_collective(merge_times(without, "gloo")).text
    )


def test_a_little_slower_work_does_not_explain_a_long_lag() -> None:
    late = simulated(8, {5: 0.03}, noise_s=0.0, work_s=0.002)
    times = [replace(one, work_s=0.0024 if one.rank == 5 else 0.002) for one in late]
    text = judge_collective(merge_times(times, "nccl")).text
    assert "the others wait (its own work takes 2.40 ms, the others' 2.00 ms: too little to explain it)" in text


def test_a_node_whose_ranks_are_all_late_is_named_as_one() -> None:
    verdict = judge_collective(merge_times(simulated(8, {2: 0.03, 3: 0.03}), "gloo"))
    assert [(one.node, one.rank) for one in verdict.suspects] == [("h02", None)]
    assert "all 2 ranks of h02 come" in verdict.text
    alone = judge_collective(merge_times(simulated(8, {2: 0.03, 3: 0.03}, per_node=8), "gloo"))
    assert sorted(one.rank or 0 for one in alone.suspects) == [2, 3]


def test_nobody_late() -> None:
    verdict = judge_collective(merge_times(simulated(4, noise_s=0.0), "gloo"))
    assert verdict.text.startswith("4 ranks on 2 nodes: all-reduce of 256 MiB at ")
    assert verdict.text.endswith(" busbw (gloo over TCP: not the training path)")
    assert not verdict.suspects
    assert any(line.startswith("no rank is late") for line in verdict.details)


@pytest.mark.parametrize(
    ("wrong", "suspects", "who"),
    [([3], [3], "rank 3 of 8"), ([0, 1, 2, 3, 4, 5, 6, 7], [], "ranks 0-7 of 8")],
)
def test_wrong_results_come_first(wrong: list[int], suspects: list[int], who: str) -> None:
    times = [replace(one, wrong=int(one.rank in wrong)) for one in simulated(8, noise_s=0.0, sizes=1)]
    (result,) = merge_times(times, "nccl")
    verdict = judge_collective([result])
    assert (result.wrong, result.wrong_ranks) == (len(wrong), wrong)
    assert verdict.text.startswith(f"WRONG RESULTS: {who} got wrong values in all-reduce of 1 MiB; 8 ranks")
    assert [one.rank for one in verdict.suspects] == suspects


def one_size(seconds: float, certain: bool = True, expected: float | None = 476e9) -> CollectiveResult:
    (result,) = merge_times(measured([[seconds * 1e3] * 10] * 8, 1 << 30), "nccl")
    return with_expected(result, None if expected is None else Expected(expected, "Azure's guide", certain))


@pytest.mark.parametrize(
    ("result", "in_text", "in_details"),
    [
        (one_size(0.008), ", only 49 % of the 476 GB/s known for it", "49 % of 476 GB/s (Azure's guide)"),
        (one_size(0.008, certain=False), "", "49 % of 476 GB/s (Azure's guide); that figure is not certain"),
        (one_size(0.004), "", "99 % of 476 GB/s (Azure's guide)"),
        (one_size(0.008, expected=None), "", ""),
    ],
)
def test_the_expected_figure_counts_when_it_is_certain(result: CollectiveResult, in_text: str, in_details: str) -> None:
    verdict = judge_collective([result])
    assert not verdict.suspects
    assert in_text in verdict.text
    assert ("only" in verdict.text) == bool(in_text)
    assert in_details in " ".join(verdict.details)


def test_own_history_goes_before_the_table() -> None:
    past = [PastResult("nodes h01", "all-reduce nccl 1073741824 ranks 8", 400e9, at) for at in range(3)]
    text = judge_collective([one_size(0.008)], [], past).text
    assert ", 41 % slower than its last 3 results (400 GB/s)" in text
    assert "known for it" not in text


def test_failures_are_told() -> None:
    died = ProbeFailure("h02", "died: killed (SIGKILL)", rank=3, stage="measure 256 MiB")
    absent = [ProbeFailure(f"h1{number}", "no Python with torch", refused=True) for number in range(2)]
    verdict = judge_collective(merge_times(simulated(4, noise_s=0.0), "gloo"), [died, *absent])
    assert "; h02 rank 3: died: killed (SIGKILL); h[10-11]: no Python with torch" in verdict.text
    assert [(one.node, one.rank) for one in verdict.suspects] == [("h02", 3)]
    assert judge_collective([], absent).text == "no collective was measured: h[10-11]: no Python with torch"


def nodes(count: int, joined: int, *others: Joining) -> list[Joining]:
    return [Joining(f"node-{number:02}", True) for number in range(count - len(others)) if number < joined] + list(
        others
    )


def sentences() -> Iterator[tuple[list[Joining], float, str]]:
    yield nodes(16, 16), 4.2, "all 16 nodes joined within 4 s"
    yield (
        nodes(16, 15, Joining("node-97", False, "import torch", 22.3)),
        12.0,
        "15 of 16 nodes joined within 12 s; waiting for node-97: ssh fine, torch import 22 s so far",
    )
    yield (
        nodes(16, 13, *(Joining(f"node-9{number}", False, "import torch", 20.0 + number) for number in range(3))),
        12.0,
        "13 of 16 nodes joined within 12 s; waiting for node-[90-92]: ssh fine, torch import 22 s so far",
    )
    yield (
        nodes(4, 2, Joining("h3", False, "", 12.0), Joining("h4", False, "", 12.0, "no Python with torch")),
        12.0,
        "2 of 4 nodes joined within 12 s; waiting for h3: no word of its probe for 12 s; h4: no Python with torch",
    )
    yield (
        nodes(2, 1, Joining("h3", False, "", 12.0, reached=False)),
        12.0,
        "1 of 2 nodes joined within 12 s; waiting for h3: not reached for 12 s",
    )


@pytest.mark.parametrize(("waited", "elapsed_s", "sentence"), list(sentences()))
def test_whom_the_others_wait_for(waited: list[Joining], elapsed_s: float, sentence: str) -> None:
    assert joined_sentence(waited, elapsed_s) == sentence


def test_many_nodes_in_many_states_stay_one_line() -> None:
    waited = [Joining(f"h{number:03}", False, f"stage {number % 7}", 10.0 * number) for number in range(400)]
    assert len(joined_sentence(waited, 30.0)) < 500


def test_whether_a_silent_node_is_reached_is_told_by_its_stream() -> None:
    member = Member("h3")
    for phase, words in (
        ("live", "ssh fine, no word of its probe for 12 s"),
        ("stale", "ssh fine, no word of its probe for 12 s"),
        ("connecting", "not reached for 12 s"),
        ("lost", "not reached for 12 s"),
    ):
        waited = [Joining("h1", True), member.joining(phase, member.stage_at + 12.0)]
        assert joined_sentence(waited, 12.0) == f"1 of 2 nodes joined within 12 s; waiting for h3: {words}"
