"""What a process's environment says about its place in a distributed job.

To support one more launcher add one row to ``LAUNCHERS``. Rows are ordered from the most specific to the
least: a launcher that was itself started by another one overrides what it inherited.

Sources: torch.distributed.elastic (torchrun), deepspeed/launcher/launch.py, accelerate/utils/launch.py,
Open MPI's mpirun(1) and MPICH's/Intel MPI's PMI variables, Slurm's srun(1) "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mltop.probes.model.receipt import MOST_RANK_NUMBERS


@dataclass(frozen=True)
class Identity:
    """One rank's place in its job. ``job`` is "" when the environment names none; ``rank`` is None when what it gives
    can be no rank's number.

    ``level`` says how specific the launcher is: of two identities on one branch of the process tree the one
    with the higher level is the rank, the other one is what started it. ``unbelieved``: variables ("NAME=value")
    whose numbers no job has.
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


@dataclass(frozen=True)
class Launcher:
    """One row: which variables a launcher sets. Of several names for one value the first that is set counts.

    ``marks`` must all be set ("PREFIX_*": any with this prefix). ``generic``: other launchers or their users
    set the same variables too, so a less specific row with the same numbers is the true origin.
    """

    name: str
    level: int
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...]
    marks: tuple[str, ...] = ()
    generic: bool = False


_TORCH = (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",))

LAUNCHERS = (
    Launcher("accelerate", 3, *_TORCH, ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), marks=("ACCELERATE_*",)),
    Launcher("deepspeed", 3, *_TORCH, ("LOCAL_SIZE", "LOCAL_WORLD_SIZE"), marks=("CROSS_RANK",)),
    Launcher("torchrun", 3, *_TORCH, ("LOCAL_WORLD_SIZE",), marks=("TORCHELASTIC_RUN_ID",)),
    Launcher("env", 2, *_TORCH, ("LOCAL_WORLD_SIZE",), marks=("WORLD_SIZE",), generic=True),
    Launcher(
        "mpirun",
        1,
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher(
        "mpirun",
        1,
        ("PMI_RANK", "PMIX_RANK"),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
        generic=True,
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
    ),
)

_JOB_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_NODEID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMIX_NAMESPACE",
)
_PREFIXES = tuple(mark[:-1] for row in LAUNCHERS for mark in row.marks if mark.endswith("*"))
_NAMES = frozenset(
    name
    for row in LAUNCHERS
    for names in (row.rank, row.world_size, row.local_rank, row.local_world_size, row.marks)
    for name in names
) | frozenset(_JOB_NAMES)
_NUMBERS = frozenset(
    name
    for row in LAUNCHERS
    for names in (row.rank, row.world_size, row.local_rank, row.local_world_size)
    for name in names
)
_RANK_NAMES = tuple(sorted({name.encode() + b"=" for row in LAUNCHERS for name in row.rank}))

# Slurm's step ids of batch, extern and interactive steps (slurm.h): their processes are no tasks.
_SPECIAL_STEPS = frozenset(("4294967291", "4294967292", "4294967290", "batch", "extern", "interactive"))
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
        found = _read(row, environ)
        if found is None:
            continue
        if best is None:
            best, best_generic = found, row.generic
        elif best_generic and found.rank == best.rank and best.world_size in (None, found.world_size):
            best, best_generic = _completed(found, best), row.generic
    return best if best is None else replace(best, unbelieved=unbelieved(environ))


def unbelieved(environ: dict[str, str]) -> tuple[str, ...]:
    """ "RANK=-5": variables of numbers that hold something that no rank and no job has."""
    found = []
    for name in sorted(_NUMBERS & environ.keys()):
        value = environ[name]
        if _INTEGER.fullmatch(value) and _plausible(value) is None:
            found.append(f"{name}={value[:_MOST_SHOWN]}" + ("…" if len(value) > _MOST_SHOWN else ""))
    return tuple(found)


def parse_environ(data: bytes) -> dict[str, str]:
    """The variables that ``identify`` looks at, from /proc/PID/environ. Nothing else of it is kept."""
    if not any(name in data for name in _RANK_NAMES):
        return {}
    found: dict[str, str] = {}
    for item in data.split(b"\0"):
        raw_name, separator, raw_value = item.partition(b"=")
        name = raw_name.decode("utf-8", "replace")
        if separator and (name in _NAMES or name.startswith(_PREFIXES)):
            found[name] = raw_value.decode("utf-8", "replace")
    return found


def _read(row: Launcher, environ: dict[str, str]) -> Identity | None:
    rank = _number(environ, row.rank)
    if rank is None and not any(_INTEGER.fullmatch(environ.get(name, "")) for name in row.rank):
        return None
    if not all(_marked(mark, environ) for mark in row.marks):
        return None
    if row.name == "srun" and environ["SLURM_STEP_ID"] in _SPECIAL_STEPS:
        return None
    return Identity(
        launcher=row.name,
        rank=rank,
        level=row.level,
        world_size=_number(environ, row.world_size),
        local_rank=_number(environ, row.local_rank),
        local_world_size=_number(environ, row.local_world_size),
        job=_job(environ),
        master_address=environ.get("MASTER_ADDR", "")[:_LONGEST_NAME] or None,
    )


def _marked(mark: str, environ: dict[str, str]) -> bool:
    if mark.endswith("*"):
        return any(name.startswith(mark[:-1]) for name in environ)
    return mark in environ


def _number(environ: dict[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = environ.get(name, "")
        if name.endswith("TASKS_PER_NODE"):
            value = _tasks_here(value, environ.get("SLURM_NODEID", "0"))
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


def _job(environ: dict[str, str]) -> str:
    return _job_name(environ)[:_LONGEST_NAME]


def _job_name(environ: dict[str, str]) -> str:
    slurm = environ.get("SLURM_JOB_ID")
    if slurm:
        return slurm
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if run_id not in ("", "none"):  # "none" is torchrun's default when no --rdzv-id is given
        return run_id
    address = environ.get("MASTER_ADDR")
    if address:
        port = environ.get("MASTER_PORT")
        return f"{address}:{port}" if port else address
    return environ.get("PMIX_NAMESPACE", "")


def _completed(identity: Identity, other: Identity) -> Identity:
    """``identity`` with its unknown numbers taken from ``other``."""
    return replace(
        identity,
        world_size=other.world_size if identity.world_size is None else identity.world_size,
        local_rank=other.local_rank if identity.local_rank is None else identity.local_rank,
        local_world_size=(other.local_world_size if identity.local_world_size is None else identity.local_world_size),
    )
