"""Who died first, of its own; who followed; and what is said when nobody can tell."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from mltop.probes.judge.deaths import EXACT_S, ROUGH_S, Death, order_of
from mltop.probes.judge.hang.evidence import evidence_by_job
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import RankDeath, RankSample, Sample, Verdict
from tests.builders.stack_evidence import Rank, all_reduce, evidence, judge_job

T = 1_000_000.0
PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"


def died(
    rank: int, how: str, code: int | None, at: float | None, told_by: str = "proc connector", **more: str
) -> RankDeath:
    return RankDeath(4000 + rank, rank, "job-1", 7, how, code, at, told_by, **more)  # type: ignore[arg-type]


def judged(deaths: list[RankDeath], alive: int = 0) -> Verdict:
    """The dead ones were seen before and are gone; ``alive`` ranks after them wait."""
    gone = {death.rank or 0: Rank(None, gone=True) for death in deaths}
    waiting = {len(gone) + number: Rank(all_reduce()) for number in range(alive)}
    given = evidence({**gone, **waiting})
    given.deaths = [("n1", death) for death in deaths]
    return judge_job(given)


def named(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def test_the_first_of_its_own_is_named_and_the_others_are_its_consequences() -> None:
    first = died(2, "signal", 9, T)
    lost = [died(rank, "exit", 1, T + 0.4 + rank, error=PEER) for rank in (0, 1)]
    verdict = judged([lost[0], lost[1], first, died(3, "stopped", 15, T + 3)])
    assert (verdict.kind, verdict.ended, named(verdict)) == ("unclear", True, [2])
    assert verdict.culprits[0].reason == "gone: killed by SIGKILL"
    assert "rank 2 died first: killed by SIGKILL, 400 ms before the others (at 13:46:40)" in verdict.evidence
    assert f"ranks 0-1: exited with code 1: {PEER}" in verdict.evidence
    assert "rank 3: stopped from outside (SIGTERM)" in verdict.evidence


def test_of_the_gone_only_the_first_is_accused_while_others_wait() -> None:
    verdict = judged([died(0, "signal", 11, T), died(1, "signal", 6, T + 60)], alive=4)
    assert (verdict.kind, named(verdict)) == ("hang", [0])
    assert "killed by SIGSEGV" in verdict.culprits[0].reason


@pytest.mark.parametrize(
    ("first", "second", "culprits"),
    [
        (("signal", 6, ""), ("exit", 1, ""), []),  # a watchdog's abort, and who followed
        (("signal", 6, ""), ("signal", 11, ""), []),  # which of both was first in the world is open
        (("exit", 1, PEER), ("exit", 1, ""), []),
        (("stopped", 15, ""), ("stopped", 15, ""), []),
        (("signal", 15, ""), ("signal", 2, ""), []),
        (("exit", 0, ""), ("exit", 0, ""), []),
        (("unknown", None, ""), ("unknown", None, ""), []),
        (("oom", 9, ""), ("exit", 1, ""), [0]),
        (("exit", 1, "ValueError: no such key"), ("exit", 1, PEER), [0]),
        (("exit", 1, ""), ("signal", 9, ""), [0]),
    ],
)
def test_what_can_have_been_the_cause(
    first: tuple[str, int | None, str], second: tuple[str, int | None, str], culprits: list[int]
) -> None:
    deaths = [died(0, *first[:2], T, error=first[2]), died(1, *second[:2], T + 10, error=second[2])]
    verdict = judged(deaths)
    assert (named(verdict), verdict.ended) == (culprits, True)


@pytest.mark.parametrize(
    ("told_by", "apart_s", "culprits"),
    [
        ("proc connector", 2 * EXACT_S, [0]),
        ("proc connector", EXACT_S / 2, []),
        ("gone", ROUGH_S / 2, []),
        ("pidfd", ROUGH_S / 2, []),  # killed with one blow, and noticed by two looks
        ("pidfd, kernel log", 2 * EXACT_S, [0]),
        ("zombie", ROUGH_S / 2, []),
        ("zombie", 2 * ROUGH_S, [0]),
    ],
)
def test_an_order_that_is_not_known_names_nobody(told_by: str, apart_s: float, culprits: list[int]) -> None:
    verdict = judged([died(0, "exit", 1, T, told_by), died(1, "exit", 1, T + apart_s, told_by)])
    assert named(verdict) == culprits
    assert any("which was first is not known" in line for line in verdict.evidence) != bool(culprits)


ASKED = ("stopped", 15), ("signal", 15), ("stopped", 9)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 40.0])
def test_the_one_that_aborted_is_first_where_the_launcher_asked_all_others(after_s: float) -> None:
    """Also when nothing tells the order: a launcher asks nobody before somebody has ended."""
    others = [
        died(rank, how, code, T + after_s, "pidfd, launcher")
        for rank, (how, code) in zip((0, 2, 3), ASKED, strict=True)
    ]
    ends = [died(1, "signal", 6, T, "zombie"), *others]
    evidence_lines = judged(ends).evidence
    assert any(line.startswith("rank 1 died first: killed by SIGABRT") for line in evidence_lines)
    assert any("a watchdog" in line for line in evidence_lines)
    for death in ends:
        death.at = None
    order = order_of([Death("n1", death) for death in ends])
    assert [death.rank for death in order.firsts] == [1] and not order.sure


@pytest.mark.parametrize(
    "others",
    [
        [died(0, "stopped", 15, T - 5)],  # it may have missed who was asked before it
        [died(0, "signal", 6, T), died(2, "stopped", 15, T)],  # two
        [died(0, "exit", 1, T, error=PEER), died(2, "stopped", 15, T)],
        [died(0, "unknown", None, T), died(2, "stopped", 15, T)],
        [died(0, "exit", 0, T)],
    ],
)
def test_an_abort_is_no_cause_where_something_else_may_have_made_it(others: list[RankDeath]) -> None:
    order = order_of([Death("n1", death) for death in [died(1, "signal", 6, T), *others]])
    assert order.firsts == []


def test_a_signal_explains_an_exit_in_the_same_moment() -> None:
    verdict = judged([died(0, "exit", 1, T, "zombie"), died(1, "signal", 9, T + 0.5, "zombie")])
    assert named(verdict) == [1]


def test_a_zombie_that_was_never_seen_alive_has_the_one_number_that_is_missing() -> None:
    ranks = {number: Rank(all_reduce(60 + number % 2)) for number in (0, 1, 3)}
    dead = Rank(None, state="Z", rank=None, dumped=False)
    given = evidence({**ranks, 2: dead}, world_size=4, local_world_size=4)
    given.deaths = [("n1", replace(died(2, "signal", 9, T, "zombie"), rank=None))]
    verdict = judge_job(given)
    assert (verdict.kind, named(verdict)) == ("hang", [2])
    assert verdict.culprits[0].reason == "gone: killed by SIGKILL"


def test_a_finished_job_accuses_nobody() -> None:
    verdict = judged([died(rank, "exit", 0, T + rank) for rank in range(4)])
    assert (verdict.culprits, verdict.ended) == ([], True)
    assert verdict.evidence[0] == "every rank of the job has ended with exit code 0"


def test_a_rank_that_nobody_ever_saw_is_gone_where_its_node_tells_its_end() -> None:
    given = evidence({number: Rank(all_reduce()) for number in (0, 1, 3)}, world_size=8, master=None)
    given.deaths = [("n1", died(2, "oom", 9, T))]
    verdict = judge_job(given)
    assert (verdict.kind, named(verdict)) == ("hang", [2])
    assert "for want of memory" in verdict.culprits[0].reason


def test_ends_of_an_earlier_attempt_are_forgotten() -> None:
    given = evidence({number: Rank(all_reduce()) for number in (0, 1, 3)}, world_size=8, master=None)
    for seen in given.roster:
        seen.sample.started_at = T + 100
    given.deaths = [("n1", died(0, "signal", 11, T)), ("n1", died(2, "signal", 11, T))]
    assert judge_job(given).culprits == []


def node(name: str, ranks: list[RankSample], deaths: list[RankDeath], skew_s: float | None = None) -> Sample:
    return Sample(name, T + 5, ranks=ranks, deaths=deaths, clock_skew_s=skew_s)


def test_deaths_come_with_the_samples_of_the_jobs_nodes_by_one_clock() -> None:
    ranks = [RankSample(9, 0, job="job-1", uid=7, world_size=2), RankSample(8, 0, job="other", uid=7)]
    mine, others = died(1, "exit", 1, T), RankDeath(5, 1, "other", 7, "signal", 9, T)
    strangers = RankDeath(6, 1, "job-1", 8, "signal", 9, T)
    found = evidence_by_job([node("n1", ranks, [mine, others, strangers], 2.0)], [])
    assert [(given.job, [death.at for _, death in given.deaths]) for given in found] == [
        ("job-1", [T - 2.0]),
        ("other", [T - 2.0]),
    ]
    assert [list(given.samples) for given in found] == [["n1"], ["n1"]]


def test_a_job_of_which_only_its_deaths_are_left_is_told_when_asked_for() -> None:
    sample = node("n1", [], [died(0, "signal", 11, T), died(1, "stopped", 15, T + 1)])
    assert evidence_by_job([sample], []) == []
    (given,) = evidence_by_job([sample], [], or_ended=True)
    verdict = report(given).verdict
    assert (named(verdict), verdict.ended) == ([0], True)


@pytest.mark.parametrize(
    ("ends", "firsts", "sure"),
    [
        # The others fell for want of it, a moment later; a pidfd tells no time, then they may have failed first.
        ([died(1, "exit", 0, T), died(0, "exit", 1, T + 3), died(2, "exit", 1, T + 3)], [1], True),
        ([died(1, "exit", 0, None), died(0, "exit", 1, T), died(2, "exit", 1, T)], [0, 2], False),
        ([died(0, "exit", 1, T), died(1, "exit", 0, T + 1.2), died(2, "exit", 1, T + 1.3)], [0], True),
        ([died(1, "exit", 0, T), died(0, "exit", 1, T + 3, error=PEER)], [1], True),
        ([died(1, "exit", 0, T), died(0, "signal", 6, T + 60), died(2, "stopped", 15, T + 61)], [1], True),
        # Something else came first, or of its own; as many ended well as did not.
        ([died(1, "exit", 0, T + 9), died(0, "exit", 1, T), died(2, "exit", 1, T + 9)], [0], True),
        ([died(1, "exit", 0, T), died(0, "signal", 11, T + 3), died(2, "exit", 1, T + 3)], [0], True),
        ([died(1, "exit", 0, T), died(0, "exit", 1, T + 3)], [0], True),
        ([died(1, "exit", 0, T), died(2, "exit", 0, T), died(0, "exit", 1, T + 3)], [0], True),
        ([died(1, "exit", 0, T), died(0, "stopped", 15, T + 3), died(2, "stopped", 15, T + 3)], [], False),
    ],
)
def test_a_rank_that_left_before_the_others_is_why_they_fell(
    ends: list[RankDeath], firsts: list[int], sure: bool
) -> None:
    order = order_of([Death("n1", death) for death in ends])
    assert ([death.rank for death in order.firsts], order.sure) == (firsts, sure)
    if firsts == [1]:
        assert order.lines()[0].startswith("rank 1 ended first: exited with code 0")


def test_who_died_in_one_moment() -> None:
    order = order_of([Death("n1", died(rank, "exit", 1, T)) for rank in (0, 2)])
    assert order.lines()[0] == "ranks 0,2 died in the same moment: which was first is not known"


def test_thousands_that_died_in_one_moment_are_told_soon() -> None:
    def cpu_s(count: int) -> float:
        deaths = [Death(f"n{rank // 8}", died(rank, "exit", 1, T)) for rank in range(count)]
        began = time.thread_time()
        order = order_of(deaths)
        order.lines()
        assert not any(order.is_consequence(rank) for rank in range(count))
        return time.thread_time() - began

    assert min(cpu_s(4000) for _ in range(2)) < 40 * min(cpu_s(500) for _ in range(3))
