"""--read-only: no command touches a process, loads a machine or writes a file, however it was said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.model import Sample
from mltop.probes.record import recording as records

CHANGING = (
    *(["stacks"], ["capture"], ["kernel", "--learn"], ["lemon", "add", "GPU-1"], ["lemon", "remove", "GPU-1"]),
    *(["probe", kind] for kind in ("matmul", "all-reduce", "pairs", "memory", "copies")),
)


def mltop(*args: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mltop", *args],
        env={**os.environ, "MLTOP_STATE_DIR": str(cwd / "state"), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=False,
    )


@pytest.mark.parametrize("command", CHANGING, ids=" ".join)
def test_nothing_is_changed(command: list[str], tmp_path: Path) -> None:
    for done in (
        mltop("--read-only", *command, cwd=tmp_path),
        mltop(*command, cwd=tmp_path, MLTOP_READ_ONLY="1"),
    ):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"mltop: {command[0]}") and "off: --read-only" in done.stderr
        assert done.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_it_may_stand_behind_the_command(tmp_path: Path) -> None:
    done = mltop("stacks", "--read-only", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("off: --read-only")) == (2, 1)


def test_what_only_looks_goes_on(tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    recording.write_bytes(records([Sample("n1", 100.0, "boot")]))
    assert mltop("--read-only", "stacks", "--recording", str(recording), cwd=tmp_path).returncode == 0
    assert mltop("--read-only", "snapshot", "--json", cwd=tmp_path).returncode == 0
    assert mltop("--read-only", "lemon", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("word", ["0", "no", "false"])
def test_the_variable_can_say_no(word: str, tmp_path: Path) -> None:
    assert mltop("lemon", "add", "GPU-1", cwd=tmp_path, MLTOP_READ_ONLY=word).returncode == 0


def test_a_variable_that_says_neither_is_one_line(tmp_path: Path) -> None:
    done = mltop("snapshot", cwd=tmp_path, MLTOP_READ_ONLY="maybe")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "read-only" in done.stderr
