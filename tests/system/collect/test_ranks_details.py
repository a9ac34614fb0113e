"""What changes seldom about ranks (limits, open files, cgroup, settings), and what their children do."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from mltop.probes import record
from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.ranks.details import soft_limit
from mltop.probes.collect.ranks.identity import identify
from mltop.probes.collect.redaction.process import MAX_SETTINGS, NAMES, PREFIXES, settings_of
from mltop.probes.model import UNLIMITED, Gap, RankSample
from tests.fakes.proctree import ProcTree
from tests.waiting import wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def rank_env(rank: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "run-1", **more}


def start(tree: ProcTree, **more: str) -> RankSource:
    for rank in (0, 1):
        tree.python(20 + rank, "train.py", environ=rank_env(rank, **more))
    return RankSource(str(tree.root))


def first(source: RankSource, now: float) -> RankSample:
    return source.read(now, {})[0][0]


def test_limits_open_files_and_cgroup(tree: ProcTree) -> None:
    source = start(tree)
    tree.change(20, memlock="65536", open_files_limit="4096", open_files=17, cgroup="4:memory:/job_1\n0::/x\n")
    sample = first(source, 0.0)
    assert (sample.memlock_limit_bytes, sample.open_files_limit, sample.open_files) == (65536, 4096, 17)
    assert sample.cgroup == "/job_1"
    other = source.read(0.0, {})[0][1]
    assert (other.memlock_limit_bytes, other.cgroup) == (UNLIMITED, "/")


def test_they_are_read_again_within_half_a_minute(tree: ProcTree) -> None:
    source = start(tree)
    assert first(source, 0.0).open_files == 3
    tree.change(20, open_files=900)
    assert first(source, 1.0).open_files == 3
    assert next(now for now in range(1, 60) if first(source, float(now)).open_files == 900) <= 30
    tree.change(20, open_files=5)
    assert first(source, 2.0).open_files == 5  # the clock went back


def test_what_cannot_be_read_of_several_ranks_is_one_gap(tree: ProcTree) -> None:
    source = start(tree)
    for pid in (20, 21):
        (tree.root / str(pid) / "limits").write_text("strange\n")
        (tree.root / str(pid) / "cgroup").unlink()
    samples, gaps = source.read(0.0, {})
    assert {(s.memlock_limit_bytes, s.open_files_limit, s.cgroup) for s in samples} == {(None, None, None)}
    assert [gap.what for gap in gaps] == ["ranks.memlock_limit_bytes", "ranks.open_files_limit", "ranks.cgroup"]
    assert gaps[0].why == "the limit of locked memory of 2 ranks of root cannot be read"
    assert isinstance(gaps[0], Gap)


def test_a_dead_rank_lacks_nothing(tree: ProcTree) -> None:
    source = start(tree)
    source.read(0.0, {})
    tree.die(20)
    (tree.root / "20" / "limits").write_text("")
    for now in (40.0, 80.0):
        samples, gaps = source.read(now, {})
        assert (samples[0].state, samples[0].open_files_limit, gaps) == ("Z", 1024, [])


LIMITS = b"Limit                     Soft Limit           Hard Limit           Units     \n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Max locked memory         8388608              unlimited            bytes     \n", 8388608),
        (b"Max locked memory         unlimited            unlimited            bytes     \n", UNLIMITED),
        (b"Max locked memory         ?                    unlimited            bytes     \n", None),
        (b"Max locked memory", None),
        (b"", None),
    ],
)
def test_soft_limits(line: bytes, expected: int | None) -> None:
    assert soft_limit(LIMITS + line, b"\nMax locked memory") == expected


def test_settings_of_a_rank_are_read_after_each_exec(tree: ProcTree) -> None:
    source = start(tree, CUDA_LAUNCH_BLOCKING="1", NCCL_DEBUG="INFO", HOME="/home/u", PATH="/bin")
    assert first(source, 0.0).settings == {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"}
    tree.change(20, environ_bytes=b"\0" * 100)  # a title written over it (setproctitle)
    assert first(source, 40.0).settings == {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"}
    tree.change(20, environ_bytes=None)
    tree.exec(20, "/venv/bin/python", "train.py", environ=rank_env(0, OMP_NUM_THREADS="1"))
    seen = [first(source, float(now)).settings for now in range(41, 72)]  # within half a minute, as the exec itself
    assert seen[-1] == {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        (b"NCCL_IB_HCA=mlx5\0TORCH_NCCL_BLOCKING_WAIT=1\0X=1\0NVTE_FUSED_ATTN=0\0",
         {"NCCL_IB_HCA": "mlx5", "NVTE_FUSED_ATTN": "0", "TORCH_NCCL_BLOCKING_WAIT": "1"}),
        (b"CUDA_LAUNCH_BLOCKING=\0OMP_NUM_THREADSX=1\0MY_NCCL_DEBUG=1\0", {"CUDA_LAUNCH_BLOCKING": ""}),
        (b"NCCL_PROXY_TOKEN=abcd\0UCX_API_KEY=k\0NCCL_MAX_TOKENS=7\0", {"NCCL_MAX_TOKENS": "7"}),
        (b"NCCL_CONF=http://me:secret@host/x\0NCCL_X=a sk-aaaaaaaaaaaaaaaa b\0",
         {"NCCL_CONF": "http://***@host/x", "NCCL_X": "a *** b"}),
        (b"NCCL_A_KEY=7\0NCCL_B_SECRET=x\0UCX_PASS=x\0GLOO_AUTH=x\0NVTE_PASSWORD=x\0FI_EFA_CREDENTIALS=x\0", {}),
        (b"HF_TOKEN=x\0WANDB_API_KEY=x\0AWS_SECRET_ACCESS_KEY=x\0PATH=/x\0HOME=/x\0XNCCL_DEBUG=x\0nccl_debug=x\0", {}),
        (b"NCCL_CONF_FILE=/etc/nccl.conf\0NCCL_COMM_ID=10.0.0.1:29500\0NCCL_SOCKET_IFNAME==eth0,^lo\0",
         {"NCCL_CONF_FILE": "/etc/nccl.conf", "NCCL_COMM_ID": "10.0.0.1:29500", "NCCL_SOCKET_IFNAME": "=eth0,^lo"}),
        (b"NCCL_ALGO=allreduce:tree;allgather:ring\0NCCL_IB_HCA=^mlx5_0:1,mlx5_1\0OMP_PLACES={0:4},{4:4}\0",
         {"NCCL_ALGO": "allreduce:tree;allgather:ring", "NCCL_IB_HCA": "^mlx5_0:1,mlx5_1",
          "OMP_PLACES": "{0:4},{4:4}"}),
        (b"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128\0CUBLAS_WORKSPACE_CONFIG=:4096:8\0",
         {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
          "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
        (b"CUDA_VISIBLE_DEVICES=GPU-550e8400-e29b-41d4-a716-446655440000,1\0LD_PRELOAD=/a/b.so /c/d.so\0",
         {"CUDA_VISIBLE_DEVICES": "GPU-550e8400-e29b-41d4-a716-446655440000,1", "LD_PRELOAD": "/a/b.so /c/d.so"}),
        (b"NCCL_X=Zk9pQ2vR7tLmX4wB\0NCCL_Y=aGVsbG8gd29ybGQgdGhpcyBpcyBhIHNlY3JldA==\0NCCL_Z=/a/Zk9pQ2vR7tLmX4wB/b\0",
         {"NCCL_X": "***", "NCCL_Y": "***", "NCCL_Z": "/a/***/b"}),
        (b"NCCL_U=https://host/deep/er/x?sig=abc\0NCCL_V=550e8400-e29b-41d4-a716-446655440000\0",
         {"NCCL_U": "https://host/deep/***?***", "NCCL_V": "***"}),
        (b"NCCL_" + b"A" * 100 + b"=1\0NCCL_A B=1\0NCCL_hf_abcdefgh12=1\0", {}),
        (b"NCCL_DEBUG=A\0NCCL_DEBUG=B\0", {"NCCL_DEBUG": "A"}),
        (b"NCCL_DEBUG\0=\0\xff=1\0NCCL_\xff=\xfe\n\0", {"NCCL_\ufffd": "\ufffd"}),
        (b"", {}),
    ],
)  # fmt: skip
def test_only_settings_are_kept_and_no_secrets(environ: bytes, settings: dict[str, str]) -> None:
    assert settings_of(environ) == settings


def test_settings_are_few_and_short() -> None:
    environ = b"\0".join(b"NCCL_%03d=%s" % (n, b"x" * 500) for n in range(100)) + b"\0OMP_NUM_THREADS=4\0"
    settings = settings_of(environ)
    assert len(settings) == MAX_SETTINGS and settings["OMP_NUM_THREADS"] == "4"
    assert {len(value) for value in settings.values()} == {1, 100}


def test_what_a_capture_holds_is_written_down() -> None:
    """Every name that is kept stands in the description of captures, and no other."""
    text = (record.__doc__ or "").split("sounds like a secret's:")[1].split(";")[0]
    assert [name.strip() for name in text.split(",")] == sorted({*NAMES, *(f"{prefix}*" for prefix in PREFIXES)})


def test_names_out_of_the_environment_that_a_capture_holds_are_written_down() -> None:
    described = record.__doc__ or ""
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE"):
        address = {"MASTER_ADDR": "x"} if name == "MASTER_PORT" else {}
        identity = identify({"RANK": "0", "WORLD_SIZE": "1", **address, name: "named-7"})
        assert identity is not None and "named-7" in identity.job and name in described


def with_workers(tree: ProcTree, count: int) -> RankSource:
    tree.python(20, "train.py", environ=rank_env(0))
    for worker in range(count):
        tree.fork(20, 100 + worker, comm="pt_data_worker")
    return RankSource(str(tree.root))


def test_children_are_looked_at_every_few_seconds(tree: ProcTree) -> None:
    source = with_workers(tree, 3)
    sample = first(source, 0.0)
    assert (sample.children_cpu_fraction, sample.children_blocked) == (None, 0)
    tree.change(100, cpu_ticks=TICKS_PER_S, state="D")
    tree.change(101, cpu_ticks=TICKS_PER_S // 2)
    sample = first(source, 1.0)  # the second look comes soon
    assert (sample.children_cpu_fraction, sample.children_blocked) == (1.5, 1)
    tree.change(100, state="S")
    tree.change(102, cpu_ticks=TICKS_PER_S)
    seen = [first(source, float(now)) for now in range(2, 8)]
    assert seen[0].children_blocked in (0, 1) and seen[-1].children_blocked == 0
    assert 0 < max(one.children_cpu_fraction or 0 for one in seen) <= 1.0


def test_a_rank_without_children_has_none_blocked(tree: ProcTree) -> None:
    source = with_workers(tree, 0)
    first(source, 0.0)
    sample = first(source, 1.0)
    assert (sample.children_cpu_fraction, sample.children_blocked) == (0.0, 0)


def test_a_child_that_ends_or_whose_pid_is_used_again_counts_nothing(tree: ProcTree) -> None:
    source = with_workers(tree, 2)
    tree.change(100, cpu_ticks=500)
    tree.change(101, cpu_ticks=500)
    first(source, 0.0)
    tree.change(100, cpu_ticks=900, start_ticks=77)
    (tree.root / "101" / "stat").write_text("101 (x")
    assert first(source, 1.0).children_cpu_fraction == 0.0


def test_a_real_ranks_details() -> None:
    job = uuid.uuid4().hex
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": job, "NCCL_DEBUG": "WARN"}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environ)
    try:
        source = RankSource()

        def found() -> list[RankSample]:
            return [s for s in source.read(time.monotonic(), {})[0] if s.job == job and s.settings]

        (sample,) = wait_until(found, what="the rank")
        soft = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0]
        assert sample.open_files_limit == soft
        wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) == RankSource_open_files(process.pid))
        assert sample.settings["NCCL_DEBUG"] == "WARN" and sample.cgroup and sample.cgroup.startswith("/")
    finally:
        process.kill()
        process.wait()


def RankSource_open_files(pid: int) -> int | None:
    return next((s.open_files for s in RankSource().read(0.0, {})[0] if s.pid == pid), None)
