"""What is wrong in a fleet as few rows: nodes that do not answer, findings of many nodes on one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from mltop.probes.model import Finding
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell, Row
from mltop.tui.render.findings import finding_row, severity_cell
from mltop.tui.render.states import SEVERITY_ORDER
from mltop.tui.render.units import clock_time

FOLD_FROM = 6  # nodes with one and the same problem
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_SEVERITY_OF_STATE = {"lost": "critical", "refused": "critical", "stale": "warning"}


def state_findings(nodes: Iterable[NodeView], taken_at: float) -> list[Finding]:
    """One per node that does not answer (any more); a node that still connects is none."""
    found = []
    for view in nodes:
        state = view.state
        severity = _SEVERITY_OF_STATE.get(state.state)
        if severity is None:
            continue
        since = None if state.age_s is None else taken_at - state.age_s
        text = f"{state.state}: {state.reason}" if state.reason else state.state
        found.append(Finding(f"node.{state.state}", severity, view.node, "node", text, since=since))
    return found


@dataclass(frozen=True)
class Problem:
    """One row of FINDING_COLUMNS about ``nodes``; its key begins with the first one's name and a slash."""

    row: Row
    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]


def fleet_problems(nodes: Iterable[NodeView], findings: Sequence[Finding], taken_at: float) -> list[Problem]:
    """The problems of ``nodes`` where ``findings`` are those of the health rules only."""
    shown = list(nodes)
    return problems_of([node.node for node in shown], [*state_findings(shown, taken_at), *findings])


def problems_of(
    nodes: Iterable[str], findings: Sequence[Finding], names: Mapping[str, str] = MappingProxyType({})
) -> list[Problem]:
    """Worst first: what ``findings`` say of ``nodes``. ``names``: what stands for the nodes' names."""
    shown = set(nodes)
    order = {severity: place for place, severity in enumerate(SEVERITY_ORDER)}
    found = [finding for finding in findings if finding.node in shown]
    found.sort(key=lambda finding: order.get(finding.severity, len(order)))
    return [_problem(group, names) for group in _groups(found)]


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of at least FOLD_FROM nodes that differ only in their figures together, the others alone."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.severity, finding.id, _NUMBERS.sub("#", finding.message)), []).append(finding)
    groups: list[list[Finding]] = []
    folded: set[int] = set()
    for finding in findings:
        group = alike[finding.severity, finding.id, _NUMBERS.sub("#", finding.message)]
        if len({one.node for one in group}) < FOLD_FROM:
            groups.append([finding])
        elif id(group) not in folded:
            folded.add(id(group))
            groups.append(group)
    return groups


def _problem(group: list[Finding], names: Mapping[str, str]) -> Problem:
    first = group[0]
    if len(group) == 1:
        return Problem(finding_row(first, names.get(first.node, "")), (first.node,), (first,))
    nodes, name = tuple(dict.fromkeys(finding.node for finding in group)), names.get(first.node, first.node)
    known = [finding.since for finding in group if finding.since is not None]
    same = all(finding.message == first.message for finding in group)
    subjects = {finding.subject for finding in group}
    cells = (
        severity_cell(first.severity),
        Cell(clock_time(min(known, default=None))),
        Cell(folded_names(tuple([names.get(node, node) for node in nodes]))),
        Cell(first.subject if len(subjects) == 1 else f"{len(group)} GPUs"),
        Cell(f"{len(nodes)} nodes: {first.message}" + ("" if same else f" (this on {name})")),
        Cell(first.action),
    )
    return Problem(Row(f"{first.node}/{first.id}/many", cells), nodes, tuple(group))


@lru_cache(maxsize=64)
def folded_names(names: tuple[str, ...]) -> str:
    """``node[03-10,12]``."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
