"""What a dump says of one job, as lines: who it is and why, then the merged stacks, other threads, what is unread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mltop.probes.investigate.advice import to_do
from mltop.probes.judge.evidence.progress_words import progress_evidence
from mltop.probes.model import CONFIDENCES, Culprit, Incident, JobReport, StackDigest
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time, seconds
from mltop.probes.model.vocabulary import Act
from mltop.tui.render.advice import advice, keys_on
from mltop.tui.render.cells import Cell, clip, cut, line_width, plain, wrap
from mltop.tui.render.findings import Happening, source_words
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.stacks.frames import frame_cells, own_frames
from mltop.tui.render.stacks.tree import COUNT, Odd, branch_lines, tree_title
from mltop.tui.render.stacks.verdict import CONFIDENCE_STYLE, HAS_ENDED, KIND_STYLE, NOBODY, gap_text, how_cell, named
from mltop.tui.render.states import state_word
from mltop.tui.render.story import Line, Scope, culprit_cells, spaced, start_of_text, waiting_cells

MOST_TREE_LINES, MOST_UNFOLDED = 60, 600
MOST_SHOWN = 6  # frames of a library on the way to whom is named: more are only counted
MOST_THREADS, MOST_NAMED, MOST_UNREAD, MOST_BEFORE = 8, 8, 40, 6
_KINDS = ("hang", "suspect", "straggler", "unclear", "moving")
THREAD_WIDTH = 16

Keep = Callable[[str], bool]


@dataclass(frozen=True)
class Target:
    """What a line opens: ``ranks`` of report number ``at``, or the elided frames ``fold``. ``line`` tells it from other
    lines of these ranks.
    """

    at: int
    ranks: Ranges
    line: str
    fold: str = ""

    def opened_by(self, cells: Sequence[Cell]) -> Line:
        return Line(cells, f"{self.at}/{self.ranks}/{self.line}", self)


@dataclass(frozen=True)
class Around:
    """What is known beside the dump. ``incident``: of this job; ``happened``: shortly before it; ``one``: only one node
    is watched; ``title``: of the job, where there are several; ``judged``: False while the dump still goes on.
    ``unfolded``: elided frames that the user has asked for; ``keep``: his filter. ``acts``: what mltop itself
    would do, in words; ``ras``: what was asked of NCCL, and when.
    """

    now: float
    incident: Incident | None = None
    happened: Sequence[Happening] = ()
    one: bool = False
    title: str = ""
    judged: bool = True
    unfolded: frozenset[str] = frozenset()
    keep: Keep = field(default=lambda _: True)
    most_unread: int = MOST_UNREAD
    acts: Mapping[Act, str] = field(default_factory=lambda: keys_on("stacks", dumped=True))
    ras: Sequence[Cell] = ()


def in_order(reports: Sequence[JobReport]) -> list[int]:
    """The numbers of the reports: those that accuse first, the surest first, then the largest."""

    def order(at: int) -> tuple[int, int, int]:
        report = reports[at]
        kind = _KINDS.index(report.verdict.kind) if report.verdict.kind in _KINDS else len(_KINDS)
        sure = CONFIDENCES.index(report.verdict.confidence) if report.verdict.confidence in CONFIDENCES else 9
        return kind // 2, sure, -(report.world_size or len(report.digests))

    return sorted(range(len(reports)), key=order)


class ReportLines:
    """Of report number ``at`` of a dump, at a width."""

    def __init__(self, at: int, report: JobReport, around: Around, width: int) -> None:
        self.at, self.report, self.around, self.width = at, report, around, width
        self.named = named(report.verdict)

    def lines(self) -> list[Line]:
        title = [Line([Cell(self.around.title, "title")])] if self.around.title else []
        verdict = self._verdict() if self.around.judged else []
        return [*title, *spaced((verdict, self._tree(), self._threads(), self._before(), self._unread()))]

    # The verdict.

    def _verdict(self) -> list[Line]:
        """Who, where and since when; why, as prose; what to do."""
        verdict, around = self.report.verdict, self.around
        shown = self.named[:MOST_NAMED]
        whos = [_who(culprit) for culprit in shown] or [self.report.job or "job"]
        start = start_of_text(whos, self.width)
        lines: list[Line] = []
        for number, who in enumerate(whos):
            lines += self._headline(who, shown[number] if shown else None, start, first=not number)
        if (left := len(self.named) - len(shown)) > 0:
            lines += self._block([Cell(f"and {left} more", "dim")], start)
        if not verdict.ended:
            lines += self._block(self._prose(), start)
        for gap in verdict.gaps:
            lines += self._block([Cell(gap_text(gap), "warn")], start, 2)
        if not verdict.ended:
            lines += self._block(around.ras, start, 2)
        do = advice(around.incident.act, around.incident.action, around.acts) if around.incident is not None else ""
        return lines + self._block([Cell(f"{GLYPHS.arrow} {do}", "key")] if do else [], start, 2)

    def _headline(self, who: str, culprit: Culprit | None, start: int, *, first: bool) -> list[Line]:
        verdict = self.report.verdict
        style = KIND_STYLE.get(verdict.kind, "")
        if culprit is None:
            nobody = NOBODY.get(verdict.kind, "nobody is accused")
            what = [Cell(HAS_ENDED if verdict.ended else nobody)]
        else:
            what = [*culprit_cells(culprit, Scope(one=self.around.one))]
            since = self.around.incident.since if self.around.incident is not None else verdict.since
            what += [Cell(f" since {clock_time(since)}")] if since is not None and first else []
        mark = (GLYPHS.alarm if style == "crit" else GLYPHS.finding) if style in ("crit", "warn") else " "
        right = self._right(style) if first else []
        head = [Cell(mark, style), Cell(" "), Cell(clip(who, start - 3) + " ", "title")]
        room = max(8, self.width - start)
        wrapped = wrap(what, max(8, room - (line_width(right) + 2 if right else 0)))
        lines = [[*head, *wrapped[0]], *([Cell(" " * start), *line] for line in wrapped[1:])]
        if right:
            blank = self.width - line_width(lines[0]) - line_width(right)
            lines[0] += [Cell(" " * max(1, blank)), *right]
        if culprit is None or culprit.rank is None:
            return [*map(Line, lines)]
        return [*map(Target(self.at, Ranges.of([culprit.rank]), "who").opened_by, lines)]

    def _right(self, style: str) -> list[Cell]:
        verdict = self.report.verdict
        word = Cell("ENDED" if verdict.ended else verdict.kind.upper(), style)
        if not verdict.confidence or verdict.ended or self.width < _WITH_CONFIDENCE:
            return [word]
        return [
            word,
            Cell("  confidence ", "dim"),
            Cell(verdict.confidence, CONFIDENCE_STYLE.get(verdict.confidence, "")),
        ]

    def _prose(self) -> list[Cell]:
        """Who waits where, then what was seen, up to a full stop."""
        verdict = self.report.verdict
        style = "waits" if verdict.kind != "moving" else ""
        parts = [waiting_cells(waiting.ranks, waiting.where, style) for waiting in verdict.waiting]
        parts += [[Cell(text)] for text in verdict.evidence]
        for first, *more in map(progress_evidence, self.report.progress):
            parts.append([Cell(f"{source_words(first)}: {'; '.join(line.text for line in (first, *more))}")])
        return [cell for part in parts for cell in (Cell("; "), *part)][1:]

    def _block(self, cells: Sequence[Cell], start: int, indent: int = 0) -> list[Line]:
        lines = wrap(cells, max(8, self.width - start), indent) if cells else []
        return [Line([Cell(" " * start), *line]) for line in lines]

    # The tree.

    def _tree(self) -> list[Line]:
        from mltop.probes.judge.hang.classes import merged_tree

        odd = self._odd()
        classes = sorted(self.report.classes, key=lambda one: not odd.has(one.ranks))
        unfolded = self.around.unfolded
        tree = merged_tree(classes, MOST_UNFOLDED if unfolded else MOST_TREE_LINES, unfolded)
        of_odd = {line.fold for line in tree if 0 < line.elided <= MOST_SHOWN and odd.has(line.ranks)}
        if of_odd:
            tree = merged_tree(classes, MOST_UNFOLDED, {*unfolded, *of_odd})
        lines = []
        for number, (line, cells) in enumerate(zip(tree, branch_lines(tree, odd, self.width), strict=True)):
            if self.around.keep(plain(cells)):
                lines.append(Target(self.at, line.ranks, f"tree{number}", line.fold).opened_by(cells))
        return [Line(tree_title(self.width)), *lines] if lines else []

    def _odd(self) -> Odd:
        if not self.around.judged or self.report.verdict.kind == "moving":
            return Odd()
        incident, now = self.around.incident, self.around.now
        age = seconds(max(0.0, now - incident.since)) if incident is not None and incident.since is not None else ""
        ranks = [culprit for culprit in self.named if culprit.rank is not None]
        doing = {culprit.rank or 0: how_cell(culprit, age) for culprit in ranks}
        return Odd(Ranges.of(doing), doing, age)

    # Threads, and what could not be read.

    def _threads(self) -> list[Line]:
        """Of the one that is named, beside its main thread; and of its children."""
        if len(self.named) != 1 or not self.around.judged:
            return []
        culprit = self.named[0]
        others = [
            digest
            for digest in self.report.digests
            if digest.node in (culprit.node, "") and culprit.pid in (digest.pid, digest.child_of)
            if digest.frames and (digest.thread != "MainThread" or digest.child_of is not None)
        ]
        if not others:
            return []
        target = Target(self.at, Ranges() if culprit.rank is None else Ranges.of([culprit.rank]), "threads")
        lines = [Line([Cell(f" OTHER THREADS OF {_who(culprit).upper()}", "head")])]
        return lines + [target.opened_by(self._thread(digest)) for digest in others[:MOST_THREADS]]

    def _thread(self, digest: StackDigest) -> list[Cell]:
        own = own_frames(digest.frames)
        frame = digest.frames[own.index(True) if True in own else 0]
        name = digest.thread if digest.child_of is None else f"child {digest.pid}"
        state = f"  {state_word(digest.state)}" if digest.state else ""
        cells = [Cell(" " * (COUNT + 1)), Cell(clip(name, THREAD_WIDTH) + "  ")]
        return cut([*cells, *frame_cells(frame, ints=False), Cell(state, "dim")], self.width)

    def _before(self) -> list[Line]:
        """What happened on the nodes of those that are named, the oldest first, and when the job last moved."""
        incident = self.around.incident
        if not self.named or not self.around.judged or incident is None or incident.since is None:
            return []
        nodes = {culprit.node for culprit in self.named}
        events = [(one.at, one.node, one.text) for one in self.around.happened if one.node in nodes]
        events.append((incident.since, "", "last progress of the job"))
        lines: list[Line] = []
        for at, node, text in sorted(set(events))[-MOST_BEFORE:]:
            cells = [Cell(f"{clock_time(at)}  ", "dim")]
            cells += [Cell(f"{node}: ", "dim")] if node and not self.around.one else []
            lines += self._block([*cells, Cell(text)], COUNT + 1, len(clock_time(at)) + 2)
        return [Line([Cell(" BEFORE THIS DUMP", "head")]), *lines]

    def _unread(self) -> list[Line]:
        unread = [digest for digest in self.report.digests if not digest.frames]
        if not unread:
            return []
        lines = [Line([Cell(" WITHOUT A STACK", "head")])]
        for digest in unread[: self.around.most_unread]:
            ranks = Ranges() if digest.rank is None else Ranges.of([digest.rank])
            who = "rank ?" if digest.rank is None else f"rank {digest.rank}"
            cells = [Cell(f" {who} pid {digest.pid}: "), Cell(digest.error or "the reason is not known", "warn")]
            cells += [Cell(f"  {GLYPHS.arrow} {''.join(to_do(digest.fix))}", "key")] if digest.fix else []
            target = Target(self.at, ranks, str(digest.pid))
            lines += map(target.opened_by, wrap(cells, self.width, 3))
        left = len(unread) - self.around.most_unread
        return lines + ([Line([Cell(f" and {left} more without a stack", "dim")])] if left > 0 else [])


_WITH_CONFIDENCE = 60  # cells


def _who(culprit: Culprit) -> str:
    return f"rank {culprit.rank}" if culprit.rank is not None else culprit.node or "a rank"
