"""What happened, newest first: findings that began or ended, and what kernels reported. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mltop.probes.model import Finding, KernelEvent
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.findings import severity_cell
from mltop.tui.render.states import SEVERITY_ORDER
from mltop.tui.render.units import UNKNOWN, age, clock_time

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
