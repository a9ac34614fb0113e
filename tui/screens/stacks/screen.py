"""The stacks of all ranks: verdict on top, then the merged tree, the classes, and what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from textual.widget import Widget

from mltop.probes.investigate.advice import to_do
from mltop.probes.judge.nodes import by_reason, folded
from mltop.probes.model import JobKey, JobReport, NodeState, StackDigest
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time, counted
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.app.selection import first_of
from mltop.tui.app.session import DumpResult
from mltop.tui.render.cells import Cell, columns_line, header_line, layout, plain, wrap
from mltop.tui.render.stacks import CLASS_COLUMNS, class_row, job_words, jobs_left_out, tree_lines, verdict_lines
from mltop.tui.screens.pane import Pane
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

MAX_TREE_LINES = 60
MOST_JOBS = 32
NO_DUMP = "no dump yet: press t to dump the stacks of all ranks and judge them"

Keep = Callable[[str], bool]


@dataclass(frozen=True)
class Target:
    """What a line opens: ``ranks`` of report number ``at``. ``line`` tells it from others of these ranks."""

    at: int
    ranks: Ranges
    line: str

    @property
    def key(self) -> str:
        return f"{self.at}/{self.ranks}/{self.line}"


KeyedLine = tuple[list[Cell], Target | None]


class StacksScreen(Pane):
    """One scrolling text; the cursor goes over tree lines and classes, Enter shows their ranks."""

    lines_are = "lines of stacks"
    AUTO_FOCUS = "#report"
    DEFAULT_CSS = "StacksScreen #report { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._targets: dict[str, Target] = {}

    def body(self) -> Iterable[Widget]:
        yield CellLines(id="report", empty_text=NO_DUMP)

    def fill(self, picture: Picture) -> None:  # noqa: ARG002  (stacks are not part of a picture)
        result = self.mltop.investigation.result
        lines = result_lines(result, self.size.width - 1, self.keeps) if result is not None else []
        report = self.query_one("#report", CellLines)
        report.empty_text = "dumping the stacks" if self.mltop.investigation.dumping else NO_DUMP
        self._targets = {target.key: target for _, target in lines if target is not None}
        report.set_lines([line for line, _ in lines], [target.key if target else None for _, target in lines])

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        """One rank opens its stack, several the rank table."""
        result = self.mltop.investigation.result
        target = self._targets.get(event.key)
        if result is None or target is None or target.at >= len(result.reports):
            return
        report, ranks = result.reports[target.at], target.ranks
        if ranks.count != 1:
            self.mltop.drill(Location("ranks", job=JobKey(report.job, report.uid), ranks=ranks, label=f"ranks {ranks}"))
            return
        of_rank = (digest for digest in report.digests if digest.rank == ranks.first and digest.child_of is None)
        if digest := next(of_rank, None):
            self.open_rank(f"{digest.node}/{digest.pid}")


def result_lines(result: DumpResult, width: int, keep: Keep) -> list[KeyedLine]:
    """All that a dump found, and what its lines open; ``keep`` filters tree and classes."""
    lines: list[KeyedLine] = [(_dump_title(result), None)]
    if result.nodes:
        lines += [(line, None) for line in wrap(_scope_line(result.nodes), width, indent=4)]
    for at, report in enumerate(result.reports[:MOST_JOBS]):
        lines += [([], None)] if at else []
        lines += _report_lines(at, report, job_words(report, result.reports), width, keep)
    if result.reports[MOST_JOBS:]:
        lines += [([], None), ([Cell(jobs_left_out(result.reports[MOST_JOBS:]), "warn")], None)]
    lines += [(line, None) for line in _silent_lines(result.not_answered, width)]
    if not result.reports and not result.partial:
        lines.append(([Cell("no training ranks found", "warn")], None))
    return lines


def _dump_title(result: DumpResult) -> list[Cell]:
    ranks = sum(len({digest.rank for digest in report.digests if digest.frames}) for report in result.reports)
    text = f"{ranks} ranks of {counted(len(result.reports), 'job')}, dumped {clock_time(result.taken_at)}"
    title = [Cell(f"{text} in {max(result.took_s, 0.1):.1f} s", "dim")]
    return [*title, Cell("  partial", "warn")] if result.partial else title


def _scope_line(nodes: Sequence[str]) -> list[Cell]:
    """Says that only marked nodes were dumped: who is missing there may be waited for elsewhere."""
    marked = f"of {counted(len(nodes), 'marked node')} ({first_of(nodes)}): "
    return [Cell(marked, "warn"), Cell("the verdict does not know ranks elsewhere, t without marks dumps all")]


def _report_lines(at: int, report: JobReport, job: str, width: int, keep: Keep) -> list[KeyedLine]:
    from mltop.probes.judge.hang.classes import merged_tree

    size = f", world size {report.world_size}" if report.world_size else ""
    lines: list[KeyedLine] = [([Cell(f"{job}{size}", "title")], None)]
    lines += [(line, None) for line in verdict_lines(report, width)]
    tree = merged_tree(report.classes, MAX_TREE_LINES)
    if tree:
        lines += [([], None), ([Cell("Merged stacks, root first", "title")], None)]
        cells = tree_lines(tree, width, report.world_size)
        for number, (line, drawn) in enumerate(zip(tree, cells, strict=True)):
            lines += [(drawn, Target(at, line.ranks, f"tree{number}"))] if keep(plain(drawn)) else []
    lines += _class_lines(at, report, width, keep)
    unread = [digest for digest in report.digests if not digest.frames]
    if unread:
        lines += [([], None), ([Cell("Without a stack", "title")], None)]
        for digest in unread:
            ranks = Ranges() if digest.rank is None else Ranges.of([digest.rank])
            lines += [(line, Target(at, ranks, str(digest.pid))) for line in _unread_line(digest, width)]
    return lines


def _class_lines(at: int, report: JobReport, width: int, keep: Keep) -> list[KeyedLine]:
    if not report.classes:
        return []
    shown = layout(CLASS_COLUMNS, width)
    lines: list[KeyedLine] = [([], None), (header_line(CLASS_COLUMNS, shown), None)]
    for index, stack_class in enumerate(report.classes):
        drawn = columns_line(CLASS_COLUMNS, class_row(index, stack_class), shown)
        lines += [(drawn, Target(at, stack_class.ranks, f"class{index}"))] if keep(plain(drawn)) else []
    return lines


def _unread_line(digest: StackDigest, width: int) -> list[list[Cell]]:
    """Why there is no stack, and what would help: one line, the rest is in the rank's own pane."""
    who = "?" if digest.rank is None else str(digest.rank)
    cells = [
        Cell(f"  rank {who} pid {digest.pid}: ", "bold"),
        Cell(digest.error or "the reason is not known", "warn"),
        Cell(f" ({''.join(to_do(digest.fix))})" if digest.fix else "", "accent"),
    ]
    return wrap(cells, width, indent=4)[:1]


def _silent_lines(nodes: Sequence[NodeState], width: int) -> list[list[Cell]]:
    """The nodes that did not answer in full, those of one reason on one line."""
    lines: list[list[Cell]] = []
    for state, reason, names in by_reason(nodes):
        why = f"{state}, no full answer" + (f": {reason}" if reason else "")
        lines += wrap([Cell(f"{folded(names)}: ", "bold"), Cell(why, "warn")], width, indent=4)
    return lines
