"""Leaving: no process that mltop started stays, and no file that is half there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from mltop.probes.investigate.capture import load
from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.investigate.session import LiveSession
from tests.documents import ROOT
from tests.fakes.agents import well_behaved
from tests.terminal import Terminal
from tests.waiting import wait_until

# A launcher that does not end by itself, with a helper (as ssh's ProxyCommand) that only its group has in common.
PROGRAM = """
import sys
from mltop.probes.investigate.session import LiveSession
from mltop.probes.reach.channel import Channel
from mltop.tui.app.app import MltopApp
stubborn = "trap '' TERM HUP; sleep 600 & echo $! > helper; while :; do sleep 1; done"
session = LiveSession("test", [Channel(("sh", "-c", stubborn), ("n1",))], 0.2, lambda *_: "")
app = MltopApp(session)
app.run()
sys.exit(app.return_code)
"""


def test_what_a_launcher_has_started_does_not_stay(tmp_path: Path) -> None:
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / ".dev"), str(ROOT)])}
    with Terminal([sys.executable, "-c", PROGRAM], env=env, cwd=str(tmp_path)) as terminal:
        terminal.wait_for("q quit")
        wait_until(lambda: (tmp_path / "helper").exists() and (tmp_path / "helper").read_text(), what="a helper")
        terminal.send("q")
        assert terminal.wait() == 0
        helper = int((tmp_path / "helper").read_text())
        assert not psutil.pid_exists(helper) or psutil.Process(helper).status() == psutil.STATUS_ZOMBIE


def leave_while_writing(parent: Path, may_end: Callable[[LiveSession, threading.Event], object]) -> CaptureResult:
    """What is left of a capture whose words are being written when the session is closed."""
    describes, goes_on = threading.Event(), threading.Event()

    def describe(*_: object) -> str:
        describes.set()
        goes_on.wait(60)
        return "words"

    session = LiveSession("test", [well_behaved()], 0.1, describe)
    try:
        session.capture(lambda _: None, deadline_s=20.0, parent=parent)
        assert describes.wait(60)
        may_end(session, goes_on)
        session.close()
        assert session.captured_at_close is not None
        return session.captured_at_close
    finally:
        goes_on.set()
        assert session._capture is not None and session._capture.wait(60)  # what it still does must change nothing
        session.close()


def test_a_capture_that_is_being_written_is_finished(tmp_path: Path) -> None:
    def soon(session: LiveSession, goes_on: threading.Event) -> None:
        def wait() -> None:
            wait_until(session.hub._closing.is_set, 60, "the end of the agents")
            goes_on.set()

        threading.Thread(target=wait, daemon=True).start()

    result = leave_while_writing(tmp_path, soon)
    assert (result.directory / "verdict.txt").read_text() == "words"
    assert not [gap for gap in load(result.directory).gaps if "cut off" in gap.why]


def test_one_that_takes_too_long_is_cut_off_between_two_files(tmp_path: Path) -> None:
    result = leave_while_writing(tmp_path, lambda *_: None)
    assert result.problems == ("it was cut off before all was written",)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names and not [name for name in names if name.startswith(".")]
    assert "verdict.txt" not in names
    saved = load(result.directory)
    assert saved.samples and "the capture was cut off before it was finished" in [gap.why for gap in saved.gaps]
