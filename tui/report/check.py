"""What commands print that ask many nodes for a few lines each.

`mltop check`: nothing when all is well, else a line for each thing, the gravest first. `mltop doctor`: what is missing
first, nodes that say the same on one line. `mltop kernel`: every new kind of line, what the fewest nodes have first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mltop.probes.judge.kernel_lines import KernelLine
from mltop.probes.judge.nodes import folded, nameless
from mltop.probes.judge.values import grouped
from mltop.probes.model import Finding, Incident, NodeState, Unknown
from mltop.probes.model.units import UNKNOWN, count, counted, seconds
from mltop.tui.exits import EXIT_CRITICAL, EXIT_FINE, EXIT_UNKNOWN, EXIT_WARNINGS
from mltop.tui.render.cells import Cell, Column, Row, columns_line, header_line, layout, line_width, needs
from mltop.tui.report.page import Page

if TYPE_CHECKING:
    from rich.console import Console

WIDE_NAMES = 16  # cells: folded names that are longer get a line of their own


@dataclass
class Checked:
    """What a check found. ``unknown``: what could not be judged (of severity info: what nobody misses), ``nodes`` says
    which could not be reached.
    """

    nodes: list[NodeState] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    unreached: list[NodeState] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)

    @property
    def exit(self) -> int:
        """What is known to be broken counts more than what is not known, and that more than a warning."""
        severities = {finding.severity for finding in self.findings} | {each.severity for each in self.incidents}
        if "critical" in severities:
            return EXIT_CRITICAL
        if any(unknown.severity != "info" for unknown in self.unknown) or self.unreached:
            return EXIT_UNKNOWN
        return EXIT_WARNINGS if "warning" in severities else EXIT_FINE


def print_check(
    checked: Checked, console: Console, verbose: bool = False, thresholds: Sequence[Mapping[str, str]] = ()
) -> None:
    """The findings, and what is unknown. ``verbose``: also what is only worth knowing, evidence, what is explained.
    ``thresholds``: those of the user (rule, threshold, default): said where anything is.
    """
    page = Page(console)
    page.not_well(checked.unreached)
    for incident in checked.incidents:
        if verbose or incident.severity != "info":
            page.incident(incident, verbose)
    printed = {finding.identity for incident in checked.incidents for finding in incident.findings}
    for finding in checked.findings:
        if finding.identity not in printed and (verbose or finding.severity != "info"):
            page.finding(finding, verbose)
    missed = [unknown for unknown in checked.unknown if verbose or unknown.severity != "info"]
    for alike in grouped(missed, lambda unknown: (unknown.what, unknown.why)).values():
        _unknown(alike[0], [unknown.node for unknown in alike], page, verbose)
    if verbose and checked.exit == EXIT_FINE and not checked.findings:
        page.sentence(Cell("ok   ", "ok"), Cell(f"{counted(len(checked.nodes), 'node')}: nothing found"))
    if thresholds and (verbose or checked.exit != EXIT_FINE):
        each = "; ".join(f"{one['rule']} {one['threshold']} (default {one['default']})" for one in thresholds)
        page.sentence(Cell("set  ", "dim"), Cell(f"thresholds of your configuration: {each}", "dim"), indent=5)


def _unknown(unknown: Unknown, nodes: list[str], page: Page, verbose: bool) -> None:
    rules = ", ".join(unknown.rules) if verbose or len(unknown.rules) <= 3 else f"{len(unknown.rules)} rules"
    cells = [
        Cell("?   ", "dim" if unknown.severity == "info" else "warn"),
        Cell(f" {folded(nodes)} {unknown.what}: ", "bold"),
        Cell(unknown.why),
        Cell(f" (not judged: {rules})" if rules else "", "dim"),
    ]
    page.sentence(*cells, indent=5)
    page.fix(unknown.fix)


_STYLE = {"ok": "ok", "info": "dim", "warning": "warn", "missing": "crit"}
_ORDER = {"missing": 0, "warning": 1, "ok": 2, "info": 3}
_DOCTOR_COLUMNS = (Column("node", "NODE", 16), Column("name", "CHECK", 16), Column("state", "STATE", 8))
_SECONDS = re.compile(r"(\d+(?:\.\d+)?) s\b")


@dataclass
class _Line:
    """One check with one answer, of all nodes that gave it."""

    name: str
    state: str
    fix: str
    nodes: list[str] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)


def print_doctor(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Checks with the keys node, name, state (ok | info | warning | missing), why and fix (a command or "")."""
    page = Page(console)
    lines = sorted(_folded(rows), key=lambda line: _ORDER.get(line.state, 0))
    table = [
        _row(
            _DOCTOR_COLUMNS,
            line.nodes,
            {"name": Cell(line.name), "state": Cell(line.state, _STYLE.get(line.state, "warn"))},
        )
        for line in lines
    ]
    shown = _print_heading(_DOCTOR_COLUMNS, table, "WHY", page)
    for line, row in zip(lines, table, strict=True):
        why = _one_of(line.whys)
        why = why if len(line.nodes) == 1 else nameless(why, line.nodes[0])
        _print_line(columns_line(_DOCTOR_COLUMNS, row, shown), line.nodes, why, page)
        # A command that names its node is given for the first one: "the node" cannot be typed.
        page.fix(line.fix, example=len(line.nodes) > 1 and nameless(line.fix, line.nodes[0]) != line.fix)


def _folded(rows: Iterable[Mapping[str, str]]) -> list[_Line]:
    """Answers that differ in their seconds or in the node's name only are one."""
    lines: dict[tuple[str, ...], _Line] = {}
    for row in rows:
        node, name, state, why, fix = (row.get(key, "") for key in ("node", "name", "state", "why", "fix"))
        key = (name, state, _SECONDS.sub("# s", nameless(why, node)), nameless(fix, node))
        line = lines.setdefault(key, _Line(name, state, fix))
        line.nodes.append(node)
        line.whys.append(why)
    return list(lines.values())


def _one_of(whys: Sequence[str]) -> str:
    """ "ssh, connected in 0.21-0.63 s" of the sentences of several nodes."""
    ranges = [sorted(values, key=float) for values in zip(*map(_SECONDS.findall, whys), strict=True)]
    texts = iter(values[0] if values[0] == values[-1] else f"{values[0]}-{values[-1]}" for values in ranges)
    return _SECONDS.sub(lambda _: f"{next(texts)} s", whys[0])


LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_KERNEL_COLUMNS = (
    Column("level", "LEVEL", 6),
    Column("nodes", "NODES", 16),
    Column("count", "COUNT", 5, right=True),
    Column("last", "LAST", 7, right=True),
)


def print_kernel(
    lines: Sequence[KernelLine], shown: Sequence[KernelLine], console: Console, *, most: int, nodes: int, now: float
) -> None:
    """``lines``: all that ``nodes`` nodes have; of ``shown`` the first ``most`` are listed; ``now``: unix s."""
    page = Page(console)
    shown, hidden = shown[:most], len(shown) - most
    if shown:
        table = [_row(_KERNEL_COLUMNS, line.nodes, _kernel_cells(line, now)) for line in shown]
        widths = _print_heading(_KERNEL_COLUMNS, table, "LINE", page)
        for line, row in zip(shown, table, strict=True):
            _print_line(columns_line(_KERNEL_COLUMNS, row, widths), line.nodes, line.example, page)
    page.more(hidden, "(--all shows them)", "dim")
    page.line(Cell(summary(lines, nodes)))


def summary(lines: Sequence[KernelLine], nodes: int) -> str:
    """ "2 of 1216 kinds of lines new (1200 known, 14 on most of 32 nodes)"."""
    new, known = sum(line.is_new for line in lines), sum(line.known for line in lines)
    common = len(lines) - new - known
    others = [f"{known} known"] * bool(known) + [f"{common} on most of {nodes} nodes"] * bool(common)
    return f"{new or 'none'} of {len(lines)} kinds of lines new" + (f" ({', '.join(others)})" if others else "")


def _kernel_cells(line: KernelLine, now: float) -> dict[str, Cell]:
    style = "crit" if line.level <= 3 else "warn" if line.level == 4 else ""
    last = UNKNOWN if line.last_at is None else seconds(max(0.0, now - line.last_at))
    return {"level": Cell(LEVELS[line.level & 7], style), "count": Cell(count(line.count)), "last": Cell(last)}


# Rows of many nodes, with a text of any length.


def _row(columns: Sequence[Column], nodes: Sequence[str], cells: Mapping[str, Cell]) -> Row:
    """``cells`` by column, without that of the nodes, which has their number where their names are too long."""
    names = folded(nodes)
    if len(names) > WIDE_NAMES:
        blank = "" if columns[0].key in cells else "  "
        names = f"{blank}{len(nodes)} nodes" if len(nodes) > 1 else ""
    return Row("", tuple(cells.get(column.key, Cell(names)) for column in columns))


def _print_heading(columns: Sequence[Column], rows: Sequence[Row], title: str, page: Page) -> list[tuple[int, int]]:
    """Returns which columns are shown, and how wide."""
    shown = layout(columns, page.width, (), needs(columns, rows))
    page.line(*header_line(columns, shown), Cell(f" {title}", "title"))
    return shown


def _print_line(start: Sequence[Cell], nodes: Sequence[str], text: str, page: Page) -> None:
    """Names that are too long for their column have a line of their own."""
    if len(names := folded(nodes)) > WIDE_NAMES:
        page.sentence(Cell(names))
    indent = line_width(start) + 1
    page.sentence(*start, Cell(f" {text}"), indent=indent if indent < page.width * 2 // 3 else 4)
