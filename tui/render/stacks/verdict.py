"""What the judge says of stacks: verdicts as sentences; one rank's stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.investigate.advice import advised, to_do
from mltop.probes.model import (
    Culprit,
    Frame,
    Gap,
    JobReport,
    StackDigest,
    Verdict,
    Waiting,
)
from mltop.probes.model.units import counted
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.ranks import rank_number
from mltop.tui.render.stacks.frames import spot
from mltop.tui.render.states import state_cell

KIND_STYLE = {"hang": "crit", "suspect": "warn", "straggler": "warn", "moving": "ok", "unclear": "warn"}
CONFIDENCE_STYLE = {"high": "bold", "medium": "", "low": "dim"}
NOBODY = {
    "moving": "the job makes progress; nobody is accused",
    "hang": "no rank can be named",
    "suspect": "no rank can be named",
    "straggler": "no rank can be named",
    "unclear": "not enough evidence to accuse anybody",
}


def job_words(report: JobReport, reports: Sequence[JobReport] = ()) -> str:
    """ "job 4711"; "job 4711 of ada" where another user's job among ``reports`` has the same name."""
    namesake = any(other.job == report.job and other.uid != report.uid for other in reports)
    whose = f" of {report.user or f'uid {report.uid}'}" if namesake else ""
    return f"job {report.job or 'without a name'}{whose}"


def jobs_left_out(reports: Sequence[JobReport]) -> str:
    """The number of ``reports`` that are not shown, by their verdicts."""
    kinds = Counter("could not be judged" if report.error else report.verdict.kind for report in reports)
    verdicts = ", ".join(f"{amount} {kind}" for kind, amount in kinds.most_common())
    return f"and {counted(len(reports), 'more job')}: {verdicts} (--job NAME for one, --json for all)"


def headline(report: JobReport) -> list[Cell]:
    """One sentence: HANG  rank 2 on n1 (pid 4711) ...; 3 ranks wait in all_reduce."""
    verdict = report.verdict
    if verdict.ended:
        return [Cell("ENDED", "warn"), Cell("  the job has ended: no rank of it is left")]
    style = KIND_STYLE.get(verdict.kind, "")
    cells = [Cell(verdict.kind.upper(), style), Cell("  ")]
    told = named(verdict)
    if told:
        more = f"; {len(told) - 1} more named below" if len(told) > 1 else ""
        cells.append(Cell(culprit_text(told[0]) + more, "bold"))
    else:
        cells.append(Cell(NOBODY.get(verdict.kind, "nobody is accused")))
    if verdict.waiting and told:
        cells.append(Cell(f"; {waiting_text(verdict.waiting)}"))
    return cells


def culprit_text(culprit: Culprit) -> str:
    """ "rank 2 on n1 (pid 4711) at DS.__getitem__ (case.py:14): is stuck"."""
    who = "a rank of unknown number" if culprit.rank is None else f"rank {culprit.rank}"
    if culprit.node:
        who += f" on {culprit.node}"
    if culprit.pid is not None:
        who += f" (pid {culprit.pid})"
    if culprit.where not in ("", "unknown", "no process") and not culprit.in_reason:
        who += f" at {culprit.where}"
    return f"{who}: {culprit.reason}" if culprit.reason else who


def waiting_text(waiting: Sequence[Waiting]) -> str:
    """ "3 ranks wait in all_reduce", with the number of other places when there are several."""
    first = max(waiting, key=lambda group: group.ranks.count)
    number = first.ranks.count
    text = f"{number} {'rank waits' if number == 1 else 'ranks wait'} in {first.where}"
    if len(waiting) > 1:
        text += f", others in {len(waiting) - 1} other {'place' if len(waiting) == 2 else 'places'}"
    return text


def gap_text(gap: Gap) -> str:
    """ "not known: rank 3: permission denied (sudo ...)"."""
    return f"not known: {gap.what}: {gap.why}" + (f" ({advised(gap.fix)})" if gap.fix else "")


_HOW = {
    "computes": "computes alone",
    "polls": "polls",
    "elsewhere": "waits elsewhere",
    "behind": "in another turn",
    "stopped": "is stopped",
    "traced": "held by a debugger",
    "kernel": "in the kernel",
    "dead": "died",
    "left": "left",
    "slow": "is slow",
}


def how_cell(culprit: Culprit, age: str = "") -> Cell:
    """ "stuck 1m12s": what it does, in a word or two."""
    style = "warn" if culprit.how in ("computes", "polls", "slow") else "crit"
    return Cell(f"{_HOW.get(culprit.how, 'stuck')} {age}".rstrip(), style)


def named(verdict: Verdict) -> list[Culprit]:
    """Whom the verdict names; a straggler is an observation, so only that kind of verdict names them."""
    return verdict.culprits or (verdict.stragglers if verdict.kind == "straggler" else [])


def stack_lines(digest: StackDigest, width: int, root_first: bool = False) -> list[list[Cell]]:
    """One thread of one rank: a title, then its frames (leaf first unless told) with their integer locals.

    Without frames: why, and what would help.
    """
    lines = wrap(_stack_title(digest), width, indent=2)
    if not digest.frames:
        lines += wrap([Cell(f"  no stack: {digest.error or 'the reason is not known'}", "warn")], width, indent=2)
        if digest.fix:
            label, text = to_do(digest.fix)
            lines += wrap([Cell(f"  {label}", "dim"), Cell(text, "accent")], width, indent=2)
        return lines
    frames = list(enumerate(digest.frames))  # the model's order: leaf first
    for number, frame in reversed(frames) if root_first else frames:
        lines += wrap(_frame(frame, leaf=number == 0), width, indent=6)
    return lines


def _stack_title(digest: StackDigest) -> list[Cell]:
    who = f"rank {rank_number(digest.rank)}"
    if digest.node:
        who += f" on {digest.node}"
    who += f" pid {digest.pid}"
    if digest.child_of is not None:
        who += f" (child of {digest.child_of})"
    cells = [Cell(who, "title"), Cell(f"  {digest.thread}")]
    if digest.state:
        cells += [Cell("  "), state_cell(digest.state)]
    if digest.wchan:
        cells.append(Cell(f"  kernel: {digest.wchan}", "dim"))
    if digest.waiting_in:
        cells.append(Cell(f"  waits in {digest.waiting_in}", "accent"))
    if digest.samples > 1:
        cells.append(Cell(f"  same in {digest.samples} dumps", "dim"))
    return cells


def _frame(frame: Frame, leaf: bool) -> list[Cell]:
    mark = ">" if leaf else " "
    cells = [
        Cell(f"  {mark} "),
        Cell(frame.function, "bold" if leaf else ""),
        Cell(f"  {spot(frame.file, frame.line)}", "dim"),
    ]
    if frame.ints:
        values = " ".join(f"{name}={value}" for name, value in sorted(frame.ints.items()))
        cells.append(Cell(f"  {values}", "accent"))
    return cells
