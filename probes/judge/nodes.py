"""Node names as a user writes them: ``h[01-16,20]``. Which of them did not answer, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from mltop.probes.judge.values import grouped
from mltop.probes.model import NodePhase, NodeState

MOST_CHARS = 200  # of names that do not fold
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def folded(names: Iterable[str], most_chars: int = MOST_CHARS) -> str:
    """ClusterShell's notation of the distinct names; one that stays too long ends in "and 480 more"."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) < 2:
        return "".join(distinct)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        nodes = NodeSet(resolver=RESOLVER_NOGROUP)
        for name in distinct:
            nodes.add(NodeSet(name, resolver=RESOLVER_NOGROUP))
    except NodeSetException:  # a name that is no node set
        return _cut(",".join(distinct), distinct, most_chars)
    return _cut(str(nodes), [str(name) for name in nodes], most_chars)


def _cut(text: str, names: list[str], most_chars: int) -> str:
    if len(text) <= most_chars:
        return text
    count = 1
    while count < len(names) and len(",".join(names[: count + 1])) <= most_chars:
        count += 1
    return ",".join(names[:count]) + f" and {len(names) - count} more"


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sorting key by which h2 comes before h10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part]


def by_reason(states: Iterable[NodeState]) -> list[tuple[NodePhase, str, list[str]]]:
    """(state, reason, nodes) of nodes with one state, reason and fix each; the largest groups first."""
    groups = grouped(states, lambda node: (node.state, nameless(node.why, node.node), nameless(node.fix, node.node)))
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0].node))
    return [
        (phase, members[0].reason if len(members) == 1 else _of_several(why, members), [node.node for node in members])
        for (phase, why, _), members in ordered
    ]


def _of_several(why: str, members: Sequence[NodeState]) -> str:
    """A fix that names its node is given for the first one: "the node" cannot be typed."""
    fixes = {state.fix for state in members}
    if fixes == {""}:
        return why
    return f"{why} ({members[0].fix})" if len(fixes) == 1 else f"{why} (e.g. {members[0].fix})"


def nameless(sentence: str, node: str) -> str:
    """What ssh says often names the host: sentences of several nodes are alike without it."""
    if not node or node not in sentence:
        return sentence
    return re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "the node", sentence)


@lru_cache(maxsize=4096)
def kind_of_reason(why: str, node: str) -> str:
    """What is alike in the reasons of several nodes: ssh names addresses and ports, torch sizes, drivers pids."""
    return _NUMBERS.sub("#", nameless(why, node))


def sentences(states: Iterable[NodeState]) -> list[str]:
    """ "h[03,07] lost: connection refused": one for each reason."""
    reasons = by_reason(states)
    return [f"{folded(nodes)} {state}" + (f": {reason}" if reason else "") for state, reason, nodes in reasons]
