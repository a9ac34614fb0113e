"""A stranger's processes on the same nodes: whatever they say of themselves, another user's job has its own verdict."""

from __future__ import annotations

import random
import time

import pytest

from mltop.probes.agent.requests import chosen
from mltop.probes.investigate.material import Material, judge
from mltop.probes.judge.hang.evidence import evidence_by_job, history_of
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import JobReport, NodeState, RankSample, RankStacks, Sample, StackDigest
from mltop.probes.model.ranks import Ranges, fold
from tests.builders.stack_evidence import Stack, all_reduce, dataset

ADDRESS = "10.0.0.1:29500"
ALICE, MALLORY = 1000, 1001
WORLD = 4


def rank(number: int | None, pid: int, uid: int = ALICE, **fields: object) -> RankSample:
    values: dict[str, object] = {"world_size": WORLD, "job": ADDRESS, "master_address": "10.0.0.1", "state": "S"}
    counters = {"voluntary_switches": 10, "main_cpu_s": 1.0, "read_syscalls": 5, "write_syscalls": 5}
    return RankSample(pid, number, uid=uid, user=f"u{uid}", **{**values, **counters, **fields})  # type: ignore[arg-type]


def dumps(node: str, sample: RankSample, made: Stack, count: int = 3) -> list[RankStacks]:
    digest = StackDigest(sample.rank, sample.pid, state="S", frames=made.frames, waiting_in=made.waiting_in, key="k")
    return [
        RankStacks(
            sample.pid, sample.rank, sample.job, node, 100.0 + 3 * turn, 0.01, sample, sample, [digest], uid=sample.uid
        )
        for turn in range(count)
    ]


def alices(node: str = "n1") -> tuple[list[RankSample], list[RankStacks]]:
    """A job that hangs: rank 2 reads data, the others wait."""
    ranks = [rank(number, 10 + number) for number in range(WORLD)]
    stacks = [dumps(node, one, dataset() if one.rank == 2 else all_reduce()) for one in ranks]
    return ranks, [one for own in stacks for one in own]


def material(*more: RankSample, also: list[RankStacks] | None = None, nodes: list[str] | None = None) -> Material:
    ranks, stacks = alices()
    sample = Sample("n1", 110.0, ranks=[*ranks, *more])
    silent = [NodeState(node, "lost", "gone") for node in nodes or []]
    return Material([NodeState("n1", "live"), *silent], {"n1": [sample]}, stacks + (also or []), silent)


def of_alice(reports: list[JobReport]) -> JobReport:
    (found,) = [one for one in reports if one.uid == ALICE]
    return found


def assert_alice_is_judged(reports: list[JobReport]) -> None:
    found = of_alice(reports)
    assert [culprit.rank for culprit in found.verdict.culprits] == [2]
    assert found.error == ""
    assert found.world_size == WORLD


@pytest.mark.parametrize(
    "theirs",
    [
        [rank(number, 50 + number, MALLORY) for number in range(WORLD)],
        [rank(2, 50, MALLORY)],
        [rank(number, 50 + number, MALLORY, world_size=999) for number in range(20)],
        [rank(None, 50, MALLORY, state="Z", job="")],
    ],
    ids=["all of its ranks", "the culprit", "another size", "a dead one without a name"],
)
def test_the_same_address_and_ranks_neither_hide_nor_join_another_users(theirs: list[RankSample]) -> None:
    waiting = [dump for one in theirs for dump in dumps("n1", one, all_reduce())]
    assert_alice_is_judged(judge(material(*theirs, also=waiting)))


def test_a_strangers_dead_rank_is_not_ours() -> None:
    ranks, stacks = alices()
    gone = rank(2, 77, MALLORY)
    samples = [Sample("n1", 50.0, ranks=[*ranks, gone]), Sample("n1", 110.0, ranks=ranks)]
    reports = judge(Material([], {"n1": samples}, stacks))
    assert_alice_is_judged(reports)
    assert not any("gone" in line for line in of_alice(reports).verdict.evidence)


@pytest.mark.parametrize(
    "fields",
    [
        {"world_size": 999_999_999_999},
        {"world_size": 10**30},
        {"local_world_size": 999_999_999_999, "local_rank": 0},
        {"local_world_size": 10**30, "world_size": 10**30, "local_rank": 0},
        {"world_size": 999_999_999_999, "master_address": "127.0.0.1"},
        {"world_size": 999_999_999_999, "master_address": None, "launcher": "env"},
        {"local_rank": 10**12, "local_world_size": 8},
    ],
)
def test_any_size_that_a_process_claims_is_judged_as_quickly(fields: dict[str, object]) -> None:
    """Sets of that many numbers would take all memory: the test ends because nobody makes one."""
    theirs = rank(0, 50, MALLORY, **fields)
    reports = judge(material(theirs, also=dumps("n1", theirs, all_reduce()), nodes=["n2", "n3"]))
    assert_alice_is_judged(reports)
    assert len(reports) == 2


def test_a_huge_job_says_which_ranks_are_not_seen() -> None:
    theirs = rank(7, 50, MALLORY, world_size=10**12)
    (evidence,) = evidence_by_job([Sample("n1", 110.0, ranks=[theirs])], dumps("n1", theirs, all_reduce()))
    gaps = [gap.what for gap in report(evidence).verdict.gaps]
    assert "rank.0-6,8-999999999999" in gaps


def test_a_job_that_cannot_be_judged_says_so_and_costs_no_other() -> None:
    """A negative rank, which nothing takes on receipt, makes folding fail: any bug of ours would look like this."""
    broken = [rank(number, 50 - number, MALLORY) for number in (-5, -6)]
    waiting = [dump for one in broken for dump in dumps("n1", one, all_reduce())]
    reports = judge(material(*broken, also=waiting))
    assert_alice_is_judged(reports)
    (failed,) = [one for one in reports if one.uid == MALLORY]
    assert failed.error.startswith("judging it failed: ValueError")
    assert failed.verdict.kind == "unclear"
    assert failed.error in failed.verdict.evidence


def test_thousands_of_one_rank_jobs_are_judged_each_and_cost_nobody_his() -> None:
    theirs = [rank(0, 100 + number, MALLORY, world_size=1, job=f"job-{number}") for number in range(5_000)]
    reports = judge(material(*theirs))
    assert_alice_is_judged(reports)
    assert len(reports) == 5_001


def test_every_process_of_one_job_claims_another_size() -> None:
    theirs = [rank(0, 100 + number, MALLORY, world_size=2 + number) for number in range(1000)]
    waiting = [dump for one in theirs for dump in dumps("n1", one, all_reduce(), 1)]
    reports = judge(material(*theirs, also=waiting))
    assert_alice_is_judged(reports)
    assert len(reports) == 1001


def test_after_the_time_the_rest_is_not_judged_and_says_so() -> None:
    theirs = [rank(0, 100 + number, MALLORY, world_size=1, job=f"job-{number}") for number in range(50)]
    reports = judge(material(*theirs), until=time.monotonic() - 1.0)
    assert len(reports) == 51
    assert all("--timeout" in one.error for one in reports)
    later = judge(material(*theirs), until=time.monotonic() + 600.0)
    assert not any(one.error for one in later)


def test_the_users_take_turns_when_stacks_are_dumped() -> None:
    theirs = [rank(0, 100 + number, MALLORY, job=f"a-{number}") for number in range(1000)]
    order = chosen([*theirs, *alices()[0]], {})
    assert len(order) == 1004
    assert {one.pid for one in order[: 2 * WORLD]} >= {10, 11, 12, 13}


def test_history_of_two_users_is_kept_apart() -> None:
    """A pid that was the stranger's first is not the rank that died."""
    before = rank(2, 12, MALLORY, started_at=1.0)
    ranks, stacks = alices()
    ranks[2].started_at = 60.0
    samples = [Sample("n1", 50.0, ranks=[before]), Sample("n1", 110.0, ranks=ranks)]
    bundles = evidence_by_job(samples[1:], stacks, history_of(samples))
    (own,) = [one for one in bundles if one.uid == ALICE]
    assert not any(one.gone for one in own.roster)


def test_ranges_are_sets() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        one = {chance.randrange(30) for _ in range(chance.randrange(25))}
        other = {chance.randrange(30) for _ in range(chance.randrange(25))}
        ranges, others = Ranges.of(one), Ranges.of(other)
        assert set(ranges.without(others)) == one - other
        assert set(ranges.within(others)) == one & other
        assert ranges.count == len(one)
        assert bool(ranges) == bool(one)
        assert str(ranges) == fold(one)
        assert list(ranges) == sorted(one)
    assert str(Ranges.below(10**30).without(Ranges.of([3]))) == f"0-2,4-{10**30 - 1}"
    assert Ranges.below(0) == Ranges()
