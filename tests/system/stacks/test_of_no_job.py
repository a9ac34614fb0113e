"""Python processes of no job: `mltop stacks` dumps them where there is no rank, and by pid; nobody is accused.

In a PID namespace of its own, so that no rank of the machine's is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

IDLE = """
import mmap, os, sys, time
loaded = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
def idle():
    print("up", flush=True)
    time.sleep(600)
idle()
"""
ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture
def notebook(tmp_path: Path) -> str:
    """The shell words that start one."""
    library = tmp_path / "torch" / "lib" / "libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(bytes(4096))
    (tmp_path / "notebook.py").write_text(IDLE)
    (tmp_path / "up").touch()
    started = f"{sys.executable} {tmp_path}/notebook.py {library} > {tmp_path}/up &"
    return f"{started} until grep -q up {tmp_path}/up; do sleep 0.1; done;"


def run(before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = f"{before} {sys.executable} -m mltop {' '.join(arguments)}"
    return subprocess.run([*ALONE, "sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)


def test_they_are_dumped_where_there_is_no_rank(notebook: str) -> None:
    done = run(notebook, "stacks", "--via", "local", "--json", "--samples", "2")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (job,) = answer["jobs"]
    (process,) = answer["unassigned"]
    assert job["job"] == f"pid {process['pid']}"
    assert (job["verdict"]["culprits"], job["verdict"]["stragglers"]) == ([], [])
    assert job["verdict"]["kind"] not in ("hang", "suspect")
    assert any(frame["function"] == "idle" for digest in job["digests"] for frame in digest["frames"])
    assert "no training ranks found: these are stacks of a Python process of no job" in done.stderr


def test_by_pid_also_what_has_loaded_nothing(notebook: str, tmp_path: Path) -> None:
    plain = f"{sys.executable} -c 'import time; time.sleep(600)' & echo $! > {tmp_path}/pid; sleep 0.5;"
    done = run(
        f"{notebook} {plain}", "stacks", "--via", "local", "--json", "--samples", "1", "--pid", f"$(cat {tmp_path}/pid)"
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["job"] == f"pid {(tmp_path / 'pid').read_text().strip()}"
    assert job["digests"][0]["frames"]


def test_by_pid_what_is_not_python_could_not_be_read(tmp_path: Path) -> None:
    other = f"sleep 600 & echo $! > {tmp_path}/pid;"
    done = run(other, "stacks", "--via", "local", "--json", "--samples", "1", "--pid", f"$(cat {tmp_path}/pid)")
    (job,) = json.loads(done.stdout)["jobs"]
    assert "not a Python process" in job["digests"][0]["error"]
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("pid", ["4000000", "0", "x", "1,", "-1", "99999999999"])
def test_a_pid_that_is_none(pid: str) -> None:
    done = run("", "stacks", "--via", "local", f"--pid={pid}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"mltop: --pid {pid}: ")
    assert "Traceback" not in done.stderr


def test_a_snapshot_lists_them(notebook: str) -> None:
    done = run(notebook, "snapshot", "--via", "local")
    assert "no training ranks found" in done.stdout
    assert "Python processes of no job" in done.stdout
    assert "notebook.py" in done.stdout
