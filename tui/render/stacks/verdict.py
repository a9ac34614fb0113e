"""What the judge says of stacks: verdicts as sentences; one rank's stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mltop.probes.investigate.advice import advised, to_do
from mltop.probes.judge.incidents.words import culprits_words, does_what, wait_words
from mltop.probes.model import (
    Culprit,
    Gap,
    Incident,
    JobKey,
    JobReport,
    StackDigest,
    Verdict,
)
from mltop.probes.model.units import counted
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.ranks import rank_number
from mltop.tui.render.stacks.frames import frame_cells
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


HAS_ENDED = "the job has ended: no rank of it is left"
MOST_WAITING = 3  # places in a headline


def job_words(report: JobReport, reports: Sequence[JobReport] = ()) -> str:
    """ "job 4711"; "job 4711 of ada" where another user's job among ``reports`` has the same name."""
    namesake = any(other.job == report.job and other.uid != report.uid for other in reports)
    owner = f" of {report.user or f'uid {report.uid}'}" if namesake else ""
    return f"job {report.job or 'without a name'}{owner}"


def job_title(report: JobReport, reports: Sequence[JobReport]) -> str:
    size = f", world size {report.world_size}" if report.world_size else ""
    return f"{job_words(report, reports)}{size}"


def incident_of(report: JobReport, incidents: Sequence[Incident]) -> Incident | None:
    """What its stacks are part of, while it lasts."""
    own = (one for one in incidents if (one.job, one.uid) == (report.job, report.uid) and one.until is None)
    return next(own, None)


def jobs_left_out(reports: Sequence[JobReport]) -> str:
    """The number of ``reports`` that are not shown, by their verdicts."""
    kinds = Counter("could not be judged" if report.error else report.verdict.kind for report in reports)
    verdicts = ", ".join(f"{amount} {kind}" for kind, amount in kinds.most_common())
    return f"and {counted(len(reports), 'more job')}: {verdicts} (--job NAME for one, --json for all)"


def headline(report: JobReport) -> str:
    """ "HANG  rank 2 (n1 GPU 2) is stuck in read (data.py:53), 3 ranks wait in all_reduce"."""
    verdict = report.verdict
    if verdict.ended:
        return f"ENDED  {HAS_ENDED}"
    who = culprits_words(named(verdict), with_nodes=True)
    text = f"{verdict.kind.upper()}  {who or NOBODY.get(verdict.kind, 'nobody is accused')}"
    for group in sorted(verdict.waiting, key=lambda group: -group.ranks.count)[:MOST_WAITING] if who else ():
        text += f", {wait_words(group.ranks.count, group.where)}"
    return text


def digests_of(reports: Iterable[JobReport], job: JobKey | None = None) -> list[StackDigest]:
    """All threads of all ranks; of one ``job``."""
    return [digest for report in reports if job in (None, report.job_key) for digest in report.digests]


def gap_text(gap: Gap) -> str:
    """ "not known: rank 3: permission denied (sudo ...)"."""
    return f"not known: {gap.what}: {gap.why}" + (f" ({advised(gap.fix)})" if gap.fix else "")


def how_cell(culprit: Culprit, age: str = "") -> Cell:
    """ "stuck 1m12s": what it does, in a word or two."""
    style = "warn" if culprit.how in ("computes", "polls", "slow") else "crit"
    return Cell(f"{does_what(culprit).removeprefix('is ')} {age}".rstrip(), style)


def named(verdict: Verdict) -> list[Culprit]:
    """Whom the verdict names; a straggler is an observation, so only that kind of verdict names them."""
    return verdict.culprits or (verdict.stragglers if verdict.kind == "straggler" else [])


def stack_lines(digest: StackDigest, width: int) -> list[list[Cell]]:
    """One thread of one rank: a title, then its frames, the leaf first, with their integer locals.

    Without frames: why, and what would help.
    """
    lines = wrap(stack_title(digest), width, indent=2)
    if not digest.frames:
        lines += wrap([Cell(f"  no stack: {digest.error or 'the reason is not known'}", "warn")], width, indent=2)
        if digest.fix:
            label, text = to_do(digest.fix)
            lines += wrap([Cell(f"  {label}", "dim"), Cell(text, "accent")], width, indent=2)
        return lines
    for number, frame in enumerate(digest.frames):
        mark = Cell(f"  {' ' if number else '>'} ")
        lines += wrap([mark, *frame_cells(frame, "" if number else "bold")], width, indent=6)
    return lines


def stack_title(digest: StackDigest) -> list[Cell]:
    """What it does comes before what is the same of most."""
    place = f" on {digest.node}" if digest.node else ""
    child = f" (child of {digest.child_of})" if digest.child_of is not None else ""
    cells = [Cell(f"rank {rank_number(digest.rank)}{place} pid {digest.pid}{child}", "title")]
    cells += [Cell(f"  waits in {digest.waiting_in}", "waits")] if digest.waiting_in else []
    cells.append(Cell(f"  {digest.thread}"))
    cells += [Cell("  "), state_cell(digest.state)] if digest.state else []
    cells += [Cell(f"  kernel: {digest.wchan}", "dim")] if digest.wchan else []
    return [*cells, *([Cell(f"  same in {digest.samples} dumps", "dim")] if digest.samples > 1 else [])]
