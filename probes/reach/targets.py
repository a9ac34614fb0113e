"""From what the user typed to the nodes that are meant.

Node lists are ClusterShell's NodeSet. This version reaches this machine only; a list that names another one is
refused in one line instead of being half watched.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.launchers import local

SQUEUE_TIMEOUT_S = 10.0
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "localhost.localdomain"})


@dataclass(frozen=True)
class TargetOptions:
    """The TARGETS options as typed; () or "" where not given."""

    nodes: tuple[str, ...] = ()
    hostfile: str = ""
    job: str = ""
    recording: str = ""
    via: str = ""
    python: str = ""
    interval_s: float = 1.0
    timeout_s: float = 30.0
    user: str = ""

    def merged(self, over: TargetOptions) -> TargetOptions:
        """Options given before the command hold unless they are given again after it."""
        default = TargetOptions()
        values = {
            name: getattr(over, name) if getattr(over, name) != getattr(default, name) else value
            for name, value in vars(self).items()
        }
        return TargetOptions(**values)


@dataclass(frozen=True)
class Targets:
    """What was meant: node names, the Slurm job to keep to ("" for all), or a recording instead of nodes."""

    nodes: tuple[str, ...]
    title: str
    job: str = ""
    recording: Path | None = None


def resolve(options: TargetOptions) -> Targets:
    """UsageProblem names the bad part."""
    check_numbers(options)
    if options.recording:
        return Targets((), options.recording, options.job, Path(options.recording))
    here = platform.node() or "localhost"
    names: list[str] = []
    for text in options.nodes:
        names += expand(text)
    if options.hostfile:
        names += read_hostfile(Path(options.hostfile))
    if options.job:
        names += nodes_of_job(options.job)
    wanted = tuple(dict.fromkeys(names)) or (here,)
    if options.via in ("", "local"):
        refuse_others(wanted, here, options.via)
    else:
        raise UsageProblem(f"--via {options.via}", "this version reaches this machine only", "run mltop on the node")
    title = f"job {options.job}" if options.job else ("this machine" if wanted == (here,) else ",".join(wanted))
    return Targets(wanted, title, options.job)


def channels(targets: Targets, options: TargetOptions) -> list[Channel]:
    """The processes to start for these targets."""
    return local.launch(targets.nodes, LaunchOptions(options.interval_s, options.python))


def check_numbers(options: TargetOptions) -> None:
    if not 0.1 <= options.interval_s <= 3600:
        raise UsageProblem(f"--interval {options.interval_s:g}", "must be between 0.1 and 3600 seconds")
    if not 0.1 <= options.timeout_s <= 86400:
        raise UsageProblem(f"--timeout {options.timeout_s:g}", "must be between 0.1 and 86400 seconds")
    if options.user:
        raise UsageProblem(f"--user {options.user}", "this version reaches this machine only, as you")
    if options.python and shutil.which(options.python) is None:
        raise UsageProblem(f"--python {options.python}", "no such program on this machine")


def expand(text: str) -> list[str]:
    """Names in a node list such as ``node[01-16,20]``."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    if not text.strip():
        raise UsageProblem(f"-w {text!r}", "names no node", "e.g. -w node[01-16]")
    try:
        names = list(NodeSet(text))
    except NodeSetException as error:
        raise UsageProblem(f"-w {text!r}", f"is not a node list: {error}", "e.g. -w node[01-16,20]") from None
    if not names:
        raise UsageProblem(f"-w {text!r}", "names no node", "e.g. -w node[01-16]")
    return names


def read_hostfile(path: Path) -> list[str]:
    """First word of every line: plain, DeepSpeed (``host slots=8``), MPI (``host:8``); # begins a comment."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise UsageProblem(f"--hostfile {path}", str(reason)) from None
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, colon, slots = words[0].rpartition(":")
        name = host if colon and slots.isdigit() and ":" not in host else words[0]
        try:
            names += expand(name)
        except UsageProblem:
            raise UsageProblem(f"--hostfile {path}", f"line {number}: {words[0]!r} is not a host") from None
    if not names:
        raise UsageProblem(f"--hostfile {path}", "names no host")
    return names


def nodes_of_job(job: str) -> list[str]:
    """The nodes of a running Slurm job, by squeue."""
    if not job.replace("_", "").replace("+", "").isdigit():
        raise UsageProblem(f"--job {job!r}", "is not a Slurm job id", "a number, see `squeue --me`")
    squeue = shutil.which("squeue")
    if squeue is None:
        raise UsageProblem(f"--job {job}", "no such job: Slurm's squeue is not on this machine")
    try:
        done = subprocess.run(
            [squeue, "-h", "-j", job, "-o", "%T %N"],
            capture_output=True,
            text=True,
            timeout=SQUEUE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageProblem(f"--job {job}", f"squeue did not answer within {SQUEUE_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or [f"squeue ended with {done.returncode}"])[-1]
        raise UsageProblem(f"--job {job}", f"no such job: {words}")
    state, _, nodes = done.stdout.strip().partition(" ")
    if not state:
        raise UsageProblem(f"--job {job}", "no such job: squeue does not list it", "it may have ended: `sacct -j`")
    if not nodes.strip():
        raise UsageProblem(f"--job {job}", f"has no nodes yet (it is {state.lower()})")
    return expand(nodes.strip())


def refuse_others(names: tuple[str, ...], here: str, via: str) -> None:
    """This version does not reach other machines. ``--via local`` runs one agent per name on this one."""
    if via == "local":
        return
    local_names = LOCAL_NAMES | {here, here.partition(".")[0], os.environ.get("SLURMD_NODENAME", here)}
    others = [name for name in names if name not in local_names]
    if others:
        shown = ",".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise UsageProblem(shown, "this version reaches this machine only", "run mltop on the node itself")
