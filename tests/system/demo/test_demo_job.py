"""The demo's job is real, hangs where it should, and leaves nothing behind however its owner ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.demo.job import DemoJob
from tests.processes import is_gone
from tests.waiting import wait_until

PY_SPY = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
STEP_S = 0.25  # DemoJob's default: a healthy rank switches at least once in this time
HANG_S = 40.0  # importing torch four times on a loaded machine


def frames_of(pid: int) -> list[str]:
    """``function (file)`` of the only Python thread, leaf first."""
    command = [PY_SPY, "dump", "--json", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    threads = json.loads(done.stdout)
    assert len(threads) == 1, "no thread of ours may show beside the training"
    return [f"{frame['name']} ({Path(frame['filename']).name})" for frame in threads[0]["frames"]]


@contextlib.contextmanager
def hung_job(use_torch: bool | None, **options: float) -> Iterator[DemoJob]:
    with DemoJob(use_torch=use_torch, **options) as job:
        wait_until(lambda: job.hung_since() or job.problem(), HANG_S, "the hang")
        assert job.problem() is None
        yield job


@pytest.mark.parametrize(("use_torch", "healthy_s"), [(True, 4.0), (False, 1.0)], ids=["torch", "plain"])
def test_culprit_is_in_its_dataset_and_the_others_wait(use_torch: bool, healthy_s: float) -> None:
    started = time.time()
    with hung_job(use_torch, healthy_s=healthy_s) as job:
        assert started + healthy_s <= job.hung_since() <= time.time()
        script = "train_torch.py" if use_torch else "train_plain.py"
        for rank, pid in enumerate(job.pids):
            wanted = "__getitem__ (dataset.py)" if rank == 2 else "all_reduce ("
            stack = wait_until(lambda p=pid, w=wanted: (s := frames_of(p)) and w in s[0] and s, 30, wanted)
            assert f"train ({script})" in stack
            assert any("all_reduce_grads" in frame for frame in stack) == (rank != 2)
        # A dump moves the switch counter, ours before this and that of any test beside us: look again then.
        wait_until(lambda: stands_still(job.pids, 2 * STEP_S), what="counters to are stuck")
        pids = job.pids
        ended = time.monotonic()
        job.close()
        assert time.monotonic() - ended < 40.0
        assert all(is_gone(pid) for pid in pids)


def stands_still(pids: list[int], seconds: float) -> bool:
    before = [counters(pid) for pid in pids]
    time.sleep(seconds)  # what is observed is that nothing happens meanwhile
    return [counters(pid) for pid in pids] == before


def counters(pid: int) -> tuple[str, ...]:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    io = Path(f"/proc/{pid}/io").read_text().splitlines()
    return tuple(line for line in status + io if line.startswith(("voluntary", "syscr", "syscw")))


def test_environment_is_that_of_a_launched_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with DemoJob(use_torch=False) as job:
        for rank, pid in enumerate(job.pids):
            text = wait_until(Path(f"/proc/{pid}/environ").read_text, what="the end of exec")
            environment = dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)
            assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
            assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "4"
            assert environment["MASTER_ADDR"] == "127.0.0.1" and int(environment["MASTER_PORT"]) > 0
            assert environment["OMP_NUM_THREADS"] == "1" and "SLURM_JOB_ID" not in environment


def test_another_culprit_and_size() -> None:
    with DemoJob(ranks=3, culprit=0, use_torch=False, healthy_s=0.1, step_s=0.01) as job:
        wait_until(job.hung_since, 60, "the hang")
        assert len(job.pids) == 3 and job.on_gpus() == [(pid, i) for i, pid in enumerate(job.pids)]
        wait_until(lambda: "__getitem__" in frames_of(job.pids[0])[0], what="rank 0 in its dataset")
        wait_until(lambda: "all_reduce" in frames_of(job.pids[2])[0], what="rank 2 waiting")


def test_survives_the_thread_that_started_it() -> None:
    job = DemoJob(use_torch=False, healthy_s=0.5, step_s=0.05)
    starter = threading.Thread(target=job.start)
    starter.start()
    starter.join()
    try:
        wait_until(job.hung_since, 60, "the hang")
        assert job.problem() is None
    finally:
        job.close()


def test_start_is_quick_and_close_may_come_at_any_time() -> None:
    job = DemoJob()
    job.close()
    started = time.monotonic()
    job.start()
    assert time.monotonic() - started < 30.0
    pids = job.pids
    job.close()
    job.close()
    assert job.pids == [] and all(is_gone(pid) for pid in pids) and job.hung_since() is None


def test_waiters_go_on_waiting_when_a_rank_is_gone() -> None:
    with hung_job(False, healthy_s=0.3, step_s=0.02) as job:
        os.kill(job.pids[2], signal.SIGKILL)
        wait_until(job.problem, what="the death to be noticed")
        assert "rank 2" in job.problem()
        for rank in (0, 1, 3):
            pid = job.pids[rank]
            wait_until(lambda pid=pid: "all_reduce" in frames_of(pid)[0], what=f"rank {rank} waiting")


@pytest.fixture
def broken_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libc10.so: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("broken_torch")
def test_a_torch_that_does_not_import_falls_back_to_the_stand_in() -> None:
    with hung_job(None, healthy_s=0.5, step_s=0.05) as job:
        wait_until(lambda: "all_reduce (collective.py)" in frames_of(job.pids[0])[0], what="the stand-in")


@pytest.mark.usefixtures("broken_torch")
def test_a_job_that_cannot_run_says_why() -> None:
    with DemoJob(use_torch=True) as job:
        assert "libc10.so" in wait_until(job.problem, 60, "the ranks' end")


OWNER = """
import sys, time
from mltop.probes.demo.job import DemoJob
torch = sys.argv[1] == "torch"  # two ranks, since each imports it
job = DemoJob(ranks=2 if torch else 4, culprit=1, use_torch=torch, healthy_s=0.3).start()
print(*job.pids, flush=True)
while not job.hung_since(): time.sleep(0.02)
print("hung", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def owner(kind: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    root = Path(sys.modules[DemoJob.__module__].__file__).parents[3]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind], env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process, [int(word) for word in process.stdout.readline().split()]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["torch", "plain"])
def test_nothing_is_left_when_the_owner_is_killed(kind: str, end: int, tmp_path: Path) -> None:
    with owner(kind, tmp_path) as (process, pids):
        assert process.stdout.readline() == b"hung\n" and not any(is_gone(pid) for pid in pids)
        process.send_signal(end)
        process.wait()
        wait_until(lambda: all(is_gone(pid) for pid in pids), what="the ranks' end")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_the_owner_dies_while_starting(tmp_path: Path) -> None:
    with owner("torch", tmp_path) as (process, pids):
        process.kill()
        process.wait()
        wait_until(lambda: all(is_gone(pid) for pid in pids), what="the ranks' end")
    assert list(tmp_path.iterdir()) == []


RANK = """
import os, time
from mltop.probes.demo.training import tie_to_parent
tie_to_parent(os.getppid())
child = os.fork()
if child == 0:
    time.sleep(600)
print(os.getpid(), child, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["stdin", "kill"])
def test_forked_workers_end_with_their_rank(end: str) -> None:
    root = Path(sys.modules[DemoJob.__module__].__file__).parents[3]
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        pids = [int(word) for word in rank.stdout.readline().split()]
        assert len(pids) == 2 and not any(is_gone(pid) for pid in pids)
        if end == "stdin":
            rank.stdin.close()
        else:
            rank.kill()
        wait_until(lambda: all(is_gone(pid) for pid in pids), what="both to end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
        rank.stdout.close()
