"""Which node's part of a pdsh is over, and why: pdsh goes on with the others and tells it on stderr (pdsh(1))."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from mltop.probes.reach.ending import Ending, exit_words
from mltop.probes.reach.launchers.installed_agent import ENDED_EXIT, MISSING, MISSING_FIX, NO_AGENT_EXIT
from mltop.probes.reach.launchers.ssh_ending import ssh_ended

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
        told = [ended[1] for ended in map(endings, words.splitlines()) if ended]
        if told and len(nodes) == 1:
            return told[-1]
        last = (words.strip().splitlines() or [""])[-1]
        return Ending(f"pdsh ended ({exit_words(code)})" + (f": {last}" if last else ""))

    return ending
