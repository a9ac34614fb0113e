"""Stacks and counters in one incident: counters decide where stacks cannot, and never overrule them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mltop.probes.judge.evidence.progress import judge_progress
from mltop.probes.model import Frame, Incident, JobReport, StackDigest, Verdict
from mltop.probes.model.evidence.collectives import Group, GroupProgress, ProgressVerdict
from mltop.probes.model.units import clock_time
from mltop.probes.model.vocabulary import Confidence, VerdictKind
from tests.builders.flight_records import done_to, operation, progress_of, record
from tests.builders.scenes import NOW, STALLED_AT, fleet, hang, incidents, stalled

RANKS = range(16)
RECORDED_AT = NOW - 60.0
BEGAN_S = STALLED_AT - NOW  # as the builder of records counts


def waits(name: str = "all_reduce", began_s: float = BEGAN_S) -> dict[str, Any]:
    entries = done_to(39, operation(40, name, "scheduled", at_s=began_s), first=38, at_s=began_s - 1)
    return record(entries, status={0: (40, -1, 39)}, members={"0": RANKS})


def idle(began_s: float = BEGAN_S) -> dict[str, Any]:
    return record(done_to(39, first=38, at_s=began_s - 1), status={0: (39, -1, 39)}, members={"0": RANKS})


def counted(records: Mapping[int, dict[str, Any]], at: float = RECORDED_AT) -> list[ProgressVerdict]:
    return list(judge_progress(progress_of(records, at=at), len(RANKS)))


def without(rank: int, at: float = RECORDED_AT, began_s: float = BEGAN_S) -> list[ProgressVerdict]:
    """``rank`` has not entered what the others wait in."""
    return counted({each: idle(began_s) if each == rank else waits(began_s=began_s) for each in RANKS}, at)


def stacks(
    told: list[ProgressVerdict], *, culprit: int | None = None, in_wait: Mapping[int, str] | None = None, **more: Any
) -> JobReport:
    """Of a job whose every rank but the ``culprit`` waits for its GPU; ``in_wait``: who waits in something else."""
    made = hang(culprit, **more)
    made.progress = told
    made.digests = [
        StackDigest(
            rank, 5000 + rank, frames=[Frame("train_step", "llm/train.py", 44)], node=f"n{rank // 8}",
            waiting_in=None if rank == culprit else (in_wait or {}).get(rank, "cuda.synchronize"), taken_at=NOW - 10.0,
        )
        for rank in RANKS
    ]  # fmt: skip
    return made


def incident(report: JobReport, *, is_stalled: bool = True) -> Incident:
    nodes = fleet()
    (found,) = incidents(nodes, report, motions=(stalled(nodes),) if is_stalled else ())
    return found


def named(found: Incident) -> list[int | None]:
    return [culprit.rank for culprit in found.culprits]


def test_a_rank_that_never_entered_is_named_where_all_stacks_are_alike() -> None:
    found = incident(stacks(without(6)))
    assert (named(found), found.confidence) == ([6], "high")
    assert found.headline == (
        "rank 6 (n0 GPU 6) at train_step (llm/train.py:44) [cuda.synchronize]: it has not entered all_reduce 40 of "
        f"default_pg, 15 ranks wait in all_reduce since {clock_time(STALLED_AT)}"
    )
    (culprit,) = found.culprits
    assert (culprit.node, culprit.pid, culprit.gpu) == ("n0", 5006, 6)
    assert 6 not in set(found.suffers.waiting)
    assert found.next_act != "probe_all_reduce", "it is not below the hosts"


def test_of_counters_alone_nobody_is_named_where_they_agree() -> None:
    found = incident(stacks(counted({rank: waits() for rank in RANKS})))
    assert named(found) == []


@pytest.mark.parametrize("odd", [0, 6, 15])
def test_the_few_that_are_in_another_operation_are_named(odd: int) -> None:
    found = incident(stacks(counted({rank: waits("broadcast" if rank == odd else "all_reduce") for rank in RANKS})))
    assert named(found) == [odd]
    assert found.culprits[0].reason == "it is in broadcast 40, while the others are in all_reduce 40 of default_pg"


STANDS_S = 30.0


@pytest.mark.parametrize(
    ("before_s", "sure"),
    [(-5.0, "high"), (60.0, "low"), (400.0, None)],
)
def test_a_record_from_before_it_was_seen_to_stand_may_be_of_a_wait_that_is_over(
    before_s: float, sure: Confidence | None
) -> None:
    """Nobody watched when the job fell still: stacks are all that tells that it stands."""
    since = NOW - STANDS_S
    at = since - before_s
    report = stacks(without(6, at, began_s=at - NOW - 20.0), since=since)
    found = incident(report, is_stalled=False)
    assert named(found) == ([] if sure is None else [6])
    assert sure is None or found.confidence == sure
    assert any("rank 6 has not entered all_reduce 40" in line.text for line in found.evidence), (
        "it is told with its time"
    )


def test_after_a_timeout_nobody_goes_on_however_old_the_record_is() -> None:
    report = stacks(without(6, NOW - 1000.0, began_s=-1601.0), since=NOW - STANDS_S)
    assert named(incident(report, is_stalled=False)) == [6]


@pytest.mark.parametrize("wait", ["recv", "all_reduce", "store.wait", "new_group"])
def test_a_rank_whose_stack_waits_for_others_by_now_is_not_accused(wait: str) -> None:
    assert named(incident(stacks(without(6), in_wait={6: wait}))) == []


def test_nor_one_on_gloo_that_waits_for_anything() -> None:
    """Its recorder knows nothing of messages."""
    told = [
        GroupProgress(
            Group("0", "default_pg", tuple(RANKS), backend="gloo"), rank, enqueued=40 - (rank == 6),
            completed=39, at=RECORDED_AT, source="flight_recorder",
        )
        for rank in RANKS
    ]  # fmt: skip
    verdicts = list(judge_progress(told, len(RANKS)))
    assert verdicts[0].culprits == (6,)
    assert named(incident(stacks(verdicts, in_wait={6: "work.wait"}))) == []


def test_stacks_that_name_another_are_not_overruled_both_are_told_and_less_sure() -> None:
    found = incident(stacks(without(6), culprit=2))
    assert (named(found), found.confidence) == ([2], "medium")
    assert found.evidence[0].source == "flight_recorder"
    assert found.evidence[0].text == ("the flight records name rank 6, the stacks rank 2: they disagree")


def test_stacks_that_name_one_who_has_launched_it_are_less_sure() -> None:
    found = incident(stacks(counted({rank: waits() for rank in RANKS}), culprit=2))
    assert (named(found), found.confidence) == ([2], "medium")
    assert any("all have launched it, the stacks that rank 2 is elsewhere" in line.text for line in found.evidence)


def test_an_old_record_makes_no_stack_less_sure() -> None:
    report = stacks(without(6, NOW - 2000.0, began_s=-2100.0), culprit=2, since=NOW - STANDS_S)
    found = incident(report, is_stalled=False)
    assert (named(found), found.confidence) == ([2], "high")


@pytest.mark.parametrize(("is_stalled", "expected"), [(True, "high"), (False, "medium")])
def test_that_both_name_one_makes_it_surer_once_it_is_no_slow_step(is_stalled: bool, expected: Confidence) -> None:
    report = stacks(without(2), culprit=2, confidence="medium")
    found = incident(report, is_stalled=is_stalled)
    assert (named(found), found.confidence) == ([2], expected)


@pytest.mark.parametrize(("kind", "is_stalled"), [("unclear", True), ("unclear", False), ("moving", True)])
def test_stacks_that_cannot_tell_leave_it_to_the_counters_of_a_job_that_stands(
    kind: VerdictKind, is_stalled: bool
) -> None:
    report = stacks(without(6))
    report.verdict = Verdict(kind, evidence=["only 3 of 16 ranks have a readable stack"])
    nodes = fleet()
    found = incidents(nodes, report, motions=(stalled(nodes),) if is_stalled else ())
    if kind == "unclear" and is_stalled:
        assert [named(each) for each in found] == [[6]]
    else:
        assert not any(each.culprits for each in found)


def test_two_counters_that_name_different_ranks_name_nobody() -> None:
    of_nccl = ProgressVerdict(
        "unresponsive", Group("1"), culprits=(3,), waiting=(0, 1, 2),
        counters=tuple(GroupProgress(Group("1"), rank, source="ras") for rank in RANKS), confidence="high",
    )  # fmt: skip
    assert named(incident(stacks([of_nccl]))) == [3]
    assert named(incident(stacks([*without(6), of_nccl]))) == []
