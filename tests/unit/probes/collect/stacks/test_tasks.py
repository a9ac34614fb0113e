"""What Python 3.14 prints of a process's asyncio tasks, as it was recorded and as somebody may forge it."""

from __future__ import annotations

import pytest

from mltop.probes.collect.stacks.tasks import MOST_CHAINS, TaskReader, answer_of, parse
from mltop.probes.model import Frame, StackDigest, Tasks
from tests.documents import ROOT

RECORDED = ROOT / "tests/fixtures/asyncio"


def text(name: str) -> str:
    return (RECORDED / name).read_bytes().decode(errors="replace")


def parsed(tree: str) -> Tasks:
    tasks = parse(tree)
    assert tasks is not None
    return tasks


def chains(tasks: Tasks) -> list[tuple[int, list[str]]]:
    return [(chain.count, [frame.function for frame in chain.frames]) for chain in tasks.chains]


def test_a_server_with_stuck_requests() -> None:
    tasks = parsed(text("server.txt"))
    assert tasks.count == 13
    assert chains(tasks) == [
        (6, ["Engine.step", "generate", "TaskGroup._aexit", "TaskGroup.__aexit__", "handle"]),
        (2, ["Lock.acquire", "_ContextManagerMixin.__aenter__", "main.<locals>.locked"]),
        (1, ["Server.serve_forever", "main"]),
        (1, ["sleep", "heartbeat"]),
    ]
    first = tasks.chains[0]
    assert first.names == ["generate", "Task-6", "generate"]
    assert [(frame.file, frame.line, frame.user) for frame in first.frames[:3]] == [
        ("app/server.py", 8, True),
        ("app/server.py", 11, True),
        ("asyncio/taskgroups.py", 121, False),
    ]


def test_a_task_that_several_await_is_one() -> None:
    """By asyncio's own name; one that was given a name may be another of the same name."""
    waits = {frames[1]: count for count, frames in chains(parsed(text("shared.txt"))) if len(frames) > 2}
    assert waits == {"load": 4}  # Task-2 once, "load" for each of the three that await it


def test_a_name_that_is_no_text_and_has_lines_of_its_own() -> None:
    tasks = parsed(text("shared.txt"))
    names = [name for chain in tasks.chains for name in chain.names]
    assert "a name" in names
    assert all(name.isprintable() for name in names)
    forged = parsed("└── (T) a\n└── (T) forged\n    └──  f\n\x1b[2Jrest of it\n")
    assert [chain.names for chain in forged.chains] == [["a"], ["forged"]]


def test_what_gathers_waits_and_generates() -> None:
    tasks = parsed(text("sleeper.txt"))
    assert tasks.count == 4
    assert chains(tasks) == [
        (2, ["sleep", "agen", "consume", "wait_for", "main"]),
        (1, ["main.<locals>.ex", "wait_for", "main"]),
    ]


def test_under_uvloop() -> None:
    tasks = parsed(text("uvloop.txt"))
    assert [(count, frames[:2]) for count, frames in chains(tasks)] == [(3, ["Event.wait", "stuck"])]
    assert tasks.chains[0].names == ["Task-2", "Task-3", "Task-4"]


def test_tasks_that_await_each_other() -> None:
    assert answer_of(1, "", text("cycle.errors.txt")) == Tasks(cycles=[["reader", "writer", "reader"]])


@pytest.mark.parametrize(
    ("code", "output", "errors", "says"),
    [
        (1, "denied.txt", "", "permission denied"),
        (1, "not-asyncio.txt", "", "they could not be read: AsyncioDebug section not available"),
        (1, "", "deep.errors.txt", "python -m asyncio pstree failed: RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_why_there_are_none(code: int, output: str, errors: str, says: str) -> None:
    tasks = answer_of(code, text(output) if output else "", text(errors) if errors else "")
    assert tasks.error.startswith(says)
    assert (tasks.count, tasks.chains, tasks.cycles) == (0, [], [])


def test_no_task_is_not_an_error_and_no_tree_is_one() -> None:
    assert answer_of(0, "", "") == Tasks()
    assert answer_of(0, "asyncio REPL 3.11.2 on linux\nexiting asyncio REPL...\n", "").error.endswith(
        "exiting asyncio REPL..."
    )
    assert answer_of(-9, "", "").error == "python -m asyncio pstree failed: exit code -9"
    assert "sk-" not in answer_of(1, "", "ValueError: token=sk-abcdefghijklmnopqrstuvwxyz012345").error


def digest(thread: str, *frames: Frame, waiting_in: str | None = None) -> StackDigest:
    return StackDigest(0, 2**31, thread, frames=list(frames), waiting_in=waiting_in, key=thread)


def test_which_loops_are_asked_about() -> None:
    """Not a helper's beside the user's code; a thread's where the main one is in a library, as Ray's actors."""
    loop = [Frame("select", "selectors.py", 1), Frame("run_forever", "asyncio/base_events.py", 1)]
    user, library = Frame("train", "job/train.py", 3, user=True), Frame("main_loop", "ray/_private/worker.py", 9)
    file = "/usr/lib/python3.11/asyncio/base_events.py"
    threads = [{"frames": [{"filename": file}]}]

    def asked(*digests: StackDigest) -> list[bool]:
        TaskReader(1.0, lambda: False).add_to(list(digests), threads)
        return [one.tasks == Tasks(python="3.11") for one in digests]

    assert asked(digest("MainThread", *loop, user)) == [True]
    assert asked(digest("MainThread", library), digest("actor", *loop)) == [False, True]
    assert asked(digest("MainThread", user), digest("helper", *loop)) == [False, False]
    wait = digest("trainer", user, waiting_in="all_reduce")
    assert asked(digest("MainThread", *loop, user), wait) == [False, False]
    trio = [Frame("get_events", "trio/_core/_io_epoll.py", 1)]
    threads = [{"frames": [{"filename": "/usr/lib/python3.14/site-packages/trio/_core/_run.py"}]}]
    assert asked(digest("MainThread", *trio, user)) == [False]


def test_secrets_do_not_leave() -> None:
    token = "hf_" + "abcdefghijklmnopqrstuvwxyz01234567"
    tasks = parsed(f"└── (T) login {token}\n    └──  {token} /srv/{token}/x.py:3\n")
    assert token not in repr(tasks)
    cycle = answer_of(1, "", f"ERROR: await-graph contains cycles\n\ncycle: {token} → b → {token}\n")
    assert token not in repr(cycle)
    assert len(cycle.cycles[0]) == 3


def test_odd_lines() -> None:
    tasks = parsed("└── (T) \n    └──  f /my jobs/a:b.py:7\n        └──  only_a_name\n            └── (T) Task-9\n")
    assert [[(frame.function, frame.file, frame.line) for frame in chain.frames] for chain in tasks.chains] == [
        [("only_a_name", "<unknown>", 0), ("f", "my jobs/a:b.py", 7)]
    ]
    assert parsed("                    └──  deep without anything above\n").count == 0
    assert parsed("└── (T) Task-1\n").chains[0].frames == []  # it runs
    assert all(not frame.native for chain in tasks.chains for frame in chain.frames)


def test_very_many_are_bounded() -> None:
    tree = "".join(f"└── (T) Task-{number}\n    └──  f{number % 500} /a/b.py:1\n" for number in range(5000))
    tasks = parsed(tree)
    assert tasks.count == 5000
    assert len(tasks.chains) == MOST_CHAINS
    assert tasks.left_out == 5000 - MOST_CHAINS * 10
    assert all(len(chain.names) == 3 for chain in tasks.chains)
    assert len(parsed(f"└── (T) {'x' * 10**6}\n    └──  {'f' * 10**6} /a.py:1\n").chains[0].frames[0].function) < 3000
    long = "└── (T) x\n" + "".join(f"{'    ' * depth}└──  f /a/b.py:1\n" for depth in range(1, 900))
    assert len(parsed(long).chains[0].frames) == 64
