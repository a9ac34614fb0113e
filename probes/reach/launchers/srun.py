"""All nodes of a Slurm job by one ``srun --overlap`` (srun(1)): no ssh needed, the agents live in the job.

srun sends its stdin to every task, so the agents install themselves as over ssh. It labels the lines of its output
(``-l``): without labels the tasks' output is mixed inside of lines, and labelled lines are cut at 1,024 bytes, so the
agents write text frames in pieces of 900 bytes. When srun ends, however it ends, slurmstepd closes the tasks' pipes
and kills them.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from mltop.probes.reach.bundle import opening
from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.ending import Ending, agent_ended
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.launchers.remote_command import NO_PYTHON_EXIT, no_python, remote_command

FRAME_BYTES = 900
SILENCE_S = 20
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
    "--wait=0",  # one agent that ends,
    "--kill-on-bad-exit=0",  # with whatever exit code, does not end the others
    "--job-name=mltop",
    "--quiet",
)


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One channel for all nodes, which must be of the job ``options.job``. UsageProblem where srun cannot be used."""
    if not options.job:
        raise UsageProblem("--via srun", "needs a Slurm job to run inside of", "--job ID, or run mltop in the job")
    if shutil.which("srun") is None:
        raise UsageProblem("--via srun", "Slurm's srun is not on this machine", "--via ssh")
    return [stream(options, nodes)]


def stream(options: LaunchOptions, nodes: tuple[str, ...]) -> Channel:
    """Samples of these nodes, and requests to them, by one srun."""
    return Channel(
        argv=command(nodes, options),
        nodes=nodes,
        via="srun",
        opening=opening(),
        bootstraps=True,
        rejoin=functools.partial(stream, options),
        ending=functools.partial(srun_ended, job=options.job, python=options.python),
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
        f"--jobid={options.job}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "/bin/sh",
        "-c",
        f"unset {_RANK_VARIABLES}; {remote_command(agent_args, options.python)}",
    )


@dataclass(frozen=True)
class _Meaning:
    pattern: str
    reason: str
    fix: str = ""
    retry: bool = True


# Words of srun and of slurmctld's errors (slurm_errno.c, srun's allocate.c and launch.c).
_MEANINGS = (
    _Meaning(
        r"Job/step already completing|Job has finished|Slurm job \d+ has expired|Invalid job id|Job .* is being"
        r"|CANCELLED|allocation has been revoked|Already finished|Job is (?:finishing|completing)",
        "the Slurm job ended",
        "see `sacct -j {job}`",
        False,
    ),
    _Meaning(r"Access/permission denied|Invalid account", "job {job} is another user's", "run as its owner", False),
    _Meaning(r"not in this job|not part of job|Requested node configuration is not available|nodes? not in", "{line}"),
)
_GONE_NODE = re.compile(r"[Nn]ode fail|Communication connection failure|Unable to contact slurm controller")


def srun_ended(code: int | None, words: str, *, job: str, python: str = "") -> Ending:
    """srun's end. Its own failures and those of the tasks have the same exit codes: the words tell."""
    for meaning in _MEANINGS:
        if re.search(meaning.pattern, words):
            return Ending(meaning.reason.format(job=job, line=words), meaning.fix.format(job=job), meaning.retry)
    if code == NO_PYTHON_EXIT:
        return Ending(*no_python(python))
    return agent_ended(code, words)
