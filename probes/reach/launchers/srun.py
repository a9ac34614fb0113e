"""All nodes of a Slurm job by one ``srun --overlap`` (srun(1)): no ssh needed, the agents live in the job.

srun sends its stdin to every task, so the agents install themselves as over ssh. Its output is taken line by line and
labelled: of lines up to 1,024 bytes all stay whole that way, longer ones are cut, and without labels or with
``--unbuffered`` lines of several tasks are mixed (measured with Slurm 22.05, 4 nodes). When srun ends, however it
ends, slurmstepd ends the tasks at once. ``rejoin`` is a step of its own beside it.

What srun's last output means: the words are Slurm's (slurm_errno.c, srun's launch.c and allocate.c). Exit codes tell
little: srun's own failures and those of its tasks have the same.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.bundle import opening_soon
from mltop.probes.reach.channel import SILENCE_S, Channel, Ending, LaunchOptions, Meaning, agent_ended, ending_by
from mltop.probes.reach.launchers.remote_command import NO_PYTHON_EXIT, no_python, remote_command

_MEANINGS = (
    Meaning(r"has expired|Invalid job id", "the Slurm job ended", "see `sacct -j {job}`", False),
    # Of a launch that fails the other tasks are cancelled, too: this stands before what cancelling looks like.
    Meaning(
        r"[Ll]aunch .*failed|launch failed|Socket timed out|Communication connection failure",
        "Slurm's slurmd does not answer on a node",
        "see `sinfo -N -l`, or --via ssh",
    ),
    # Of the job or of our step only: the next try tells.
    Meaning(r"CANCELLED|DUE TO|allocation .*revoked", "Slurm cancelled the job or our step", "see `sacct -j {job}`"),
    Meaning(r"already completing", "the Slurm job is suspended or about to end", "see `squeue -j {job}`"),
    Meaning(r"pending execution", "the Slurm job waits for its nodes", "see `squeue -j {job}`"),
    Meaning(r"[Pp]ermission denied", "Slurm job {job} is another user's", "run mltop as its owner", False),
    Meaning(r"node configuration is not available", "not a node of Slurm job {job}, or down", "see `sinfo -N -l`"),
    Meaning(r"Unable to contact slurm controller", "Slurm's controller does not answer", "see `scontrol ping`"),
    Meaning(r"temporarily disabled", "srun waits for room for one more job step", "see `squeue -s -j {job}`"),
    Meaning(r"unrecognized option", "this Slurm is older than 20.11: its srun has no --overlap", "--via ssh", False),
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


def srun_ended(code: int | None, output: str, *, job: str, python: str = "") -> Ending:
    """The end of an srun that ran agents inside of ``job``."""
    lines = [line for line in output.splitlines() if not _NOISE.search(line)]
    ending = ending_by(_MEANINGS, "\n".join(filter(None, map(_of_srun, lines))), job=job)
    if ending is not None:
        return ending
    if code == NO_PYTHON_EXIT:
        return Ending(*no_python(python))
    return agent_ended(code, lines[-1] if lines else "")


def _of_srun(line: str) -> str:
    if not _OF_A_TASK.match(line):
        return line
    cancelled = _CANCELLED.search(line)
    return cancelled.group() if cancelled else ""


class NodeEndings:
    """The ``Channel.node_endings`` of an srun for several nodes: "srun: error: gpu02: task 1: Killed".

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


FRAME_BYTES = 900
# Variables by which srun tells its tasks what they are. An agent is no rank of the job that it lives in.
_RANK_VARIABLES = "SLURM_PROCID SLURM_LOCALID SLURM_STEP_ID SLURM_STEPID PMI_RANK PMI_SIZE PMIX_RANK PMIX_NAMESPACE"
# Of the environment that mltop runs in only these are for srun: the rest are options of the step around us.
_KEPT_VARIABLES = frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "SLURMD_NODENAME"))
_OPTIONS = (
    "--overlap",  # beside the job's own steps, which keep all they have
    "--ntasks-per-node=1",
    "--mem=0",
    "--cpu-bind=none",
    "--mpi=none",
    "--export=ALL",
    "--chdir=/",
    "--input=all",
    "--output=all",
    "--error=all",
    "--label",
    "--wait=0",  # the end of one agent
    "--kill-on-bad-exit=0",  # does not end the others
    "--job-name=mltop",
    "--verbose",  # says on which node each task is
)
_LAUNCHING = re.compile(r"srun: launching \S+ on host (\S+), \d+ tasks: (\d+)")


class Speakers:
    """srun writes its task's number before each line, and on which node that is to its stderr (``--verbose``).

    Of an srun that does not say so, a number belongs to the first node that its lines name. A node that two numbers
    name belongs to neither: one of them lies.
    """

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self._nodes = frozenset(nodes)
        self._of_task: dict[int, str] = {}
        self._contested: set[str] = set()
        self._is_told = False

    def node_of(self, label: str) -> str | None:
        return self._of_task.get(int(label)) if label.isascii() and label.isdigit() else None

    def claim(self, label: str, named: str) -> str | None:
        if self._is_told or named not in self._nodes - self._contested or not label.isascii() or not label.isdigit():
            return None
        if named in self._of_task.values():
            self._contested.add(named)
            self._of_task = {task: node for task, node in self._of_task.items() if node != named}
            return None
        self._of_task[int(label)] = named
        return named

    def hear(self, line: str) -> None:
        match = _LAUNCHING.fullmatch(line)
        if match is not None:
            if not self._is_told:
                self._is_told, self._of_task = True, {}
            self._of_task.setdefault(int(match.group(2)), match.group(1))


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One channel for all nodes, which must be of the job ``options.job``. Raises UsageProblem without it or srun."""
    if not options.job:
        raise UsageProblem("--via srun", "needs a Slurm job to run inside of", "--job ID, or run mltop in the job")
    return [stream(options, nodes)]


def stream(options: LaunchOptions, nodes: tuple[str, ...]) -> Channel:
    """The samples of these nodes, and requests to them, by one srun."""
    return Channel(
        argv=command(nodes, options),
        nodes=nodes,
        via="srun",
        opening=opening_soon(options.read_only),
        speakers=functools.partial(Speakers, nodes),
        rejoin=functools.partial(stream, options),
        all_or_none=True,
        ending=functools.partial(srun_ended, job=options.job, python=options.python),
        node_endings=functools.partial(NodeEndings, nodes, options.python),
    )


def command(nodes: tuple[str, ...], options: LaunchOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """srun with the agent's bootstrap. The agents name themselves: Slurm puts SLURMD_NODENAME into each one's room."""
    agent_args = [*options.agent_args, "--silence", str(SILENCE_S)]
    agent_args += ["--text", "--frame-bytes", str(FRAME_BYTES)]
    others = [
        name for name in environ if name.startswith(("SLURM", "SRUN", "SBATCH", "PMI")) and name not in _KEPT_VARIABLES
    ]
    leader, plus, component = options.job.partition("+")  # "123+1": a component of a heterogeneous job
    return (
        "env",
        *(word for name in sorted(others) for word in ("-u", name)),
        "srun",
        *_OPTIONS,
        f"--jobid={leader}",
        *((f"--het-group={component}",) if plus else ()),
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "/bin/sh",
        "-c",
        f"unset {_RANK_VARIABLES}; {remote_command(agent_args, options.python)}",
    )
