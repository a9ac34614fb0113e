"""The app in a real terminal: start, keys, resizing, leaving, and a terminal that dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.terminal import Terminal
from tests.waiting import wait_until

SHOW_CURSOR, LEAVE_ALTERNATE_SCREEN = b"\x1b[?25h", b"\x1b[?1049l"


@contextmanager
def program(kind: str = "node", close_s: float = 0.0, **options: object) -> Iterator[Terminal]:
    paths = os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])
    env = {"PYTHONPATH": paths, "TZ": "UTC", **options.pop("env", {})}  # type: ignore[dict-item]
    argv = [sys.executable, "-m", "tests.system.screen.screen_program", kind, str(close_s)]
    with Terminal(argv, env=env, cwd=str(ROOT), **options) as terminal:  # type: ignore[arg-type]
        yield terminal


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_first_paint_then_keys(size: tuple[int, int]) -> None:
    with program(columns=size[0], lines=size[1]) as terminal:
        terminal.wait_for("LOST since 11:58:25")
        terminal.wait_for("q quit")
        terminal.send("t")
        terminal.wait_for("HANG")
        terminal.send("1")
        terminal.wait_for("last 10 min")
        terminal.send("q")
        assert terminal.wait(30) == 0
        wait_until(lambda: LEAVE_ALTERNATE_SCREEN in terminal.raw, timeout_s=30, what="the normal screen")
        assert SHOW_CURSOR in terminal.raw


@pytest.mark.parametrize(
    "environment",
    [{"TERM": "screen", "COLORTERM": ""}, {"NO_COLOR": "1"}, {"TERM": "xterm", "COLORTERM": ""}],
)
def test_few_colours(environment: dict[str, str]) -> None:
    with program(columns=80, lines=24, env=environment) as terminal:
        terminal.wait_for("LOST since")
        assert b"38;2;" not in terminal.raw, "no 24-bit colours where they were not announced"
        terminal.send("q")
        assert terminal.wait(30) == 0


def test_resizing_draws_anew() -> None:
    with program(columns=120, lines=40) as terminal:
        terminal.wait_for("LOST since")
        terminal.resize(20, 5)
        wait_until(
            lambda: "quit" in terminal.text().split("\n")[4], timeout_s=30, what="the key bar of the small screen"
        )
        terminal.resize(80, 24)
        terminal.wait_for("LOST since")
        wait_until(lambda: "quit" in terminal.text().split("\n")[23], timeout_s=30, what="the key bar at the bottom")


def test_leaving_does_not_wait_for_a_slow_session() -> None:
    with program(close_s=60.0) as terminal:
        terminal.wait_for("LOST since")
        began = time.monotonic()
        terminal.send("q")
        assert terminal.wait(30) == 0
        assert time.monotonic() - began < 30.0  # half of what its session takes to close


def test_a_bug_is_said_at_once_and_at_the_end_and_shows_no_data() -> None:
    with program("broken") as terminal:
        terminal.wait_for("taking a view failed: RuntimeError: no view 15")
        terminal.wait_for("LOST since")  # what was known before
        terminal.send("q")
        assert terminal.wait(30) == 0
        after = bytes(terminal.raw).partition(LEAVE_ALTERNATE_SCREEN)[2].decode()
    line, left = after.partition("mltop: ")[2].splitlines()
    assert line.startswith("taking a view failed: RuntimeError: no view 15 (please report); ")
    assert "report: " in line and left == "left the screen"


def test_a_terminal_that_dies_ends_the_program() -> None:
    with program() as terminal:
        terminal.wait_for("LOST since")
        terminal.hang_up()
        assert terminal.wait(30) is not None, "it still runs without a terminal"


def test_a_terminal_that_dies_without_a_signal_ends_the_program(tmp_path: Path) -> None:
    """As below nohup, where the leader of the session stays, and nobody sends SIGHUP to its jobs."""
    code = tmp_path / "code"
    script = f"trap '' HUP; '{sys.executable}' -m tests.system.screen.screen_program node 0; echo $? > '{code}'"
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
    with Terminal(["sh", "-c", script], env=env, cwd=str(ROOT)) as terminal:
        terminal.wait_for("LOST since")
        terminal.hang_up()
        wait_until(code.exists, what="its end")


@pytest.mark.serial
def test_first_full_paint_is_quick() -> None:
    ratios = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import textual.app"], check=True)
        imported_s = time.monotonic() - began
        with program() as terminal:
            terminal.wait_for("8123")
            ratios.append((time.monotonic() - terminal.started_at) / imported_s)
    # The goal is 0.4 s (bench); this only catches a start that became many times slower.
    assert min(ratios) < 8, ratios


def test_start_imports_no_heavy_widgets() -> None:
    heavy = (
        "textual.widgets._data_table",
        "textual.widgets._markdown",
        "textual.widgets._text_area",
        "ClusterShell",
    )
    start = "import sys, mltop.tui.app.app, mltop.tui.screens.node.screen, mltop.tui.screens.overview.fleet"
    code = f"{start}; print([name for name in {heavy} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
