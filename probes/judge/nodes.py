"""Node names as a user writes them: ``h[01-16,20]``.

Which nodes did not answer, why, and what that means for the ranks of a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mltop.probes.model import Gap, JobReport, NodeState
from mltop.probes.model.ranks import ranks_text, unfold

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


_OF_NODE, _OF_RANKS = "node.", "rank."
_RANKS = re.compile(r"\(ranks? ([\d,-]+)\)")  # that the node's samples named
_COMMAND = re.compile(r"\b(ssh[^();:,]*? )the node\b")
_UNWATCHED = "not on the watched nodes"


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


def with_reasons(report: JobReport, not_answered: Sequence[NodeState], partial: bool = False) -> JobReport:
    """The judge knows which nodes are missing, not why: one gap for each reason instead of one for each node.

    Ranks that no watched node has may then be on those that did not answer. ``partial``: not all watched nodes were
    dumped, so that they may be on the others, too.
    """
    answered = _of_answers(report, not_answered, partial)
    if not partial:
        return answered
    gaps = [_undumped(gap) for gap in answered.verdict.gaps]
    return replace(answered, verdict=replace(answered.verdict, gaps=gaps))


def _of_answers(report: JobReport, not_answered: Sequence[NodeState], partial: bool) -> JobReport:
    if not not_answered:
        return report
    names = {_OF_NODE + state.node for state in not_answered}
    mentioned = {gap.what[len(_OF_NODE) :]: gap.why for gap in report.verdict.gaps if gap.what in names}
    missing = [state for state in not_answered if state.node in mentioned]
    if not missing:
        return report
    gaps = [_unseen(gap, missing, partial) for gap in report.verdict.gaps if gap.what not in names]
    for state, reason, nodes in by_reason(missing):
        whose = "its ranks" if len(nodes) == 1 else "their ranks"
        known = [rank for node in nodes for found in _RANKS.findall(mentioned[node]) for rank in unfold(found)]
        whose += (f" ({ranks_text(known)})" if known else "") + " are unknown"
        why = f"{state}: {reason}; {whose}" if reason else f"{state}; {whose}"
        gaps.append(Gap(_OF_NODE + folded(nodes), why))
    return replace(report, verdict=replace(report.verdict, gaps=gaps))


def _undumped(gap: Gap) -> Gap:
    """ "ranks 0-159 are not on the nodes that were dumped"."""
    if not gap.what.startswith(_OF_RANKS) or _UNWATCHED not in gap.why:
        return gap
    return replace(gap, why=gap.why.replace(_UNWATCHED, "not on the nodes that were dumped"), fix="dump all nodes")


def _unseen(gap: Gap, missing: Sequence[NodeState], partial: bool) -> Gap:
    """ "ranks 8-15 have not answered: they may be on h02"."""
    ranks = gap.what[len(_OF_RANKS) :]
    if not gap.what.startswith(_OF_RANKS) or _UNWATCHED not in gap.why:
        return gap
    noun, have, they = ("rank", "has", "it") if ranks.isdigit() else ("ranks", "have", "they")
    where = folded(state.node for state in missing)
    if partial:
        why = f"{noun} {ranks} {have} not answered: {they} may be on {where} or on nodes that were not dumped"
        return replace(gap, why=why, fix="dump all nodes")
    return replace(gap, why=f"{noun} {ranks} {have} not answered: {they} may be on {where}", fix="")
