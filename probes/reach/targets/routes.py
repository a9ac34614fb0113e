"""Which launcher reaches which node."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets.slurm import Allocation, allocations_here

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "localhost.localdomain"})


@dataclass(frozen=True)
class Route:
    """``job``: the Slurm job to run inside of, for srun: "123", or "123+1" in a heterogeneous one."""

    via: str
    nodes: tuple[str, ...]
    job: str = ""


def own_names(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """What this machine is called: its host name, short and long, and the name that Slurm gave it."""
    here = platform.node()
    return LOCAL_NAMES | {here, here.partition(".")[0], environ.get("SLURMD_NODENAME", here)}


def routes_for(
    nodes: Sequence[str], via: str, allocations: Sequence[Allocation], environ: Mapping[str, str] = os.environ
) -> tuple[Route, ...]:
    """``via`` "": this machine without any network, nodes of the job that we are inside of by srun, others by ssh.

    ``allocations``: the Slurm jobs that were asked for. UsageProblem when srun cannot reach a node.
    """
    if via == "srun":
        return _by_srun(nodes, allocations or allocations_here(environ))
    if via:
        return (Route(via, tuple(nodes)),)
    own = own_names(environ)
    local = [node for node in nodes if node in own]
    rest = [node for node in nodes if node not in own]
    ours = allocations_here(environ) if rest and shutil.which("srun", path=environ.get("PATH")) else []
    reached = {node for allocation in ours for node in allocation.nodes}
    routes = [Route("local", tuple(local))] if local else []
    routes += _by_srun([node for node in rest if node in reached], ours)
    ssh = tuple(node for node in rest if node not in reached)
    return tuple([*routes, Route("ssh", ssh)] if ssh else routes)


def _by_srun(nodes: Sequence[str], allocations: Sequence[Allocation]) -> tuple[Route, ...]:
    if nodes and not allocations:
        raise UsageProblem("--via srun", "needs a Slurm job to run inside of", "--job ID, or run mltop in the job")
    routes = []
    left = dict.fromkeys(nodes)
    for allocation in allocations:
        reached = tuple(node for node in left if node in allocation.nodes)
        if reached:
            routes.append(Route("srun", reached, allocation.job))
        for node in reached:
            del left[node]
    if left:
        jobs = ", ".join(allocation.job for allocation in allocations)
        raise UsageProblem("--via srun", f"{next(iter(left))} is not a node of job {jobs}", "--via ssh, or without -w")
    return tuple(routes)
