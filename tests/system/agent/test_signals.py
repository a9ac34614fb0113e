"""Signals to ranks, sent to real processes: the one that was seen gets it, nobody else."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mltop.probes.agent.programs import Unavailable
from mltop.probes.agent.signals import MOST_PROCESSES, send_signals, signal_facts
from mltop.probes.collect.ranks import procfs
from mltop.probes.model import RankSample
from mltop.probes.model.acts import SIGNALS
from mltop.probes.model.sample import UNLIMITED
from tests.waiting import wait_until

SLEEPER = "import sys, time; sys.stdout.write('up\\n'); sys.stdout.flush(); time.sleep(600)"
HANDLES_USR1 = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None);" + SLEEPER
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER
PARENT = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "print(child.pid, flush=True); child.wait()"
)


@contextmanager
def running(code: str = SLEEPER, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)
    try:
        assert process.stdout is not None
        process.first_line = process.stdout.readline().strip()  # type: ignore[attr-defined]
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def started(pid: int) -> float:
    began_at = procfs.started_at("/proc", procfs.read_stat("/proc", pid).start_ticks)
    assert began_at is not None
    return began_at


def send(name: str, pid: int, *, rank: int | None = None, **changed: Any) -> dict[str, Any]:
    """The result for one process; ``rank``: the pid of the only known rank, itself if None."""
    args = {
        "signal": name,
        "processes": [{"pid": pid, "started_at": changed.pop("started_at", None) or started(pid)}],
        "sampled_at": time.time(),
        **changed,
    }
    (result,) = send_signals(args, [RankSample(pid if rank is None else rank)], threading.Event())["results"]
    return result


@pytest.mark.parametrize("name", ["TERM", "KILL", "ABRT", "USR1"])
def test_what_ends_is_told(name: str) -> None:
    with running(preexec_fn=no_core) as process:
        result = send(name, process.pid)
        assert (result["outcome"], result["pid"]) == ("ended", process.pid)
        assert process.wait(10) == -getattr(signal, f"SIG{name}")


def test_what_goes_on_is_told_with_its_state() -> None:
    with running(HANDLES_USR1) as process:
        result = send("USR1", process.pid)
        assert (result["outcome"], result["state"]) == ("sent", "S")
        assert process.poll() is None


def test_a_stopped_process_goes_on() -> None:
    with running() as process:
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: procfs.read_stat("/proc", process.pid).state == "T", what="the stop")
        result = send("CONT", process.pid)
        assert (result["outcome"], result["state"]) == ("sent", "S")


def test_a_pid_that_is_another_process_by_now_gets_nothing() -> None:
    with running() as process:
        assert send("KILL", process.pid, started_at=started(process.pid) - 30.0)["outcome"] == "another"
        assert process.poll() is None


def test_who_is_no_rank_gets_nothing() -> None:
    with running() as process, running() as rank:
        assert send("KILL", process.pid, rank=rank.pid)["outcome"] == "no_rank"
        assert process.poll() is None and rank.poll() is None


def test_what_a_rank_has_started_gets_it() -> None:
    with running(PARENT) as rank:
        child = int(rank.first_line)  # type: ignore[attr-defined]
        assert send("TERM", child, rank=rank.pid)["outcome"] == "ended"
        assert rank.wait(10) == 0


@pytest.mark.parametrize("whose", ["init", "group", "everybody", "own", "parent"])
def test_init_and_mltop_itself_get_nothing(whose: str) -> None:
    """Nor 0 and -1, which kill(2) takes for groups."""
    pid = {"init": 1, "group": 0, "everybody": -1, "own": os.getpid(), "parent": os.getppid()}[whose]
    began_at = started(pid) if pid > 0 else 1.0
    assert send("KILL", pid, started_at=began_at)["outcome"] in ("ours", "gone")


def test_the_dead_and_the_gone() -> None:
    with running() as process:
        began_at = started(process.pid)
        process.kill()
        wait_until(lambda: procfs.read_stat("/proc", process.pid).state == "Z", what="the zombie")
        assert send("TERM", process.pid, started_at=began_at)["outcome"] == "gone"
        process.wait()
        assert send("TERM", process.pid, started_at=began_at)["outcome"] == "gone"


def test_kernel_threads_get_nothing() -> None:
    threads = [pid for pid in procfs.list_pids("/proc") if is_kernel_thread(pid)]
    for pid in threads[:3]:  # in a container there are none
        assert send("KILL", pid)["outcome"] == "kernel"


def is_kernel_thread(pid: int) -> bool:
    try:
        return procfs.read_stat("/proc", pid).kernel_thread
    except OSError:
        return False


def test_without_permission_it_is_said_whose_it_is() -> None:
    """As a user that may not: in a child process that gives its rights away."""
    with running() as process:
        code = (
            "import json, os, sys, threading, time\n"
            "from mltop.probes.agent.signals import send_signals\n"
            "from mltop.probes.model import RankSample\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "pid, start = int(sys.argv[1]), float(sys.argv[2])\n"
            "args = {'signal': 'KILL', 'processes': [{'pid': pid, 'started_at': start}], 'sampled_at': time.time()}\n"
            "print(json.dumps(send_signals(args, [RankSample(pid)], threading.Event())))"
        )
        if os.geteuid() != 0:
            pytest.skip("needs root, to give it away: a user namespace has no second user without newuidmap")
        done = subprocess.run(
            [sys.executable, "-c", code, str(process.pid), str(started(process.pid))],
            capture_output=True,
            text=True,
            check=True,
        )
        assert '"outcome": "denied"' in done.stdout and '"why": "root"' in done.stdout
        assert process.poll() is None


@pytest.mark.parametrize(
    "change",
    [
        {"sampled_at": 100.0},
        {"sampled_at": None},
        {"signal": "STOP"},
        {"signal": 9},
        {"processes": []},
        {"processes": [{"pid": True, "started_at": 1.0}]},
        {"processes": [{"pid": 5}]},
        {"processes": [7]},
        {"processes": [{"pid": 2, "started_at": 1.0}] * (MOST_PROCESSES + 1)},
    ],
    ids=str,
)
def test_what_is_no_request_or_too_old_sends_nothing(change: dict[str, Any]) -> None:
    with running() as process:
        args = {
            "signal": "KILL",
            "processes": [{"pid": process.pid, "started_at": started(process.pid)}],
            "sampled_at": time.time(),
            **change,
        }
        with pytest.raises(Unavailable):
            send_signals(args, [RankSample(process.pid)], threading.Event())
        assert process.poll() is None


def test_a_request_that_was_cancelled_sends_nothing() -> None:
    cancelled = threading.Event()
    cancelled.set()
    with running() as process:
        processes = [{"pid": process.pid, "started_at": started(process.pid)}]
        args = {"signal": "KILL", "processes": processes, "sampled_at": time.time()}
        with pytest.raises(Unavailable):
            send_signals(args, [RankSample(process.pid)], cancelled)
        assert process.poll() is None


# What is known before.


def no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def facts_of(pid: int) -> dict[str, Any]:
    args = {"processes": [{"pid": pid, "started_at": started(pid)}]}
    (facts,) = signal_facts(args, [RankSample(pid)])["facts"]
    return facts


def test_what_a_process_does_with_signals() -> None:
    with running(HANDLES_USR1) as handles, running(IGNORES_TERM) as ignores:
        assert facts_of(handles.pid)["caught"] == ["USR1"]
        assert facts_of(ignores.pid)["ignored"] == ["TERM"]


def test_the_limit_of_a_core() -> None:
    with running(preexec_fn=no_core) as process:
        assert facts_of(process.pid)["core_limit_bytes"] == 0
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    with running(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))) as process:
        assert facts_of(process.pid)["core_limit_bytes"] == (UNLIMITED if hard == resource.RLIM_INFINITY else hard)


def test_how_large_a_core_would_be() -> None:
    held = "data = bytearray(b'x') * (64 << 20);" + SLEEPER
    with running(held) as large, running() as small:
        difference = facts_of(large.pid)["core_bytes"] - facts_of(small.pid)["core_bytes"]
        assert 60 << 20 < difference < 80 << 20


def test_where_a_core_goes() -> None:
    with running() as process, open("/proc/sys/kernel/core_pattern", encoding="utf-8") as file:
        assert facts_of(process.pid)["core_pattern"] == file.read().strip()


def test_a_process_that_is_not_dumpable() -> None:
    """PR_SET_DUMPABLE; as an ordinary user's, root's look the same."""
    as_user = "import ctypes, os\nif os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    code = as_user + "ctypes.CDLL(None).prctl(4, {});" + SLEEPER
    with running(code.format(0)) as closed, running(code.format(1)) as usual:
        assert facts_of(closed.pid)["dumpable"] in ("no", "root")
        assert facts_of(usual.pid)["dumpable"] == "yes"
    if os.geteuid() == 0:
        with running() as of_root:
            assert facts_of(of_root.pid)["dumpable"] == "unknown"


def test_the_names_are_those_of_the_system() -> None:
    assert all(hasattr(signal, f"SIG{name}") for name in SIGNALS)
