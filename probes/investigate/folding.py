"""Node names as a user writes them: ``h[01-16,20]``."""

from __future__ import annotations

from collections.abc import Iterable

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
