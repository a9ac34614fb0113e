"""The environment of a probe process: ours, with what the training job's own processes have set for its libraries.

Of another process's environment only the names below are taken, whatever else stands there (tokens, passwords).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mltop.probes import paths
from mltop.probes.model.probe import ProbeDevice

_MOST_BYTES = 1 << 20
_ACTIVATED = ("VIRTUAL_ENV", "CONDA_PREFIX")
# Belong to that job's Python.
_OF_ITS_PYTHON = ("LD_LIBRARY_PATH", "PYTHONPATH")
# Say how this cluster is to be used.
_OF_THE_CLUSTER = ("NCCL_", "GLOO_", "CUDA_")
# What a job set to be debugged or profiled, what names its files or its rendezvous, and what is ours to choose.
_NOT_TAKEN = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_INJECTION64_PATH",
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
        "NCCL_COMM_ID",
        "NCCL_DEBUG_FILE",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_GRAPH_DUMP_FILE",
    )
)
# Would make a foreign Python another one, or a rank of somebody's job.
_NOT_KEPT = frozenset(
    (
        *("PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        "TORCHELASTIC_RUN_ID",
        *(_NOT_TAKEN & {"CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH"}),
    )
)


@dataclass(frozen=True)
class JobProcess:
    """A training process as far as its Python is concerned. ``argv0``: as it was called; ``python``: a guess by /proc.

    ``activated``: folders of VIRTUAL_ENV and CONDA_PREFIX; ``variables``: the allowed ones of its environment.
    """

    pid: int
    argv0: str = ""
    python: str = ""
    activated: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def job_process(pid: int, python: str | None) -> JobProcess | None:
    """None for a process of another user, whose programs we do not run (mltop may be root), and for one that is gone.

    ``python``: what the roster says of it. Sources: /proc/PID/{environ,cmdline}.
    """
    try:
        if os.stat(paths.proc(pid)).st_uid != os.geteuid():  # noqa: PTH116
            return None
        environ, argv = _read(paths.proc(pid, "environ")), _read(paths.proc(pid, "cmdline"))
    except OSError:
        return None
    variables = {}
    for item in environ.split(b"\0"):
        name, _, value = os.fsdecode(item).partition("=")
        variables[name] = value
    return JobProcess(
        pid=pid,
        argv0=os.fsdecode(argv.split(b"\0", 1)[0]),
        python=python or "",
        activated=tuple(variables[name] for name in _ACTIVATED if variables.get(name)),
        variables={name: value for name, value in variables.items() if _may_be_taken(name)},
    )


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES)


def _may_be_taken(name: str) -> bool:
    return name in _OF_ITS_PYTHON or (name.startswith(_OF_THE_CLUSTER) and name not in _NOT_TAKEN)


def activated_here() -> list[str]:
    """Folders of the environments that this process was started in."""
    return [os.environ[name] for name in _ACTIVATED if os.environ.get(name)]


def with_job(job: JobProcess | None, is_its_python: bool) -> dict[str, str]:
    """Our environment, and over it what ``job`` has set; of its Python's only when that is the one to run."""
    found = {name: value for name, value in os.environ.items() if name not in _NOT_KEPT}
    for name, value in job.variables.items() if job is not None else ():
        if is_its_python or name not in _OF_ITS_PYTHON:
            found[name] = value
    return found


def with_devices(environ: Mapping[str, str], devices: Sequence[ProbeDevice]) -> dict[str, str]:
    """What the process may see: its GPUs by UUID, or none."""
    gpus = [device.uuid for device in devices if device.kind != "cpu"]
    return {**environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
