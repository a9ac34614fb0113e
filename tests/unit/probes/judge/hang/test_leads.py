"""Jobs whose training runs in a thread, while the main thread looks after it: the thread is judged."""

from __future__ import annotations

import pytest

from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import Frame, Verdict
from tests.builders.stack_evidence import Rank, Stack, StackOf, Thread, all_reduce, dataset, evidence, judge_job, stack

BELOW = [Frame("Thread.run", "threading.py", 982), Frame("Thread._bootstrap", "threading.py", 1002)]
POLLS = {"switches_per_s": 66.0, "main_cpu_s_per_s": 0.004}


def main_loop() -> Stack:
    return stack(("Worker.main_loop", "ray/_private/worker.py", 1069), ("<module>", "ray/workers/default.py", 323))


def in_thread(shown: Stack) -> Stack:
    return Stack([*shown.frames, *BELOW], shown.waiting_in)


def trains(shown: Stack | StackOf, **more: float) -> Thread:
    below = (lambda turn: in_thread(shown(turn))) if callable(shown) else in_thread(shown)
    return Thread("TrainingThread", below, **more)  # type: ignore[arg-type]


def rank(shown: Stack | StackOf, main: Stack | StackOf | None = None, **more: float) -> Rank:
    return Rank(main or main_loop(), threads=[trains(shown, **more)], **POLLS)  # type: ignore[arg-type]


def named(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def test_the_thread_that_does_not_come_to_the_collective_is_named_while_main_threads_poll() -> None:
    given = evidence({**{number: rank(all_reduce()) for number in (0, 1, 3)}, 2: rank(dataset())})
    verdict = judge_job(given)
    assert (verdict.kind, named(verdict), verdict.confidence) == ("hang", [2], "medium")
    assert "DS.__getitem__ (job/case.py:14)" in verdict.culprits[0].where
    assert [waiting.ranks.count for waiting in verdict.waiting] == [3]
    told = report(given)
    assert [(shown.ranks.count, shown.waiting_in) for shown in told.classes] == [(1, None), (3, "all_reduce")]
    assert max(digest.samples for digest in told.digests if digest.thread == "TrainingThread") == 4


def test_so_it_is_where_the_scripts_own_main_thread_polls_for_the_end() -> None:
    polls = stack(("main", "job/case.py", 70), ("<module>", "job/case.py", 90))
    ranks = {**{number: rank(all_reduce(), polls) for number in (0, 1, 3)}, 2: rank(dataset(), polls)}
    assert named(judge_job(evidence(ranks))) == [2]
    joins = stack(("Thread.join", "threading.py", 1124), ("main", "job/case.py", 70), ("<module>", "job/case.py", 90))
    ranks = {**{number: rank(all_reduce(), joins) for number in (0, 1, 3)}, 2: rank(dataset(), joins)}
    assert named(judge_job(evidence(ranks))) == [2]


@pytest.mark.parametrize(
    "turns", [lambda turn: all_reduce(step=turn), lambda turn: (all_reduce(), dataset())[turn % 2]]
)
def test_training_threads_that_get_on_move(turns: StackOf) -> None:
    verdict = judge_job(evidence({number: rank(turns) for number in range(4)}))
    assert (verdict.kind, named(verdict)) == ("moving", [])


def test_a_thread_that_wakes_up_and_works_between_two_looks_at_the_same_line_moves() -> None:
    ranks = {number: rank(all_reduce(), switches_per_s=30.0, cpu_s_per_s=0.006) for number in range(4)}
    assert judge_job(evidence(ranks)).kind == "moving"


def test_the_main_thread_is_judged_where_it_does_more_than_wait() -> None:
    """A checkpoint's thread may wait in a collective while the main one trains, or is what holds it up."""
    saves = trains(all_reduce(81))
    works = Rank(lambda turn: stack(("step", "job/case.py", 30 + turn)), threads=[saves], switches_per_s=30.0)
    assert judge_job(evidence(dict.fromkeys(range(4), works))).kind == "moving"
    waits = Rank(all_reduce(), threads=[saves])
    verdict = judge_job(evidence({0: waits, 1: waits, 2: Rank(dataset(), threads=[saves]), 3: waits}))
    assert (named(verdict), verdict.confidence) == ([2], "high")


def test_a_thread_that_few_ranks_have_is_not_the_training() -> None:
    alone = Rank(main_loop(), **POLLS)  # type: ignore[arg-type]
    ranks = {0: rank(all_reduce()), **dict.fromkeys(range(1, 4), alone)}
    assert (judge_job(evidence(ranks)).kind, named(judge_job(evidence(ranks)))) == ("moving", [])
