"""The operations "probe" and "probe_tell": facts from the newest samples, then ``active.supervisor`` does the work.

Among the facts: who the processes on this node's GPUs are, and which probes of mltop run on it. Source: /proc.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Callable

from mltop.probes.active.supervisor.gate import CPU, Holder
from mltop.probes.active.supervisor.pythons import JobProcess, NotTaken, job_process
from mltop.probes.active.supervisor.request import ProbeRequest, request_from
from mltop.probes.active.supervisor.supervise import Facts, Supervisor
from mltop.probes.agent.programs import Unavailable
from mltop.probes.agent.sampler import Samples
from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import user_name
from mltop.probes.collect.redaction.process import shown_command
from mltop.probes.collect.sysfile import read_long_known
from mltop.probes.model import GpuSample, RankSample, Sample
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.system import paths
from mltop.probes.system.spawn import probe_of

FRESH_S = 10.0  # samples are not older than this
STARTS_WITHIN_S = 20.0  # NVML of eight GPUs without persistence mode takes that long
LISTED_S = 6.0  # the process lists of GPUs are read every five seconds
_MOST_JOBS = 8
# Slurm's cgroups name the job, for every user to read: /slurm/uid_1000/job_4711/step_0, or job_4711 in a scope (v2).
_SLURM_JOB = re.compile(rb"/job_(\d+)(?:/|$)", re.MULTILINE)


def holders_of(
    gpus: Sequence[GpuSample], ranks: Sequence[RankSample], key: str, ours: Container[int]
) -> dict[int, Holder]:
    """The foreign processes by pid. ``ours``: pids that ended and that NVML's list, seconds old, may still have;
    ``key``: of a probe whose processes are not foreign (several agents of one machine).
    """
    pids = {process.pid for gpu in gpus for process in gpu.processes or () if process.kind != "graphics"}
    holders = {}
    for pid in sorted(pids):
        argv = procfs.read_argv(paths.proc(), pid)
        is_visible = os.path.exists(paths.proc(pid))  # noqa: PTH110
        if (pid in ours and not is_visible) or (probe_of(argv) or ("", None))[1] == key:
            continue
        rank = next((rank for rank in ranks if rank.pid == pid or pid in rank.children), None)
        holders[pid] = holder(pid, argv, is_visible, rank)
    return holders


def holder(pid: int, argv: list[str], is_visible: bool = True, rank: RankSample | None = None) -> Holder:
    """One process; ``rank``: it, or the one that it was started by."""
    probe = probe_of(argv)
    try:
        user = user_name(os.stat(paths.proc(pid)).st_uid)  # noqa: PTH116
    except OSError:
        user = rank.user if rank is not None else ""
    return Holder(
        pid=pid,
        user=user,
        command=shown_command(argv),
        job=(rank.job if rank is not None else "") or slurm_job(pid),
        probe=probe[0] if probe is not None else "",
        is_visible=is_visible,
    )


def other_probes(key: str) -> list[Holder]:
    """Probe processes on this machine that have another key: of somebody else's mltop, or of an agent before us."""
    running = ((pid, procfs.read_argv(paths.proc(), pid)) for pid in sorted(procfs.list_pids(paths.proc())))
    return [holder(pid, argv) for pid, argv in running if (probe_of(argv) or ("", key))[1] != key]


def slurm_job(pid: int) -> str:
    """The id of the Slurm job whose cgroup the process is in, "" for none."""
    return slurm_job_in(read_long_known(paths.proc(pid, "cgroup"), 65_536))


def slurm_job_in(cgroups: bytes) -> str:
    """The job that the text of /proc/PID/cgroup names, "" for none."""
    named = _SLURM_JOB.search(cgroups)
    return named.group(1).decode() if named else ""


class Probing:
    """The probes of one agent. Raises Unavailable for what cannot even be begun."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._supervisor = Supervisor()

    def probe(self, args: Mapping[str, Any], emit: Callable[[ProbeEvent], None], cancelled: threading.Event) -> None:
        """One probe, until it is over or ``cancelled``: then nothing of it is left."""
        try:
            request = request_from(args)
        except ValueError as error:
            raise Unavailable(str(error)) from error
        self._supervisor.run(request, lambda: self._facts(request, cancelled), emit, cancelled)

    def tell(self, args: Mapping[str, Any]) -> None:
        line = args.get("line")
        if not isinstance(line, dict):
            raise Unavailable("probe_tell needs an object as its line")
        why = self._supervisor.tell(str(args.get("key", "")), line)
        if why:
            raise Unavailable(why)

    def _facts(self, request: ProbeRequest, cancelled: threading.Event) -> Facts | None:
        ended = self._supervisor.ended()
        after_s = max([time.monotonic() - FRESH_S, *ended.values()])
        samples = self._samples(after_s, STARTS_WITHIN_S, cancelled, _has_gpus)
        if _unseen(samples, ended):  # what has just ended leaves the list soon
            samples = self._samples(after_s, LISTED_S, cancelled, lambda newer: not _unseen(newer, ended))
        if cancelled.is_set():
            return None
        if not samples:
            raise Unavailable("this node has not been sampled yet", "try again")
        newest = samples[-1]
        jobs, not_taken = _jobs(newest.ranks)
        return Facts(
            node=newest.node,
            samples=samples,
            holders=holders_of(newest.gpus, newest.ranks, request.key, ended),
            other_probes=other_probes(request.key) if CPU in request.gpus or not newest.gpus else [],
            jobs=jobs,
            not_taken=not_taken,
        )


def _unseen(samples: list[Sample], ended: Mapping[int, float]) -> bool:
    """Whether the newest of them has a process on a GPU that is not here."""
    holders = holders_of(samples[-1].gpus, (), "", ended) if samples else {}
    return any(not holder.is_visible for holder in holders.values())


def _has_gpus(samples: list[Sample]) -> bool:
    """NVML has started before the first of them."""
    return not any(gap.kind == "starting" and gap.source == "nvml" for sample in samples for gap in sample.gaps)


def _jobs(ranks: list[RankSample]) -> tuple[list[JobProcess], list[NotTaken]]:
    """One process of each job, all of whose processes have the same Python; and of each of which none may be used."""
    taken: dict[tuple[int | None, str], JobProcess] = {}
    not_taken: dict[tuple[int | None, str], NotTaken] = {}
    for rank in ranks:
        job = (rank.uid, rank.job)
        if rank.state != "Z" and job not in taken and len(taken) < _MOST_JOBS:
            process = job_process(rank.pid)
            if isinstance(process, JobProcess):
                taken[job] = process
            elif process is not None:
                not_taken.setdefault(job, process)
    return list(taken.values()), [process for job, process in not_taken.items() if job not in taken]
