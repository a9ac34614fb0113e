"""`mltop capture` that is interrupted, or cannot be written: what is known is kept, and the truth is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.stacks import find_py_spy
from mltop.probes.investigate.capture import load
from tests.fakes.scripts import shell_script
from tests.system.cases.launch import RunningJob, start
from tests.waiting import wait_until

# It dumps every job of the machine: see test_verdicts.py.
pytestmark = pytest.mark.jobs


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    running = start("gone", tmp_path, ranks=4, culprit=2)
    try:
        running.wait_hung()
        yield running
    finally:
        running.stop()


def slow_py_spy(directory: Path, seconds: float) -> dict[str, str]:
    """An environment in which every stack takes ``seconds``."""
    lines = ("sleep {seconds}", 'exec {py_spy} "$@"')
    wrapper = shell_script(directory / "py-spy", *lines, seconds=seconds, py_spy=find_py_spy())
    return {**os.environ, "MLTOP_PY_SPY": str(wrapper)}


def test_under_nohup_the_end_of_the_terminal_does_not_end_it(job: RunningJob, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    command = ["nohup", sys.executable, "-m", "mltop", "capture", "-o", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=slow_py_spy(tmp_path, 0.5)) as capture:
        wait_until(lambda: list(directory.glob("stacks/*/*.json")), what="the first round")
        os.kill(capture.pid, signal.SIGHUP)
        out, _ = capture.communicate(timeout=60)
    assert (capture.returncode, out) == (0, f"{directory}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_capture_keeps_what_it_has(number: signal.Signals, job: RunningJob, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    capture = subprocess.Popen(
        [sys.executable, "-m", "mltop", "capture", "-o", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=slow_py_spy(tmp_path, 1.5),
    )
    wait_until(lambda: list(directory.glob("stacks/*/*.json")), what="the first round")
    os.kill(capture.pid, number)
    out, err = capture.communicate(timeout=20)
    assert capture.returncode == 128 + number
    assert out == f"{directory}\n"
    assert "interrupted" in err
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert any("interrupted" in problem for problem in manifest["problems"])
    material = load(directory)
    assert {dump.pid for dump in material.dumps} >= set(job.pids) - {job.pids[job.culprit]}
    assert material.newest[0].ranks


def test_a_killed_capture_leaves_whole_files(job: RunningJob, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    capture = subprocess.Popen(
        [sys.executable, "-m", "mltop", "capture", "-o", str(directory)], env=slow_py_spy(tmp_path, 1.5)
    )
    wait_until(lambda: list(directory.glob("stacks/*/*.json")), what="the first round")
    capture.kill()
    capture.wait(10)
    assert job.pids
    material = load(directory)
    assert material.dumps
    assert "the capture was cut off before it was finished" in [gap.why for gap in material.gaps]


def test_a_directory_that_cannot_be_made_is_said_before_anything_is_dumped(job: RunningJob, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    marker = tmp_path / "dumped"
    wrapper = shell_script(tmp_path / "py-spy", "touch {marker}", "exit 1", marker=marker)
    done = subprocess.run(
        [sys.executable, "-m", "mltop", "capture", "-o", str(tmp_path / "file" / "sub")],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "MLTOP_PY_SPY": str(wrapper)},
        check=False,
    )
    assert job.pids
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "cannot write" in done.stderr
    assert not marker.exists()


def told(*args: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "mltop", "stacks", "--json", *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def named(answer: dict[str, Any], job: RunningJob) -> list[tuple[str, str, set[int]]]:
    """Of this job: what is wrong with it, how sure that is, and which of its processes hold it up."""
    return [
        (one["kind"], one["confidence"], {culprit["pid"] for culprit in one["culprits"]})
        for one in answer["incidents"]
        if {culprit["pid"] for culprit in one["culprits"]} & {*job.pids}
    ]


def test_what_was_told_live_is_told_of_the_capture(job: RunningJob, tmp_path: Path) -> None:
    """The verdict, and the incident that it is part of."""
    directory = tmp_path / "c"
    live = named(told(), job)
    subprocess.run([sys.executable, "-m", "mltop", "capture", "-o", str(directory)], timeout=120, check=True)
    assert [culprits for _, _, culprits in live] == [{job.pids[job.culprit]}]
    assert named(told("--recording", str(directory)), job) == live
    (directory / "incidents.json").unlink()  # all of it from stacks and samples alone
    assert [culprits for _, _, culprits in named(told("--recording", str(directory)), job)] == [{job.pids[job.culprit]}]
