"""Who the processes on this node's GPUs are, and which probes of mltop run on it. Source: /proc.

The operations "probe" and "probe_tell": facts from the newest samples, then ``active.supervise`` does the work.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Callable, Protocol

from mltop.probes.active.supervisor.devices import CPU
from mltop.probes.active.supervisor.environment import JobProcess, NotTaken, job_process
from mltop.probes.active.supervisor.gate import Holder
from mltop.probes.active.supervisor.pythons import probe_of
from mltop.probes.active.supervisor.request import ProbeRequest, request_from
from mltop.probes.active.supervisor.supervise import Facts, Supervisor
from mltop.probes.agent.programs import Unavailable
from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import user_name
from mltop.probes.collect.redaction.process import shown_command
from mltop.probes.model import GpuSample, RankSample, Sample
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.system import paths

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


FRESH_S = 10.0  # samples are not older than this
STARTS_WITHIN_S = 20.0  # NVML of eight GPUs without persistence mode takes that long
LISTED_S = 6.0  # the process lists of GPUs are read every five seconds
_MOST_JOBS = 8


class Samples(Protocol):
    """Where the newest samples come from (``recent.RecentSamples.wait``)."""

    def __call__(
        self,
        after_s: float,
        timeout_s: float,
        cancelled: threading.Event,
        suits: Callable[[list[Sample]], bool] = ...,
    ) -> list[Sample]: ...


class Probing:
    """The probes of one agent. Raises Unavailable for what cannot even be begun."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._supervisor = Supervisor()

    def probe(self, args: Mapping[str, Any], emit: Callable[[ProbeEvent], None], cancelled: threading.Event) -> None:
        """One probe, until it is over or ``cancelled``: then nothing of it is left."""
        try:
            asked = request_from(args)
        except ValueError as error:
            raise Unavailable(str(error)) from error
        self._supervisor.run(asked, lambda: self._facts(asked, cancelled), emit, cancelled)

    def tell(self, args: Mapping[str, Any]) -> None:
        line = args.get("line")
        if not isinstance(line, dict):
            raise Unavailable("probe_tell needs an object as its line")
        why = self._supervisor.tell(str(args.get("key", "")), line)
        if why:
            raise Unavailable(why)

    def _facts(self, asked: ProbeRequest, cancelled: threading.Event) -> Facts | None:
        ended = self._supervisor.ended()
        after_s = max([time.monotonic() - FRESH_S, *ended.values()])
        samples = self._samples(after_s, STARTS_WITHIN_S, cancelled, _has_gpus)
        if self._unseen(samples, ended):  # what has just ended leaves the list soon
            samples = self._samples(after_s, LISTED_S, cancelled, lambda newer: not self._unseen(newer, ended))
        if cancelled.is_set():
            return None
        if not samples:
            raise Unavailable("this node has not been sampled yet", "try again")
        newest = samples[-1]
        jobs, not_taken = _jobs(newest.ranks)
        return Facts(
            node=newest.node,
            samples=samples,
            holders=holders_of(newest.gpus, newest.ranks, asked.key, ended),
            other_probes=other_probes(asked.key) if CPU in asked.gpus or not newest.gpus else [],
            jobs=jobs,
            not_taken=not_taken,
        )

    def _unseen(self, samples: list[Sample], ended: Mapping[int, float]) -> bool:
        newest = samples[-1:]
        holders = [holders_of(sample.gpus, (), "", ended) for sample in newest]
        return any(not one.is_visible for found in holders for one in found.values())


def _has_gpus(samples: list[Sample]) -> bool:
    """NVML has started before the first of them."""
    gaps = [gap for sample in samples for gap in sample.gaps]
    return not any(gap.kind == "starting" and gap.what.startswith("nvml") for gap in gaps)


def _jobs(ranks: list[RankSample]) -> tuple[list[JobProcess], list[NotTaken]]:
    """One process of each job, all of whose processes have the same Python; and of each of which none may be used."""
    found: dict[tuple[int | None, str], JobProcess] = {}
    not_taken: dict[tuple[int | None, str], NotTaken] = {}
    for rank in ranks:
        job = (rank.uid, rank.job)
        if rank.state != "Z" and job not in found and len(found) < _MOST_JOBS:
            process = job_process(rank.pid)
            if isinstance(process, JobProcess):
                found[job] = process
            elif process is not None:
                not_taken.setdefault(job, process)
    return list(found.values()), [one for job, one in not_taken.items() if job not in found]
