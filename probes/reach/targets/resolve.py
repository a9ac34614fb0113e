"""What the user meant: -w, --hostfile and --job together; else the Slurm job around us, WCOLL, or this machine.

Then which launcher reaches which node, and the processes to start for that.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mltop.probes.model import Via
from mltop.probes.reach import INTERVAL_S, TIMEOUT_S, UsageProblem
from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.launchers import LAUNCHERS
from mltop.probes.reach.targets.nodesets import MOST_NODES, expand, one_user, read_hostfile, shown, split_user
from mltop.probes.reach.targets.slurm import Allocation, allocations_here, allocations_of
from mltop.probes.system import as_root
from mltop.probes.system.spawn import why_no_program


@dataclass(frozen=True)
class TargetOptions:
    """The TARGETS options as typed: () or "" where not given. ``via`` "": what suits each node.

    ``read_only``: what touches a process, puts load on a machine or writes a file is refused. ``thresholds``: the
    user's, of health rules.
    """

    nodes: tuple[str, ...] = ()
    hostfile: str = ""
    job: str = ""
    recording: str = ""
    via: Via | Literal[""] = ""
    python: str = ""
    interval_s: float = INTERVAL_S
    timeout_s: float = TIMEOUT_S
    user: str = ""
    accept_new: bool = False
    read_only: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)


# An option with an empty value is most often a variable that is not set: it must not mean this machine.
_EMPTY = {
    "hostfile": "names no file",
    "job": "names no job",
    "recording": "names no file",
    "python": why_no_program(""),
    "user": "names nobody",
}


def options_from(given: Mapping[str, Any]) -> TargetOptions:
    """The options that were typed, by field. UsageProblem names one with an empty value, or a number out of range."""
    for name, why in _EMPTY.items():
        if given.get(name) == "":
            raise UsageProblem(f"--{name} ''", why, "is a variable empty?")
    options = TargetOptions(**given)
    if not 0.1 <= options.interval_s <= 3600:
        raise UsageProblem(f"--interval {options.interval_s:g}", "must be between 0.1 and 3600 seconds")
    if not 0.1 <= options.timeout_s <= 86400:
        raise UsageProblem(f"--timeout {options.timeout_s:g}", "must be between 0.1 and 86400 seconds")
    return options


# As useradd(8) and directory services have them, with a realm or a domain: ada, svc$, ada@lab.example, LAB+ada.
_USER_NAME = re.compile(r"\w[\w.@+$%=-]{0,255}")


def check_words(options: TargetOptions) -> None:
    """UsageProblem names an interpreter or a user that could not be passed on."""
    why = why_no_program(options.python) if options.python else ""
    if why:
        raise UsageProblem(f"--python {shown(options.python)}", why, "name it by another path: a link to it")
    if options.user and not _USER_NAME.fullmatch(options.user):
        raise UsageProblem(f"--user {shown(options.user)}", "is no user's name")


LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "localhost.localdomain"})


@dataclass(frozen=True)
class Route:
    """Nodes that are reached in one way. ``job``: the Slurm job to run inside of, for srun: "123", or "123+1" in a
    heterogeneous one.
    """

    via: Via
    nodes: tuple[str, ...]
    job: str = ""


def routes_for(
    nodes: Sequence[str],
    via: Via | Literal[""],
    allocations: Sequence[Allocation],
    environ: Mapping[str, str] = os.environ,
) -> tuple[Route, ...]:
    """How each node is reached. ``via`` "": this machine without any network, nodes of the job that we are inside of by
    srun, others by ssh.

    ``allocations``: the Slurm jobs that were asked for. UsageProblem when srun cannot reach a node, and where "local"
    would call this machine by another one's name.
    """
    if via == "srun":
        return _by_srun(nodes, allocations or allocations_here(environ))
    name = platform.node() or "localhost"
    here = LOCAL_NAMES | {name, name.partition(".")[0], environ.get("SLURMD_NODENAME", name)}
    local = [node for node in nodes if node in here]
    rest = [node for node in nodes if node not in here]
    if via == "local" and rest:
        raise UsageProblem("--via local", f"{rest[0]} is not this machine ({name})", "without -w, or --via ssh")
    if via:
        return (Route(via, tuple(nodes)),)
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


THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class Targets:
    """What is to be looked at: node names, or a recording instead of nodes.

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
class _Selection:
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
    """What the options mean. UsageProblem names the bad part in one line."""
    check_words(options)
    if options.recording:
        if options.nodes or options.hostfile:
            raise UsageProblem("--recording", "is looked at instead of machines", "without -w and --hostfile")
        return Targets((), options.recording, options.job, Path(options.recording))
    selection = _typed(options)
    if not selection.names and options.via != "local":
        _from_environment(selection, environ)
    if not selection.names:
        selection.add([platform.node() or "localhost"], THIS_MACHINE)
    nodes = tuple(selection.names)
    if len(nodes) > MOST_NODES:
        raise UsageProblem("targets", f"{len(nodes):,} nodes, more than the {MOST_NODES:,} that mltop takes")
    user = one_user([options.user, *selection.users])
    routes = routes_for(nodes, options.via, selection.allocations, environ)
    _check_against(routes, user, options.python)
    return Targets(nodes, " + ".join(selection.titles), selection.job, None, routes, user)


def _typed(options: TargetOptions) -> _Selection:
    selection = _Selection()
    for text in options.nodes:
        user, rest = split_user(text)
        selection.users.append(user)
        selection.add(expand(rest), text.strip())
    if options.hostfile:
        selection.add(read_hostfile(Path(options.hostfile)), Path(options.hostfile).name)
    if options.job:
        selection.add_job(allocations_of(options.job), f"job {options.job}")
    return selection


def _from_environment(selection: _Selection, environ: Mapping[str, str]) -> None:
    allocations = allocations_here(environ)
    if allocations:
        selection.add_job(allocations, f"job {allocations[0].carried}")
    elif environ.get("WCOLL"):
        try:
            selection.add(read_hostfile(Path(environ["WCOLL"]), "WCOLL"), "WCOLL")
        except UsageProblem as problem:
            raise UsageProblem(str(problem), "it names the nodes", "unset WCOLL, or mltop --via local") from None


def _check_against(routes: tuple[Route, ...], user: str, python: str) -> None:
    ways = {route.via for route in routes}
    if user and not any(LAUNCHERS[via].logs_in for via in ways):
        raise UsageProblem(f"--user {user}", f"{' and '.join(sorted(ways))} runs as you", "--via ssh logs in")
    if python and "local" in ways:
        program = shutil.which(python)
        if program is None:
            raise UsageProblem(f"--python {python}", "no such program on this machine")
        why = as_root.why_not_python(os.path.abspath(program))  # noqa: PTH100 - keeps links
        if why:
            raise UsageProblem(f"--python {python}", why, "name one that only root can change")


def channels(targets: Targets, options: TargetOptions) -> list[Channel]:
    """The channels that the hub is to start. ``options`` are those that ``targets`` were resolved from."""
    launch_options = LaunchOptions(options.interval_s, options.python, targets.user, options.accept_new)
    launch_options = replace(launch_options, read_only=options.read_only, thresholds=options.thresholds)
    return [
        channel
        for route in targets.routes
        for channel in LAUNCHERS[route.via].launch(route.nodes, replace(launch_options, job=route.job))
    ]
