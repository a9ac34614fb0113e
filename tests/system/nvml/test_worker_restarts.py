"""When the reader process is started again and which GPUs it leaves out; what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.collect.nvml import faults
from mltop.probes.collect.nvml.calls import NO_GPU, Breadcrumb
from mltop.probes.collect.nvml.worker import Pauses, Skips
from mltop.probes.system.spawn import die_with_parent, python_command


def test_restarts_slow_down_and_recover() -> None:
    restarts = Pauses().restarts()
    pauses = []
    at_s = 1000.0
    for _ in range(12):
        restarts.failed(at_s)
        pauses.append(restarts.next_s - at_s)
        at_s = restarts.next_s + 10
    assert pauses == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    restarts.failed(at_s + 3600)
    assert restarts.next_s == at_s + 3600


def test_a_library_that_fails_is_tried_again_soon_and_then_less_often() -> None:
    retries = Pauses().retries()
    pauses = []
    for _ in range(7):
        retries.failed(100.0, free=0)
        pauses.append(retries.next_s - 100.0)
    assert pauses == [2, 4, 8, 16, 30, 30, 30]
    retries.worked()
    pauses = []
    for _ in range(4):
        retries.failed(100.0, free=1)
        pauses.append(retries.next_s - 100.0)
    assert pauses == [0, 2, 4, 8]


def test_a_gpu_is_left_out_longer_each_time() -> None:
    skips = Skips(Pauses())
    skips.add(3, "stuck", 0.0)
    assert skips.now(299.0) == {3}
    assert skips.now(300.0) == frozenset()
    skips.add(3, "stuck", 300.0)
    assert skips.now(899.0) == {3}
    assert skips.now(900.0) == frozenset()
    skips.answered({0, 3})
    assert skips.items() == []
    skips.add(3, "stuck", 1000.0)
    assert skips.now(1300.0) == frozenset()


def test_the_breadcrumb_is_seen_by_another_process() -> None:
    crumb = Breadcrumb.create()
    try:
        assert crumb.read() is None
        code = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            "from mltop.probes.collect.nvml.calls import Breadcrumb\n"
            f"Breadcrumb({crumb.fd}).note(b'nvmlDeviceGetName', 5)"
        )
        subprocess.run([sys.executable, "-c", code], pass_fds=(crumb.fd,), check=True)
        note = crumb.read()
        assert note is not None
        assert note.where() == "nvmlDeviceGetName on GPU 5"
        crumb.note(b"nvmlInit", NO_GPU)
        note = crumb.read()
        assert note is not None
        assert (note.where(), note.gpu) == ("nvmlInit", None)
        crumb.clear()
        assert crumb.read() is None
    finally:
        crumb.close()


@pytest.mark.parametrize(
    ("call", "call_s", "state", "expected"),
    [
        ("nvmlInit", 6.2, "", "NVML does not answer: stuck in nvmlInit for 6 s"),
        (
            "nvmlDeviceGetName on GPU 3",
            0.4,
            "",
            "NVML is slow: no answer for 6 s, now in nvmlDeviceGetName on GPU 3",
        ),
        ("", None, "state T", "NVML does not answer: its reader process is in no call for 6 s (state T)"),
    ],
)
def test_silence_is_described(call: str, call_s: float | None, state: str, expected: str) -> None:
    assert faults.silence(6.2, call, call_s, state) == expected


def test_the_child_starts_from_anywhere(tmp_path: Path) -> None:
    """A module in the working directory must not get in its way, nor a PYTHONPATH."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "mltop").mkdir()
    command = python_command("mltop.probes.agent.__main__", "--help")
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("usage: mltop-agent")


def test_the_parent_death_signal_is_set() -> None:
    """prctl(PR_GET_PDEATHSIG) in the child says SIGKILL."""
    code = """
import ctypes
number = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)
print(number.value)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=die_with_parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "9\n"
