"""The eleven reproduced cases, hand-built: eight hangs, a death, a slow job and a straggling one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mltop.probes.judge.hang.evidence import JobEvidence
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import Verdict
from tests.builders.stack_evidence import (
    Child,
    Rank,
    Stack,
    all_reduce,
    broadcast,
    compute,
    dataset,
    evidence,
    judge_job,
    loader_wait,
    spin,
    validation,
    waiters,
    worker_idle,
    worker_stuck,
)


@dataclass(frozen=True)
class Case:
    evidence: JobEvidence
    culprits: tuple[int, ...]
    where: str
    reason: str
    pid: int | None = 4002
    child_pid: int | None = None
    kind: str = "hang"
    confidence: tuple[str, ...] = ("high",)


def _skewed(step: int) -> Rank:
    return Rank(all_reduce(step=step, world_size=4))


def _in_turn(number: int) -> Rank:
    """Waits in two of three dumps while its counters run."""

    def at(turn: int) -> Stack:
        return all_reduce(step=turn) if turn % 3 else compute(48, step=turn)

    return Rank(at, switches_per_s=4.0 + number, syscalls_per_s=70.0)


WORKERS = [Child(4711, worker_stuck()), Child(4712, worker_idle())]
HANGS = {
    "a sleep in dataset": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(dataset())}),
        (2,),
        "DS.__getitem__ (job/case.py:14)",
        "is stuck",
    ),
    "a2 sleep in main": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(validation())}),
        (2,),
        "slow_validation (job/case.py:40)",
        "is stuck",
        kind="suspect",
        confidence=("low",),  # by its name it may be an evaluation
    ),
    "b mismatch": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(broadcast())}),
        (2,),
        "sync_metrics (job/case.py:33) [broadcast]",
        "in broadcast, while ranks 0-1,3 in all_reduce",
        confidence=("medium",),
    ),
    "c killed": Case(evidence({**waiters(0, 1, 3), 2: Rank(None, gone=True)}), (2,), "no process", "is gone"),
    "d stopped": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(all_reduce(), state="T")}),
        (2,),
        "all_reduce_grads (job/case.py:21) [all_reduce]",
        "kill -CONT 4002",
    ),
    "e lock in worker": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(loader_wait(), switches_per_s=0.2, children=WORKERS)}),
        (2,),
        "DS.__getitem__ (job/case.py:14)",
        "waits for its dataloader worker 4711, which is stuck in DS.__getitem__ (job/case.py:14)",
        child_pid=4711,
    ),
    "f endless loop": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(spin, state="R", cpu=0.94)}),
        (2,),
        "spin_forever (job/case.py:45)",
        "loops or computes",
        kind="suspect",
        confidence=("low",),  # for a minute it may be an evaluation
    ),
    "g fifo": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(dataset(17))}),
        (2,),
        "DS.__getitem__ (job/case.py:17)",
        "is stuck",
    ),
    "g fifo in D": Case(
        evidence({**waiters(0, 1, 3), 2: Rank(dataset(17), state="D", wchan="nfs_wait_bit_killable")}),
        (2,),
        "DS.__getitem__ (job/case.py:17)",
        "in the kernel in nfs_wait_bit_killable (state D in all of 4 dumps)",
    ),
    "h group skew": Case(
        evidence({0: _skewed(5), 1: _skewed(5), 2: _skewed(6), 3: _skewed(5)}),
        (2,),
        "all_reduce_grads (job/case.py:21) [all_reduce]",
        "ahead of the others: step is 6 here and 5 on ranks 0-1,3",
        confidence=("medium",),
    ),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_names_its_culprit(name: str) -> None:
    case = HANGS[name]
    verdict = judge_job(case.evidence)
    assert verdict.kind == case.kind
    assert [culprit.rank for culprit in verdict.culprits] == list(case.culprits)
    culprit = verdict.culprits[0]
    assert culprit.where == case.where
    assert case.reason in culprit.reason
    assert (culprit.pid, culprit.child_pid) == (case.pid, case.child_pid)
    assert culprit.node == "n1"
    assert verdict.confidence in case.confidence
    assert verdict.evidence


@pytest.mark.parametrize("name", [name for name in HANGS if name[0] not in "bh"])
def test_the_waiting_ranks_are_told_with_their_line(name: str) -> None:
    waiting = judge_job(HANGS[name].evidence).waiting
    assert [(str(line.ranks), line.where) for line in waiting] == [
        ("0-1,3", "all_reduce, called from all_reduce_grads (job/case.py:21)")
    ]


def test_i_a_slow_healthy_job_with_identical_stacks_accuses_nobody() -> None:
    ranks = {number: Rank(compute(), switches_per_s=5, syscalls_per_s=100) for number in range(4)}
    verdict = judge_job(evidence(ranks, rounds=3))
    assert (verdict.kind, verdict.culprits, verdict.stragglers) == ("moving", [], [])


def test_j_a_straggler_is_observed_not_accused() -> None:
    ranks = {number: _in_turn(number) for number in (0, 1, 3)}
    ranks[2] = Rank(lambda turn: compute(48 + turn % 5), switches_per_s=6, syscalls_per_s=90)
    verdict = judge_job(evidence(ranks, rounds=16, gap_s=0.4))
    assert (verdict.kind, verdict.culprits) == ("straggler", [])
    assert [slow.rank for slow in verdict.stragglers] == [2]
    assert "0% of 16 dumps" in verdict.stragglers[0].reason
    assert any("rank 2 0%" in line for line in verdict.evidence)


def test_a_report_has_classes_and_the_newest_digests() -> None:
    made = report(HANGS["e lock in worker"].evidence)
    assert (made.job, made.world_size) == ("job-1", 4)
    assert [(str(one.ranks), one.waiting_in) for one in made.classes] == [("2", None), ("0-1,3", "all_reduce")]
    assert {(digest.rank, digest.pid) for digest in made.digests} >= {(2, 4002), (2, 4711), (2, 4712)}
    assert next(digest for digest in made.digests if digest.pid == 4000).samples == 4


def test_the_verdict_is_pure() -> None:
    given = HANGS["e lock in worker"].evidence
    first = judge_job(given)
    assert isinstance(first, Verdict)
    assert judge_job(given) == first
    given.dumps.reverse()  # "all rounds in any order"
    assert judge_job(given) == first
