"""What `mltop check` prints: nothing when all is well, else a line for each thing, the gravest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mltop.probes.investigate.folding import folded
from mltop.probes.model import Finding, Unknown
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import severity_cell
from mltop.tui.render.units import clock_time
from mltop.tui.report.page import print_action, print_fix, print_not_well, print_sentence

if TYPE_CHECKING:
    from rich.console import Console

    from mltop.tui.commands.check import Checked


def print_check(checked: Checked, console: Console, verbose: bool = False) -> None:
    """``verbose``: what is only worth knowing, evidence, and what each finding explains, too."""
    print_not_well(checked.unreached, console)
    for finding in checked.findings:
        if verbose or finding.severity != "info":
            _finding(finding, console, verbose)
    missed = [one for one in checked.unknown if verbose or one.severity != "info"]
    for unknown, nodes in _by_reason(missed):
        _unknown(unknown, nodes, console, verbose)
    if verbose and checked.exit == 0 and not checked.findings:
        counted = "1 node" if len(checked.nodes) == 1 else f"{len(checked.nodes)} nodes"
        print_sentence([Cell("ok   ", "ok"), Cell(f"{counted}: nothing found")], console)


def _finding(finding: Finding, console: Console, verbose: bool) -> None:
    severity = severity_cell(finding.severity)
    subject = "" if finding.message.startswith(finding.subject) else f" {finding.subject}"
    span = "" if finding.until is None else f" ({clock_time(finding.since)} to {clock_time(finding.until)})"
    cells = [severity, Cell(f" {finding.node}{subject}: ", "bold"), Cell(finding.message), Cell(span, "dim")]
    print_sentence(cells, console, indent=5)
    if verbose:
        for text in (*finding.evidence, *(f"explains {name}" for name in finding.folded)):
            print_sentence([Cell("    ", ""), Cell(text, "dim")], console, indent=4)
    print_action(finding.action, console)


def _by_reason(unknown: Sequence[Unknown]) -> list[tuple[Unknown, list[str]]]:
    """What is not known for one reason on several nodes is one line."""
    found: dict[tuple[str, str], tuple[Unknown, list[str]]] = {}
    for one in unknown:
        found.setdefault((one.what, one.why), (one, []))[1].append(one.node)
    return list(found.values())


def _unknown(unknown: Unknown, nodes: list[str], console: Console, verbose: bool) -> None:
    rules = ", ".join(unknown.rules) if verbose or len(unknown.rules) <= 3 else f"{len(unknown.rules)} rules"
    cells = [
        Cell("?   ", "dim" if unknown.severity == "info" else "warn"),
        Cell(f" {folded(nodes)} {unknown.what}: ", "bold"),
        Cell(unknown.why),
        Cell(f" (not judged: {rules})" if rules else "", "dim"),
    ]
    print_sentence(cells, console, indent=5)
    print_fix(unknown.fix, console)
