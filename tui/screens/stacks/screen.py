"""The stacks of all ranks: whom they accuse and why on top, then the merged tree; or two ranks beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.model import Frame, JobKey, JobReport, StackDigest
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time, counted
from mltop.tui.app.feed import Picture
from mltop.tui.app.keys import ASKS
from mltop.tui.app.navigation import Location
from mltop.tui.app.selection import first_of
from mltop.tui.app.session import DumpResult
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, cut, line_width, wrap
from mltop.tui.render.empty import NO_RANKS, empty_lines, empty_text, ranks_unknown
from mltop.tui.render.findings import happenings
from mltop.tui.render.stacks.frames import frame_cells, own_frames
from mltop.tui.render.stacks.report import Around, ReportLines, Target, in_order
from mltop.tui.render.stacks.verdict import digests_of, incident_of, job_title, jobs_left_out, stack_title
from mltop.tui.render.states import silent_cells
from mltop.tui.render.story import Line, Scope, lines_of, spaced, stories_of
from mltop.tui.screens.bars import Notice
from mltop.tui.screens.graphs import with_job_graph
from mltop.tui.screens.pane import Pane
from mltop.tui.screens.tables import rank_of
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

MOST_JOBS = 32
BEFORE_S = 600.0
NO_RANK = Notice("the cursor is on no rank", "warn")


class StacksScreen(Pane):
    """One scrolling text; the cursor goes over who is named and the tree, Enter shows their ranks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "compare", "compare", tooltip="mark this rank; on another: both stacks side by side"),
        Binding("i", "ask_ras", "ras", tooltip=f"ask NCCL's RAS about this job, once{ASKS}"),
        Binding(
            "C", "native", "C frames", show=False, tooltip="dump the selected rank once more, with the frames of C"
        ),
    ]
    lines_are = "lines of stacks"
    AUTO_FOCUS = "#report"
    DEFAULT_CSS = "StacksScreen #report { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._targets: dict[str, Target] = {}
        self._unfolded: set[str] = set()  # elided frames that were asked for
        self._compared: tuple[JobKey, int] | None = None  # the rank that x has marked
        self._was: Location | None = None

    def body(self) -> Iterable[Widget]:
        yield CellLines(id="report", classes="gap-above", empty_text=empty_text("stacks"))

    def titles(self, picture: Picture) -> list[str]:
        result = self.mltop.investigation.result
        if result is None or self.mltop.trail.here.ranks is not None:
            return super().titles(picture)
        answered = sum(len({each.rank for each in report.digests if each.frames}) for report in result.reports)
        expected = sum(
            report.world_size or len({digest.rank for digest in report.digests}) for report in result.reports
        )
        first = f"stacks of {answered} of {counted(expected, 'rank')}"
        partial = ", partial" if result.partial else ""
        took = f"dumped {clock_time(result.taken_at)} in {max(result.took_s, 0.1):.1f} s{partial}"
        return [f"{first} {took}", f"{first}{partial}", "stacks"]

    # Drawing.

    def fill(self, picture: Picture) -> None:
        report, dump = self.query_one("#report", CellLines), self.mltop.investigation
        here = self.mltop.trail.here
        report.empty_text = empty_text("past_stacks" if self.mltop.paused else "stacks") if not dump.dumping else ""
        if here.ranks is not None and here.job is not None:
            digests = [self._digest(here.job, rank) for rank in [*here.ranks][:2]]
            compared = [[Cell("the newest dump has no stacks of both ranks", "dim")]]
            if len(digests) == 2 and digests[0] is not None and digests[1] is not None:
                compared = compared_lines(digests[0], digests[1], self.size.width - 1)
            lines = [*map(Line, compared)]
        else:
            found = self._result_lines(dump.result, picture) if dump.result else self._undumped(picture)
            lines = spaced([self._collecting(), found])
        self._targets = {line.key: line.opens for line in lines if line.key is not None}
        keys = [line.key for line in lines]
        stays_first = report.at_top or self._was not in (None, here)
        report.set_lines([line.cells for line in lines], keys)
        if stays_first and report.cursor_key != next(filter(None, keys), None):
            report.action_edge(False)
        self._was = here

    def _collecting(self) -> list[Line]:
        """How far a dump is that still runs: what its first rounds say is no verdict."""
        dump = self.mltop.investigation
        if not dump.dumping or dump.progress is None:
            return []
        expected = dump.progress.ranks_expected
        count = f"{dump.progress.ranks_done}/{'?' if expected is None else expected}"
        cells = [Cell(f"collecting {count}", "title"), Cell("  the verdict comes with the last round", "dim")]
        return [Line(cells)]

    def _result_lines(self, result: DumpResult, picture: Picture) -> list[Line]:
        width, reports = self.size.width - 1, result.reports
        judged = not (self.mltop.investigation.dumping and result.partial)
        shown = in_order(reports)[:MOST_JOBS]
        listed = happenings(picture.findings, picture.ended, picture.events)
        happened = [one for one in listed if result.taken_at - BEFORE_S <= one.at <= result.taken_at]
        blocks: list[Sequence[Line]] = [[*map(Line, _scope_lines(result, len(self.nodes), width))]]
        for report, at in ((reports[at], at) for at in shown):
            around = Around(
                picture.view.taken_at,
                incident_of(report, picture.incidents),
                happened,
                len(picture.view.nodes) == 1,
                job_title(report, reports) if len(reports) > 1 else "",
                judged,
                frozenset(self._unfolded),
                self.keeps,
                ras=self.mltop.ras_cells(report.job_key, picture.view.taken_at),
            )
            blocks.append(ReportLines(at, report, around, width).lines())
        left = [report for at, report in enumerate(reports) if at not in shown]
        blocks.append([Line([Cell(jobs_left_out(left), "warn")])] if left else [])
        blocks.append([Line(line) for cell in silent_cells(result.not_answered) for line in wrap([cell], width, 4)])
        if not reports and not result.partial:
            none = ranks_unknown([node.sample for node in picture.view.nodes]) or NO_RANKS
            blocks.append([Line(line) for line in wrap([Cell(none, "warn")], width)])
        lines = spaced(blocks)
        if len(reports) != 1:
            return lines
        return with_job_graph(self, lines, reports[0].job_key, incident_of(reports[0], picture.incidents))

    def _undumped(self, picture: Picture) -> list[Line]:
        """Where nothing is dumped yet: what is known from outside of the job that is stuck, and how it was going."""
        stuck = [one for one in picture.incidents if one.until is None and one.kind in ("hang", "crash")]
        if not stuck or self.mltop.paused or self.mltop.investigation.dumping:
            return []
        width, now = self.size.width - 1, picture.view.taken_at
        stories = stories_of(stuck, (), Scope(one=len(picture.view.nodes) == 1, acts=self.acts))
        room = max(len(stories), self.size.height - 6)
        rows = [Line(line.cells) for line in lines_of(stories, now, width, room)]
        lines = spaced([rows, [*map(Line, empty_lines("stacks", width))]])
        return with_job_graph(self, lines, JobKey(stuck[0].job, stuck[0].uid), stuck[0])

    def _digest(self, job: JobKey, rank: int) -> StackDigest | None:
        """Its main thread's."""
        result = self.mltop.investigation.result
        digests = digests_of(result.reports, job) if result is not None else []
        main = (one for one in digests if one.child_of is None and one.thread == "MainThread")
        return next((one for one in main if one.rank == rank), None)

    # Keys.

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        """One rank opens its stack, several the rank table; elided frames come in place."""
        report, ranks = self._selected(event.key)
        target = self._targets.get(event.key)
        if target is not None and target.fold:
            self._unfolded.add(target.fold)
            self.draw()
        elif report is not None and ranks.count > 1:
            self.mltop.drill(Location("ranks", job=report.job_key, ranks=ranks, label=f"ranks {ranks}"))
        elif key := self._rank_key(report, ranks):
            self.open_rank(key)

    def _selected(self, key: str | None) -> tuple[JobReport | None, Ranges]:
        """The report and the ranks that a line is about."""
        result, target = self.mltop.investigation.result, self._targets.get(key or "")
        if result is None or target is None or target.at >= len(result.reports):
            return None, Ranges()
        return result.reports[target.at], target.ranks

    def _at_cursor(self) -> tuple[JobReport | None, Ranges]:
        return self._selected(self.query_one("#report", CellLines).cursor_key)

    def _rank_key(self, report: JobReport | None, ranks: Ranges) -> str:
        """ "node/pid" where the line is about one rank, else ""."""
        digests = report.digests if report is not None and ranks.count == 1 else ()
        of_rank = (digest for digest in digests if digest.rank == ranks.first and digest.child_of is None)
        return next((f"{digest.node}/{digest.pid}" for digest in of_rank), "")

    def node_at_cursor(self) -> str:
        """That of a line about one rank."""
        return self._rank_key(*self._at_cursor()).rpartition("/")[0]

    def culprits(self) -> list[str]:
        """The nodes of the ranks that hold the others up."""
        result = self.mltop.investigation.result
        verdicts = [report.verdict for report in result.reports] if result is not None else []
        return list(dict.fromkeys(one.node for verdict in verdicts for one in verdict.culprits if one.node))

    def action_compare(self) -> None:
        """The first of a line's ranks; a second time, of the same job, shows both."""
        report, ranks = self._at_cursor()
        if report is None or ranks.first is None:
            self.mltop.tell(NO_RANK)
            return
        rank, marked = ranks.first, self._compared
        if marked is None or marked[0] != report.job_key or marked[1] == rank:
            self._compared = report.job_key, rank
            self.mltop.tell(
                Notice(f"rank {rank} is marked: {KEYCAPS['compare']} on another rank shows both side by side", "accent")
            )
            return
        self._compared = None
        both = Ranges.of([marked[1], rank])
        label = f"ranks {min(both)} and {max(both)}"
        self.mltop.drill(Location("stacks", job=report.job_key, ranks=both, label=label))

    def action_ask_ras(self) -> None:
        """About the job that the cursor is on, else the first that stands."""
        report, _ = self._at_cursor()
        result, picture = self.mltop.investigation.result, self.mltop.picture
        reports = [result.reports[at] for at in in_order(result.reports)] if result is not None else []
        report = report or next((one for one in reports if one.verdict.stands_still), next(iter(reports), None))
        incidents = picture.incidents if picture is not None else ()
        hung = (JobKey(one.job, one.uid) for one in incidents if one.until is None and one.kind == "hang")
        self.mltop.ask_ras(report.job_key if report is not None else next(hung, None))

    def action_native(self) -> None:
        key = self._rank_key(*self._at_cursor())
        node, _, pid = key.rpartition("/")
        rank = rank_of(self.node_view(node), int(pid)) if key else None
        if rank is not None:
            self.mltop.dump_native(RankProcess.of(node, rank), self.open_rank)
        else:
            self.mltop.tell(Notice("C frames are dumped of one rank: put the cursor on a line of one", "warn"))


def _scope_lines(result: DumpResult, watched: int, width: int) -> list[list[Cell]]:
    """Says that only some of the ``watched`` nodes were dumped: a rank elsewhere may be the one that is waited for."""
    if not 0 < len(result.nodes) < watched:
        return []
    dumped = f"only {first_of(result.nodes)} dumped; "
    said = f"the culprit may be elsewhere, {KEYCAPS['dump']} without marks dumps all nodes"
    return [*wrap([Cell(dumped, "warn"), Cell(said, "dim")], width, indent=4)]


GUTTER = 3  # cells between the two
DIFFERS = "≠"


def compared_lines(left: StackDigest, right: StackDigest, width: int) -> list[list[Cell]]:
    half = max(8, (width - GUTTER) // 2)
    whys = [[Cell(f"{one.error}  ", "warn")] if one.error and not one.frames else [] for one in (left, right)]
    lines = [_row([*whys[0], *stack_title(left)], [*whys[1], *stack_title(right)], half, ""), []]
    roots = [list(zip(one.frames, own_frames(one.frames), strict=True))[::-1] for one in (left, right)]
    pairs = list(zip_longest(*roots, fillvalue=(None, False)))
    differs = False
    for (one, own), (other, others) in pairs:
        differs = differs or _place(one) != _place(other)
        cells = _cells(one, own, differs), _cells(other, others, differs)
        lines.append(_row(*cells, half, DIFFERS if differs else ""))
    if not pairs:
        lines.append([Cell("neither has a stack", "dim")])
    elif not differs:
        lines += [[], [Cell("both are in the same place", "dim")]]
    return lines


def _place(frame: Frame | None) -> tuple[str, str, int] | None:
    return None if frame is None else (frame.function, frame.file, frame.line)


def _cells(frame: Frame | None, own: bool, differs: bool) -> list[Cell]:
    if frame is None:
        return []
    return frame_cells(frame, ("title" if own else "") if differs else "dim", ints=differs)


def _row(left: Sequence[Cell], right: Sequence[Cell], half: int, mark: str) -> list[Cell]:
    shown = cut(left, half)
    blank = Cell(" " * (half - line_width(shown)))
    return [*shown, blank, Cell(f" {mark:<{GUTTER - 1}}", "warn"), *cut(right, half)]
