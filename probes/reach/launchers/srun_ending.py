"""What srun's last words mean, and whether trying again can help.

The words are Slurm's: slurm_errno.c, srun's launch.c and allocate.c. Exit codes tell little: srun's own failures and
those of its tasks have the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mltop.probes.reach.ending import Ending, agent_ended
from mltop.probes.reach.launchers.remote_command import NO_PYTHON_EXIT, no_python


@dataclass(frozen=True)
class _Meaning:
    """``pattern`` is searched for in srun's words; {job} stands for the job's number."""

    pattern: str
    reason: str
    fix: str = ""
    retry: bool = True


_MEANINGS = (
    _Meaning(r"has expired|Invalid job id", "the Slurm job ended", "see `sacct -j {job}`", False),
    # Of a launch that fails the other tasks are cancelled, too: this stands before what cancelling looks like.
    _Meaning(
        r"[Ll]aunch .*failed|launch failed|Socket timed out|Communication connection failure",
        "Slurm's slurmd does not answer on a node",
        "see `sinfo -N -l`, or --via ssh",
    ),
    # Of the job or of our step only: the next try tells.
    _Meaning(r"CANCELLED|DUE TO|allocation .*revoked", "Slurm cancelled the job or our step", "see `sacct -j {job}`"),
    _Meaning(r"already completing", "the Slurm job is suspended or about to end", "see `squeue -j {job}`"),
    _Meaning(r"pending execution", "the Slurm job waits for its nodes", "see `squeue -j {job}`"),
    _Meaning(r"[Pp]ermission denied", "Slurm job {job} is another user's", "run mltop as its owner", False),
    _Meaning(r"node configuration is not available", "not a node of Slurm job {job}, or down", "see `sinfo -N -l`"),
    _Meaning(r"Unable to contact slurm controller", "Slurm's controller does not answer", "see `scontrol ping`"),
    _Meaning(r"temporarily disabled", "srun waits for room for one more job step", "see `squeue -s -j {job}`"),
    _Meaning(r"unrecognized option", "this Slurm is older than 20.11: its srun has no --overlap", "--via ssh", False),
)
# Said in runs that work, too; and what --verbose adds.
_NOISE = re.compile(
    r"lacks support for cpu binding|First task exited|tasks? [\d,-]+: (?:running|exited)"
    r"|^srun: (?:[\w-]+/[\w-]+: |launching |(?:end of )?defined options|-{5,}|[\w-]+ +: |jobid \d+: nodes|CpuBindType)"
)
_OF_A_TASK = re.compile(r"^ *\d+: ")  # a node may write there what it likes; that its step is cancelled is believed
_CANCELLED = re.compile(r"slurmstepd-\S+: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED")
_STEP_ENDS = re.compile(r"CANCELLED|DUE TO|[Ll]aunch failed|Job step aborted|Force Terminated")
_TASK_ENDED = re.compile(r"^srun: error: ([^\s:\[\],]+): task \d+: ((?:Exited with exit code (\d+)|.*\S))")


def srun_ended(code: int | None, words: str, *, job: str, python: str = "") -> Ending:
    """The end of an srun that ran agents inside of ``job``."""
    lines = [line for line in words.splitlines() if not _NOISE.search(line)]
    of_srun = "\n".join(line for line in map(_of_srun, lines) if line)
    for meaning in _MEANINGS:
        if re.search(meaning.pattern, of_srun):
            return Ending(meaning.reason.format(job=job), meaning.fix.format(job=job), meaning.retry)
    if code == NO_PYTHON_EXIT:
        return Ending(*no_python(python))
    return agent_ended(code, lines[-1] if lines else "")


def _of_srun(line: str) -> str:
    if not _OF_A_TASK.match(line):
        return line
    cancelled = _CANCELLED.search(line)
    return cancelled.group() if cancelled else ""


class NodeEndings:
    """``Channel.node_ending`` of an srun for several nodes: "srun: error: gpu02: task 1: Killed".

    Where the whole step is cancelled, srun says the same of every task: that is the channel's end, not the nodes', and
    from then on nothing is found: the hub's own deadlines remain.
    """

    def __init__(self, nodes: tuple[str, ...], python: str = "") -> None:
        self._nodes = frozenset(nodes)
        self._python = python
        self._all_end = len(nodes) == 1

    def __call__(self, line: str) -> tuple[str, Ending] | None:
        if _STEP_ENDS.search(line):
            self._all_end = True
        match = _TASK_ENDED.search(line)
        if self._all_end or match is None or match.group(1) not in self._nodes:
            return None
        node, how, code = match.groups()
        if code == str(NO_PYTHON_EXIT):
            return node, Ending(*no_python(self._python))
        return node, Ending(f"the agent ended ({how[:1].lower()}{how[1:]})")
