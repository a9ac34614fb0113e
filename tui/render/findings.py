"""What the health rules say, and what could not be read, as table rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from mltop.probes.investigate.advice import advised
from mltop.probes.judge.fold import fold
from mltop.probes.model import Finding, Gap
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.states import SEVERITY, SEVERITY_ORDER
from mltop.tui.render.units import UNKNOWN, clock_time

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
