"""Who is slow in a job that moves: luck is told from slowness by Fisher's exact test."""

from __future__ import annotations

import random

import pytest

from mltop.probes.judge.hang.job import read_roster
from mltop.probes.judge.hang.movement import chance_of_at_most, find_stragglers
from mltop.probes.judge.hang.verdict import judge_job
from mltop.probes.model import Verdict
from tests.builders.stack_evidence import Rank, Stack, all_reduce, compute, evidence

WAITING, WORKING = all_reduce(), compute()


def moving(waits: dict[int, list[bool]]) -> dict[int, Rank]:
    """Ranks that wait in these dumps and compute in the others."""

    def rank(mine: list[bool]) -> Rank:
        def at(turn: int) -> Stack:
            return WAITING if mine[turn] else WORKING

        return Rank(at, switches_per_s=9)

    return {number: rank(mine) for number, mine in waits.items()}


def slow_ranks(waits: dict[int, list[bool]]) -> list[int | None]:
    rounds = len(next(iter(waits.values())))
    roster = read_roster(evidence(moving(waits), rounds=rounds, gap_s=0.4))
    return [one.rank for one in find_stragglers(roster.views)[0]]


@pytest.mark.parametrize("share", [0.3, 0.4, 0.5, 0.6, 0.7])
def test_equal_ranks_are_not_called_slow(share: float) -> None:
    dice = random.Random(f"share {share}")
    trials = 40
    named = 0
    for count in range(2, 9):
        for _ in range(trials):
            waits = {number: [dice.random() < share for _ in range(16)] for number in range(count)}
            named += bool(slow_ranks(waits))
    assert named <= 0.01 * trials * 7


@pytest.mark.parametrize("count", [2, 4, 8, 16])
@pytest.mark.parametrize(("slow_hits", "other_hits", "rounds"), [(0, 13, 16), (1, 13, 16), (1, 16, 16), (0, 7, 8)])
def test_a_slow_rank_is_found(count: int, slow_hits: int, other_hits: int, rounds: int) -> None:
    waits = {number: [turn < other_hits for turn in range(rounds)] for number in range(count)}
    waits[1] = [turn < slow_hits for turn in range(rounds)]
    assert slow_ranks(waits) == [1]


def test_the_tail_is_that_of_drawing_without_replacement() -> None:
    assert chance_of_at_most(0, 2, 2, 4) == pytest.approx(1 / 6)
    assert chance_of_at_most(1, 2, 2, 4) == pytest.approx(5 / 6)
    assert chance_of_at_most(2, 2, 2, 4) == pytest.approx(1.0)
    assert chance_of_at_most(0, 3, 3, 4) == 0.0  # only one of four is a miss


def test_shares_are_told_in_the_order_of_ranks() -> None:
    waits = {number: [turn < 13 for turn in range(16)] for number in range(4)}
    waits[1] = [False] * 16
    verdict: Verdict = judge_job(evidence(moving(waits), rounds=16, gap_s=0.4))
    (line,) = [line for line in verdict.evidence if line.startswith("share of dumps")]
    assert line.endswith("rank 0 81%, rank 1 0%, rank 2 81%, rank 3 81%")
