"""However the screen ends, the terminal is as it was, and one line says why: signals, stops, faults of ours, limits."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.terminal import Terminal
from tests.waiting import wait_until

SHOW_CURSOR, LEAVE_ALTERNATE_SCREEN = b"\x1b[?25h", b"\x1b[?1049l"
IMPORTS = {"PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
PROGRAM = [sys.executable, "-m", "tests.system.screen.screen_program", "node", "0"]
ENDING = ("USR1", "USR2", "ALRM", "QUIT", "XCPU", "VTALRM", "PROF", "TERM", "HUP", "INT", "ABRT")


@contextmanager
def running(argv: list[str] = PROGRAM, **env: str) -> Iterator[Terminal]:
    with Terminal(argv, env={**IMPORTS, **env}, cwd=str(ROOT)) as terminal:
        yield terminal


def is_restored(terminal: Terminal) -> bool:
    """Nothing that was switched on is left on."""
    data = bytes(terminal.raw)
    modes = {*re.findall(rb"\x1b\[\?(\d+)h", data)} - {b"25", b"7", b"2026"}
    on = {mode for mode in modes if data.rfind(b"\x1b[?%sh" % mode) > data.rfind(b"\x1b[?%sl" % mode)}
    hidden = data.rfind(b"\x1b[?25l") > data.rfind(SHOW_CURSOR)
    keys = data.count(b"\x1b[<u") - len(re.findall(rb"\x1b\[>\d+u", data))
    return terminal.is_cooked() and (on, hidden, keys) == (set(), False, 0)


def lines_after(terminal: Terminal) -> list[str]:
    """What is printed once the screen is left, or instead of it."""
    text = bytes(terminal.raw).rpartition(LEAVE_ALTERNATE_SCREEN)[2].decode()
    return re.sub(r"\x1b\[[\d;?<>=]*[A-Za-z]", "", text).strip().splitlines()


@pytest.mark.parametrize("name", ENDING)
def test_signals(name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    with running() as terminal:
        terminal.wait_for("LOST since")
        os.kill(terminal.pid, number)
        assert terminal.wait(30) == 128 + number
        assert is_restored(terminal)
        assert lines_after(terminal) == ["left the screen"]


def test_a_signal_while_it_starts() -> None:
    with running() as terminal:
        wait_until(lambda: b"\x1b[?1049h" in terminal.raw, what="the other screen")
        os.kill(terminal.pid, signal.SIGUSR1)
        assert terminal.wait(30) == 128 + signal.SIGUSR1
        assert is_restored(terminal)
        assert lines_after(terminal) == ["left the screen"]


def test_a_stop_that_cannot_be_caught() -> None:
    """Slurm's suspend, a debugger; and who has the terminal meanwhile changes its modes."""
    with running() as terminal:
        terminal.wait_for("LOST since")
        os.kill(terminal.pid, signal.SIGSTOP)
        wait_until(lambda: "State:\tT" in Path(f"/proc/{terminal.pid}/status").read_text(), what="the stop")
        painted = len(terminal.raw)
        os.kill(terminal.pid, signal.SIGCONT)
        wait_until(lambda: b"LOST" in terminal.raw[painted:], what="the screen anew")
        terminal.send("q")
        assert terminal.wait(30) == 0
        assert is_restored(terminal)


def test_ctrl_z_and_back() -> None:
    with running(["bash", "--norc", "-i"], PS1="prompt> ", BASH_SILENCE_DEPRECATION_WARNING="1") as terminal:
        terminal.wait_for("prompt>")
        terminal.send(" ".join(PROGRAM) + "\n")
        terminal.wait_for("LOST since")
        terminal.send("\x1a")
        terminal.wait_for("Stopped")
        terminal.send("bg\n")  # it stops again: a screen cannot be in the background
        wait_until(lambda: bytes(terminal.raw).rstrip().endswith(b"prompt>"), what="the prompt")
        painted = len(terminal.raw)
        terminal.send("fg\n")
        wait_until(lambda: b"LOST" in terminal.raw[painted:], what="the screen anew")
        terminal.wait_for("q quit")
        terminal.send("q")
        terminal.wait_for("left the screen")
        wait_until(lambda: bytes(terminal.raw).rstrip().endswith(b"prompt>"), what="the prompt")
        terminal.send("stty -a | grep -c ' icanon'; exit 7\n")
        assert terminal.wait(30) == 7


def test_without_a_shell_ctrl_z_changes_nothing() -> None:
    """As in `ssh -t node mltop`: nobody would bring it back."""
    with running() as terminal:
        terminal.wait_for("LOST since")
        painted = len(terminal.raw)
        terminal.send("\x1a")
        wait_until(lambda: b"LOST" in terminal.raw[painted:], what="the screen anew")
        terminal.send("q")
        assert terminal.wait(30) == 0
        assert is_restored(terminal)


# Faults of ours.


@contextmanager
def broken(fault: str, state: Path, *options: str) -> Iterator[Terminal]:
    argv = [sys.executable, "-m", "tests.system.screen.broken_program", fault, *options]
    with running(argv, MLTOP_STATE_DIR=str(state)) as terminal:
        yield terminal
        assert is_restored(terminal)
        text = bytes(terminal.raw).decode()
        assert "Traceback (most" not in text and "the user's data" not in text and "hf_abc" not in text


def check_report(state: Path, line: str) -> None:
    (report,) = state.glob("crash-*.txt")
    assert f"report: {report}" in line
    assert stat.S_IMODE(report.stat().st_mode) == 0o600 and stat.S_IMODE(state.stat().st_mode) == 0o700
    text = report.read_text()
    assert re.search(r"^mltop .*\nPython .*\nclick .*, textual \d.*\nterminal \d+x\d+, TERM=", text)
    assert "Traceback (most recent call last):" in text and "broken_program.py" in text
    assert "the user's data" not in text and "hf_abc" not in text


FATAL = ("compose", "mount", "made", "layout", "whole paint", "timer", "worker", "keys", "app", "app's mount", "feed")


@pytest.mark.parametrize("fault", FATAL)
def test_a_fault_that_ends_the_screen(fault: str, tmp_path: Path) -> None:
    with broken(fault, tmp_path / "state") as terminal:
        assert terminal.wait(60) == 70
        (line,) = lines_after(terminal)
    assert line.startswith("mltop: ") and "ValueError: a made-up fault 15" in line and "mltop snapshot" in line
    check_report(tmp_path / "state", line)


@pytest.mark.parametrize("fault", ["paint", "draw", "callback", "thread"])
def test_a_fault_of_a_part(fault: str, tmp_path: Path) -> None:
    """The screen goes on; what has failed is said at the end."""
    with broken(fault, tmp_path / "state") as terminal:
        terminal.wait_for("1 main" if fault != "paint" else "this line failed")
        wait_until(lambda: b"made-up" in terminal.raw, 60.0, "the notice")
        terminal.send("q")
        assert terminal.wait(60) == 0
        (line,) = lines_after(terminal)
    assert "failed: ValueError: a made-up fault 15" in line
    check_report(tmp_path / "state", line)


def test_a_fault_at_the_end(tmp_path: Path) -> None:
    with broken("end", tmp_path / "state") as terminal:
        terminal.wait_for("1 main")
        terminal.send("q")
        assert terminal.wait(60) == 70
        (line,) = lines_after(terminal)
    check_report(tmp_path / "state", line)


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with broken("compose", tmp_path / "state") as terminal:
        assert terminal.wait(60) == 70
        (line,) = lines_after(terminal)
    assert "no report could be written: " in line and str(tmp_path / "state") in line


def test_read_only_writes_no_report(tmp_path: Path) -> None:
    with broken("compose", tmp_path / "state", "--read-only") as terminal:
        assert terminal.wait(60) == 70
        (line,) = lines_after(terminal)
    assert "no report is written: --read-only" in line and not (tmp_path / "state").exists()


# Limits.

# A user of his own, who may read what root may: the tests' Python may lie in root's home.
AS_ANOTHER = ["setpriv", "--reuid=23456", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_processes_and_threads(most: int, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the user's own processes would count")
    tmp_path.chmod(0o777)
    run = f"ulimit -u {most}; exec '{sys.executable}' -m mltop --via local"
    with running([*AS_ANOTHER, "bash", "-c", run], MLTOP_STATE_DIR=str(tmp_path / "state")) as terminal:
        assert terminal.wait(60) == 71
        assert is_restored(terminal)
        (line,) = lines_after(terminal)
    assert re.search(rf"may not start another process or thread \(ulimit -u {most}, \d+ in use\)", line)
    assert not (tmp_path / "state").exists()


def test_no_more_files(tmp_path: Path) -> None:
    run = f"ulimit -n 9; exec '{sys.executable}' -m mltop --via local"
    with running(["sh", "-c", run], MLTOP_STATE_DIR=str(tmp_path / "state")) as terminal:
        assert terminal.wait(60) == 71
        assert is_restored(terminal)
        (line,) = lines_after(terminal)
    assert "this process may open no more files (ulimit -n 9): raise it" in line


# Packages.


@pytest.mark.parametrize(
    ("package", "version"), [("textual", "0.89.1"), ("rich", "10.0"), ("typing_extensions", "3.7")]
)
def test_another_package_on_pythonpath(package: str, version: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    path = os.pathsep.join([str(tmp_path), IMPORTS["PYTHONPATH"]])
    with Terminal([sys.executable, "-m", "mltop", "demo"], env={"PYTHONPATH": path}) as terminal:
        assert terminal.wait(60) == 2
        (line,) = lines_after(terminal)
    said = line.replace("-", "_")
    assert f"{package} {version} in {tmp_path}".replace("-", "_") in said and "(env -u PYTHONPATH mltop)" in line
