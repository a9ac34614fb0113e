"""Node names as a user writes them: ``h[01-16,20]``. Which of them did not answer, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mltop.probes.model import NodeState

MOST_CHARS = 200  # of names that do not fold


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
    kept: list[str] = []
    while len(kept) < len(names) and len(",".join([*kept, names[len(kept)]])) <= most_chars:
        kept.append(names[len(kept)])
    kept = kept or names[:1]
    return ",".join(kept) + f" and {len(names) - len(kept)} more"


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sorting key by which h2 comes before h10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part]


_COMMAND = re.compile(r"\b(ssh[^();:,]*? )the node\b")


def by_reason(states: Iterable[NodeState]) -> list[tuple[str, str, list[str]]]:
    """(state, reason, nodes) of nodes with one state and reason each; the largest groups first."""
    groups: dict[tuple[str, str], list[NodeState]] = {}
    for state in states:
        groups.setdefault((state.state, nameless(state.reason, state.node)), []).append(state)
    made = [
        (state, _of_first(reason, members) if len(members) > 1 else members[0].reason, [one.node for one in members])
        for (state, reason), members in groups.items()
    ]
    return sorted(made, key=lambda group: (-len(group[2]), group[2][0]))


def _of_first(reason: str, members: Sequence[NodeState]) -> str:
    """A command that names its node is given for the first one: "the node" cannot be typed."""
    return _COMMAND.sub(lambda found: f"e.g. {found[1]}{members[0].node}", reason)


def nameless(sentence: str, node: str) -> str:
    """What ssh says often names the host: sentences of several nodes are alike without it."""
    return re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "the node", sentence) if node else sentence


def sentences(states: Iterable[NodeState]) -> list[str]:
    """ "h[03,07] lost: connection refused": one for each reason."""
    return [
        f"{folded(nodes)} {state}" + (f": {reason}" if reason else "") for state, reason, nodes in by_reason(states)
    ]
