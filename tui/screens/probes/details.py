"""What stands below the table of a probe: failures, curve or square, history, settings, the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mltop.probes.investigate.probing.wanted import ProbeProgress
from mltop.probes.judge.probes.compare import group_subject, subject
from mltop.probes.model.probe import CollectiveResult, CopiesResult, DeviceResult, PairResult, PastResult
from mltop.tui.app.selection import first_of
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.probes.collectives import curve_lines, failed_pairs, pair_matrix, peer_matrix
from mltop.tui.render.probes.kinds import LEGENDS
from mltop.tui.render.probes.summary import command_lines, failure_lines, history_lines, listed
from mltop.tui.screens.probes.tables import ProbeTable
from mltop.tui.screens.tabled import Lines

MOST_PAIRS = 6  # named of one reason


def lasting(progress: ProbeProgress, shown: ProbeTable, size: tuple[int, int]) -> tuple[list[Lines], list[Lines]]:
    """The sections that do not depend on the cursor: those before the ones that do, and those after.

    ``size``: most cells and lines. They are made once per report of progress: drawing a curve takes a while.
    """
    width, report = size[0], progress.report
    reported = report.failures if report is not None else ()
    failures = [*progress.failures, *(failure for failure in reported if failure not in progress.failures)]
    before = [failure_lines(failures, width), *_pictures(progress, shown, size)]
    after = [
        listed("Settings", report.settings if report is not None else (), width),
        listed("Said while it ran", progress.notes, width),
        wrap([Cell(LEGENDS[shown.name], "dim")], width) if shown.name in LEGENDS and shown.keys else [],
        command_lines(report, width) if report is not None else [],
    ]
    return before, after


def at_cursor(
    progress: ProbeProgress, shown: ProbeTable, cursor: str | None, past: Mapping[str, Sequence[PastResult]], width: int
) -> list[Lines]:
    """The sections about the device under the cursor: the GPUs it copies to, and its history.

    ``cursor``: the key of its row.
    """
    history = _history(progress, shown, cursor, past, width)
    if shown.name != "copies":
        return [history]
    node, _ = shown.about.get(cursor or "", ("", None))
    results = [line.result for line in shown.lines.values() if line.progress.node == node]
    return [peer_matrix([result for result in results if isinstance(result, CopiesResult)], width), history]


def joined(sections: Sequence[Lines]) -> Lines:
    lines: Lines = []
    for section in sections:
        if section:
            lines += [[], *section] if lines else section
    return lines


def _pictures(progress: ProbeProgress, shown: ProbeTable, size: tuple[int, int]) -> list[Lines]:
    results = progress.report.results if progress.report is not None else []
    if shown.name == "sizes":
        return [curve_lines([result for result in results if isinstance(result, CollectiveResult)], *size)]
    if shown.name == "pairs":
        pairs = [result for result in results if isinstance(result, PairResult)]
        return [listed("Pairs that failed", _failed_pairs(pairs), size[0]), pair_matrix(pairs, size[0])]
    return []


def _failed_pairs(pairs: Sequence[PairResult]) -> list[str]:
    """A line for each reason."""
    reasons = failed_pairs(pairs).items()
    return [f"{first_of([' - '.join(nodes) for nodes in of_pairs], MOST_PAIRS)}: {why}" for why, of_pairs in reasons]


def _history(
    progress: ProbeProgress, shown: ProbeTable, cursor: str | None, past: Mapping[str, Sequence[PastResult]], width: int
) -> Lines:
    """The results before this run, of the device under the cursor or of the nodes that took part."""
    report = progress.report
    of, who, probe = "", "", str(progress.wanted.kind)
    line = shown.lines.get(cursor or "")
    if line is not None and isinstance(line.result, DeviceResult):
        result = line.result
        of, who = subject(result), f"{result.node} CPUs" if result.gpu is None else f"{result.node} GPU {result.gpu}"
    elif shown.name == "sizes" and report is not None:
        first = next(result for result in report.results if isinstance(result, CollectiveResult))
        of, who, probe = group_subject(first), f"{len(first.nodes)} nodes together", first.collective
    earlier = [result for result in past.get(of, ()) if report is None or result.at < report.started_at]
    return history_lines(who, earlier, probe, width)
