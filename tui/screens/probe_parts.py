"""What stands below the table of a probe: failures, curve or square, history, settings, the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mltop.probes.investigate.probing.wanted import ProbeProgress
from mltop.probes.judge.active.past import group_subject, subject
from mltop.probes.model.probe import CollectiveResult, CopiesResult, DeviceResult, PairResult, PastResult
from mltop.tui.render.cells import Cell
from mltop.tui.render.probe_curve import curve_lines
from mltop.tui.render.probe_history import history_lines
from mltop.tui.render.probe_lines import command_lines, failure_lines, listed
from mltop.tui.render.probe_matrix import pair_matrix, peer_matrix
from mltop.tui.render.probe_words import LEGENDS
from mltop.tui.render.wrap import wrap
from mltop.tui.scope import first_of
from mltop.tui.screens.probe_tables import Shown

Lines = list[list[Cell]]
MOST_PAIRS = 6  # named of one reason


def more_lines(
    progress: ProbeProgress,
    shown: Shown,
    cursor: str | None,
    past: Mapping[str, Sequence[PastResult]],
    size: tuple[int, int],
) -> Lines:
    """Sections with a blank line between them. ``cursor``: the key of the row the user is on; ``size``: of the pane."""
    width = size[0]
    report = progress.report
    reported = report.failures if report is not None else ()
    failures = [*progress.failures, *(one for one in reported if one not in progress.failures)]
    sections = [
        failure_lines(failures, width),
        *_pictures(progress, shown, cursor, size),
        _history(progress, shown, cursor, past, width),
        listed("Settings", report.settings if report is not None else (), width),
        listed("Said while it ran", progress.notes, width),
        command_lines(report, width) if report is not None else [],
        wrap([Cell(LEGENDS[shown.name], "dim")], width) if shown.name in LEGENDS and shown.keys else [],
    ]
    return joined(sections)


def joined(sections: Sequence[Lines]) -> Lines:
    lines: Lines = []
    for section in sections:
        if section:
            lines += [[], *section] if lines else section
    return lines


def _pictures(progress: ProbeProgress, shown: Shown, cursor: str | None, size: tuple[int, int]) -> list[Lines]:
    results = progress.report.results if progress.report is not None else []
    width, height = size
    if shown.name == "sizes":
        return [curve_lines([one for one in results if isinstance(one, CollectiveResult)], width, height)]
    if shown.name == "pairs":
        pairs = [one for one in results if isinstance(one, PairResult)]
        return [listed("Pairs that failed", _failed_pairs(pairs), width), pair_matrix(pairs, width)]
    if shown.name == "copies":
        node = shown.about[cursor][0] if cursor is not None and cursor in shown.about else ""
        found = [line.result for line in shown.lines.values() if line.progress.node == node]
        return [peer_matrix([one for one in found if isinstance(one, CopiesResult)], width)]
    return []


def _failed_pairs(pairs: Sequence[PairResult]) -> list[str]:
    """Those of one reason on one line."""
    by_reason: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.why:
            by_reason.setdefault(pair.why, []).append(" - ".join(pair.nodes))
    return [f"{first_of(names, MOST_PAIRS)}: {why}" for why, names in by_reason.items()]


def _history(
    progress: ProbeProgress,
    shown: Shown,
    cursor: str | None,
    past: Mapping[str, Sequence[PastResult]],
    width: int,
) -> Lines:
    """Of the device under the cursor, or of the nodes that took part: what was there before this run."""
    report = progress.report
    of, who, probe = "", "", progress.wanted.kind
    line = shown.lines.get(cursor or "")
    if line is not None and isinstance(line.result, DeviceResult):
        result = line.result
        of, who = subject(result), f"{result.node} CPUs" if result.gpu is None else f"{result.node} GPU {result.gpu}"
    elif shown.name == "sizes" and report is not None:
        first = next(one for one in report.results if isinstance(one, CollectiveResult))
        of, who, probe = group_subject(first), f"{len(first.nodes)} nodes together", first.collective
    earlier = [one for one in past.get(of, ()) if report is None or one.at < report.started_at]
    return history_lines(who, earlier, probe, width)
