"""Slurm's jobs: their nodes by squeue(1), and the job that we are inside of by its environment (srun(1))."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from mltop.probes.model.units import duration_words
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.programs import run_program
from mltop.probes.reach.targets.nodesets import expand

SQUEUE_TIMEOUT_S = 10.0
JOB_ID = re.compile(r"(?P<job>\d+(?:_\d+)?(?:\+\d+)?)(?:\.(?P<step>\d+|batch|extern|interactive))?")
# Job states of squeue(1).
_HAS_NODES = frozenset(("CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "COMPLETING"))
_NO_NODES_YET = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"))


@dataclass(frozen=True)
class Allocation:
    """Nodes of one Slurm job. ``job``: its number, or "123+1": component 1 of the heterogeneous job 123."""

    job: str
    nodes: tuple[str, ...]

    @property
    def carried(self) -> str:
        """The ranks' SLURM_JOB_ID: in a heterogeneous job all carry that of its first component."""
        return self.job.partition("+")[0]


@dataclass(frozen=True)
class JobRow:
    """One line of squeue. ``number``: Slurm's own; ``shown``: "123", "123_4" of an array, "123+1" of several parts."""

    number: str
    shown: str
    state: str
    nodes: str
    reason: str

    def allocation(self, nodes: str) -> Allocation:
        return Allocation(self.shown if "+" in self.shown else self.number, tuple(expand(nodes, f"job {self.shown}")))


def job_id(text: str) -> re.Match[str]:
    """Its parts ``job`` and ``step``. UsageProblem for what is none."""
    match = JOB_ID.fullmatch(text)
    if match is None:
        raise UsageProblem(f"--job {text!r}", "is not a Slurm job id", "a number such as 123, 123_4 or 123.0: `squeue`")
    return match


def allocations_of(text: str) -> list[Allocation]:
    """Where a job runs: ``123``, a task ``123_4`` of an array, a part ``123+1``, a step ``123.0``.

    All running tasks of an array, all parts of a heterogeneous job. UsageProblem says why there are no nodes.
    """
    what = f"--job {text}"
    match = job_id(text)
    job, step = match.group("job"), match.group("step")
    listed = _squeue(what, "-t", "all", "-j", job.partition("+")[0], "-o", "%A|%i|%T|%N|%r")
    rows = [row for row in map(_row, listed) if row is not None]
    running = with_nodes(what, [row for row in rows if "+" not in job or row.shown == job])
    if step:
        return [running[0].allocation(_nodes_of_step(what, running[0].shown, step))]
    return [row.allocation(row.nodes) for row in running]


def allocations_here(environ: Mapping[str, str]) -> list[Allocation]:
    """The job that we are inside of, by its environment; none outside of a job."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return []
    lists = {
        f"{job}+{part}": environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{part}", "")
        for part in range(_number(environ.get("SLURM_HET_SIZE", "")))
    }
    if not lists or not all(lists.values()):
        lists = {job: environ.get("SLURM_JOB_NODELIST", "")}
    if not all(lists.values()):
        return allocations_of(job)
    return [Allocation(part, tuple(expand(nodes, "SLURM_JOB_NODELIST"))) for part, nodes in lists.items()]


def with_nodes(what: str, rows: list[JobRow]) -> list[JobRow]:
    """The rows that run somewhere. Raises UsageProblem when none does."""
    running = [row for row in rows if row.state in _HAS_NODES and row.nodes]
    if running:
        return running
    if not rows:
        raise UsageProblem(what, "no such job: squeue does not list it", "it may have ended: `sacct -j`")
    row = rows[0]
    state = row.state.lower().replace("_", " ")
    if row.state in _NO_NODES_YET or row.state in _HAS_NODES:
        reason = f": {row.reason}" if row.reason not in ("", "None") else ""
        raise UsageProblem(what, f"has no nodes yet, it is {state}{reason}", "`squeue --start` says when it may start")
    raise UsageProblem(what, f"has ended, it is {state}", "see `sacct -j`")


def _row(line: str) -> JobRow | None:
    fields = line.split("|", 4)
    return JobRow(*fields) if len(fields) == len(JobRow.__dataclass_fields__) else None


def _nodes_of_step(what: str, job: str, step: str) -> str:
    steps = dict(line.partition("|")[::2] for line in _squeue(what, "-s", "-j", job, "-o", "%i|%N"))
    nodes = steps.get(f"{job}.{step}", "")
    if not nodes:
        raise UsageProblem(what, "no such step of the running job", f"its steps are: {', '.join(steps) or 'none'}")
    return nodes


def _squeue(what: str, *options: str) -> list[str]:
    """The lines that squeue prints. Raises UsageProblem."""
    program = shutil.which("squeue")
    if program is None:
        raise UsageProblem(what, "Slurm's squeue is not on this machine", "run mltop on a login node of the cluster")
    try:
        squeue = run_program((program, "-h", *options), SQUEUE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        fix = "does Slurm's controller run? `scontrol ping`"
        raise UsageProblem(what, f"squeue did not answer within {duration_words(SQUEUE_TIMEOUT_S)}", fix) from None
    except OSError as error:
        raise UsageProblem(what, f"cannot start {program}: {error.strerror}") from None
    if squeue.returncode == 0:
        return squeue.stdout.splitlines()
    failure = failure_of("squeue", squeue)
    if "Invalid job id" in failure:
        raise UsageProblem(what, "no such job", "it may have ended long ago: `sacct -j`")
    raise UsageProblem(what, failure)


def failure_of(name: str, done: subprocess.CompletedProcess[str]) -> str:
    """What one of Slurm's programs says of why it failed."""
    said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1].strip()
    return f"{name} failed: {said.removeprefix(f'{name}: ')}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
