"""Event loops are asked for their tasks by their own Python, with its user's rights and within bounds, or it is said
why they are not. The Python is a fake that answers as a real one was recorded, and so is py-spy.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.stacks import StackOptions, dump_ranks
from mltop.probes.collect.stacks.tasks import MOST_ASKED
from mltop.probes.model import RankSample, RankStacks, Tasks
from tests import strangers
from tests.fakes.python314 import FakePython, fake_py_spy
from tests.strangers import STRANGER, needs_root
from tests.waiting import wait_until

public = strangers.public
OTHER = STRANGER + 1
Start = Callable[..., int]


@pytest.fixture(autouse=True)
def _py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLTOP_PY_SPY", str(fake_py_spy(tmp_path / "py-spy")))


@pytest.fixture
def python(tmp_path: Path) -> FakePython:
    python = FakePython(tmp_path / "bin")
    python.answers("server")
    return python


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process of a Python and gives its pid."""
    running: list[subprocess.Popen[bytes]] = []

    def start(python: FakePython, **options: object) -> int:
        running.append(python.start(**options))
        return running[-1].pid

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def dump(*pids: int, stop: threading.Event | None = None, job: str = "j", **options: object) -> list[RankStacks]:
    found: list[RankStacks] = []
    ranks = [RankSample(pid, number, job=job) for number, pid in enumerate(pids)]
    dump_ranks(
        ranks,
        StackOptions(**{"deadline_s": 60.0, **options}),
        lambda rank: rank,
        found.append,
        stop or threading.Event(),
    )  # type: ignore[arg-type]
    return sorted(found, key=lambda stacks: stacks.rank or 0)


def tasks_of(stacks: RankStacks) -> Tasks:
    tasks = stacks.digests[0].tasks
    assert tasks is not None
    return tasks


def test_its_own_python_is_asked_and_confined(python: FakePython, start: Start) -> None:
    pid = start(python)
    (stacks,) = dump(pid, raw=True)
    tasks = tasks_of(stacks)
    assert (tasks.error, tasks.count, tasks.chains[0].count) == ("", 13, 6)
    assert tasks.chains[0].frames[0].function == "Engine.step"
    assert stacks.raw[0]["tasks"][0] == "└── (T) Task-1"
    assert len(stacks.raw[0]["tasks"]) == 44
    (asked,) = python.asked
    words = asked.split()
    assert words[:2] == [str(os.getuid()), str(os.getgid())]
    assert words[3:9] == ["-I", "-S", "-m", "asyncio", "pstree", str(pid)]
    assert words[9] == "libraries="
    assert int(words[10].partition("=")[2]) <= 4  # LC_ALL, and what the shell sets


def test_nobody_is_asked_who_was_not_to_be(
    python: FakePython, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(python)
    (stacks,) = dump(pid, tasks=False)
    assert stacks.digests[0].tasks is None
    monkeypatch.setenv("MLTOP_PY_SPY", str(fake_py_spy(tmp_path / "old", version="3.13")))
    (stacks,) = dump(pid)
    assert tasks_of(stacks) == Tasks(python="3.13")
    monkeypatch.setenv("MLTOP_PY_SPY", str(fake_py_spy(tmp_path / "odd", version="3")))
    (stacks,) = dump(pid)
    assert tasks_of(stacks) == Tasks(error="which Python it runs could not be told")
    assert python.asked == []


def test_one_of_those_that_stand_alike_and_few_in_all(python: FakePython, start: Start) -> None:
    pids = [start(python) for _ in range(3)]
    told = [tasks_of(stacks) for stacks in dump(*pids)]
    (asked,) = [pid for pid, tasks in zip(pids, told, strict=True) if not tasks.error]
    assert {tasks.error for tasks in told} == {"", f"not asked for: pid {asked} has the same stack"}
    others = [(pid, tasks.fix) for pid, tasks in zip(pids, told, strict=True) if tasks.error]
    assert all(fix == f"mltop stacks --pid {pid}" for pid, fix in others)
    assert len(python.asked) == 1
    jobs = [RankSample(start(python), 0, job=f"pid {number}") for number in range(MOST_ASKED + 2)]
    found: list[RankStacks] = []
    dump_ranks(jobs, StackOptions(deadline_s=60.0), lambda rank: rank, found.append, threading.Event())
    assert sum(not tasks_of(stacks).error for stacks in found) == MOST_ASKED
    assert len(python.asked) == 1 + MOST_ASKED


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("cycle", 1, ""),
        ("denied", 1, "permission denied"),
        ("not-asyncio", 1, "they could not be read: AsyncioDebug section not available"),
        ("deep", 1, "python -m asyncio pstree failed: RecursionError"),
        ("nothing", 3, "python -m asyncio pstree failed: exit code 3"),
    ],
)
def test_what_it_says_instead(python: FakePython, start: Start, name: str, code: int, says: str) -> None:
    python.answers(name, code)
    (stacks,) = dump(start(python))
    tasks = tasks_of(stacks)
    assert tasks.error.startswith(says)
    assert bool(tasks.cycles) is (name == "cycle")
    assert stacks.digests[0].frames  # the stack is there all the same
    assert len(python.asked) == (2 if name == "not-asyncio" else 1)  # a look that met it running is tried again


def running(python: FakePython, pid: int) -> list[str]:
    """Who is asking about ``pid``."""
    words = str(python.program).encode(), str(pid).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            argv = path.read_bytes().split(b"\0")
            if all(word in argv for word in words):
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize(
    ("code", "deadline_s", "says"),
    [("hang", 5.0, "its Python did not tell them within 5 s"), ("flood", 60.0, "they are more than 4 MiB of text")],
)
def test_one_that_does_not_end_is_ended(
    python: FakePython, start: Start, code: str, deadline_s: float, says: str
) -> None:
    python.answers("server", code)
    pid = start(python)
    (stacks,) = dump(pid, deadline_s=deadline_s)
    assert tasks_of(stacks).error == says
    assert stacks.digests[0].frames
    assert running(python, pid) == []


def test_a_cancel_ends_it(python: FakePython, start: Start) -> None:
    python.answers("server", "hang")
    pid, stop = start(python), threading.Event()
    dumping = threading.Thread(target=dump, args=(pid,), kwargs={"stop": stop})
    dumping.start()
    wait_until(lambda: running(python, pid), what="the question")
    stop.set()
    dumping.join(60)
    assert not dumping.is_alive()
    assert running(python, pid) == []


def test_a_program_that_is_no_python_is_not_run(start: Start, tmp_path: Path) -> None:
    server = FakePython(tmp_path / "bin", name="vllm")
    (stacks,) = dump(start(server))
    assert tasks_of(stacks).error == f"it runs {server.program}, which is no Python"
    assert server.asked == []


def test_a_python_that_was_replaced_is_not_run(python: FakePython, start: Start) -> None:
    pid = start(python)
    shutil.copy(python.program, python.folder / "new")
    (python.folder / "new").replace(python.program)
    (stacks,) = dump(pid)
    assert tasks_of(stacks).error == "it runs a Python that was replaced or removed since"
    assert python.asked == []


def test_in_a_container_paths_mean_other_files(python: FakePython, start: Start) -> None:
    """With mounts of its own; root's or, where users may have them, in a user namespace."""
    script = f'exec unshare --mount {"" if os.geteuid() == 0 else "--user --map-root-user"} "$0"'
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, python.program], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (stacks,) = dump(process.pid)
        assert tasks_of(stacks).error.startswith("it runs in a container (")
        assert python.asked == []
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdout.close()


# Root, and what strangers run.


@pytest.fixture
def theirs(public: Path) -> FakePython:
    """A stranger's own Python."""
    python = FakePython(public / "home/bin")
    python.answers("server")
    strangers.give(public / "home")
    return python


@needs_root
def test_root_asks_no_other_users_processes(theirs: FakePython, start: Start) -> None:
    (stacks,) = dump(start(theirs, user=STRANGER, group=STRANGER, extra_groups=[STRANGER, OTHER]))
    assert "it belongs to " in tasks_of(stacks).error
    assert "run by " in tasks_of(stacks).fix
    assert theirs.asked == []


@needs_root
def test_root_asks_no_python_of_a_strangers_for_its_own_process(theirs: FakePython, start: Start) -> None:
    (stacks,) = dump(start(theirs))
    assert "root does not run what others can change" in tasks_of(stacks).error
    assert theirs.asked == []


@needs_root
def test_root_asks_none_of_a_process_with_the_rights_of_two(python: FakePython, public: Path, start: Start) -> None:
    """A setuid program that a stranger started: what it runs, and as whom, is his choice."""
    setuid = FakePython(public / "bin")
    setuid.answers("server")
    setuid.program.chmod(0o4755)
    pid = start(setuid, user=STRANGER, group=STRANGER, extra_groups=[])
    (stacks,) = dump(pid)
    assert tasks_of(stacks).error.startswith(("it belongs to ", "it runs with the rights of more than one user"))
    assert setuid.asked == []


@pytest.mark.jobs
def test_mltop_stacks_tells_it(python: FakePython, start: Start, tmp_path: Path) -> None:
    """Through the agent, over more than one round, in words, in JSON and in a capture."""
    pid = start(python)
    base = [sys.executable, "-m", "mltop"]
    stacks = [*base, "stacks", "--pid", str(pid), "--samples", "2"]
    told = json.loads(subprocess.run([*stacks, "--json"], capture_output=True, timeout=120, check=False).stdout)
    (job,) = [job for job in told["jobs"] if job["job"] == f"pid {pid}"]
    assert job["verdict"]["culprits"] == []
    assert any("6 of 13 tasks wait in Engine.step (app/server.py:8)" in line for line in job["verdict"]["evidence"])
    assert job["digests"][0]["tasks"]["chains"][0]["count"] == 6
    assert len(python.asked) == 1  # in the first round only
    text = subprocess.run(stacks, capture_output=True, text=True, timeout=120, check=False).stdout
    assert "  13 asyncio tasks\n  6 wait  generate, Task-6, generate" in text
    assert "> Engine.step  app/server.py:8" in text
