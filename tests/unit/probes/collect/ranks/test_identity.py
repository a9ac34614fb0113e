"""What environments mean, per launcher."""

from __future__ import annotations

import pytest

from mltop.probes.collect.ranks.identity import Identity, identify, parse_environ

TORCH = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
}
TORCHRUN = {**TORCH, "TORCHELASTIC_RUN_ID": "none"}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
    "PMIX_NAMESPACE": "prterun-node-a-77@1",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize(
    ("launcher", "environ", "job"),
    [
        ("torchrun", TORCHRUN, "node-a:29500"),
        ("torchrun", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "run-7"}, "run-7"),
        ("torchrun", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "run-7", "SLURM_JOB_ID": "4711"}, "4711"),
        ("torchrun", {**TORCHRUN, **SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "4711"),
        ("deepspeed", {**TORCH, "CROSS_RANK": "1", "CROSS_SIZE": "2", "LOCAL_SIZE": "4"}, "node-a:29500"),
        ("accelerate", {**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "bf16"}, "node-a:29500"),
        ("env", TORCH, "node-a:29500"),
        ("mpirun", OPEN_MPI, "prterun-node-a-77@1"),
        ("mpirun", {**OPEN_MPI, **SLURM, "SLURM_PROCID": "0"}, "4711"),
        ("mpirun", {**OPEN_MPI, **TORCH}, "node-a:29500"),
        ("mpirun", MPICH, ""),
        ("mpirun", {**MPICH, **SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "4711"),
        ("srun", SLURM, "4711"),
        ("srun", {**SLURM, "PMIX_RANK": "5"}, "4711"),
        ("srun", {**SLURM, **TORCH}, "4711"),
        ("srun", {**SLURM, **MPICH, **TORCH}, "4711"),
    ],
)
def test_every_launcher_gives_the_same_numbers(launcher: str, environ: dict[str, str], job: str) -> None:
    found = identify(environ)
    assert found is not None
    assert (found.launcher, found.job) == (launcher, job)
    numbers = (found.rank, found.world_size, found.local_rank, found.local_world_size)
    assert numbers == (5, 8, 1, 4)
    assert found.master_address == environ.get("MASTER_ADDR")


def test_inner_launcher_wins_over_the_one_that_started_it() -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "23456"}
    outer, inner = identify(pod), identify({**pod, **TORCHRUN})
    assert outer is not None and inner is not None
    assert (outer.launcher, inner.launcher) == ("env", "torchrun")
    assert inner.level > outer.level


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "5"},  # says nothing of a job
        {"RANK": "gold", "WORLD_SIZE": "8"},
        {"RANK": "-1", "WORLD_SIZE": "8"},
        {"RANK": "²", "WORLD_SIZE": "8"},
        {"WORLD_SIZE": "8", "MASTER_ADDR": "a"},
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script: no step
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"},
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
        {"ACCELERATE_MIXED_PRECISION": "bf16", "LOCAL_RANK": "0"},
    ],
)
def test_no_rank(environ: dict[str, str]) -> None:
    assert identify(environ) is None


@pytest.mark.parametrize(
    ("folded", "node", "tasks"),
    [("8", "0", 8), ("8(x2),4", "1", 8), ("8(x2),4", "2", 4), ("8(x2),4", "3", None), ("8(x", "0", None)],
)
def test_tasks_of_this_node_from_slurms_list(folded: str, node: str, tasks: int | None) -> None:
    found = identify({**SLURM, "SLURM_STEP_TASKS_PER_NODE": folded, "SLURM_NODEID": node})
    assert found is not None and found.local_world_size == tasks


def test_environ_keeps_only_what_is_needed_and_survives_any_bytes() -> None:
    data = b"HOME=/root\0RANK=3\0WANDB_API_KEY=secret\0WORLD_SIZE=4\0\xff\xfe=\xff\0noequals\0MASTER_ADDR=a=b\0"
    assert parse_environ(data) == {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a=b"}
    assert parse_environ(b"HOME=/root\0WORLD_SIZE=4\0") == {}
    assert parse_environ(b"") == {}


def test_unknown_numbers_are_none_not_zero() -> None:
    assert identify({"RANK": "0", "WORLD_SIZE": ""}) == Identity(launcher="env", rank=0, level=2)
