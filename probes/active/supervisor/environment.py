"""The environment of a probe process: ours, with what the training job's own processes have set for its libraries.

Of another process's environment only the names below are taken, whatever else stands there (tokens, passwords).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mltop.probes.model.probe import ProbeDevice
from mltop.probes.system import as_root, owner, paths
from mltop.probes.system.writable import in_time, user_name

_ANSWERS_S = 1.0
_ACTIVATED = ("VIRTUAL_ENV", "CONDA_PREFIX")
# Belong to that job's Python.
_OF_ITS_PYTHON = ("LD_LIBRARY_PATH", "PYTHONPATH")
# Say how this cluster is to be used.
_OF_THE_CLUSTER = ("NCCL_", "GLOO_", "CUDA_")
# What a job set to be debugged or profiled, what names its files or its rendezvous, and what is ours to choose.
_NOT_TAKEN = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH"),
        *("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "NCCL_COMM_ID"),
        *("NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"),
    )
)
# Would make a foreign Python another one, or a rank of somebody's job.
_NOT_KEPT = frozenset(
    (
        *("PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        "TORCHELASTIC_RUN_ID",
        *(_NOT_TAKEN & {"CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NCCL_COMM_ID"}),
    )
)


@dataclass(frozen=True)
class JobProcess:
    """A training process as far as its Python is concerned. ``argv0``: as it was called, "" where that names another
    program; ``python``: what it runs.

    ``activated``: folders of VIRTUAL_ENV and CONDA_PREFIX; ``variables``: the allowed ones of its environment.
    """

    pid: int
    argv0: str = ""
    python: str = ""
    activated: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NotTaken:
    """A training process that is no witness for what we may run. ``why``: the end of a sentence that begins with it."""

    pid: int
    why: str

    def __str__(self) -> str:
        return f"the training process {self.pid} {self.why}"


def job_process(pid: int) -> JobProcess | NotTaken | None:
    """What a training process says of its Python; None for one that is gone.

    It takes part only if it is ours by every user id (mltop may be root, and a setuid program that a stranger started
    has root's effective one), runs a Python, and sees the files that we see (namespaces(7), chroot(2)). What it says
    is a hint where to look: root still asks who may write there. Sources, all in /proc/PID: status, exe, ns, root,
    environ, cmdline.
    """
    try:
        folder = os.open(paths.proc(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        uids = owner.ids(folder, "Uid")
        others = [user_name(uid) for uid in uids if uid != os.geteuid()]
        if others or not uids:
            torch = f"is {others[0]}'s: run the probe as {others[0]} to use its torch" if others else ""
            return NotTaken(pid, torch or "says not whose it is")
        why = owner.why_no_python_of_ours(folder)
        if why:
            return NotTaken(pid, why)
        before = owner.identity(folder)
        job = _witness(pid, folder)
        return job if owner.identity(folder) == before else NotTaken(pid, "became another program meanwhile")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        return NotTaken(pid, f"cannot be looked at: {error.strerror}")
    finally:
        os.close(folder)


def _witness(pid: int, folder: int) -> JobProcess:
    program = os.stat("exe", dir_fd=folder)
    items = (os.fsdecode(item).partition("=") for item in owner.read(folder, "environ").split(b"\0"))
    variables = {name: value for name, _, value in items}
    argv0 = os.fsdecode(owner.read(folder, "cmdline").split(b"\0", 1)[0])
    return JobProcess(
        pid=pid,
        argv0=argv0 if _is(program, argv0) else "",
        python=os.readlink("exe", dir_fd=folder),
        activated=tuple(variables[name] for name in _ACTIVATED if variables.get(name)),
        variables={
            name: value
            for name, value in variables.items()
            if name in _OF_ITS_PYTHON or (name.startswith(_OF_THE_CLUSTER) and name not in _NOT_TAKEN)
        },
    )


def _is(program: os.stat_result, path: str) -> bool:
    """Whether this absolute path leads to that very file. A job hangs most often where a file server does."""
    try:
        file = in_time(lambda: os.stat(path), _ANSWERS_S) if path.startswith("/") else None  # noqa: PTH116
    except OSError:
        return False
    return file is not None and os.path.samestat(program, file)


def activated_here() -> list[str]:
    """Folders of the environments that this process was started in."""
    return [os.environ[name] for name in _ACTIVATED if os.environ.get(name)]


def with_job(job: JobProcess | None, is_its_python: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Our environment, and over it what ``job`` has set; of its Python's only when that is the one to run. Then what
    root left out of it, and why, by name.
    """
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_KEPT}
    for name, value in job.variables.items() if job is not None else ():
        if is_its_python or name not in _OF_ITS_PYTHON:
            environ[name] = value
    cleaned, left_out = as_root.cleaned(environ)
    return cleaned, {**as_root.LEFT_OUT, **left_out}


def with_devices(environ: Mapping[str, str], devices: Sequence[ProbeDevice]) -> dict[str, str]:
    """What the process may see: its GPUs by UUID, or none."""
    gpus = [device.uuid for device in devices if device.kind != "cpu"]
    return {**environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
