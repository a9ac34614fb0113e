"""Many nodes by one pdsh process (pdsh(1)) whose lines carry frames; the agent must already be on the nodes.

pdsh forwards no input, so requests go by a second, short-lived pdsh. A node that is over is told on stderr, and the
others go on. When pdsh ends, however it ends, so do its ssh processes, and the agents find their output closed. What
pdsh 2.34 does with lines, measured: a NUL byte cuts a line, from 128 KiB on (its buffer) the head is lost, anything
below stays whole beside hundreds of others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
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
from mltop.probes.reach.launchers.ssh import OPTIONS, SSH_FAILED, complaint, plain_session, ssh_ended

_EXITED = re.compile(
    r"pdsh@[^:]*: (?P<node>.+): ssh (?:exited with exit code (?P<code>\d+)|killed by signal (?P<signal>\d+))$"
)
_LINES_KEPT = 20  # per node: a changed host key needs a dozen


@dataclass(eq=False)
class NodeEndings:
    """Is called with every line of stderr, in order. Hashable, as part of a Channel."""

    nodes: tuple[str, ...]
    python: str = ""
    user: str = ""
    _lines: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, line: str) -> tuple[str, Ending] | None:
        """The node that this line ends, and why: by what its ssh wrote before."""
        exited = _EXITED.match(line)
        if exited and exited["node"] in self.nodes:
            code = int(exited["code"]) if exited["code"] else -int(exited["signal"])
            return exited["node"], self._ending(exited["node"], code, "\n".join(self._lines.pop(exited["node"], ())))
        node, colon, text = line.partition(": ")
        if colon and node in self.nodes:
            lines = self._lines.setdefault(node, [])
            lines.append(text)
            del lines[:-_LINES_KEPT]
        return None

    def _ending(self, node: str, code: int, output: str) -> Ending:
        """The end of one node's ssh; ``code`` is negative for a signal."""
        if code == NO_AGENT_EXIT:
            return Ending(MISSING, MISSING_FIX.format(node=node))
        if code == ENDED_EXIT:
            return Ending("the agent ended")
        said = output if code == SSH_FAILED else complaint(output)  # the login's banner is in it
        return ssh_ended(code, said, host=node, python=self.python, user=self.user)


def pdsh_ended(code: int | None, output: str, *, nodes: tuple[str, ...], python: str = "", user: str = "") -> Ending:
    """The end of a pdsh: of one node by what its ssh wrote, of several that all of them are gone."""
    endings = [ended[1] for ended in map(NodeEndings(nodes, python, user), output.splitlines()) if ended]
    if endings and len(nodes) == 1:
        return endings[-1]
    last = (output.strip().splitlines() or [""])[-1]
    return Ending(f"pdsh ended ({exit_words(code)})" + (f": {last}" if last else ""))


NODES_PER_PDSH = 256  # a thread, two sockets and an ssh each
FRAME_BYTES = 65_536
# Before it becomes ssh, each child closes every descriptor up to the limit: a raised limit costs 0.1 s per node.
_START = 'ulimit -S -n "$1" 2>/dev/null; shift; exec pdsh "$@"'
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # anything else means something in pdsh's list of targets
_NODE = "@node@"  # pdsh puts the name where the command has %h


class Speakers:
    """pdsh writes "NAME: " before each line: the target as it was given, mostly without its domain."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self._targets: dict[str, list[str]] = {}  # by label
        for node in nodes:
            for label in dict.fromkeys((node, node.partition(".")[0])):
                self._targets.setdefault(label, []).append(node)

    def node_of(self, label: str) -> str | None:
        targets = self._targets.get(label, ())
        return targets[0] if len(targets) == 1 else None

    def claim(self, label: str, named: str) -> str | None:
        """Several targets may have one name before their domain."""
        return named if named in self._targets.get(label, ()) else None

    def hear(self, line: str) -> None:
        """Nothing there tells more."""


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One channel per 256 nodes. Raises UsageProblem for a name that pdsh would not take for one."""
    for node in nodes:
        if not _PLAIN_NAME.fullmatch(node):
            raise UsageProblem(node, "pdsh would not take this for a host name", "--via ssh")
    py_spy_hashes()  # here, because requests are made in the hub's thread, which must not wait
    groups = [nodes[at : at + NODES_PER_PDSH] for at in range(0, len(nodes), NODES_PER_PDSH)]
    return [stream(options, group) for group in groups]


def stream(options: LaunchOptions, nodes: tuple[str, ...], request: Request | None = None) -> Channel:
    """The samples of these nodes for as long as pdsh runs, or their answers to one request."""
    agent_args: tuple[str, ...]
    if request is None:
        agent_args = ("--unattended", *options.agent_args)
    else:
        agent_args = ("--op", request.op, "--args", plain_json({**request.args, "py_spy": py_spy_hashes()}))
    return Channel(
        argv=pdsh(nodes, options, agent_args, one_shot=request is not None),
        nodes=nodes,
        via="pdsh",
        speakers=partial(Speakers, nodes),
        takes_requests=False,
        one_shot=partial(stream, options),
        rejoin=partial(stream, options),
        ending=partial(pdsh_ended, nodes=nodes, python=options.python, user=options.user),
        node_endings=partial(NodeEndings, nodes, options.python, options.user),
    )


def pdsh(nodes: Sequence[str], options: LaunchOptions, agent_args: Sequence[str], one_shot: bool) -> tuple[str, ...]:
    """The command line: one pdsh that reaches all of ``nodes`` at once."""
    words = ["--node", _NODE, "--text", "--frame-bytes", str(FRAME_BYTES), *agent_args]
    line = installed_agent(_NODE, words, agent_hashes(), loader=loader(), python=options.python, one_shot=one_shot)
    # Of an option that is given twice ssh takes the first, so the user's come second.
    ours = [*OPTIONS, *plain_session(), *(("StrictHostKeyChecking=accept-new",) if options.accept_new else ())]
    ssh = " ".join([*(f"-o {option}" for option in ours), os.environ.get("PDSH_SSH_ARGS_APPEND", "")]).strip()
    return (
        "env",
        f"PDSH_SSH_ARGS_APPEND={ssh}",
        *("sh", "-c", _START, "pdsh", str(max(256, 4 * len(nodes) + 64))),
        # No time limit (-u) whatever the environment says.
        *("-R", "ssh", "-u", "0", "-t", str(CONNECT_S), "-f", str(len(nodes))),
        *(("-l", options.user) if options.user else ()),
        *("-w", ",".join(nodes), line.replace("%", "%%").replace(_NODE, "%h")),
    )


@cache
def agent_hashes() -> dict[str, str]:
    """Which bundle is this version's, by machine type."""
    from mltop.probes.reach.bundle import table  # makes the bundles

    return table()


@cache
def py_spy_hashes() -> dict[str, str]:
    """The py-spy that stacks by ssh leave in the nodes' caches, by machine type."""
    from mltop.probes.reach.bundle import py_spy_sha256

    return {machine: py_spy_sha256(machine) for machine in agent_hashes() if machine}
