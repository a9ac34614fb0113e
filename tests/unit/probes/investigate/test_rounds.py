"""When the next dump is due."""

from __future__ import annotations

from mltop.probes.investigate.rounds import MOVING_ROUNDS, Plan, judge_due, next_pause
from mltop.probes.model import JobReport, Verdict


def reports(kind: str, confidence: str = "low") -> list[JobReport]:
    return [JobReport("j", 4, Verdict(kind, confidence=confidence))]


def test_a_fixed_number_of_rounds_is_kept() -> None:
    plan = Plan(rounds=3)
    assert next_pause(plan, 2, reports("hang", "high"), 0.5) == 1.0
    assert next_pause(plan, 3, reports("moving"), 0.5) is None


def test_a_certain_hang_needs_no_more_rounds() -> None:
    assert next_pause(Plan(), 1, reports("hang", "high"), 0.5) is None


def test_an_uncertain_hang_is_watched_for_ten_seconds_and_no_longer() -> None:
    pauses, done = [], 1
    while (pause := next_pause(Plan(), done, reports("hang", "medium"), 0.5)) is not None:
        pauses.append(pause)
        done += 1
    assert 10.0 <= sum(pauses) <= 12.0


def test_a_moving_job_is_dumped_often_but_not_for_ever() -> None:
    assert (next_pause(Plan(), 4, reports("moving"), 0.5) or 9.0) < 0.5
    assert next_pause(Plan(), MOVING_ROUNDS, reports("straggler"), 0.5) is None


def test_no_job_no_further_round() -> None:
    assert next_pause(Plan(), 1, [], 0.5) is None


def test_pauses_are_spread() -> None:
    assert next_pause(Plan(), 1, reports("unclear"), 0.0) != next_pause(Plan(), 1, reports("unclear"), 1.0)


def test_every_round_is_judged_while_that_is_cheap() -> None:
    assert all(judge_due(Plan(), done, reports("moving"), 0.05) for done in range(1, MOVING_ROUNDS + 1))


def test_a_large_job_that_moves_is_not_judged_after_every_round() -> None:
    judged = [done for done in range(1, MOVING_ROUNDS + 1) if judge_due(Plan(), done, reports("moving"), 2.0)]
    assert judged == [4, 8, 12, 16]
    assert judge_due(Plan(), 2, reports("hang"), 2.0)
    assert judge_due(Plan(rounds=7), 7, reports("hang"), 2.0)
    assert not judge_due(Plan(rounds=7), 6, reports("hang"), 2.0)
