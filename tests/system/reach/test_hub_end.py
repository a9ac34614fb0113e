"""Nothing stays behind: many channels closed at once, and every way the hub's own process can die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mltop.probes.reach import hub as hub_module
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from tests.hubs import DEADLINE_S, child_pids, opened
from tests.waiting import wait_until

ROOT = Path(hub_module.__file__).parents[3]
# Stands for ssh: the agent runs in a session of its own, as on another machine; only the pipes tie it to us.
FAKE_SSH = """
import subprocess, sys
agent = subprocess.Popen(sys.argv[1:], start_new_session=True)
sys.exit(agent.wait())
"""
HUB_PROGRAM = """
import sys, time
from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers import local
from dataclasses import replace
launched = local.launch(("a", "b"), LaunchOptions(0.2))
if sys.argv[1:]:
    launched = [replace(one, argv=(*sys.argv[1:], *one.argv), dies_with_us=False) for one in launched]
hub = Hub(launched, 0.2)
hub.start()
while not all(view.state.state == "live" for view in hub.view().nodes): time.sleep(0.05)
print("live", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def hub_process(*launcher: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a hub and two live agents."""
    process = subprocess.Popen(
        [sys.executable, "-c", HUB_PROGRAM, *launcher],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == b"live\n"
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("launcher", [(), (sys.executable, "-c", FAKE_SSH)], ids=["local", "ssh"])
def test_no_agent_outlives_us(number: signal.Signals, launcher: tuple[str, ...]) -> None:
    with hub_process(*launcher) as process:
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 2
        process.send_signal(number)
        process.wait(DEADLINE_S)
        _, alive = psutil.wait_procs(below, DEADLINE_S)
        assert not alive, alive


def test_many_are_closed_in_the_time_of_one() -> None:
    before = child_pids()
    stubborn = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    channels = [Channel(stubborn, (f"n{n}",)) for n in range(60)]
    with opened(*channels) as hub:
        wait_until(lambda: len(child_pids() - before) == 60, DEADLINE_S, "60 processes")
        groups = child_pids() - before
        started = time.monotonic()
        hub.close()
        assert time.monotonic() - started < 20.0  # one after the other they would take a minute
        assert not child_pids() - before
        wait_until(lambda: not alive_in(groups), DEADLINE_S, "the end of what they had started")


def alive_in(groups: set[int]) -> list[int]:
    """Processes of these groups; zombies wait only for init."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def test_what_a_launcher_started_is_ended_with_it() -> None:
    """Although that one still holds the pipes."""
    before = child_pids()
    with opened(Channel(("sh", "-c", "sleep 600 & exec sleep 0.2"), ("n1",))):
        pids = wait_until(lambda: child_pids() - before, DEADLINE_S, "a process")
        wait_until(lambda: not child_pids() & pids, DEADLINE_S, "its end")
        wait_until(lambda: not alive_in(pids), DEADLINE_S, "the end of what it had started")


def test_a_hub_that_is_closed_answers_and_does_nothing() -> None:
    hub = Hub([Channel(("cat",), ("n1",))], 1.0)
    hub.start()
    hub.close()
    hub.close()
    hub.retry()
    pending = hub.request("stacks")
    assert [answer.message.error for answer in pending.answers(DEADLINE_S)] == ["mltop is ending"]
    assert hub.view().nodes[0].node == "n1"


def test_files_and_threads_are_given_back() -> None:
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with opened(Channel(("cat",), ("n1",))) as hub:
            wait_until(lambda: hub.node("n1").state.reason == "starting local", DEADLINE_S, "a start")
    assert len(os.listdir("/proc/self/fd")) <= fds + 1
