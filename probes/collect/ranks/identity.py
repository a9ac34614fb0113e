"""What a process's environment says about its place in a distributed job, and which programs put it there.

To support one more launcher add one row to ``LAUNCHERS``. Rows are ordered from the most specific to the
least: a launcher that was itself started by another one overrides what it inherited.

Sources: torch.distributed.elastic (torchrun), deepspeed/launcher/launch.py, accelerate/utils/launch.py,
Open MPI's mpirun(1), MPICH's/Intel MPI's PMI and MVAPICH's variables, Slurm's srun(1) "OUTPUT ENVIRONMENT VARIABLES",
Lightning's subprocess_script launcher, horovod/runner/gloo_run.py, jax/_src/clusters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mltop.probes.model.receipt import MOST_RANK_NUMBERS
from mltop.probes.model.vocabulary import IdentifiedBy


@dataclass(frozen=True)
class Identity:
    """One rank's place in its job. ``job`` is "" when the environment names none; ``rank`` is None when what it gives
    can be no rank's number.

    ``level`` says how specific the launcher is: of two identities on one branch of the process tree the one
    with the higher level is the rank, the other one is what started it. ``unbelieved``: variables ("NAME=value")
    whose numbers no job has. ``node_rank``: where only that and the local rank are given; ``source``: what gave it.
    """

    launcher: str
    rank: int | None
    level: int
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    job: str = ""
    master_address: str | None = None
    unbelieved: tuple[str, ...] = ()
    node_rank: int | None = None
    source: IdentifiedBy = "environment"

    @property
    def key(self) -> tuple[int, str, int | None]:
        """Which place of which job it is. Without the rank's number the local one tells them apart: below zero."""
        without = None if self.local_rank is None else -1 - self.local_rank
        return self.level, self.job, without if self.rank is None else self.rank


@dataclass(frozen=True)
class Launcher:
    """One row: which variables a launcher sets. Of several names for one value the first that is set counts.

    ``marks`` must all be set ("PREFIX_*": any with this prefix), and none of ``no_rank`` have the value that it names.
    ``generic``: other launchers or their users set the same variables too, so a less specific row with the same numbers
    is the true origin.

    ``programs``: by these names it is started (console scripts, too), or starts others on its nodes; ``modules``: those
    of Python that do the same, run with -m or by their path.

    ``by_node``: it gives no rank but the node's and the local one: of the first node they are the same.
    """

    name: str
    level: int
    rank: tuple[str, ...] = ("RANK",)
    world_size: tuple[str, ...] = ("WORLD_SIZE",)
    local_rank: tuple[str, ...] = ("LOCAL_RANK",)
    local_world_size: tuple[str, ...] = ("LOCAL_WORLD_SIZE",)
    marks: tuple[str, ...] = ()
    no_rank: tuple[tuple[str, str], ...] = ()
    generic: bool = False
    by_node: bool = False
    programs: str = ""
    modules: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The variables that hold numbers."""
        return (*self.rank, *self.world_size, *self.local_rank, *self.local_world_size)


# Slurm's step ids of batch, extern and interactive steps (slurm.h): their processes are no tasks.
_SPECIAL_STEPS = ("4294967291", "4294967292", "4294967290", "batch", "extern", "interactive")

LAUNCHERS = (
    Launcher(
        "accelerate",
        3,
        local_world_size=("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
        marks=("ACCELERATE_*",),
        programs="accelerate accelerate-launch",
        modules=("accelerate.commands",),
    ),
    Launcher(
        "deepspeed",
        3,
        local_world_size=("LOCAL_SIZE", "LOCAL_WORLD_SIZE"),
        marks=("CROSS_RANK",),
        programs="deepspeed ds",
        modules=("deepspeed.launcher",),
    ),
    Launcher(
        "torchrun",
        3,
        marks=("TORCHELASTIC_RUN_ID",),
        programs="torchrun",
        modules=("torch.distributed.run", "torch.distributed.launch"),
    ),
    Launcher("env", 2, marks=("WORLD_SIZE",), generic=True),
    Launcher("lightning", 2, ("LOCAL_RANK",), marks=("NODE_RANK", "WORLD_SIZE", "MASTER_PORT"), by_node=True),
    Launcher(
        "horovod",
        2,
        ("HOROVOD_RANK",),
        ("HOROVOD_SIZE",),
        ("HOROVOD_LOCAL_RANK",),
        ("HOROVOD_LOCAL_SIZE",),
        programs="horovodrun",
    ),
    Launcher("jax", 2, ("JAX_PROCESS_ID",), ("JAX_NUM_PROCESSES",), (), ()),
    Launcher(
        "mpirun",
        1,
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        programs="mpirun orterun orted prun prte prted prterun",
    ),
    Launcher(
        "mpirun",
        1,
        ("PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"),
        ("PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
        ("MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"),
        generic=True,
        programs="mpiexec mpiexec.hydra mpirun_rsh hydra_pmi_proxy hydra_bstrap_proxy pmi_proxy",
    ),
    Launcher(
        "srun",
        0,
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        # Batch scripts and salloc shells carry SLURM_PROCID=0 too, but no step.
        marks=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        no_rank=tuple(("SLURM_STEP_ID", step) for step in _SPECIAL_STEPS),
        programs="srun salloc sbatch slurmstepd slurmd slurm_script",
    ),
    Launcher("tpu", 0, ("CLOUD_TPU_TASK_ID", "TPU_WORKER_ID"), ("TPU_WORKER_HOSTNAMES",), (), ()),
)

_JOB_NAMES = (
    *("SLURM_JOB_ID", "SLURM_NODEID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE"),
    *("JAX_COORDINATOR_ADDRESS", "RANK"),
)
_LISTS = frozenset({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "TPU_WORKER_HOSTNAMES"})  # numbers follow from
_PREFIXES = tuple(mark[:-1] for row in LAUNCHERS for mark in row.marks if mark.endswith("*"))
_NUMBERS = frozenset(name for row in LAUNCHERS for name in row.numbers)
_NAMES = _NUMBERS | frozenset(name for row in LAUNCHERS for name in row.marks) | frozenset(_JOB_NAMES)
_RANK_NAMES = tuple(sorted({name.encode() + b"=" for row in LAUNCHERS for name in row.rank}))

_INTEGER = re.compile(r"(?!-1$)-?\d+", re.ASCII)  # -1 is how programs say that they are no rank
_TASKS_PER_NODE = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
_MOST_DIGITS = 20  # torchrun and others write numbers without leading zeros
_MOST_SHOWN = 24  # characters of a value
_LONGEST_NAME = 256  # of a job or a host: an environment variable may have 128 KiB


def identify(environ: dict[str, str]) -> Identity | None:
    """The identity that these variables give, or None when they name no rank.

    They are whatever their user set: numbers that no job has count as not given.
    """
    best: Identity | None = None
    best_generic = False
    for row in LAUNCHERS:
        identity = _read(row, environ)
        if identity is None:
            continue
        if best is None:
            best, best_generic = identity, row.generic
        elif best_generic and identity.rank == best.rank and best.world_size in (None, identity.world_size):
            numbers = ("world_size", "local_rank", "local_world_size")
            unknown = {name: getattr(best, name) for name in numbers if getattr(identity, name) is None}
            best, best_generic = replace(identity, **unknown), row.generic
    return best if best is None else replace(best, unbelieved=unbelieved(environ))


def unbelieved(environ: dict[str, str]) -> tuple[str, ...]:
    """ "RANK=-5": variables of numbers that hold something that no rank and no job has."""
    assignments = []
    for name in sorted((_NUMBERS - _LISTS) & environ.keys()):
        value = environ[name]
        if _INTEGER.fullmatch(value) and _plausible(value) is None:
            assignments.append(f"{name}={value[:_MOST_SHOWN]}" + ("…" if len(value) > _MOST_SHOWN else ""))
    return tuple(assignments)


def parse_environ(data: bytes) -> dict[str, str]:
    """The variables that ``identify`` looks at, from /proc/PID/environ; none where none names a rank."""
    return variables_of(data) if any(name in data for name in _RANK_NAMES) else {}


def variables_of(data: bytes) -> dict[str, str]:
    """The variables that tell of ranks and jobs. Nothing else is kept."""
    variables: dict[str, str] = {}
    for item in data.split(b"\0"):
        raw_name, separator, raw_value = item.partition(b"=")
        name = raw_name.decode("utf-8", "replace")
        if separator and (name in _NAMES or name.startswith(_PREFIXES)):
            variables[name] = raw_value.decode("utf-8", "replace")
    return variables


def _read(row: Launcher, environ: dict[str, str]) -> Identity | None:
    rank = _number(environ, row.rank)
    if rank is None and not any(_INTEGER.fullmatch(environ.get(name, "")) for name in row.rank):
        return None
    if row.by_node and "RANK" in environ:
        return None
    for mark in row.marks:
        if mark not in environ and not (mark[-1] == "*" and any(name.startswith(mark[:-1]) for name in environ)):
            return None
    if any(environ.get(name) == value for name, value in row.no_rank):
        return None
    node_rank = _plausible(environ["NODE_RANK"]) if row.by_node else None
    return Identity(
        launcher=row.name,
        rank=rank if node_rank == 0 or not row.by_node else None,
        level=row.level,
        world_size=_number(environ, row.world_size),
        local_rank=_number(environ, row.local_rank),
        local_world_size=_number(environ, row.local_world_size),
        job=job_of(environ),
        master_address=environ.get("MASTER_ADDR", "")[:_LONGEST_NAME] or None,
        node_rank=node_rank,
    )


def _number(environ: dict[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = environ.get(name, "")
        if name.endswith("TASKS_PER_NODE"):
            value = _tasks_here(value, environ.get("SLURM_NODEID", "0"))
        elif name.endswith("HOSTNAMES") and value:
            value = str(value.count(",") + 1)
        number = _plausible(value)
        if number is not None:
            return number
    return None


def _plausible(value: str) -> int | None:
    """A number that a rank, or a count of ranks, can be."""
    if not value.isascii() or not value.isdigit() or len(value) > _MOST_DIGITS:
        return None
    return int(value) if int(value) <= MOST_RANK_NUMBERS else None


def _tasks_here(value: str, node_index: str) -> str:
    """The tasks of this node out of Slurm's folded list: "8(x2),4" and node index 2 give "4"."""
    if _plausible(node_index) is None:
        return ""
    remaining = int(node_index)
    for part in value.split(","):
        match = _TASKS_PER_NODE.fullmatch(part)
        if match is None:
            return ""
        remaining -= int(match.group(2) or 1)
        if remaining < 0:
            return match.group(1)
    return ""


def job_of(environ: dict[str, str]) -> str:
    """The job that these variables name, "" for none."""
    run_id, address = environ.get("TORCHELASTIC_RUN_ID", ""), environ.get("MASTER_ADDR", "")
    if run_id == "none":  # torchrun's default when no --rdzv-id is given
        run_id = ""
    if address and environ.get("MASTER_PORT"):
        address = f"{address}:{environ['MASTER_PORT']}"
    names = (environ.get("SLURM_JOB_ID"), run_id, address, environ.get("JAX_COORDINATOR_ADDRESS"))
    return (next(filter(None, names), None) or environ.get("PMIX_NAMESPACE", ""))[:_LONGEST_NAME]
