"""Who the processes on this node's GPUs are, and which probes of mltop run on it. Source: /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Sequence

from mltop.probes import paths
from mltop.probes.active.command import probe_of
from mltop.probes.active.gate import Holder
from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import user_name
from mltop.probes.collect.ranks.command_line import shown_command
from mltop.probes.model import GpuSample, RankSample

# Slurm's cgroups name the job, for every user to read: /slurm/uid_1000/job_4711/step_0, or job_4711 in a scope (v2).
_SLURM_JOB = re.compile(rb"/job_(\d+)(?:/|$)", re.MULTILINE)


def holders_of(
    gpus: Sequence[GpuSample], ranks: Sequence[RankSample], key: str, ours: Container[int]
) -> dict[int, Holder]:
    """The foreign processes by pid. ``ours``: pids that ended and that NVML's list, seconds old, may still have;
    ``key``: of a probe whose processes are not foreign (several agents of one machine).
    """
    pids = {process.pid for gpu in gpus for process in gpu.processes or () if process.kind != "graphics"}
    found = {}
    for pid in sorted(pids):
        argv = procfs.read_argv(paths.proc(), pid)
        probe = probe_of(argv)
        is_visible = os.path.exists(paths.proc(pid))  # noqa: PTH110
        if (pid in ours and not is_visible) or (probe is not None and probe[1] == key):
            continue
        found[pid] = holder(pid, argv, is_visible, _rank_of(pid, ranks))
    return found


def holder(pid: int, argv: list[str], is_visible: bool, rank: RankSample | None) -> Holder:
    """One process; ``rank``: it, or the one that it was started by."""
    probe = probe_of(argv)
    uid = _uid(pid)
    job = rank.job if rank is not None else ""
    return Holder(
        pid=pid,
        user=user_name(uid) if uid is not None else rank.user if rank is not None else "",
        command=shown_command(argv),
        job=job or slurm_job(pid),
        probe=probe[0] if probe is not None else "",
        is_visible=is_visible,
    )


def other_probes(key: str) -> list[Holder]:
    """Probe processes on this machine that have another key: of somebody else's mltop, or of an agent before us."""
    found = []
    for pid in sorted(procfs.list_pids(paths.proc())):
        argv = procfs.read_argv(paths.proc(), pid)
        probe = probe_of(argv)
        if probe is not None and probe[1] != key:
            found.append(holder(pid, argv, True, None))
    return found


def slurm_job(pid: int) -> str:
    """The id of the Slurm job whose cgroup the process is in, "" for none."""
    try:
        return slurm_job_in(procfs.read_all(paths.proc(pid, "cgroup"), 65_536))
    except OSError:
        return ""


def slurm_job_in(cgroups: bytes) -> str:
    """From the text of /proc/PID/cgroup."""
    found = _SLURM_JOB.search(cgroups)
    return found.group(1).decode() if found else ""


def _uid(pid: int) -> int | None:
    try:
        return os.stat(paths.proc(pid)).st_uid  # noqa: PTH116
    except OSError:
        return None


def _rank_of(pid: int, ranks: Iterable[RankSample]) -> RankSample | None:
    return next((rank for rank in ranks if rank.pid == pid or pid in rank.children), None)
