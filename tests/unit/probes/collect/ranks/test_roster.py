"""Which processes are ranks, from process trees with every known trap."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.collect.ranks import RankSource
from mltop.probes.model import UNLIMITED, RankSample
from tests.fakes.proctree import ProcTree

TRAIN = ("train.py", "--epochs", "3")


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def torch_env(rank: int, world: int = 2, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        **more,
    }


def elastic(rank: int, world: int = 2, run_id: str = "run-1", **more: str) -> dict[str, str]:
    return torch_env(rank, world, TORCHELASTIC_RUN_ID=run_id, **more)


def slurm(proc_id: int, tasks: int, job: str = "4711") -> dict[str, str]:
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(proc_id),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_LOCALID": str(proc_id),
    }


def open_mpi(rank: int, size: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)}


def ranks(tree: ProcTree, gpus: dict[int, list[int]] | None = None) -> list[RankSample]:
    samples, gaps = RankSource(str(tree.root)).read(0.0, gpus or {})
    assert gaps == []
    return samples


def found(tree: ProcTree, gpus: dict[int, list[int]] | None = None) -> list[tuple[str, str, int | None, int]]:
    return [(s.launcher, s.job, s.rank, s.pid) for s in ranks(tree, gpus)]


def test_torchrun_with_data_loader_workers(tree: ProcTree) -> None:
    tree.python(10, "/venv/bin/torchrun", "--nproc-per-node", "2", *TRAIN)
    for rank in (0, 1):
        tree.python(20 + rank, *TRAIN, ppid=10, environ=elastic(rank))
        for worker in (0, 1):
            tree.fork(20 + rank, 30 + 2 * rank + worker, comm="pt_data_worker")
    tree.fork(30, 40)  # a worker's own helper
    tree.python(50, "-c", "from multiprocessing.resource_tracker import main", ppid=20, environ=elastic(0))
    samples = ranks(tree, {20: [3], 31: [1], 21: [0, 2]})
    assert [(s.launcher, s.job, s.rank, s.pid) for s in samples] == [
        ("torchrun", "run-1", 0, 20),
        ("torchrun", "run-1", 1, 21),
    ]
    assert [s.children for s in samples] == [[30, 31, 40, 50], [32, 33]]
    assert [s.gpus for s in samples] == [[1, 3], [0, 2]]


def test_every_field_of_one_rank(tree: ProcTree) -> None:
    tree.python(10, "/venv/bin/torchrun", *TRAIN)
    rank = tree.python(20, *TRAIN, "--token=abc", ppid=10, environ=elastic(1, 4))
    tree.change(20, start_ticks=12345, rss_kib=2048, switches=7, reads=8, writes=9, wchan="futex_wait_queue")
    (sample,) = ranks(tree)
    assert sample == RankSample(
        pid=rank.pid,
        rank=1,
        local_rank=1,
        world_size=4,
        local_world_size=4,
        job="run-1",
        master_address="127.0.0.1",
        launcher="torchrun",
        uid=0,
        user="root",
        command="/venv/bin/python train.py --epochs 3 --token=***",
        python="/venv/bin/python",
        state="S",
        wchan="futex_wait_queue",
        started_at=1_700_000_123.45,
        gpus=[],
        cpu_fraction=None,
        rss_bytes=2048 * 1024,
        voluntary_switches=7,
        read_syscalls=8,
        write_syscalls=9,
        cpus_allowed="0-7",
        numa_nodes="0-1",
        children=[],
        children_cpu_fraction=None,
        children_blocked=0,
        memlock_limit_bytes=UNLIMITED,
        open_files=3,
        open_files_limit=1024,
        cgroup="/",
        settings={},
        identified_by="environment",
    )


def test_a_wchan_of_zero_is_no_value(tree: ProcTree) -> None:
    tree.python(20, *TRAIN, environ=elastic(0, 1))
    assert ranks(tree)[0].wchan is None


def test_deepspeed(tree: ProcTree) -> None:
    tree.python(10, "/venv/bin/deepspeed", "train.py")
    tree.python(11, "-u", "-m", "deepspeed.launcher.launch", "train.py", ppid=10)
    for rank in (0, 1):
        environ = torch_env(rank, CROSS_RANK="0", CROSS_SIZE="1", LOCAL_SIZE="2")
        tree.python(20 + rank, "-u", "train.py", f"--local_rank={rank}", ppid=11, environ=environ)
    assert found(tree) == [("deepspeed", "127.0.0.1:29500", r, 20 + r) for r in (0, 1)]


def test_accelerate(tree: ProcTree) -> None:
    tree.python(10, "/venv/bin/accelerate", "launch", "train.py", environ={"ACCELERATE_MIXED_PRECISION": "no"})
    for rank in (0, 1):
        environ = elastic(rank, run_id="none", ACCELERATE_MIXED_PRECISION="no")
        tree.python(20 + rank, "-u", "train.py", ppid=10, environ=environ)
    assert found(tree) == [("accelerate", "127.0.0.1:29500", r, 20 + r) for r in (0, 1)]


def test_open_mpi_below_slurm_with_programs_that_are_not_python(tree: ProcTree) -> None:
    tree.add(5, argv=["slurmstepd: [9.0]"], exe="/usr/sbin/slurmstepd")
    tree.add(10, ppid=5, argv=["/usr/bin/orted"], environ=slurm(0, 1, "9"))
    for rank in (0, 1):
        environ = {**slurm(0, 1, "9"), **open_mpi(rank, 2)}
        tree.add(20 + rank, ppid=10, argv=["/opt/all_reduce_perf", "-b", "8"], environ=environ)
    samples = ranks(tree)
    assert [(s.launcher, s.job, s.rank, s.python) for s in samples] == [("mpirun", "9", r, None) for r in (0, 1)]


def test_intel_mpi_without_a_named_job_is_named_after_its_launcher(tree: ProcTree) -> None:
    tree.add(10, argv=["/opt/intel/bin/hydra_pmi_proxy"])
    for rank in (0, 1):
        environ = {"PMI_RANK": str(rank), "PMI_SIZE": "2"}
        tree.python(20 + rank, *TRAIN, ppid=10, environ=environ)
    source = RankSource(str(tree.root))
    assert [(s.job, s.rank) for s in source.read(0.0, {})[0]] == [("ppid:10", 0), ("ppid:10", 1)]
    tree.remove(10)  # the name stays when the launcher ends
    assert [(s.job, s.rank) for s in source.read(1.0, {})[0]] == [("ppid:10", 0), ("ppid:10", 1)]


def test_srun_with_one_python_per_task(tree: ProcTree) -> None:
    tree.add(5, argv=["slurmstepd: [4711.0]"], exe="/usr/sbin/slurmstepd")
    for rank in (0, 1):
        tree.python(20 + rank, *TRAIN, ppid=5, environ=slurm(rank, 2))
    assert found(tree) == [("srun", "4711", r, 20 + r) for r in (0, 1)]


def test_srun_and_batch_shells_are_no_ranks(tree: ProcTree) -> None:
    batch = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    tree.add(5, argv=["slurmstepd: [4711.batch]"], exe="/usr/sbin/slurmstepd")
    tree.add(6, ppid=5, argv=["/bin/bash", "/var/spool/slurmd/job4711/slurm_script"], environ=batch)
    tree.add(7, ppid=6, argv=["/usr/bin/srun", "python", "train.py"], environ=batch)
    tree.python(8, "/home/u/watch_queue.py", ppid=6, environ=batch)
    tree.add(9, ppid=1, argv=["slurmstepd: [4711.0]"], exe="/usr/sbin/slurmstepd")
    tree.add(11, ppid=9, argv=["/bin/bash"], environ=slurm(0, 2))
    assert found(tree) == []


def test_torchrun_below_srun_with_a_monitor_beside_it(tree: ProcTree) -> None:
    """srun starts one shell per node; it starts a monitor and torchrun, which all carry SLURM_PROCID."""
    tree.add(5, argv=["slurmstepd: [4711.0]"], exe="/usr/sbin/slurmstepd")
    tree.add(6, ppid=5, argv=["/bin/bash", "run.sh"], environ=slurm(1, 2))
    tree.python(7, "/home/u/log_gpus.py", ppid=6, environ=slurm(1, 2))
    tree.add(8, ppid=6, argv=["/usr/bin/nvidia-smi", "dmon"], environ=slurm(1, 2))
    tree.python(10, "/venv/bin/torchrun", *TRAIN, ppid=6, environ=slurm(1, 2))
    assert found(tree) == [("srun", "4711", 1, 7)]  # nothing tells yet that more is to come
    for rank in (8, 9):
        tree.python(20 + rank, *TRAIN, ppid=10, environ={**slurm(1, 2), **elastic(rank, 16)})
    assert found(tree) == [("torchrun", "4711", r, 20 + r) for r in (8, 9)]


def test_a_rank_that_exports_its_slurm_rank_to_helpers_stays_the_rank(tree: ProcTree) -> None:
    """Frameworks set RANK inside the running process: only what it executes shows it."""
    tree.python(20, *TRAIN, environ=slurm(1, 2))
    inside = {**slurm(1, 2), "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "1"}
    tree.python(21, "-m", "some.service", ppid=20, environ=inside)
    assert found(tree) == [("srun", "4711", 1, 20)]


@pytest.mark.parametrize(
    "wrapper",
    [
        ["/bin/sh", "-c", "python train.py"],
        ["/usr/bin/numactl", "--cpunodebind=0", "python", "train.py"],
        ["/usr/bin/env", "A=1", "python", "train.py"],
        ["/usr/local/bin/uv", "run", "train.py"],
        ["/usr/bin/time", "-v", "python", "train.py"],
        ["/usr/libexec/singularity/bin/starter", "python", "train.py"],
        ["/opt/nsys/bin/nsys", "profile", "python", "train.py"],
        ["/opt/site/run_on_gpu", "python", "train.py"],
    ],
)
def test_wrappers_around_a_rank_are_no_ranks(tree: ProcTree, wrapper: list[str]) -> None:
    tree.python(10, "/venv/bin/torchrun")
    for rank in (0, 1):
        tree.add(20 + rank, ppid=10, argv=wrapper, environ=elastic(rank))
        tree.python(30 + rank, *TRAIN, ppid=20 + rank, environ=elastic(rank))
    assert found(tree) == [("torchrun", "run-1", r, 30 + r) for r in (0, 1)]


def test_conda_run_is_python_and_no_rank(tree: ProcTree) -> None:
    tree.python(20, "/opt/conda/bin/conda", "run", "-n", "x", "python", "train.py", environ=elastic(0, 1))
    tree.add(21, ppid=20, argv=["/bin/bash", "/tmp/x.sh"], environ=elastic(0, 1))
    tree.python(22, *TRAIN, ppid=21, environ=elastic(0, 1))
    assert found(tree) == [("torchrun", "run-1", 0, 22)]


def test_of_two_programs_in_one_wrapper_the_one_with_a_gpu_is_the_rank(tree: ProcTree) -> None:
    tree.add(20, argv=["/bin/bash", "run.sh"], environ=elastic(0, 1))
    tree.python(21, "/home/u/log_gpus.py", ppid=20, environ=elastic(0, 1))
    tree.python(22, *TRAIN, ppid=20, environ=elastic(0, 1))
    assert [pid for *_, pid in found(tree, {22: [0]})] == [22]


def test_a_script_started_inside_a_rank_is_its_child(tree: ProcTree) -> None:
    tree.python(20, *TRAIN, environ=elastic(0, 1))
    tree.add(21, ppid=20, argv=["/bin/sh", "-c", "python evaluate.py"], environ=elastic(0, 1))
    tree.python(22, "evaluate.py", ppid=21, environ=elastic(0, 1))
    tree.python(23, "evaluate.py", ppid=20, environ=torch_env(0, 1, MASTER_PORT="1", TORCHELASTIC_RUN_ID="x"))
    (sample,) = ranks(tree)
    assert (sample.pid, sample.children) == (20, [21, 22, 23])


def test_a_rank_that_holds_a_gpu_is_no_launcher_of_what_it_starts(tree: ProcTree) -> None:
    tree.python(20, *TRAIN, environ=slurm(0, 1))
    tree.python(21, "/venv/bin/torchrun", "evaluate.py", ppid=20, environ=slurm(0, 1))
    tree.python(22, "evaluate.py", ppid=21, environ={**slurm(0, 1), **elastic(0, 1)})
    assert found(tree) == [("torchrun", "4711", 0, 22)]
    assert found(tree, {20: [0]}) == [("srun", "4711", 0, 20)]


def test_an_interactive_shell_and_what_watches_from_it_are_no_ranks(tree: ProcTree) -> None:
    environ = {**slurm(0, 1), **torch_env(0, 1)}
    tree.add(20, argv=["-bash"], exe="/bin/bash", environ=environ)
    tree.python(21, "/venv/bin/mltop", ppid=20, environ=environ)
    tree.add(22, ppid=21, argv=["/venv/bin/py-spy", "dump"], environ=environ)
    tree.add(23, ppid=20, argv=["/usr/bin/vim"], environ=environ)
    tree.add(24, ppid=20, argv=["/usr/bin/htop"], environ=environ)
    assert found(tree) == []


def test_three_jobs_at_once_two_of_them_with_the_same_ranks(tree: ProcTree) -> None:
    for job, launcher in (("run-a", 10), ("run-b", 11)):
        tree.python(launcher, "/venv/bin/torchrun")
        for rank in (0, 1):
            tree.python(launcher * 10 + rank, *TRAIN, ppid=launcher, environ=elastic(rank, run_id=job))
    tree.python(300, *TRAIN, environ=slurm(0, 1))
    assert found(tree) == [
        ("srun", "4711", 0, 300),
        ("torchrun", "run-a", 0, 100),
        ("torchrun", "run-a", 1, 101),
        ("torchrun", "run-b", 0, 110),
        ("torchrun", "run-b", 1, 111),
    ]


def test_a_helper_that_detached_itself_is_no_second_rank(tree: ProcTree) -> None:
    tree.python(10, "/venv/bin/torchrun")
    tree.python(20, *TRAIN, ppid=10, environ=elastic(0, 1))
    tree.python(30, "service.py", ppid=1, environ=elastic(0, 1))
    tree.add(31, ppid=1, argv=["/opt/bin/telemetry"], environ=elastic(0, 1))
    assert found(tree) == [("torchrun", "run-1", 0, 20)]


def test_kernel_threads_and_loops_in_a_torn_table_do_no_harm(tree: ProcTree) -> None:
    tree.add(2, ppid=0, comm="kthreadd", kernel_thread=True)
    tree.python(20, *TRAIN, ppid=21, environ=elastic(0, 1))
    tree.python(21, "x.py", ppid=20, environ={})
    assert [pid for *_, pid in found(tree)] == [20]
