"""What is made of one answer of NCCL's RAS, and of one that follows another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.investigate.ras import COMPARED_S, _Asked, _told_of
from mltop.probes.model import JobReport, RankSample, StackDigest, Verdict
from mltop.probes.model.evidence.ras import RasAnswer, RasCommunicator, RasRank

AT = 1_763_640_000.0
COUNTS = (70, 70, 69, 70)


def answer(counts: tuple[int, ...] = COUNTS, at: float = AT) -> RasAnswer:
    ranks = tuple(
        RasRank(rank, "10.0.0.1", 100 + rank, rank, counts=(("AllReduce", count),)) for rank, count in enumerate(counts)
    )
    return RasAnswer("2.30.7", "json", (RasCommunicator("c/0", len(counts), ranks, hash="0x1"),), at)


def asked(*answers: RasAnswer) -> _Asked:
    ranks = [("n0", RankSample(rank=rank, pid=100 + rank)) for rank in range(len(COUNTS))]
    digests = [StackDigest(rank.rank, rank.pid, node="n0", taken_at=AT) for _, rank in ranks]
    report = JobReport("train", len(COUNTS), Verdict("hang", confidence="high"), digests=digests)
    job = _Asked(report, "n0", [rank.pid for _, rank in ranks], ranks, answers=[*answers])
    job.inner = {rank.pid: rank.pid for _, rank in ranks}
    return job


def test_one_answer_names_the_rank_that_is_behind_and_is_not_sure() -> None:
    told = _told_of(asked(answer()), None)
    assert (told.answers, told.why, told.nccl_version) == (1, "", "2.30.7")
    (verdict,) = told.progress
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("never_entered", (2,), "low")
    assert {record.at for record in verdict.counters} == {AT}


def test_two_that_agree_are_surer() -> None:
    told = _told_of(asked(answer(at=AT + 31.0)), answer())
    assert (told.answers, told.why) == (2, "")
    (verdict,) = told.progress
    assert verdict.culprits == (2,) and verdict.confidence != "low"


@pytest.mark.parametrize(
    ("before", "answers", "why"),
    [
        (answer((60, 60, 60, 60)), 2, "two answers half a minute apart name no waiting rank"),  # it moves
        (None, 1, "one answer names no waiting rank; a second one, half a minute later, is compared with it"),
    ],
)
def test_what_tells_nothing_says_so(before: RasAnswer | None, answers: int, why: str) -> None:
    counts = COUNTS if before is not None else (0, 0, 0, 0)
    told = _told_of(asked(answer(counts, AT + 31.0)), before)
    assert (told.answers, told.progress, told.why) == (answers, (), why)


def test_an_answer_of_long_ago_is_not_compared() -> None:
    told = _told_of(asked(answer(at=AT + COMPARED_S + 1.0)), answer((60, 60, 60, 60)))
    assert (told.answers, [verdict.culprits for verdict in told.progress]) == (1, [(2,)])


def test_no_answer_says_why() -> None:
    job = asked()
    assert _told_of(job, None).why == "no answer in time"
    job.why = "the job has turned RAS off (NCCL_RAS_ENABLE=0)"
    assert _told_of(job, answer()).why == job.why
    assert replace(_told_of(job, answer()), why="").progress == ()
