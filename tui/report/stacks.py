"""What `mltop stacks` prints: for every job its verdict, its classes with their stacks, and what is unreadable."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.judge.hang.classes import merged_tree
from mltop.probes.model import JobReport, NodeState
from mltop.tui.render.cells import Cell
from mltop.tui.render.stacks import (
    CLASS_COLUMNS,
    class_row,
    job_words,
    jobs_left_out,
    stack_lines,
    tree_lines,
    verdict_lines,
)
from mltop.tui.report.page import print_lines, print_not_well, print_table

if TYPE_CHECKING:
    from rich.console import Console

MOST_JOBS = 32
MOST_TREE_LINES = 40
MOST_CLASSES = 30  # the rest is in the tree, as far as that goes
MOST_UNREADABLE = 8  # stacks that could not be read: after these, only their number


def print_reports(
    reports: Sequence[JobReport],
    not_answered: Sequence[NodeState],
    console: Console,
    nodes: Collection[NodeState] = (),
) -> None:
    """Who did not answer first: it says how much the rest is worth. ``nodes``: all that were asked, where known."""
    print_not_well(not_answered, console)
    if not reports:
        print_lines([[Cell(_nothing(len(not_answered), len(nodes)), "dim")]], console)
    answered = {state.node for state in nodes} - {state.node for state in not_answered}
    for report in reports[:MOST_JOBS]:
        shown = _without_nodes(report, answered) if not_answered else report
        _report(shown, job_words(report, reports), console)
    if reports[MOST_JOBS:]:
        print_lines([[Cell(jobs_left_out(reports[MOST_JOBS:]), "warn")]], console)


def _nothing(silent: int, asked: int) -> str:
    if silent and silent == asked:
        return "no node answered: nothing could be dumped"
    return "no training ranks found: nothing to dump" + (" on the nodes that answered" if silent else "")


def _without_nodes(report: JobReport, answered: Collection[str]) -> JobReport:
    """Without the gaps of nodes that did not answer: the page says it once, for all jobs."""
    gaps = [gap for gap in report.verdict.gaps if gap.source != "node" or gap.item in answered]
    return replace(report, verdict=replace(report.verdict, gaps=gaps))


def _report(report: JobReport, job: str, console: Console) -> None:
    width = console.width
    world = "" if report.world_size is None else f", world size {report.world_size}"
    print_lines([[Cell(f"{job}{world}", "title")]], console)
    print_lines(verdict_lines(report, width), console)
    if report.classes:
        print_lines([[], *tree_lines(merged_tree(report.classes, MOST_TREE_LINES), width)], console)
        rows = [class_row(index, made) for index, made in enumerate(report.classes[:MOST_CLASSES])]
        print_table("", CLASS_COLUMNS, rows, console)
        _more(len(report.classes) - MOST_CLASSES, "classes", console)
    unread = [digest for digest in report.digests if not digest.frames]
    for digest in unread[:MOST_UNREADABLE]:
        print_lines([[], *stack_lines(digest, width)], console)
    _more(len(unread) - MOST_UNREADABLE, "stacks that could not be read", console)
    print_lines([[]], console)


def _more(number: int, what: str, console: Console) -> None:
    if number > 0:
        print_lines([[Cell(f"and {number} more {what}", "warn")]], console)
