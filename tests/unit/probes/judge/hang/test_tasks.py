"""Event loops in which nothing runs: what their tasks wait for is a lead, and accuses nobody."""

from __future__ import annotations

from collections.abc import Mapping

from mltop.probes.judge.hang.polls import tasks_wait, why_no_tasks
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import Frame, JobReport, TaskChain, Tasks
from tests.builders.stack_evidence import Rank, Stack, Thread, all_reduce, compute, evidence, main_frames, stack

SLEEP = Frame("sleep", "asyncio/tasks.py", 716)
EVENT = Frame("Event.wait", "asyncio/locks.py", 213)
STEP = Frame("Engine.step", "app/server.py", 8, user=True)
HANDLE = Frame("handle", "app/server.py", 16, user=True)
BEAT = Frame("heartbeat", "app/server.py", 22, user=True)
ENGINE = Frame("AsyncLLM.generate", "vllm/v1/engine/async_llm.py", 300)
SERVING = Tasks(13, [TaskChain(8, [SLEEP, BEAT]), TaskChain(4, [EVENT, STEP, HANDLE]), TaskChain(1, [STEP])])


def loop(line: int = 90) -> Stack:
    frames = (("select", "selectors.py", 468), ("_run_once", "asyncio/base_events.py", 1900))
    return stack(*frames, ("run_forever", "asyncio/base_events.py", 600), *main_frames(line))


def judged(ranks: Mapping[int, Rank], tasks: Mapping[int, Tasks], asked_in: int = 0, digest: int = 0) -> JobReport:
    """``tasks``: by rank, told in one round of four by the digest of this number."""
    made = evidence(ranks)
    for number, told in tasks.items():
        of_rank = [stacks for stacks in made.dumps if stacks.rank == number]
        of_rank[asked_in].digests[digest].tasks = told
    return report(made)


def test_where_most_of_them_wait_in_the_users_code() -> None:
    assert tasks_wait(SERVING) == "4 of 13 tasks wait in Engine.step (app/server.py:8) [wait, asyncio/locks.py:213]"
    alone = Tasks(1, [TaskChain(1, [EVENT, STEP])])
    assert tasks_wait(alone).startswith("1 task waits in Engine.step (app/server.py:8)")
    library = Tasks(9, [TaskChain(5, [EVENT, ENGINE]), TaskChain(1, [EVENT, STEP])])
    assert "Engine.step" in tasks_wait(library)
    assert tasks_wait(Tasks(6, [TaskChain(5, [EVENT, ENGINE]), TaskChain(1, [SLEEP, BEAT])])).startswith(
        "5 of 6 tasks wait in AsyncLLM.generate (vllm/v1/engine/async_llm.py:300)"
    )
    assert "heartbeat" in tasks_wait(Tasks(1, [TaskChain(1, [SLEEP, BEAT])]))  # where there is nothing else


def test_tasks_that_run_wait_nowhere() -> None:
    assert tasks_wait(Tasks(1, [TaskChain(1, [])])) == "no asyncio task waits"
    assert tasks_wait(Tasks()) == "no asyncio task waits"


def test_tasks_that_wait_for_each_other() -> None:
    two = Tasks(cycles=[["reader", "writer", "reader"], ["a", "a"]])
    assert tasks_wait(two) == ("tasks wait for each other: reader for writer, writer for reader (and 1 more circle)")
    many = Tasks(cycles=[[f"t{number}" for number in range(1000)]])
    assert len(tasks_wait(many)) < 200
    assert tasks_wait(Tasks(cycles=[[]])) == "tasks wait for each other: "


def test_why_nothing_is_known() -> None:
    old = Tasks(python="3.11")
    assert tasks_wait(old) == ""
    assert why_no_tasks(old) == "what its asyncio tasks wait for can be seen with Python 3.14, and it runs 3.11"
    assert why_no_tasks(Tasks(error="permission denied")) == "its asyncio tasks are not known: permission denied"
    assert why_no_tasks(SERVING) == ""


def test_a_server_alone_has_a_lead_and_no_culprit() -> None:
    made = judged({0: Rank(loop())}, {0: SERVING})
    assert (made.verdict.kind, made.verdict.culprits) == ("unclear", [])
    assert f"rank 0: {tasks_wait(SERVING)}" in made.verdict.evidence
    assert any("an event loop in which nothing runs" in line for line in made.verdict.evidence)


def test_a_server_that_others_may_wait_for_is_not_accused() -> None:
    ranks = {0: Rank(loop()), **{number: Rank(all_reduce()) for number in (1, 2, 3)}}
    made = judged(ranks, {0: SERVING})
    assert (made.verdict.kind, made.verdict.culprits) == ("unclear", [])
    assert f"rank 0: {tasks_wait(SERVING)}" in made.verdict.evidence


def test_what_an_earlier_round_told_is_told_as_long_as_it_stands_there() -> None:
    made = judged({0: Rank(loop())}, {0: SERVING}, asked_in=0)
    assert [digest.tasks for digest in made.digests] == [SERVING]
    assert made.digests[0].samples == 4
    moved = judged({0: Rank(lambda turn: loop(90 + (turn == 3)))}, {0: SERVING}, asked_in=0)
    assert [digest.tasks for digest in moved.digests] == [None]
    assert not any("tasks" in line for line in moved.verdict.evidence)


def test_what_is_known_counts_more_than_why_it_was_not_asked_again() -> None:
    made = evidence({0: Rank(loop())})
    made.dumps[0].digests[0].tasks = SERVING
    made.dumps[2].digests[0].tasks = Tasks(error="not asked for: pid 7 has the same stack")
    assert report(made).digests[0].tasks == SERVING


def test_one_hint_where_none_can_be_known() -> None:
    ranks = {number: Rank(loop()) for number in range(3)}
    old = {number: Tasks(python="3.11") for number in range(3)}
    hints = [line for line in judged(ranks, old).verdict.evidence if "3.14" in line]
    assert hints == [f"rank 0: {why_no_tasks(old[0])}"]
    assert not [line for line in judged(ranks, {**old, 1: SERVING}).verdict.evidence if "3.14" in line]
    asked = judged({0: Rank(all_reduce()), 1: Rank(compute())}, {}).verdict.evidence
    assert not [line for line in asked if "task" in line]


def test_a_loop_in_another_thread() -> None:
    """Ray's asynchronous actors: the main thread is in a C++ loop."""
    rank = Rank(compute(), threads=[Thread("AsyncIO Thread: default", loop())])
    made = judged({0: rank}, {0: SERVING}, digest=1)
    assert f"rank 0: {tasks_wait(SERVING)}" in made.verdict.evidence
    assert [digest.tasks for digest in made.digests] == [None, SERVING]
