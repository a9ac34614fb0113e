"""All nodes of a Slurm job by one ``srun --overlap`` (srun(1)): no ssh needed, the agents live in the job.

srun sends its stdin to every task, so the agents install themselves as over ssh. Its output is taken line by line and
labelled: of lines up to 1,024 bytes all stay whole that way, longer ones are cut, and without labels or with
``--unbuffered`` lines of several tasks are mixed (measured with Slurm 22.05, 4 nodes). When srun ends, however it
ends, slurmstepd ends the tasks at once. ``rejoin`` is a step of its own beside it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping

from mltop.probes.reach.bundle import opening
from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.launchers.remote_command import remote_command
from mltop.probes.reach.launchers.srun_ending import NodeEndings, srun_ended

FRAME_BYTES = 900
SILENCE_S = 20  # an agent ends after so long without a word from the hub
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

    Of an srun that does not say so, a number belongs to the first node that its lines name, and that node to nobody
    else.
    """

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self._nodes = frozenset(nodes)
        self._of_task: dict[int, str] = {}
        self._is_told = False

    def node_of(self, label: str) -> str | None:
        return self._of_task.get(int(label)) if label.isascii() and label.isdigit() else None

    def claim(self, label: str, named: str) -> str | None:
        free = named in self._nodes and named not in self._of_task.values()
        if self._is_told or not free or not label.isascii() or not label.isdigit():
            return None
        self._of_task[int(label)] = named
        return named

    def hear(self, line: str) -> None:
        match = _LAUNCHING.fullmatch(line)
        if match is not None:
            self._is_told = True
            self._of_task[int(match.group(2))] = match.group(1)


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One channel for all nodes, which must be of the job ``options.job``. UsageProblem where srun cannot be used."""
    if not options.job:
        raise UsageProblem("--via srun", "needs a Slurm job to run inside of", "--job ID, or run mltop in the job")
    if shutil.which("srun") is None:
        raise UsageProblem("--via srun", "Slurm's srun is not on this machine", "--via ssh")
    try:
        return [stream(options, nodes)]
    except ValueError as error:
        raise UsageProblem("--via srun", str(error)) from None


def stream(options: LaunchOptions, nodes: tuple[str, ...]) -> Channel:
    """Samples of these nodes, and requests to them, by one srun."""
    return Channel(
        argv=command(nodes, options),
        nodes=nodes,
        via="srun",
        opening=opening(),
        speakers=functools.partial(Speakers, nodes),
        rejoin=functools.partial(stream, options),
        all_or_none=True,
        ending=functools.partial(srun_ended, job=options.job, python=options.python),
        node_ending=NodeEndings(nodes, options.python),
    )


def command(nodes: tuple[str, ...], options: LaunchOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """srun with the agent's bootstrap. The agents name themselves: Slurm puts SLURMD_NODENAME into each one's room."""
    agent_args = ["--interval", f"{options.interval_s:g}", "--silence", str(SILENCE_S)]
    agent_args += ["--text", "--frame-bytes", str(FRAME_BYTES)]
    others = [
        name for name in environ if name.startswith(("SLURM", "SRUN", "SBATCH", "PMI")) and name not in _KEPT_VARIABLES
    ]
    return (
        "env",
        *(word for name in sorted(others) for word in ("-u", name)),
        "srun",
        *_OPTIONS,
        *job_options(options.job),
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "/bin/sh",
        "-c",
        f"unset {_RANK_VARIABLES}; {remote_command(agent_args, options.python)}",
    )


def job_options(job: str) -> list[str]:
    """``job``: "123", or "123+1" for a component of a heterogeneous job."""
    leader, plus, component = job.partition("+")
    return [f"--jobid={leader}", *([f"--het-group={component}"] if plus else [])]
