"""The screen's content as plain text, for commands without a screen. Same renderers, printed with rich.

Everything printed is ``Text`` made of cells: what machines say is never read as markup. Colours and width
follow the console (no colours when it is no terminal or NO_COLOR is set).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mltop.probes.judge.tree import merged_tree
from mltop.probes.model import Finding, Gap, JobReport, NodeState, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import (
    Cell,
    Column,
    Row,
    columns_line,
    header_line,
    layout,
    line_width,
    printable,
    unknown_columns,
)
from mltop.tui.render.findings import merged_gaps, severity_cell
from mltop.tui.render.gpus import GPU_COLUMNS, gpu_row
from mltop.tui.render.header import header_cells
from mltop.tui.render.nodes import NODE_COLUMNS, node_row
from mltop.tui.render.ranks import RANK_COLUMNS, rank_columns, rank_row
from mltop.tui.render.stacks import CLASS_COLUMNS, class_row, stack_lines, tree_lines
from mltop.tui.render.verdicts import verdict_lines
from mltop.tui.render.wrap import wrap

if TYPE_CHECKING:
    from rich.console import Console

_RICH_STYLE = {
    "dim": "dim",
    "ok": "green",
    "warn": "yellow",
    "crit": "bold red",
    "accent": "cyan",
    "title": "bold",
    "bold": "bold",
}
_CHECK_STYLE = {"ok": "ok", "warning": "warn", "missing": "crit"}
# One sample has no history: neither a trend nor rates.
_SNAPSHOT_GPUS = tuple(column for column in GPU_COLUMNS if column.key not in ("trend", "gauge"))
_CHECK_COLUMNS = (Column("node", "NODE", 15), Column("name", "CHECK", 16), Column("state", "STATE", 8))
MOST_TREE_LINES = 40
MOST_UNREADABLE = 8  # stacks that could not be read: after these, only their number


def print_snapshot(
    samples: Sequence[Sample], findings: Sequence[Finding], nodes: Sequence[NodeState], console: Console
) -> None:
    """Totals, nodes (when there are several), findings, GPUs, ranks and what could not be read."""
    by_node = {sample.node: sample for sample in samples}
    taken_at = max((sample.sampled_at for sample in samples), default=0.0)
    view = FleetView(taken_at, tuple(NodeView(state, by_node.get(state.node)) for state in nodes))
    print_lines(header_cells(view, "mltop snapshot", width=console.width), console)
    _not_live([state for state in nodes if state.state != "live"], console)
    if len(nodes) > 1:
        _table("", NODE_COLUMNS, [node_row(node, None, findings) for node in view.nodes], console)
    if findings:
        print_lines([[], [Cell("findings", "title")]], console)
    for finding in findings:
        _finding(finding, console)
    for sample in samples:
        _gpus_of(sample, console, many=len(samples) > 1)
    _ranks_of(samples, console)
    for sample in samples:
        _gaps(f"not known on {sample.node}", sample.gaps, console)


def print_reports(reports: Sequence[JobReport], not_answered: Sequence[NodeState], console: Console) -> None:
    """For every job its verdict, its classes with their stacks, and whose stack could not be read."""
    _not_live(not_answered, console)
    if not reports:
        print_lines([[Cell("no training ranks found: nothing to dump", "dim")]], console)
    for report in reports:
        _report(report, console)


def _not_live(nodes: Sequence[NodeState], console: Console) -> None:
    """One line for each node that did not, or not fully, answer, and why."""
    for state in nodes:
        reason = f": {state.reason}" if state.reason else ""
        print_lines(wrap([Cell(f"{state.node} {state.state}{reason}", "warn")], console.width, indent=2), console)


def print_doctor(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Checks with the keys node, name, state (ok | warning | missing), why and fix (a command or "")."""
    shown = layout(_CHECK_COLUMNS, console.width)
    print_lines([[*header_line(_CHECK_COLUMNS, shown), Cell(" WHY", "title")]], console)
    for row in rows:
        state = row.get("state", "")
        style = _CHECK_STYLE.get(state, "warn")
        cells = (Cell(row.get("node", "")), Cell(row.get("name", "")), Cell(state, style))
        start = columns_line(_CHECK_COLUMNS, Row("", cells), shown)
        indent = line_width(start) + 1
        indent = indent if indent < console.width * 2 // 3 else 4
        print_lines(wrap([*start, Cell(" " + row.get("why", ""))], console.width, indent), console)
        _do(row.get("fix", ""), console)


def print_lines(lines: Iterable[Iterable[Cell]], console: Console) -> None:
    """Lines of cells, as they are: no markup, no highlighting, no wrapping, no blanks at the end."""
    from rich.text import Text

    for line in lines:
        text = Text(no_wrap=True, overflow="ignore", end="")
        for cell in line:
            text.append(printable(cell.text), _RICH_STYLE.get(cell.style, ""))
        text.rstrip()
        console.print(text, crop=False, highlight=False, soft_wrap=True)


def _gpus_of(sample: Sample, console: Console, many: bool) -> None:
    rows = []
    for gpu in sample.gpus:
        ranks = [rank for rank in sample.ranks if gpu.index in rank.gpus]
        rows.append(_narrow(gpu_row(gpu, ranks, (), sample.simulated), GPU_COLUMNS, _SNAPSHOT_GPUS))
    title = "GPUs" + (f" of {sample.node}" if many else "") + (" (SIMULATED)" if sample.simulated else "")
    if rows:
        _table(title, _SNAPSHOT_GPUS, rows, console)


def _ranks_of(samples: Sequence[Sample], console: Console) -> None:
    found = [(sample.node, rank) for sample in samples for rank in sample.ranks]
    if not found:
        print_lines([[], [Cell("no training ranks found", "dim")]], console)
        return
    columns = rank_columns(len({rank.job for _, rank in found}), len({node for node, _ in found}))
    kept = [column for column in columns if column.key not in ("switches", "syscalls")]
    _table("ranks", kept, [_narrow(rank_row(node, rank), RANK_COLUMNS, kept) for node, rank in found], console)


def _narrow(row: Row, columns: Sequence[Column], kept: Sequence[Column]) -> Row:
    """The row without the cells of columns that are not kept."""
    keys = {column.key for column in kept}
    cells = tuple(cell for column, cell in zip(columns, row.cells, strict=True) if column.key in keys)
    return Row(row.key, cells, row.banner)


def _table(title: str, columns: Sequence[Column], rows: Sequence[Row], console: Console) -> None:
    shown = layout(columns, console.width, unknown_columns(columns, rows))
    heading = [[], [Cell(title, "title")]] if title else [[]]
    body = [columns_line(columns, row, shown) for row in rows]
    print_lines([*heading, header_line(columns, shown), *body], console)


def _gaps(title: str, gaps: Sequence[Gap], console: Console) -> None:
    if gaps:
        print_lines([[], [Cell(title, "title")]], console)
    for gap in merged_gaps(gaps):
        print_lines(wrap([Cell(f"  {gap.what}: "), Cell(gap.why, "warn")], console.width, indent=4), console)
        _do(gap.fix, console)


def _finding(finding: Finding, console: Console) -> None:
    severity = severity_cell(finding.severity)
    subject = f" {finding.node} {finding.subject}: "
    message = finding.message or finding.id
    print_lines(wrap([severity, Cell(subject, "bold"), Cell(message)], console.width, indent=5), console)
    _do(finding.action, console)


def _do(action: str, console: Console) -> None:
    """What would help, on one line of its own however long, so that it can be copied."""
    if action:
        print_lines([[Cell("    do: ", "dim"), Cell(action, "accent")]], console)


def _report(report: JobReport, console: Console) -> None:
    width = console.width
    world = "" if report.world_size is None else f", world size {report.world_size}"
    print_lines([[Cell(f"job {report.job or '(unnamed)'}{world}", "title")]], console)
    print_lines(verdict_lines(report, width), console)
    if report.classes:
        print_lines([[], *tree_lines(merged_tree(report.classes, MOST_TREE_LINES), width)], console)
        rows = [class_row(index, made) for index, made in enumerate(report.classes)]
        _table("", CLASS_COLUMNS, rows, console)
    unread = [digest for digest in report.digests if not digest.frames]
    for digest in unread[:MOST_UNREADABLE]:
        print_lines([[], *stack_lines(digest, width)], console)
    if len(unread) > MOST_UNREADABLE:
        print_lines(
            [[Cell(f"and {len(unread) - MOST_UNREADABLE} more stacks that could not be read", "warn")]],
            console,
        )
    print_lines([[]], console)
