"""`!`: the screen makes room for a shell, and is there again after it; the program goes on meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.terminal import Terminal
from tests.waiting import wait_until


def a_shell(folder: Path, script: str) -> Path:
    shell = folder / "shell"
    shell.write_text(f"#!/bin/sh\n{script}\n")
    shell.chmod(0o755)
    return shell


@contextmanager
def in_a_shell(folder: Path, script: str) -> Iterator[Terminal]:
    """The program, having left the terminal to this shell."""
    paths = os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])
    env = {"PYTHONPATH": paths, "SHELL": str(a_shell(folder, f"echo $$ > pid; echo it runs; {script}"))}
    argv = [sys.executable, "-m", "tests.system.screen.screen_program", "here", "0"]
    with Terminal(argv, env=env, cwd=str(folder)) as terminal:
        terminal.wait_for("q quit")
        terminal.send("!")
        terminal.wait_for("open a shell?")
        terminal.send("y")
        terminal.wait_for("it runs")
        yield terminal


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()


def test_a_shell_and_back(tmp_path: Path) -> None:
    shell = a_shell(tmp_path, 'echo "this is a shell: $*"\nread line\necho "it read $line"\nexit 3')
    env = {"MLTOP_STATE_DIR": str(tmp_path), "SHELL": str(shell)}
    with Terminal([sys.executable, "-m", "mltop", "--via", "local"], 100, 30, env=env, cwd=str(tmp_path)) as terminal:
        terminal.wait_for("HOST")  # before, there is no node to open one on
        terminal.send("!")
        terminal.wait_for("open a shell?")
        terminal.send("\r")  # means No
        terminal.wait_for_no("open a shell?")
        terminal.send("!")
        terminal.wait_for("open a shell?")
        terminal.send("y")
        terminal.wait_for("this is a shell: -l")
        terminal.send("abc\n")
        terminal.wait_for("shell -l ended with 3")
        terminal.wait_for("HOST")
        terminal.wait_for_no("this is a shell")
        terminal.send("q")
        assert terminal.wait() == 0


def test_a_hang_is_captured_meanwhile(tmp_path: Path) -> None:
    with in_a_shell(tmp_path, "read line; echo it ends") as terminal:
        (tmp_path / "STALL").touch()
        wait_until((tmp_path / "CAPTURED").exists, what="a capture")
        assert bytes(terminal.raw).rpartition(b"it runs")[2].strip() == b"", "something is drawn over the shell"
        terminal.send("\n")
        wait_until(lambda: b"HOST" in terminal.raw.rpartition(b"it ends")[2], what="the screen again")
        terminal.send("q")
        assert terminal.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("script", ["read line", "trap '' HUP TERM; while :; do sleep 0.1; done", "exec bash -i"])
def test_signals_are_obeyed_meanwhile(script: str, number: signal.Signals, tmp_path: Path) -> None:
    with in_a_shell(tmp_path, script) as terminal:
        if "bash" in script:
            terminal.send("stty raw -echo; echo a job; cat\n")
            wait_until(lambda: "a job" in terminal.text().replace("echo a job", ""), what="its job")
        os.kill(terminal.pid, number)
        assert terminal.wait(30) == 128 + number
        assert not is_there(int((tmp_path / "pid").read_text()))
        assert terminal.is_cooked(), "what the shell made of the terminal is left"


def test_a_shell_that_is_killed_leaves_the_screen_in_the_foreground(tmp_path: Path) -> None:
    with in_a_shell(tmp_path, "exec bash -i") as terminal:
        terminal.send("echo it re''ads\n")
        terminal.wait_for("it reads")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        terminal.wait_for("ended with -9")
        terminal.send("q")
        assert terminal.wait() == 0


def test_a_shell_that_is_none_is_said(tmp_path: Path) -> None:
    with in_a_shell(tmp_path, "rm shell; read line") as terminal:
        terminal.send("\n")
        wait_until(lambda: b"HOST" in terminal.raw.rpartition(b"it runs")[2], what="the screen again")
        terminal.send("!")
        terminal.wait_for("open a shell?")
        terminal.send("y")
        terminal.wait_for("shell: No such file or directory")
        terminal.send("q")
        assert terminal.wait() == 0
