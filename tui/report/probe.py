"""What `mltop probe` prints: the verdict first, then figures, what was not measured, settings, and the command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mltop.probes.investigate.folding import folded
from mltop.probes.investigate.missing import nameless
from mltop.probes.model import NodeState
from mltop.probes.model.probe import (
    CollectiveResult,
    DeviceResult,
    PairResult,
    PastResult,
    ProbeFailure,
    ProbeReport,
    ProbeVerdict,
    Suspect,
)
from mltop.tui.render.cells import Cell
from mltop.tui.render.probe_lines import listed, ranges, suspect_name
from mltop.tui.render.units import seconds
from mltop.tui.report.page import print_action, print_fix, print_lines, print_not_well, print_sentence, print_title
from mltop.tui.report.probe_collectives import print_collectives, print_pairs
from mltop.tui.report.probe_devices import print_devices

if TYPE_CHECKING:
    from rich.console import Console

MOST_SUSPECTS = 20
MOST_FAILURES = 20  # kinds of them


def print_probe(
    report: ProbeReport,
    nodes: Sequence[NodeState],
    console: Console,
    verbose: bool = False,
    past: Sequence[PastResult] = (),
) -> None:
    """``nodes``: all that were asked. ``past``: earlier results, for the column AGAINST.

    ``verbose``: every device, suspect and failure by itself, and what the columns mean.
    """
    _headline(report, console)
    _verdict(report.verdict, console, verbose)
    print_not_well([state for state in nodes if state.state != "live"], console)
    if any(isinstance(one, DeviceResult) for one in report.results):
        print_devices(report, past, console, verbose)
    sizes = [one for one in report.results if isinstance(one, CollectiveResult)]
    if sizes:
        print_collectives(sizes, report.verdict.suspects, console, verbose)
    pairs = [one for one in report.results if isinstance(one, PairResult)]
    if pairs:
        print_pairs(pairs, console, verbose)
    _failures(report.failures, console, verbose)
    if report.settings:
        print_lines([[], *listed("Settings", report.settings, console.width)], console)
    if report.command:
        print_title("The same without mltop", console)
        print_lines([[Cell(report.command)]], console)


def _headline(report: ProbeReport, console: Console) -> None:
    cells = [Cell("SIMULATED  ", "warn")] if report.simulated else []
    took = f", {seconds(report.took_s)}" if report.took_s else ""
    print_sentence([*cells, Cell(report.probe, "title"), Cell(took, "dim")], console)


def _verdict(verdict: ProbeVerdict, console: Console, verbose: bool) -> None:
    """The sentence under a word that is seen from afar, then each suspect: who, why, what to do."""
    number = len(verdict.suspects)
    label = Cell(f"{number} {'SUSPECT' if number == 1 else 'SUSPECTS'}", "crit") if number else Cell("VERDICT", "bold")
    if verdict.text or number:
        print_sentence([label, Cell("  "), Cell(verdict.text, "bold")], console)
    shown = verdict.suspects if verbose else verdict.suspects[:MOST_SUSPECTS]
    for suspect in shown:
        _suspect(suspect, console)
    if len(shown) < number:
        print_lines([[Cell(f"  and {number - len(shown)} more suspects (--verbose names them)", "warn")]], console)
    for detail in verdict.details:
        print_sentence([Cell("  "), Cell(detail)], console, indent=4)


def _suspect(suspect: Suspect, console: Console) -> None:
    print_sentence([Cell("  "), Cell(f"{suspect_name(suspect)}: ", "crit"), Cell(suspect.reason)], console, indent=4)
    print_action(suspect.action, console)


# What was not measured.


def _failures(failures: Sequence[ProbeFailure], console: Console, verbose: bool) -> None:
    groups = [[one] for one in failures] if verbose else _alike(failures)
    if groups:
        print_title("Not measured", console)
    shown = groups if verbose else groups[:MOST_FAILURES]
    for place, group in enumerate(shown):
        _failure(group, console)
        if place + 1 == len(shown) or shown[place + 1][0].fix != group[0].fix:
            print_fix(group[0].fix, console)
    if len(shown) < len(groups):
        more = sum(map(len, groups[len(shown) :]))
        print_lines([[Cell(f"  and {more} more (--verbose shows them)", "warn")]], console)


def _alike(failures: Sequence[ProbeFailure]) -> list[list[ProbeFailure]]:
    """Those that differ in numbers and their own node's name alone; what failed before what was refused."""
    found: dict[tuple[bool, str, str, str], list[ProbeFailure]] = {}
    for one in failures:
        kind = re.sub(r"\d+", "#", nameless(one.why, one.node))
        found.setdefault((one.refused, one.stage, kind, one.fix), []).append(one)
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def _failure(group: Sequence[ProbeFailure], console: Console) -> None:
    first = group[0]
    word = Cell("REFUSED ", "warn") if first.refused else Cell("FAILED ", "crit")
    stage = f"in stage '{first.stage}': " if first.stage and first.stage not in first.why else ""
    example = "e.g. " if len({one.why for one in group}) > 1 else ""
    who = Cell(f"{_who(group)}: ", "bold")
    print_sentence([Cell("  "), word, who, Cell(f"{stage}{example}{first.why}")], console, indent=4)


def _who(group: Sequence[ProbeFailure]) -> str:
    """ "node01 GPU 0-3", "node01 rank 5", "88 GPUs on node[02-12]"."""
    nodes = list(dict.fromkeys(one.node for one in group))
    devices = {(one.node, one.gpu) for one in group if one.gpu is not None}
    ranks = sorted({one.rank for one in group if one.rank is not None})
    if len(nodes) > 1:
        return f"{len(devices)} GPUs on {folded(nodes)}" if devices else folded(nodes)
    gpus = sorted(gpu for _, gpu in devices if gpu is not None)
    return nodes[0] + (f" GPU {ranges(gpus)}" if gpus else "") + (f" rank {ranges(ranks)}" if ranks else "")
