"""`mltop record` writes what `mltop replay` shows; what is no recording gets one line."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.record import read_recording, recording
from tests.builders import fault_recordings as faults
from tests.fakes.nvml.scenario import FakeNvml
from tests.terminal import Terminal
from tests.waiting import wait_until

MLTOP = [sys.executable, "-m", "mltop"]


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MLTOP, *args], capture_output=True, text=True, timeout=90, env={**os.environ, **(env or {})}, check=False
    )


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_what_is_recorded_can_be_replayed(tmp_path: Path, name: str) -> None:
    fake = FakeNvml(tmp_path / "nvml", count=2)
    fake.write()
    path = tmp_path / name
    done = run("record", "-o", str(path), "--for", "4", "--via", "local", env=fake.env())
    assert done.returncode == 0, done.stderr
    assert "samples of 1 nodes" in done.stderr or "samples of 1 node" in done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read = read_recording(path)
    assert not read.cut_off and sum(map(len, read.samples.values())) >= 2
    assert [gpu.index for gpu in read.samples.newest[0].gpus] == [0, 1]
    with Terminal([*MLTOP, "replay", str(path)]) as terminal:
        terminal.wait_for("replay")
        terminal.send("q")
        assert terminal.wait(30) == 0


def test_a_recording_that_is_ended_is_whole_up_to_then(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with subprocess.Popen([*MLTOP, "record", "-o", str(path), "--via", "local"], stderr=subprocess.PIPE) as process:
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 3, timeout_s=60, what="samples")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert not read_recording(path).cut_off


def test_nothing_is_written_over_and_nothing_where_it_is_not_allowed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("mine")
    done = run("record", "-o", str(path), "--for", "1", "--via", "local")
    assert done.returncode == 2 and "exists already" in done.stderr and path.read_text() == "mine"
    done = run("record", "-o", str(tmp_path / "new.jsonl"), "--read-only", "--via", "local")
    assert done.returncode == 2 and "off: --read-only" in done.stderr and not (tmp_path / "new.jsonl").exists()
    done = run("record", "-o", str(tmp_path / "no/new.jsonl"), "--for", "1", "--via", "local")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "cannot write there" in done.stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("how", [["replay"], ["--recording"]])
@pytest.mark.parametrize("bad", ["missing", "empty", "other", "folder", "nothing"])
def test_what_is_no_recording_gets_one_line(tmp_path: Path, how: list[str], bad: str) -> None:
    path = tmp_path / "x.jsonl"
    contents = {"empty": b"", "other": b'{"a": 1}\n', "nothing": recording([])}
    if bad in contents:
        path.write_bytes(contents[bad])
    elif bad == "folder":
        path.mkdir()
    with Terminal([*MLTOP, *how, str(path)]) as terminal:
        assert terminal.wait(30) == 2
        lines = [line for line in terminal.text().splitlines() if line]
        assert len(lines) <= 2 and lines[0].startswith("mltop: "), lines
        assert "Traceback" not in terminal.text()


def test_without_a_terminal_the_screen_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(recording(faults.recording(nodes=1, lasts_s=0.0)[:3]))
    done = run("replay", str(path))
    assert done.returncode == 2 and "not a terminal" in done.stderr
    done = run("-w", "n1", "replay", str(path))
    assert done.returncode == 2 and "instead of machines" in done.stderr


def test_recording_is_the_same_as_replay(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(recording(faults.recording(faults.hangs(3), nodes=2, lasts_s=60.0)))
    with Terminal([*MLTOP, "--recording", str(path)], env={"TZ": "UTC"}) as terminal:
        terminal.wait_for("replay 1x 1970-01-02 03:48:4")
        terminal.send("p")
        terminal.wait_for("replay paused")
        terminal.send("+")
        terminal.send("p")
        terminal.wait_for("replay 2x")
        terminal.send("q")
        assert terminal.wait(30) == 0
