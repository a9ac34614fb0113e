"""What the judge says of a job, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.investigate.advice import advised
from mltop.probes.model import Culprit, Gap, JobReport, Verdict, Waiting
from mltop.tui.render.cells import Cell, line_width
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.wrap import wrap

KIND_STYLE = {"hang": "crit", "suspect": "warn", "straggler": "warn", "moving": "ok", "unclear": "warn"}
CONFIDENCE_STYLE = {"high": "bold", "medium": "", "low": "dim"}
_NOBODY = {
    "moving": "the job makes progress; nobody is accused",
    "hang": "no rank can be named",
    "suspect": "no rank can be named",
    "straggler": "no rank can be named",
    "unclear": "not enough evidence to accuse anybody",
}
INDENT = 2


def verdict_lines(report: JobReport, width: int) -> list[list[Cell]]:
    """The headline first (who, where, who waits, how sure), then other ranks, evidence, what is unknown."""
    verdict = report.verdict
    lines = _with_whole(wrap(headline(report), width, indent=INDENT), _confidence(verdict), width)
    for culprit in _named(verdict)[1:]:
        lines += _point(culprit_text(culprit), width, KIND_STYLE.get(verdict.kind, ""))
    for waiting in verdict.waiting:
        lines += _point(f"waiting: {_ranks(waiting.ranks)} in {waiting.where}", width)
    for evidence in verdict.evidence:
        lines += _point(evidence, width, "dim")
    for gap in verdict.gaps:
        lines += _point(gap_text(gap), width, "warn")
    return lines


def job_words(report: JobReport, reports: Sequence[JobReport] = ()) -> str:
    """ "job 4711"; "job 4711 of ada" where another user's job among ``reports`` has the same name."""
    namesake = any(other.job == report.job and other.uid != report.uid for other in reports)
    whose = f" of {report.user or f'uid {report.uid}'}" if namesake else ""
    return f"job {report.job or 'without a name'}{whose}"


def jobs_left_out(reports: Sequence[JobReport]) -> str:
    """Of those that are not shown: how many, and what is said of them."""
    kinds = Counter("could not be judged" if report.error else report.verdict.kind for report in reports)
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return (
        f"and {len(reports)} more {'job' if len(reports) == 1 else 'jobs'}: {said} (--job NAME for one, --json for all)"
    )


def headline(report: JobReport) -> list[Cell]:
    """One sentence: HANG  rank 2 on n1 (pid 4711) ...; 3 ranks wait in all_reduce."""
    verdict = report.verdict
    if verdict.ended:
        return [Cell("ENDED", "warn"), Cell("  the job has ended: no rank of it is left")]
    style = KIND_STYLE.get(verdict.kind, "")
    cells = [Cell(verdict.kind.upper(), style), Cell("  ")]
    named = _named(verdict)
    if named:
        more = f"; {len(named) - 1} more named below" if len(named) > 1 else ""
        cells.append(Cell(culprit_text(named[0]) + more, "bold"))
    else:
        cells.append(Cell(_NOBODY.get(verdict.kind, "nobody is accused")))
    if verdict.waiting and named:
        cells.append(Cell(f"; {waiting_text(verdict.waiting)}"))
    return cells


def _confidence(verdict: Verdict) -> list[Cell]:
    if not verdict.confidence:
        return []
    return [Cell("confidence ", "dim"), Cell(verdict.confidence, CONFIDENCE_STYLE.get(verdict.confidence, ""))]


def _with_whole(lines: list[list[Cell]], cells: list[Cell], width: int) -> list[list[Cell]]:
    """``cells`` behind the last line, or together on a line of their own: "confidence" and "high" belong together."""
    if not cells:
        return lines
    last = [*lines[-1], Cell("  "), *cells]
    if line_width(last) <= width:
        return [*lines[:-1], last]
    return [*lines, *wrap([Cell(" " * INDENT), *cells], width, indent=INDENT)]


def culprit_text(culprit: Culprit) -> str:
    """ "rank 2 on n1 (pid 4711) at DS.__getitem__ (case.py:14): stands still"."""
    who = "a rank of unknown number" if culprit.rank is None else f"rank {culprit.rank}"
    if culprit.node:
        who += f" on {culprit.node}"
    if culprit.pid is not None:
        who += f" (pid {culprit.pid})"
    if culprit.where not in ("", "unknown", "no process") and culprit.where not in culprit.reason:
        who += f" at {culprit.where}"
    return f"{who}: {culprit.reason}" if culprit.reason else who


def waiting_text(waiting: Sequence[Waiting]) -> str:
    """ "3 ranks wait in all_reduce", with the number of other places when there are several."""
    first = max(waiting, key=lambda group: count_ranks(group.ranks))
    number = count_ranks(first.ranks)
    text = f"{number} {'rank waits' if number == 1 else 'ranks wait'} in {first.where}"
    if len(waiting) > 1:
        text += f", others in {len(waiting) - 1} other {'place' if len(waiting) == 2 else 'places'}"
    return text


def count_ranks(folded: str) -> int:
    """How many ranks folded text names: "0-2,4" is 4; text of another form counts its parts."""
    number = 0
    for part in filter(None, folded.split(",")):
        first, _, last = part.strip().partition("-")
        number += int(last) - int(first) + 1 if first.isdigit() and last.isdigit() else 1
    return number


def gap_text(gap: Gap) -> str:
    """ "not known: rank 3: permission denied (sudo ...)"."""
    return f"not known: {gap.what}: {gap.why}" + (f" ({advised(gap.fix)})" if gap.fix else "")


def _named(verdict: Verdict) -> list[Culprit]:
    """Whom the verdict names; a straggler is an observation, so only that kind of verdict names them."""
    return verdict.culprits or (verdict.stragglers if verdict.kind == "straggler" else [])


def _ranks(folded: str) -> str:
    return f"rank {folded}" if folded.isdigit() else f"ranks {folded}"


def _point(text: str, width: int, style: str = "") -> list[list[Cell]]:
    bullet = "-" if GLYPHS.ascii_only else "•"
    return wrap([Cell(f"  {bullet} ", "dim"), Cell(text, style)], width, indent=INDENT + 2)
