"""What stacks of real processes say that stand without being to blame, or because of a lock: polls, loops, threads."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.stacks import StackOptions, dump_ranks
from mltop.probes.judge.hang.frames import where
from mltop.probes.judge.hang.polls import collects_garbage, known_poll, lock_wait
from mltop.probes.model import RankSample, RankStacks, StackDigest, idle_event_loop
from tests.waiting import wait_until

BATON = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("file_baton", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
def build():
    baton = module.FileBaton(sys.argv[2], 0.05)
    assert not baton.try_acquire()
    print("ready", flush=True)
    baton.wait()
build()
"""
FILELOCK = """
import sys
from filelock import FileLock
def prepare():
    with FileLock(sys.argv[1]):
        pass
print("ready", flush=True)
prepare()
"""
FLOCK = """
import fcntl, sys
def prepare():
    with open(sys.argv[1], "w") as file:
        print("ready", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
prepare()
"""
LOOP = """
import asyncio
async def serve():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(serve())
"""
THREADS = """
import threading, time
class Cache:
    def __init__(self):
        self.lock = threading.Lock()
    def fill(self):
        with self.lock:
            self.download()
    def download(self):
        time.sleep(600)
    def get(self):
        with self.lock:
            return 1
cache = Cache()
threading.Thread(target=cache.fill, name="filler", daemon=True).start()
while not cache.lock.locked():
    time.sleep(0.01)
print("ready", flush=True)
cache.get()
"""
GARBAGE = """
import gc
kept = [[n] for n in range(400_000)]
print("ready", flush=True)
def clean():
    while True:
        gc.collect()
clean()
"""


@pytest.fixture
def look(tmp_path: Path) -> Iterator[Callable[..., Callable[[], RankStacks]]]:
    """Starts a script that prints a line when it is nearly there; what it returns dumps it."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str, *args: str, native: bool = False) -> Callable[[], RankStacks]:
        script = tmp_path / "job.py"
        script.write_text(code)
        command = [sys.executable, str(script), *args]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def dump() -> RankStacks:
            found: list[RankStacks] = []
            options = StackOptions(native=native, deadline_s=30.0)
            dump_ranks([RankSample(process.pid, 0)], options, lambda rank: rank, found.append, threading.Event())
            return found[0]

        return dump

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def once(dump: Callable[[], RankStacks], is_so: Callable[[StackDigest], object], what: str) -> RankStacks:
    """The first dump of whose main thread it is so."""
    return wait_until(lambda: next((stacks for stacks in [dump()] if is_so(stacks.digests[0])), None), 60.0, what)  # type: ignore[return-value]


def held(path: Path) -> int:
    """A descriptor of a file that we hold the lock of."""
    import fcntl

    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_stale_lock_of_an_extensions_build(look: Callable[..., Callable[[], RankStacks]], tmp_path: Path) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    (tmp_path / "lock").touch()
    baton = str(Path(torch.origin).parent / "utils/file_baton.py")
    main = once(look(BATON, baton, str(tmp_path / "lock")), known_poll, "the poll").digests[0]
    poll = known_poll(main)
    assert poll is not None
    assert "C++ extension" in poll.what
    assert where(main).partition(" [")[2].startswith("wait, torch/utils/file_baton.py:")
    assert "job.py:" in where(main)


@pytest.mark.parametrize("code", [FILELOCK, FLOCK], ids=["filelock", "flock"])
def test_a_file_lock_that_another_holds(
    code: str, look: Callable[..., Callable[[], RankStacks]], tmp_path: Path
) -> None:
    descriptor = held(tmp_path / "data.lock")
    try:
        main = once(look(code, str(tmp_path / "data.lock")), known_poll, "the poll").digests[0]
    finally:
        os.close(descriptor)
    poll = known_poll(main)
    assert poll is not None
    assert poll.what == "a file lock"
    assert "prepare (" in where(main)


def test_an_event_loop_without_requests_is_idle(look: Callable[..., Callable[[], RankStacks]]) -> None:
    main = once(look(LOOP), idle_event_loop, "the idle loop").digests[0]
    assert known_poll(main) is None


def test_the_thread_that_holds_the_lock_is_found(look: Callable[..., Callable[[], RankStacks]]) -> None:
    stacks = once(look(THREADS), lambda main: main.acquires, "the wait for the lock")
    wait = lock_wait(stacks.digests[0], stacks.digests)
    assert wait is not None
    assert wait.lock == "self.lock"
    assert [(holder.thread, holder.frames[0].function.rpartition(".")[2]) for holder in wait.holders] == [
        ("filler", "download")
    ]


def test_a_garbage_collection_is_seen_below_python(look: Callable[..., Callable[[], RankStacks]]) -> None:
    main = once(look(GARBAGE, native=True), collects_garbage, "the collection").digests[0]
    assert "clean (" in where(main)
