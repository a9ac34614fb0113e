"""What the user meant: -w, --hostfile and --job together; else the Slurm job around us, WCOLL, or this machine."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mltop.probes import as_root
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets.hostfile import read_hostfile
from mltop.probes.reach.targets.nodesets import MOST_NODES, expand, one_user, split_user
from mltop.probes.reach.targets.options import TargetOptions, check_numbers, check_words
from mltop.probes.reach.targets.routes import Route, routes_for
from mltop.probes.reach.targets.slurm import Allocation, allocations_here, allocations_of

THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class Targets:
    """What was meant: node names, or a recording instead of nodes.

    ``job``: the Slurm job whose ranks are looked at, "" for all ranks; ``routes``: how each node is reached;
    ``user``: the login name, "" for the default.
    """

    nodes: tuple[str, ...]
    title: str
    job: str = ""
    recording: Path | None = None
    routes: tuple[Route, ...] = ()
    user: str = ""

    @property
    def via(self) -> str:
        """How they are reached, in words: "ssh", "local + srun"."""
        return " + ".join(dict.fromkeys(route.via for route in self.routes))


@dataclass
class _Meant:
    names: dict[str, None] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)

    def add(self, names: list[str], title: str) -> None:
        self.names.update(dict.fromkeys(names))
        self.titles.append(title)

    def add_job(self, allocations: list[Allocation], title: str) -> None:
        self.allocations = allocations
        self.add([node for allocation in allocations for node in allocation.nodes], title)

    @property
    def job(self) -> str:
        carried = {allocation.carried for allocation in self.allocations}
        return carried.pop() if len(carried) == 1 else ""  # the tasks of an array are jobs of their own


def resolve(options: TargetOptions, environ: Mapping[str, str] = os.environ) -> Targets:
    """UsageProblem names the bad part in one line."""
    check_numbers(options)
    check_words(options)
    if options.recording:
        if options.nodes or options.hostfile:
            raise UsageProblem("--recording", "is looked at instead of machines", "without -w and --hostfile")
        return Targets((), options.recording, options.job, Path(options.recording))
    meant = _typed(options)
    if not meant.names and options.via != "local":
        _from_environment(meant, environ)
    if not meant.names:
        meant.add([platform.node() or "localhost"], THIS_MACHINE)
    nodes = tuple(meant.names)
    if len(nodes) > MOST_NODES:
        raise UsageProblem("targets", f"{len(nodes):,} nodes, more than the {MOST_NODES:,} that mltop takes")
    user = one_user([options.user, *meant.users])
    routes = routes_for(nodes, options.via, meant.allocations, environ)
    _check_against(routes, user, options.python)
    return Targets(nodes, " + ".join(meant.titles), meant.job, None, routes, user)


def _typed(options: TargetOptions) -> _Meant:
    meant = _Meant()
    for text in options.nodes:
        user, rest = split_user(text)
        meant.users.append(user)
        meant.add(expand(rest), text.strip())
    if options.hostfile:
        meant.add(read_hostfile(Path(options.hostfile)), Path(options.hostfile).name)
    if options.job:
        meant.add_job(allocations_of(options.job), f"job {options.job}")
    return meant


def _from_environment(meant: _Meant, environ: Mapping[str, str]) -> None:
    allocations = allocations_here(environ)
    if allocations:
        meant.add_job(allocations, f"job {allocations[0].carried}")
    elif environ.get("WCOLL"):
        try:
            meant.add(read_hostfile(Path(environ["WCOLL"]), "WCOLL"), "WCOLL")
        except UsageProblem as problem:
            raise UsageProblem(str(problem), "it names the nodes", "unset WCOLL, or mltop --via local") from None


def _check_against(routes: tuple[Route, ...], user: str, python: str) -> None:
    ways = {route.via for route in routes}
    if user and not ways & {"ssh", "pdsh"}:
        raise UsageProblem(f"--user {user}", f"{' and '.join(sorted(ways))} runs as you", "--via ssh logs in")
    if python and "local" in ways:
        found = shutil.which(python)
        if found is None:
            raise UsageProblem(f"--python {python}", "no such program on this machine")
        why = as_root.why_not_python(os.path.abspath(found))  # noqa: PTH100 - keeps links
        if why:
            raise UsageProblem(f"--python {python}", why, "name one that only root can change")
