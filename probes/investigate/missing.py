"""Which nodes did not answer, why, and what that means for the ranks of a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mltop.probes.investigate.folding import folded
from mltop.probes.model import Gap, JobReport, NodeState

_OF_NODE, _OF_RANKS = "node.", "rank."


def by_reason(states: Iterable[NodeState]) -> list[tuple[str, str, list[str]]]:
    """(state, reason, nodes) of nodes with one state and reason each; the largest groups first."""
    groups: dict[tuple[str, str], list[NodeState]] = {}
    for state in states:
        groups.setdefault((state.state, nameless(state.reason, state.node)), []).append(state)
    made = [
        (state, reason if len(members) > 1 else members[0].reason, [member.node for member in members])
        for (state, reason), members in groups.items()
    ]
    return sorted(made, key=lambda group: (-len(group[2]), group[2][0]))


def nameless(sentence: str, node: str) -> str:
    """What ssh says often names the host: sentences of several nodes are alike without it."""
    return re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "the node", sentence) if node else sentence


def sentences(states: Iterable[NodeState]) -> list[str]:
    """ "h[03,07] lost: connection refused": one for each reason."""
    return [
        f"{folded(nodes)} {state}" + (f": {reason}" if reason else "") for state, reason, nodes in by_reason(states)
    ]


def with_reasons(report: JobReport, not_answered: Sequence[NodeState]) -> JobReport:
    """The judge knows which nodes are missing, not why: one gap for each reason instead of one for each node.

    Ranks that no watched node has may then be on those that did not answer.
    """
    if not not_answered:
        return report
    names = {_OF_NODE + state.node for state in not_answered}
    mentioned = {gap.what[len(_OF_NODE) :] for gap in report.verdict.gaps if gap.what in names}
    missing = [state for state in not_answered if state.node in mentioned]
    if not missing:
        return report
    gaps = [_unseen(gap, missing) for gap in report.verdict.gaps if gap.what not in names]
    for state, reason, nodes in by_reason(missing):
        whose = "its ranks are unknown" if len(nodes) == 1 else "their ranks are unknown"
        why = f"{state}: {reason}; {whose}" if reason else f"{state}; {whose}"
        gaps.append(Gap(_OF_NODE + folded(nodes), why))
    return replace(report, verdict=replace(report.verdict, gaps=gaps))


def _unseen(gap: Gap, missing: Sequence[NodeState]) -> Gap:
    """ "ranks 8-15 have not answered: they may be on h02"."""
    ranks = gap.what[len(_OF_RANKS) :]
    if not gap.what.startswith(_OF_RANKS) or "not on the watched nodes" not in gap.why:
        return gap
    noun, have, they = ("rank", "has", "it") if ranks.isdigit() else ("ranks", "have", "they")
    return replace(
        gap,
        why=f"{noun} {ranks} {have} not answered: {they} may be on {folded(state.node for state in missing)}",
        fix="",
    )
