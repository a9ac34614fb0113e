"""dump_ranks on processes that are hard to read, and what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.ranks.counters import descendants
from mltop.probes.collect.stacks import StackOptions, dump_ranks, find_py_spy
from mltop.probes.collect.stacks.process import read_facts
from mltop.probes.investigate.advice import NODE_SAYS, advised
from mltop.probes.model import RankSample, RankStacks, StackDigest, to_json
from mltop.probes.model.vocabulary import WAITS_FOR_CHILD
from tests.documents import ROOT
from tests.fakes.scripts import shell_script
from tests.processes import name_of, state_of
from tests.pythons import REQUIRED, found
from tests.waiting import wait_until

NOBODY = 65534

SCRIPT = """
import sys, time
def serve(password, step):
    pin = 4711
    token = "sk-SECRET"
    print("ready", flush=True)
    time.sleep(600)
serve("hunter2-SECRET", 5)
"""

THREADS = """
def log():
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    print("ready", flush=True)
    time.sleep(600)
def push():
    time.sleep(600)
def wait():
    time.sleep(600)
for name, does in zip(names, (log, push)):
    threading.Thread(target=does, name=name, daemon=True).start()
wait()
"""
NAMESPACE = ["unshare"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]

Starter = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def spawn() -> Iterator[Starter]:
    """Start a process that prints a line when it is ready; all are killed at the end."""
    running: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    # All are killed before the first is awaited: a tracer keeps its dead tracee from being collected.
    for process in running:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    for process in running:
        process.wait(10)
        process.stdout.close()


def dump(*pids: int, **options: object) -> list[RankStacks]:
    dumped: list[RankStacks] = []
    ranks = [RankSample(pid=pid, rank=rank, job="j") for rank, pid in enumerate(pids)]
    dump_ranks(ranks, StackOptions(**options), lambda rank: rank, dumped.append, threading.Event())
    return sorted(dumped, key=lambda stacks: stacks.rank or 0)


def only(stacks: list[RankStacks]) -> StackDigest:
    (one,) = stacks
    (digest,) = one.digests
    return digest


def processes_of(executable: Path) -> list[str]:
    """Pids whose command line starts with this file."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(executable).encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue  # it ended while we looked
    return found


def test_integers_only_and_no_secret_anywhere(spawn):
    python = spawn(sys.executable, "-c", SCRIPT)
    stacks = dump(python.pid, raw=True)
    assert only(stacks).frames[0].function == "serve"
    assert only(stacks).frames[0].ints == {"step": 5}
    text = to_json(stacks)
    assert "SECRET" not in text
    assert "4711" not in text
    (raw,) = stacks[0].raw
    assert raw["pid"] == python.pid
    assert [local["name"] for local in raw["threads"][0]["frames"][0]["locals"]] == ["step"]
    without = dump(python.pid, raw=True, ints=False)
    assert only(without).frames[0].ints == {}
    assert only(without).key == only(stacks).key


def test_native_frames_are_above_the_leaf(spawn):
    python = spawn(sys.executable, "-c", SCRIPT)
    functions = [frame.function for frame in only(dump(python.pid, native=True)).frames]
    assert "nanosleep" in functions[0]
    assert functions.index("serve") > 0
    assert functions[-1] == "<module>"


def test_not_a_python_process(spawn):
    shell = spawn("sh", "-c", "echo ready; exec sleep 600")
    wait_until(lambda: name_of(shell.pid) == "sleep", what="exec")
    digest = only(dump(shell.pid))
    assert digest.error == "not a Python process (py-spy finds no Python in it)"
    assert digest.frames == []


@pytest.mark.parametrize("version", REQUIRED)
def test_process_that_a_debugger_holds_is_read_all_the_same(spawn, version):
    python = spawn(str(found()[version]), "-c", SCRIPT)
    held = spawn(sys.executable, str(ROOT / "tests/system/cases/tracer.py"), str(python.pid))
    assert state_of(python.pid) == "t"
    digest = only(dump(python.pid))
    assert (digest.state, digest.error) == ("t", None)
    assert digest.frames[0].function == "serve"
    assert held.poll() is None


@pytest.mark.parametrize("said", ["[]", "Error: Failed to find a python interpreter"])
def test_a_free_threaded_python(spawn, said, tmp_path, monkeypatch):
    """Told by its name where py-spy fails, or finds no frames."""
    program = shutil.copy(found()["3.13"], tmp_path / "python3.13t")
    monkeypatch.setenv("PYTHONHOME", str(found()["3.13"].resolve().parents[1]))
    python = spawn(program, "-c", SCRIPT)
    code, stream = (0, 1) if said == "[]" else (1, 2)
    fake = shell_script(tmp_path / "py-spy", f"echo {{said}} >&{stream}; exit {code}", said=said)
    monkeypatch.setenv("MLTOP_PY_SPY", str(fake))
    digest = only(dump(python.pid))
    assert digest.error == "py-spy cannot read free-threaded Python 3.13t"
    assert digest.fix.startswith("run the job on Python 3.13 with the GIL")
    assert not advised(digest.fix).startswith(NODE_SAYS)


@pytest.mark.parametrize("version", REQUIRED)
def test_state_is_left_as_it_was(spawn, version):
    python = spawn(str(found()[version]), "-c", SCRIPT)
    os.kill(python.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(python.pid) == "T", what="stop")
    assert only(dump(python.pid)).frames
    assert state_of(python.pid) == "T"
    os.kill(python.pid, signal.SIGCONT)
    wait_until(lambda: state_of(python.pid) == "S", what="continue")
    assert only(dump(python.pid)).frames
    wait_until(lambda: state_of(python.pid) == "S", what="its sleep")


def test_zombie_worker_is_named(spawn):
    parent = spawn(
        sys.executable,
        "-c",
        "import os, multiprocessing as m\n"
        "c = m.get_context('fork').Process(target=os._exit, args=(3,)); c.start()\n"
        "a, b = m.Pipe(); os.waitid(os.P_PID, c.pid, os.WEXITED | os.WNOWAIT)\n"
        "print('ready', flush=True); a.recv()",
    )
    main, child = dump(parent.pid)[0].digests
    assert main.child_of is None
    assert child.child_of == parent.pid
    assert child.error is not None
    assert child.error.startswith("zombie")


def test_a_child_that_is_waited_for_by_the_kernels_word_alone_is_read(spawn):
    """os.waitpid is no frame of Python's."""
    parent = spawn(
        sys.executable,
        "-c",
        "import os, time\nchild = os.fork()\nif child == 0:\n    time.sleep(600)\n"
        "print('ready', flush=True)\nos.waitpid(child, 0)",
    )
    wait_until(lambda: read_facts(parent.pid).wchan == WAITS_FOR_CHILD, what="its wait")
    main, child = dump(parent.pid)[0].digests
    assert (main.wchan, child.child_of) == (WAITS_FOR_CHILD, parent.pid)
    assert child.frames[0].line == 4


def test_py_spy_missing(spawn, monkeypatch, tmp_path):
    monkeypatch.setenv("MLTOP_PY_SPY", str(tmp_path / "none"))
    python = spawn(sys.executable, "-c", SCRIPT)
    digest = only(dump(python.pid))
    assert (digest.error, digest.fix) == ("py-spy is not installed on this node", "pip install py-spy")


@pytest.fixture
def slow_py_spy(tmp_path, monkeypatch) -> Path:
    """A py-spy that never ends, as the real one on some targets (py-spy#565), with a child of its own."""
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nsleep 600 &\nsleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("MLTOP_PY_SPY", str(fake))
    return fake


def test_deadline_ends_py_spy_and_says_so(slow_py_spy, spawn):
    python = spawn(sys.executable, "-c", SCRIPT)
    digest = only(dump(python.pid, deadline_s=0.2))
    assert digest.error == "py-spy did not finish within 0.2 s and was ended"
    assert processes_of(slow_py_spy) == []


def test_cancel_ends_all_py_spies_at_once(slow_py_spy, spawn):
    python = spawn(sys.executable, "-c", SCRIPT)
    cancelled = threading.Event()
    dumped: list[RankStacks] = []
    ranks = [RankSample(pid=python.pid, rank=rank) for rank in range(6)]
    options = StackOptions(parallel=3, deadline_s=60)
    running = threading.Thread(target=dump_ranks, args=(ranks, options, lambda rank: rank, dumped.append, cancelled))
    running.start()
    try:
        wait_until(lambda: len(processes_of(slow_py_spy)) == 3, what="three py-spies")
    finally:
        cancelled.set()
        began = time.monotonic()
        running.join(40)
    assert not running.is_alive()
    assert time.monotonic() - began < 30  # half of what each has
    assert processes_of(slow_py_spy) == []
    assert dumped == []


def test_a_callback_that_raises_ends_the_dump(spawn):
    python = spawn(sys.executable, "-c", SCRIPT)

    def refuse(_: RankStacks) -> None:
        raise BrokenPipeError("caller has gone")

    ranks = [RankSample(pid=python.pid, rank=rank) for rank in range(4)]
    with pytest.raises(BrokenPipeError, match="caller has gone"):
        dump_ranks(ranks, StackOptions(parallel=1), lambda rank: rank, refuse, threading.Event())


def as_nobody(work: Callable[[], object]) -> object:
    """What ``work`` returns (as JSON) in a forked child that runs as user nobody."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, to_json(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)


@pytest.fixture
def public_py_spy(monkeypatch) -> Iterator[None]:
    """A copy of py-spy that user nobody may run, wherever the tests' Python is."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        source = find_py_spy()
        assert source is not None
        monkeypatch.setenv("MLTOP_PY_SPY", shutil.copy(source, folder))
        yield


def test_another_users_process_is_denied_with_the_way_out(spawn, public_py_spy):
    """A process of root: ours, looked at by user nobody; where we are not root, the machine's first one."""
    if os.geteuid() == 0:
        python = spawn(sys.executable, "-c", SCRIPT)
        dump(python.pid)  # imports everything while we may read it: our Python may lie where nobody enters
        (stacks,) = as_nobody(lambda: dump(python.pid))  # type: ignore[misc]
    else:
        (stacks,) = json.loads(to_json(dump(1)))
    (digest,) = stacks["digests"]
    assert digest["error"] == "permission denied: it belongs to root"
    assert digest["fix"] == "sudo mltop stacks"


PROGRAMS = """
import subprocess, sys
print("ready", flush=True)
subprocess.run(["sh", "-c", sys.argv[1]])
"""


def test_a_program_that_a_rank_waits_for_is_told_without_a_stack(spawn):
    """A shell is not told, but what it waits for; the key stays the same while the program does not run."""
    python = spawn(sys.executable, "-c", PROGRAMS, "sleep 600; exit")
    child = _foreign(python.pid)
    assert (child.error, child.program, child.state, child.frames) == ("not Python: sleep", "sleep", "S", [])
    assert child.child_of == python.pid
    assert _foreign(python.pid).key == child.key


def test_a_program_that_runs_has_another_key_each_time(spawn):
    python = spawn(sys.executable, "-c", PROGRAMS, "while :; do :; done")
    child = _foreign(python.pid)
    assert child.error is not None
    assert child.error.startswith("not Python: ")
    wait_until(lambda: _foreign(python.pid).key != child.key, what="another key")


def test_a_program_that_is_stopped_has_one_key_whatever_it_did_before(spawn):
    """Debuggers move its counters, too."""
    python = spawn(sys.executable, "-c", PROGRAMS, "while :; do :; done")
    keys = set()
    for _ in range(2):
        running = _foreign(python.pid)
        wait_until(lambda running=running: _foreign(python.pid).key != running.key, what="another key")
        os.kill(running.pid, signal.SIGSTOP)
        wait_until(lambda: _foreign(python.pid).state == "T", what="the stop")
        keys.add(_foreign(python.pid).key)
        os.kill(running.pid, signal.SIGCONT)
    assert len(keys) == 1


def _foreign(pid: int) -> StackDigest:
    """The only child of the dumped rank, once its program runs."""
    found: list[StackDigest] = []

    def started() -> bool:
        found[:] = [digest for digest in dump(pid)[0].digests if digest.child_of]
        return bool(found) and "python" not in (found[0].error or "python")

    wait_until(started, what="a program below the rank")
    (child,) = found
    return child


POOL = """
import concurrent.futures, time
def worker_fn():
    print("ready", flush=True)
    time.sleep(600)
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    pool.submit(worker_fn).result()
"""


def test_a_pool_thread_that_the_rank_waits_for_is_kept(spawn):
    python = spawn(sys.executable, "-c", POOL)
    main, thread = dump(python.pid)[0].digests
    assert main.thread == "MainThread"
    assert any(frame.file == "concurrent/futures/_base.py" for frame in main.frames)
    assert thread.thread == "ThreadPoolExecutor-0_0"
    assert thread.frames[0].function == "worker_fn"
    assert thread.child_of is None


def test_a_chroot(spawn, tmp_path):
    """py-spy 0.4.3 looks for its files below the root twice."""
    inside = "mount --rbind / {0}; exec chroot {0} {1} -c '{2}'".format(tmp_path, found()["3.12"], SCRIPT)
    python = spawn(*NAMESPACE, "--mount", "sh", "-c", inside)
    digest = only(dump(python.pid))
    assert (
        digest.frames or digest.error == f"it runs in the chroot {tmp_path}, whose files py-spy finds from inside only"
    )


@pytest.mark.parametrize("version", REQUIRED)
@pytest.mark.parametrize("kinds", [["--mount"], ["--pid"], ["--mount", "--pid"]])
def test_threads_of_other_namespaces(spawn, kinds, version):
    """Their ids are those of the innermost namespace, and all are told apart."""
    script = "import threading, time\nnames = 'logger', 'metrics'\n" + THREADS
    fork = ["--fork", "--kill-child"] if "--pid" in kinds else []
    started = spawn(*NAMESPACE, *kinds, *fork, str(found()[version]), "-c", script)
    pid = descendants("/proc", started.pid)[0] if fork else started.pid
    (stacks,) = dump(pid)
    named = {digest.thread: digest for digest in stacks.digests}
    assert sorted(named) == ["MainThread", "logger", "metrics"]
    assert named["MainThread"].frames[0].function == "wait"
    assert all(digest.state for digest in stacks.digests)
    assert (named["logger"].cpu_s or 0.0) > 10 * (named["metrics"].cpu_s or 0.0), "each has its own counters"
