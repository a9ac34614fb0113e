"""What a stack says of a process that stands without being to blame: known polls, collections, event loops, locks."""

from __future__ import annotations

import pytest

from mltop.probes.judge.hang.polls import collects_garbage, known_poll, lock_wait
from mltop.probes.model import Frame, StackDigest, idle_event_loop

USER = ("load", "job/train.py", True)


def digest(*places: tuple[str, str] | tuple[str, str, bool], **fields: object) -> StackDigest:
    frames = [Frame(place[0], place[1], 7, user=len(place) > 2) for place in places]
    return StackDigest(**{"rank": 0, "pid": 4711, "frames": frames, **fields})  # type: ignore[arg-type]


def what(*places: tuple[str, str] | tuple[str, str, bool], **fields: object) -> str | None:
    poll = known_poll(digest(*places, **fields))
    return poll and poll.what


FILELOCK = [
    ("BaseFileLock._poll_until_acquired", "filelock/_api.py"),
    ("BaseFileLock.acquire", "filelock/_api.py"),
    ("BaseFileLock.__enter__", "filelock/_api.py"),
]


@pytest.mark.parametrize(
    ("expected", "stack"),
    [
        (
            "the lock file of a C++ extension's build",
            [("FileBaton.wait", "torch/utils/file_baton.py"), ("_jit_compile", "torch/utils/cpp_extension.py")],
        ),
        ("a file lock", FILELOCK),
        ("the lock file of the Hugging Face cache", [*FILELOCK, ("WeakFileLock", "huggingface_hub/utils/_fixes.py")]),
        (
            "the lock file of the Hugging Face cache",
            [*FILELOCK, ("DatasetBuilder.download_and_prepare", "datasets/builder.py")],
        ),
        ("a lock file of torch.compile's cache", [*FILELOCK, ("load", "torch/_inductor/codecache.py")]),
        ("a file lock", [("InterProcessLock.acquire", "fasteners/process_lock.py")]),
        (
            "a file lock",
            [("Lock._timeout_generator", "portalocker/utils.py"), ("Lock.acquire", "portalocker/utils.py")],
        ),
        (
            "the compile workers of torch.compile",
            [("Condition.wait", "threading.py"), ("_wait_futures", "torch/_inductor/async_compile.py")],
        ),
        ("the Hugging Face Hub", [("read", "ssl.py"), ("get", "requests/api.py"), ("hf", "huggingface_hub/hf_api.py")]),
        ("an answer over the network", [("read", "ssl.py"), ("get", "requests/api.py")]),
        ("a program that it started", [("Popen.wait", "subprocess.py"), ("call", "subprocess.py")]),
    ],
)
def test_known_polls(expected, stack):
    assert what(*stack, USER) == expected


@pytest.mark.parametrize(
    "stack",
    [
        [USER],
        [("all_reduce", "torch/distributed/distributed_c10d.py"), USER],
        # the user's own line stands above: what called it polls for nothing
        [USER, ("call", "subprocess.py")],
        [("open", "gzip.py"), USER, *FILELOCK],
    ],
)
def test_other_places_are_none(stack):
    assert what(*stack) is None


def test_a_lock_that_the_kernel_is_asked_for_is_told_by_what_it_sleeps_in():
    for kernel in ("flock_lock_inode_wait", "locks_lock_inode_wait", "fcntl_setlk", "nlmclnt_lock"):
        assert what(USER, wchan=kernel) == "a file lock"
    assert what(USER, wchan="futex_wait") is None
    assert what(USER, acquires="flock") == "a file lock"
    assert lock_wait(digest(USER, acquires="flock"), []) is None


def test_every_poll_says_what_to_do():
    poll = known_poll(digest(*FILELOCK, USER))
    assert poll is not None
    assert poll.advice.endswith(".")
    assert "lslocks" in poll.advice


def test_a_collection_is_seen_in_native_frames():
    collecting = [("subtract_refs", "Modules/gcmodule.c"), ("gc_collect_main", "Modules/gcmodule.c")]
    assert collects_garbage(digest(*collecting, USER))
    assert not collects_garbage(digest(("read", "x86_64-linux-gnu/libc.so.6"), USER))
    assert not collects_garbage(digest(("gc_collect_main", "job/gc.py"), USER))


LOOP = [
    ("EpollSelector.select", "selectors.py"),
    ("BaseEventLoop._run_once", "asyncio/base_events.py"),
    ("BaseEventLoop.run_forever", "asyncio/base_events.py"),
]


def test_an_event_loop_that_waits_is_idle_and_one_that_runs_a_task_is_not():
    assert idle_event_loop(digest(*LOOP, USER))
    assert idle_event_loop(digest(("run", "asyncio/runners.py"), USER))  # uvloop has no Python frames
    assert not idle_event_loop(digest(USER, ("Handle._run", "asyncio/events.py"), *LOOP[1:], USER))
    assert not idle_event_loop(digest(("read", "ssl.py"), ("Handle._run", "asyncio/events.py"), *LOOP[1:], USER))
    assert not idle_event_loop(digest(("select", "selectors.py"), ("poll", "multiprocessing/connection.py"), USER))


def test_who_holds_the_lock():
    main = digest(USER, acquires="self.lock")
    writer = digest(USER, thread="writer", holds=["cache.lock"])
    busy = digest(USER, thread="busy", state="R", holds=["self.lock"])
    others = [digest(USER, thread="other", holds=["self.mutex"]), digest(USER, pid=5, thread="x", holds=["self.lock"])]
    found = lock_wait(main, [main, busy, writer, *others])
    assert found is not None
    assert (found.lock, [holder.thread for holder in found.holders]) == ("self.lock", ["writer", "busy"])
    lonely = lock_wait(main, [main, *others])
    assert lonely is not None
    assert lonely.holders == ()
    assert lock_wait(writer, [main, writer]) is None
