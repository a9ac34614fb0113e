"""When to dump the next time: enough rounds to be sure, no more.

A hang is certain after a window of some seconds in which nothing moved (or at once, when the samples of the last
minutes already show the standstill). A job that moves is dumped more often, to see who waits for whom.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from mltop.probes.model import JobReport

STUCK_GAPS_S = (1.0, 2.0, 2.5, 5.0)  # pauses before round 2, 3, 4, 5: the window grows to 5.5, then 10.5 s
MOVING_GAP_S = 0.35  # between rounds once the job was seen to move
MOVING_ROUNDS = 16
TAIL_ROUNDS = 6  # of a job that moved: when it stands still in so many at the end, it may just have hung
JITTER = 0.3  # of a pause, so that rounds do not fall into step with the job
CHEAP_JUDGE_S = 0.15  # judging that takes longer is not done after every round of a job that moves
JUDGE_EVERY = 4  # rounds, of those


@dataclass(frozen=True)
class Plan:
    """``rounds``: exactly so many (the user's --samples), None: as many as it takes. ``gap_s``: between those."""

    rounds: int | None = None
    gap_s: float = 1.0

    @property
    def most_rounds(self) -> int:
        return self.rounds if self.rounds is not None else MOVING_ROUNDS


def next_pause(plan: Plan, done: int, reports: list[JobReport], random_unit: float) -> float | None:
    """Seconds until the next round after ``done`` rounds, None when it is enough.

    ``random_unit`` is in 0..1 and spreads the pauses.
    """
    spread = 1.0 + JITTER * (random_unit - 0.5)
    if plan.rounds is not None:
        return plan.gap_s * spread if done < plan.rounds else None
    kinds = {report.verdict.kind for report in reports}
    if kinds & {"moving", "straggler"}:
        return MOVING_GAP_S * spread if done < MOVING_ROUNDS else None
    settled = bool(reports) and all(report.verdict.confidence == "high" for report in reports)
    if settled or not reports or done > len(STUCK_GAPS_S):
        return None
    return STUCK_GAPS_S[done - 1] * spread


def judge_due(plan: Plan, done: int, reports: list[JobReport], last_took_s: float) -> bool:
    """Whether to judge after ``done`` rounds. ``last_took_s``: what it cost the last time (0: not done yet).

    With thousands of ranks it takes as long as a dump; a verdict of each round is only needed where it decides
    when the next one is due.
    """
    if last_took_s < CHEAP_JUDGE_S or done >= plan.most_rounds or done % JUDGE_EVERY == 0:
        return True
    return plan.rounds is None and not {report.verdict.kind for report in reports} & {"moving", "straggler"}


def random_unit() -> float:
    return random.random()
