"""Many nodes by one pdsh process (pdsh(1)) whose lines carry frames; the agent must already be on the nodes.

pdsh forwards no input, so requests go by a second, short-lived pdsh. A node that is over is told on stderr, and the
others go on. When pdsh ends, however it ends, so do its ssh processes, and the agents find their output closed. What
pdsh 2.34 does with lines, measured: a NUL byte cuts a line, from 128 KiB on (its buffer) the head is lost, anything
below stays whole beside hundreds of others.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from mltop.probes.agent.protocol import Request
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.bundle import loader
from mltop.probes.reach.channel import CONNECT_S, Channel, Ending, LaunchOptions, exit_words
from mltop.probes.reach.launchers.remote_command import (
    ENDED_EXIT,
    MISSING,
    MISSING_FIX,
    NO_AGENT_EXIT,
    installed_agent,
    plain_json,
)
from mltop.probes.reach.launchers.ssh import OPTIONS, plain_session, ssh_ended

_EXITED = re.compile(
    r"pdsh@[^:]*: (?P<node>.+): ssh (?:exited with exit code (?P<code>\d+)|killed by signal (?P<signal>\d+))$"
)
_LINES_KEPT = 20  # per node: a changed host key needs a dozen


@dataclass(eq=False)
class NodeEndings:
    """Call it with every line of stderr, in order. Hashable, as part of a Channel."""

    nodes: tuple[str, ...]
    python: str = ""
    user: str = ""
    _said: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, line: str) -> tuple[str, Ending] | None:
        """The node that this line ends, and why; what its ssh said before makes the reason."""
        exited = _EXITED.match(line)
        if exited and exited["node"] in self.nodes:
            code = int(exited["code"]) if exited["code"] else -int(exited["signal"])
            words = "\n".join(self._said.pop(exited["node"], ()))
            return exited["node"], node_ended(exited["node"], code, words, self.python, self.user)
        node, colon, words = line.partition(": ")
        if colon and node in self.nodes:
            said = self._said.setdefault(node, [])
            said.append(words)
            del said[:-_LINES_KEPT]
        return None


def node_ended(node: str, code: int, words: str, python: str = "", user: str = "") -> Ending:
    """The end of one node's ssh; ``code`` is negative for a signal."""
    if code == NO_AGENT_EXIT:
        return Ending(MISSING, MISSING_FIX.format(node=node))
    if code == ENDED_EXIT:
        return Ending("the agent ended")
    return ssh_ended(code, words, host=node, python=python, user=user)


def pdsh_ending(nodes: tuple[str, ...], python: str = "", user: str = "") -> Callable[[int | None, str], Ending]:
    """For ``Channel.ending``: of one node it is what its ssh said, of several that all of them are gone."""

    def ending(code: int | None, words: str) -> Ending:
        endings = NodeEndings(nodes, python, user)
        endings_told = [ended[1] for ended in map(endings, words.splitlines()) if ended]
        if endings_told and len(nodes) == 1:
            return endings_told[-1]
        last = (words.strip().splitlines() or [""])[-1]
        return Ending(f"pdsh ended ({exit_words(code)})" + (f": {last}" if last else ""))

    return ending


NODES_PER_PDSH = 256  # a thread, two sockets and an ssh each
FRAME_BYTES = 65_536
# Before it becomes ssh, each child closes every descriptor up to the limit: a raised limit costs 0.1 s per node.
_START = 'ulimit -S -n "$1" 2>/dev/null; shift; exec pdsh "$@"'
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # anything else means something in pdsh's list of targets
_NODE = "@node@"  # pdsh puts the name where the command has %h


class Speakers:
    """pdsh writes "NAME: " before each line: the target as it was given, mostly without its domain."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self._meant: dict[str, list[str]] = {}
        for node in nodes:
            for label in dict.fromkeys((node, node.partition(".")[0])):
                self._meant.setdefault(label, []).append(node)

    def node_of(self, label: str) -> str | None:
        meant = self._meant.get(label, ())
        return meant[0] if len(meant) == 1 else None

    def claim(self, label: str, named: str) -> str | None:
        """Where several targets have this name before their domain."""
        return named if named in self._meant.get(label, ()) else None

    def hear(self, line: str) -> None:
        """Nothing there tells more."""


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One channel per 256 nodes. UsageProblem when this machine has no pdsh, or the options cannot be passed on."""
    if shutil.which("pdsh") is None:
        raise UsageProblem("--via pdsh", "pdsh is not installed here", "apt install pdsh, or --via ssh")
    for node in nodes:
        if not _PLAIN_NAME.fullmatch(node):
            raise UsageProblem(node, "pdsh would not take this for a host name", "--via ssh")
    py_spy_hashes()  # here, because requests are made in the hub's thread, which must not wait
    groups = [nodes[at : at + NODES_PER_PDSH] for at in range(0, len(nodes), NODES_PER_PDSH)]
    return [stream(options, group) for group in groups]


def stream(options: LaunchOptions, nodes: tuple[str, ...]) -> Channel:
    """Samples of these nodes for as long as pdsh runs."""
    args = ("--unattended", "--interval", f"{options.interval_s:g}")
    return Channel(
        argv=pdsh(nodes, options, args),
        nodes=nodes,
        via="pdsh",
        speakers=partial(Speakers, nodes),
        takes_requests=False,
        one_shot=partial(one_shot, options),
        rejoin=partial(stream, options),
        ending=pdsh_ending(nodes, options.python, options.user),
        node_ending=NodeEndings(nodes, options.python, options.user),
        dies_with_us=True,
    )


def one_shot(options: LaunchOptions, nodes: tuple[str, ...], request: Request) -> Channel:
    """The answers of these nodes to one request."""
    args = ("--op", request.op, "--args", plain_json({**request.args, "py_spy": py_spy_hashes()}))
    return Channel(
        argv=pdsh(nodes, options, args, one_shot=True),
        nodes=nodes,
        via="pdsh",
        speakers=partial(Speakers, nodes),
        takes_requests=False,
        ending=pdsh_ending(nodes, options.python, options.user),
        node_ending=NodeEndings(nodes, options.python, options.user),
        dies_with_us=True,
    )


def pdsh(
    nodes: Sequence[str], options: LaunchOptions, agent_args: Sequence[str], one_shot: bool = False
) -> tuple[str, ...]:
    """The command line: one pdsh that reaches all of ``nodes`` at once."""
    words = ["--node", _NODE, "--text", "--frame-bytes", str(FRAME_BYTES), *agent_args]
    try:
        line = installed_agent(_NODE, words, agent_hashes(), loader=loader(), python=options.python, one_shot=one_shot)
    except ValueError as error:
        raise UsageProblem("--via pdsh", str(error)) from None
    return (
        "env",
        f"PDSH_SSH_ARGS_APPEND={ssh_arguments(options)}",
        *("sh", "-c", _START, "pdsh", str(max(256, 4 * len(nodes) + 64))),
        # No time limit (-u) whatever the environment says.
        *("-R", "ssh", "-u", "0", "-t", str(CONNECT_S), "-f", str(len(nodes))),
        *(("-l", options.user) if options.user else ()),
        *("-w", ",".join(nodes), line.replace("%", "%%").replace(_NODE, "%h")),
    )


@cache
def agent_hashes() -> dict[str, list[str]]:
    """Which bundle is this version's, and its MANIFEST, by machine type."""
    from mltop.probes.reach.bundle import table  # makes the bundles

    return table()


@cache
def py_spy_hashes() -> dict[str, str]:
    """The py-spy that stacks by ssh leave in the nodes' caches, by machine type."""
    from mltop.probes.reach.bundle import py_spy_sha256

    return {machine: py_spy_sha256(machine) for machine in agent_hashes() if machine}


def ssh_arguments(options: LaunchOptions) -> str:
    """What each ssh gets first; of an option that is given twice ssh takes the first, so the user's come second."""
    ours = [*OPTIONS, *plain_session(), *(("StrictHostKeyChecking=accept-new",) if options.accept_new else ())]
    return " ".join([*(f"-o {option}" for option in ours), os.environ.get("PDSH_SSH_ARGS_APPEND", "")]).strip()
