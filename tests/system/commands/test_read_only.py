"""--read-only: no command touches a process, loads a machine or writes a file, however it was said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.model import Sample
from mltop.probes.record import recording as records
from mltop.tui.commands.screen import Memory

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


def test_an_agent_that_is_not_installed_runs_from_memory(tmp_path: Path) -> None:
    """Neither a bundle nor a key, nor anything else, is left on a node or here."""
    places = {name: str(tmp_path / name) for name in ("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")}
    for path in places.values():
        Path(path).mkdir()
    done = mltop("--read-only", "snapshot", "--json", "--python", sys.executable, cwd=tmp_path, **places)
    assert (done.returncode, json.loads(done.stdout)["nodes"][0]["state"]) == (0, "live")
    assert [path for path in tmp_path.rglob("*") if str(path) not in places.values()] == []


def test_what_is_installed_already_is_used_as_it_is(tmp_path: Path) -> None:
    command = ("snapshot", "--json", "--python", sys.executable)
    places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert mltop(*command, cwd=tmp_path, **places).returncode == 0
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert any(path.name == "bundle.zip" for path in files)
    assert mltop("--read-only", *command, cwd=tmp_path, **places).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files


def test_what_is_chosen_on_the_screen_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(tmp_path / "state"))
    for read_only in (True, False):
        memory = Memory(read_only)
        memory.remember(lambda choices: choices)
        memory.finish()
        assert (tmp_path / "state").exists() is not read_only


def test_a_full_disk_is_said_also_where_nothing_is_printed(tmp_path: Path) -> None:
    for command in (["stacks", "--raw", "--timeout", "20"], ["help"], ["snapshot", "--json"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "mltop", *command],
                env={**os.environ, "MLTOP_STATE_DIR": str(tmp_path)},
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == 74 and done.stderr.splitlines()[-1] == "mltop: output: No space left on device"
