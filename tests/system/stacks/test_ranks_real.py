"""Ranks among real processes of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from mltop.probes.collect.ranks import RankSource, read_counters
from mltop.probes.model import RankSample
from tests.waiting import wait_until

PYTHON = sys.executable
SLEEP = "import time; time.sleep(600)"
# Two forked children, as data loader workers are; one of them forks again.
FORK = f"import os\nif os.fork() == 0: os.fork()\nelse: os.fork()\n{SLEEP}"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def job() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process; it and everything below it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, environ: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **(environ or {})}
        process = subprocess.Popen(argv, env=environ, start_new_session=True, **options)
        started.append(process)
        return process

    yield run
    for process in started:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for child in below:  # torchrun gives its ranks sessions of their own
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait(10)
        for stream in (process.stdout, process.stdin):
            if stream:
                stream.close()


def rank_env(job: str, rank: int, world: int = 2) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "TORCHELASTIC_RUN_ID": job}


def of_job(source: RankSource, job: str) -> list[RankSample]:
    return [sample for sample in source.read(time.monotonic(), {})[0] if sample.job == job]


def when(source: RankSource, job: str, holds: Callable[[list[RankSample]], bool], what: str) -> list[RankSample]:
    """The ranks of the job once ``holds`` is true of them."""
    last: list[RankSample] = []

    def check() -> bool:
        last[:] = of_job(source, job)
        return holds(last)

    wait_until(check, 20, what)
    return last


def test_ranks_with_forked_children_and_a_shell_around_them(start: Start, job: str) -> None:
    start(PYTHON, "-c", FORK, environ=rank_env(job, 0))
    wrapper = start("/bin/sh", "-c", f'"{PYTHON}" -c "{SLEEP}"; true', environ=rank_env(job, 1))
    source = RankSource()
    seen = when(source, job, lambda s: [len(x.children) for x in s] == [3, 0], "two ranks, one with children")
    assert [s.rank for s in seen] == [0, 1]
    assert seen[1].pid != wrapper.pid
    assert {s.python for s in seen} == {PYTHON} and {s.launcher for s in seen} == {"torchrun"}
    assert all(abs((s.started_at or 0) - time.time()) < 60 for s in seen)
    assert [read_counters(s).children for s in seen] == [s.children for s in seen]  # type: ignore[union-attr]


def test_counters_of_a_live_rank_move_and_end_with_it(start: Start, job: str) -> None:
    loop = "import os, time\nf = os.open('/proc/self/stat', 0)\nwhile True: os.pread(f, 99, 0); time.sleep(.001)"
    process = start(PYTHON, "-c", loop, environ=rank_env(job, 0))
    (first,) = when(RankSource(), job, lambda s: len(s) == 1, "the rank")
    before = read_counters(first)
    assert before is not None and before.rank == 0 and before.cpu_fraction is None

    def moved() -> RankSample | None:
        after = read_counters(before)
        assert after is not None
        counts = [
            (after.voluntary_switches, before.voluntary_switches),
            (after.read_syscalls, before.read_syscalls),
        ]
        return after if all(a is not None and b is not None and a > b + 50 for a, b in counts) else None

    wait_until(moved, what="50 switches and reads")
    wait_until(lambda: (read_counters(before) or before).cpu_fraction, what="a CPU share")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: (read_counters(before) or before).state == "T", what="state T")
    process.kill()
    process.wait()
    assert read_counters(before) is None


def test_another_process_with_the_same_pid_counts_as_gone(start: Start, job: str) -> None:
    start(PYTHON, "-c", SLEEP, environ=rank_env(job, 0))
    (sample,) = when(RankSource(), job, lambda s: len(s) == 1, "the rank")
    assert sample.started_at is not None
    assert read_counters(replace(sample, started_at=sample.started_at - 60)) is None


def test_zombies_known_and_unknown(start: Start, job: str) -> None:
    launcher = (
        "import os, subprocess, sys, time\n"
        f"ps = [subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env={{**os.environ, 'RANK': str(r)}})"
        " for r in (0, 1)]\n"
        "print(ps[1].pid, flush=True)\ntime.sleep(600)"
    )
    environ = {name: value for name, value in rank_env(job, 0).items() if name != "RANK"}
    process = start(PYTHON, "-c", launcher, environ=environ, stdout=subprocess.PIPE)
    assert process.stdout is not None
    victim = int(process.stdout.readline())
    source = RankSource()
    when(source, job, lambda s: [x.rank for x in s] == [0, 1], "both ranks")
    os.kill(victim, signal.SIGKILL)
    known = when(source, job, lambda s: [x.state for x in s] == ["S", "Z"], "the zombie")
    assert [(s.rank, s.pid == victim) for s in known] == [(0, False), (1, True)]
    late = of_job(RankSource(), job)
    assert [(s.rank, s.state, s.pid == victim) for s in late] == [(0, "S", False), (None, "Z", True)]
    fresh = read_counters(known[1])
    assert fresh is not None and fresh.state == "Z"


TORCH_SCRIPT = """
import multiprocessing, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
worker.start()
dist.barrier()
time.sleep(600)
"""


def test_a_real_torchrun_job(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCH_SCRIPT)
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher = start(*command, str(script), environ={"OMP_NUM_THREADS": "1"})
    source = RankSource()

    def ours() -> list[RankSample]:
        samples = source.read(time.monotonic(), {})[0]
        return [s for s in samples if str(script) in s.command]

    wait_until(lambda: [len(s.children) for s in ours()] == [1, 1], 60, "two ranks with a worker each")
    seen = ours()
    assert [(s.rank, s.local_rank, s.world_size) for s in seen] == [(0, 0, 2), (1, 1, 2)]
    assert {s.launcher for s in seen} == {"torchrun"} and len({s.job for s in seen}) == 1
    assert launcher.pid not in {s.pid for s in seen}
    assert all(s.python == PYTHON and s.master_address and s.rss_bytes for s in seen)


READ_AS = """
import json, os, sys, time
from mltop.probes.collect.ranks import RankSource
from mltop.probes.model import to_json
if os.geteuid() == 0 and sys.argv[1] != "root":
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
samples, gaps = RankSource(*sys.argv[2:3]).read(time.monotonic(), {})
print(to_json({"samples": samples, "gaps": gaps}))
"""


def read_elsewhere(*prefix: str, user: str = "nobody", root: str = "/proc", **environ: str) -> Any:
    command = [*prefix, PYTHON, "-c", READ_AS, user, root]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_what_another_user_may_not_read_is_told(start: Start, job: str) -> None:
    """The rank is not dumpable, so its environment is unreadable to its own user too: the test needs no root."""
    hide = f"import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(1, flush=True); {SLEEP}"
    process = start(PYTHON, "-c", hide, environ=rank_env(job, 0), stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"1\n"
    answer = read_elsewhere()
    assert not [s for s in answer["samples"] if s["job"] == job]
    (gap,) = [gap for gap in answer["gaps"] if gap["what"] == "ranks"]
    assert "Python process" in gap["why"] and "cannot be read (permission denied)" in gap["why"]
    assert gap["fix"] == "sudo mltop"


def test_mltop_started_by_srun_is_no_rank(job: str) -> None:
    slurm = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    answer = read_elsewhere(user="root", **slurm)
    assert not [s for s in answer["samples"] if s["job"] == job]


def _may_mount() -> bool:
    """Mounting a /proc needs CAP_SYS_ADMIN in this user namespace (bit 21 of CapEff)."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.split("CapEff:")[1].split()[0], 16) >> 21 & 1)


@pytest.mark.skipif(not _may_mount(), reason="mounting a /proc needs CAP_SYS_ADMIN")
def test_a_real_hidepid_mount_is_told(start: Start, job: str, tmp_path: Path) -> None:
    start(PYTHON, "-c", SLEEP, environ=rank_env(job, 0))
    when(RankSource(), job, lambda s: len(s) == 1, "the rank")
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    answer = read_elsewhere("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh")
    assert not answer["samples"]
    (gap,) = [gap for gap in answer["gaps"] if gap["what"] == "ranks"]
    assert "hidepid=" in gap["why"] and gap["fix"] == "sudo mltop"


def test_prctl_is_what_the_hidden_rank_uses() -> None:
    """PR_GET_DUMPABLE answers, so a kernel without prctl cannot make the test above pass for nothing."""
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) in (0, 1)
