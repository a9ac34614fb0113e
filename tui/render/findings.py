"""What the health rules say, and what could not be read, as table rows.

What is wrong in a fleet as few rows: nodes that do not answer, findings of many nodes on one line. Pure.

What happened, newest first: findings that began or ended, and what kernels reported. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from mltop.probes.investigate.advice import advised
from mltop.probes.model import Finding, Gap, KernelEvent, NodePhase, Severity
from mltop.probes.model.ranks import fold
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.states import SEVERITY, SEVERITY_ORDER
from mltop.tui.render.units import UNKNOWN, age, clock_time

FINDING_COLUMNS = (
    Column("severity", "SEV", 4),
    Column("since", "SINCE", 8, priority=2),
    Column("node", "NODE", 12),
    Column("subject", "WHAT", 10),
    Column("message", "MESSAGE", 24, stretch=True),
    Column("action", "DO", 30, priority=1, stretch=True),
)

GAP_COLUMNS = (
    Column("what", "NOT KNOWN", 20),
    Column("why", "WHY", 24, stretch=True),
    Column("fix", "FIX", 30, priority=1, stretch=True),
)

_OF_ONE_GPU = re.compile(r"gpu\.(?P<index>\d+)\.(?P<field>.+)")


def severity_cell(severity: str) -> Cell:
    """The word and its colour."""
    word, style = SEVERITY.get(severity, (severity.upper() or UNKNOWN, ""))
    return Cell(word, style)


def worst(findings: Iterable[Finding]) -> Finding | None:
    """The most severe finding, the first of several; an unknown severity counts as the least."""
    order = {severity: rank for rank, severity in enumerate(SEVERITY_ORDER)}
    return min(findings, key=lambda finding: order.get(finding.severity, len(order)), default=None)


def finding_columns(node_width: int) -> tuple[Column, ...]:
    """FINDING_COLUMNS with a NODE column of ``node_width`` cells."""
    return tuple(replace(one, width=node_width) if one.key == "node" else one for one in FINDING_COLUMNS)


def finding_row(finding: Finding, name: str = "") -> Row:
    """One row of FINDING_COLUMNS; ``name`` stands for the node's. Findings that it explains are counted."""
    message = finding.message
    if finding.folded:
        message += f" (explains {len(finding.folded)} more)"
    cells = (
        severity_cell(finding.severity),
        Cell(clock_time(finding.since)),
        Cell(name or finding.node or UNKNOWN),
        Cell(finding.subject or UNKNOWN),
        Cell(message or finding.id),
        Cell(finding.action),
    )
    return Row(f"{finding.node}/{finding.id}/{finding.subject}", cells)


def merged_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps with one reason and one fix as one; the same field of several GPUs is "gpu.0-7.power_w"."""
    merged: dict[tuple[str, str], dict[str, list[int]]] = {}
    for gap in gaps:
        match = _OF_ONE_GPU.fullmatch(gap.what)
        what, index = (match["field"], [int(match["index"])]) if match else (gap.what, [])
        merged.setdefault((gap.why, gap.fix), {}).setdefault(what, []).extend(index)
    return [
        Gap(", ".join(f"gpu.{fold(gpus)}.{what}" if gpus else what for what, gpus in whats.items()), why, fix)
        for (why, fix), whats in merged.items()
    ]


def gap_row(gap: Gap) -> Row:
    """One row of GAP_COLUMNS; a blank fix means that nothing can be done about it."""
    return Row(gap.what, (Cell(gap.what), Cell(gap.why or UNKNOWN), Cell(advised(gap.fix), "accent")))


FOLD_FROM = 6  # nodes with one and the same problem
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_SEVERITY_OF_STATE: dict[NodePhase, Severity] = {"lost": "critical", "refused": "critical", "stale": "warning"}


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


MOST = 2000  # lines: an engineer reads the newest

EVENT_COLUMNS = (
    Column("at", "TIME", 8),
    Column("ago", "AGO", 6, right=True, priority=2),
    Column("node", "NODE", 12, priority=1, stretch=True, most=24),
    Column("kind", "KIND", 9),
    Column("subject", "WHAT", 14, priority=1),
    Column("text", "TEXT", 30, stretch=True),
)

_KINDS = {
    "xid": "XID",
    "sxid": "SXID",
    "off_bus": "OFF BUS",
    "oom": "OOM",
    "hung_task": "HUNG",
    "soft_lockup": "LOCKUP",
    "nfs": "NFS",
    "nfs_ok": "NFS ok",
    "mlx5": "MLX5",
    "link": "LINK",
    "remount_ro": "RO MOUNT",
    "disk_io": "DISK",
    "pcie_limited": "PCIE",
    "peermem": "PEERMEM",
    "mce": "MCE",
}
_GRAVE = ("xid", "sxid", "off_bus", "oom", "soft_lockup", "remount_ro", "disk_io", "mce")
_HARMLESS = ("nfs_ok", "pcie_limited")


@dataclass(frozen=True)
class Happening:
    """One line: ``at`` unix s; ``key`` stays the same while it is listed."""

    at: float
    node: str
    kind: str
    style: str
    subject: str
    text: str
    key: str


def happenings(
    firing: Iterable[Finding], ended: Iterable[Finding], events: Iterable[tuple[str, KernelEvent]], node: str = ""
) -> list[Happening]:
    """All of ``node`` ("": of all nodes), the newest first; what began at an unknown time is left out."""
    found = [_begun(one) for one in (*firing, *ended) if one.since is not None]
    found += [_over(one) for one in ended if one.until is not None]
    found += [_said(name, event) for name, event in events]
    found = [one for one in found if node in ("", one.node)]
    found.sort(key=lambda one: (-one.at, one.node, one.key))
    return found[:MOST]


def event_row(one: Happening, now: float) -> Row:
    cells = (
        Cell(clock_time(one.at)),
        Cell(age(max(0.0, now - one.at)), "dim"),
        Cell(one.node or UNKNOWN),
        Cell(one.kind, one.style),
        Cell(one.subject or UNKNOWN, "bold"),
        Cell(one.text),
    )
    return Row(one.key, cells)


def node_width(rows: Sequence[Happening]) -> int:
    return max((len(one.node) for one in rows), default=4)


def _begun(finding: Finding) -> Happening:
    word = severity_cell(finding.severity)
    style = word.style if finding.until is None else "dim"
    key = f"+{finding.node}/{finding.id}/{finding.subject}/{finding.since}"
    return Happening(finding.since or 0.0, finding.node, word.text, style, finding.subject, finding.message, key)


def _over(finding: Finding) -> Happening:
    lasted = age((finding.until or 0.0) - finding.since) if finding.since is not None else "some time"
    known = finding.severity in SEVERITY_ORDER
    text = f"over after {lasted}: {finding.message}"
    key = f"-{finding.node}/{finding.id}/{finding.subject}/{finding.until}"
    return Happening(finding.until or 0.0, finding.node, "over", "ok" if known else "", finding.subject, text, key)


def _said(node: str, event: KernelEvent) -> Happening:
    kind = _KINDS.get(event.kind, event.kind.upper())
    kind += f" {event.code}" if event.code is not None else ""
    style = "crit" if event.kind in _GRAVE else "dim" if event.kind in _HARMLESS else "warn"
    subject = event.subject or event.process
    key = f"k{node}/{event.kind}/{event.subject}/{event.code}/{event.at}/{event.pid}"
    return Happening(event.at, node, kind, style, subject, event.text, key)
