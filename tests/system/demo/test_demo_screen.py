"""`mltop demo` end to end: the screen, the verdict, and nothing left however it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cpu import children_of
from tests.processes import is_gone
from tests.terminal import Terminal
from tests.waiting import wait_until

LINE = "__getitem__ (demo/dataset.py:"  # where rank 2 stands
DEMO = [sys.executable, "-m", "mltop", "demo"]

# It dumps every job of the machine: see test_verdicts.py.
pytestmark = pytest.mark.jobs


def started(terminal: Terminal) -> list[int]:
    """All processes of a demo whose four ranks are on the screen."""
    terminal.wait_for("SIMULATED")
    wait_until(lambda: len(children_of(terminal.pid)) >= 5, what="the agent and four ranks")
    return [terminal.pid, *children_of(terminal.pid)]


def alive(pids: list[int]) -> list[int]:
    """Those that still run; zombies that wait for their parent are dead."""
    return [pid for pid in pids if not is_gone(pid)]


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """The environment of a demo whose job is the stand-in."""
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("torch", [True, False], ids=["torch", "stand-in"])
def test_it_tells_its_story_without_a_key(torch: bool, without_torch: dict[str, str]) -> None:
    """The job has trained for ten minutes, stops, is dumped, and the next keys are named."""
    with Terminal(DEMO, columns=120, lines=40, env=None if torch else without_torch) as terminal:
        pids = started(terminal)
        terminal.wait_for("one of them stops")
        for words in ("llama-7b", "-10m", "sim001"):
            terminal.wait_for(words)
        text = terminal.wait_for("shows the stacks, 8 all about the hang", 150)
        assert "HUNG" in text and "rank 2" in text and LINE in text and "wait in all_reduce" in text
        assert "SIMULATED" in text
        terminal.send("q")
        assert terminal.wait(30) == 0
    wait_until(lambda: not alive(pids), what="the end of every process")


def hang_up(terminal: Terminal) -> None:
    terminal.hang_up()


def kill(number: signal.Signals) -> Callable[[Terminal], None]:
    return lambda terminal: os.kill(terminal.pid, number)


@pytest.mark.parametrize(
    "end",
    [hang_up, kill(signal.SIGHUP), kill(signal.SIGTERM), kill(signal.SIGKILL)],
    ids=["terminal dies", "SIGHUP", "SIGTERM", "SIGKILL"],
)
def test_nothing_is_left_however_it_ends(end: Callable[[Terminal], None], tmp_path: Path) -> None:
    with Terminal(DEMO, env={"TMPDIR": str(tmp_path)}) as terminal:
        pids = started(terminal)
        end(terminal)
        terminal.wait(30)
        wait_until(lambda: not alive(pids), what="the end of every process")
    assert os.listdir(tmp_path) == []


def test_a_fleet_is_simulated_and_judged(without_torch: dict[str, str]) -> None:
    with Terminal([*DEMO, "--nodes", "6"], columns=120, lines=40, env=without_torch) as terminal:
        pids = started(terminal)
        terminal.wait_for("sim006", 30)
        terminal.wait_for("6 nodes", 30)
        terminal.wait_for("HUNG", 150)
        for words in ("rank 21", "llama-70b", "4 ranks work"):  # one job hangs, not the other
            terminal.wait_for(words, 60)
        terminal.send("q")
        assert terminal.wait(30) == 0
    wait_until(lambda: not alive(pids), what="the end of every process")


def test_the_terminal_is_left_as_it_was() -> None:
    with Terminal(["bash", "-c", f"{shlex.join(DEMO)}; echo RC=$?; stty -a | grep -o ' echo '"]) as terminal:
        terminal.wait_for("SIMULATED")
        terminal.send("q")
        text = terminal.wait_for("RC=0")
        wait_until(lambda: "echo" in terminal.text().partition("RC=0")[2], what="an echoing terminal")
        assert "Traceback" not in text


def test_the_demo_refuses_a_pipe() -> None:
    done = subprocess.run(DEMO, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("mltop: the screen: its input is not a terminal")
