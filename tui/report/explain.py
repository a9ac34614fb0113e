"""What `mltop explain` prints: of each job one screen: who failed first and why, who fell for it, what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltop.probes.investigate.explain import Explained
from mltop.probes.judge.deaths import ended_by
from mltop.probes.model import Evidence, Incident
from mltop.probes.model.evidence.logs import ExplainedJob, RankEnd
from mltop.probes.model.gap import Gap
from mltop.probes.model.ranks import fold, ranks_text
from mltop.probes.model.units import clock_time, counted
from mltop.tui.render.cells import Cell
from mltop.tui.report.page import Page

if TYPE_CHECKING:
    from rich.console import Console

MOST_JOBS = 16
MOST_EVIDENCE = 6
MOST_WAYS = 6
MOST_SETTINGS = 3


def print_explained(found: Explained, console: Console, verbose: bool = False) -> None:
    page = Page(console)
    for index, job in enumerate(found.jobs[:MOST_JOBS]):
        if index:
            page.line()
        _job(job, page, verbose)
    page.more(len(found.jobs) - MOST_JOBS, "jobs (--json has them all)")
    for gap in found.gaps if verbose else found.gaps[:2]:
        page.sentence(Cell(f"{_about(gap)}: {gap.why}", "dim"))
    if not verbose:
        page.more(len(found.gaps) - 2, "files without evidence (-v)", "dim")


def _job(job: ExplainedJob, page: Page, verbose: bool) -> None:
    size = f", {counted(job.world_size or len(job.ranks), 'rank')}" if job.ranks else ""
    started = f", started {job.attempts} times" if job.attempts > 1 else ""
    page.line(Cell(f"job {job.job}", "title"), Cell(f"{size}{started}, {counted(len(job.files), 'file')}", "dim"))
    incident = job.incident
    if incident is None:
        page.sentence(Cell("it ended well: no failure, and a good end", "ok"))
    else:
        page.story(incident, [Cell(incident.headline, "bold")])
    evidence = job.good_end if incident is None else incident.evidence
    shown = evidence if verbose or incident is None else evidence[:MOST_EVIDENCE]
    for one in shown:
        page.sentence(Cell("  "), Cell(one.text), Cell(_source(one), "dim"), indent=4)
    page.more(len(evidence) - len(shown), "lines (-v)", "dim")
    if incident is not None:
        if incident.confidence != "low" or job.is_told:
            page.sentence(Cell("  confidence: ", "dim"), Cell(incident.confidence), indent=4)
        page.action(incident.act, incident.action)
    _ways(job, page, incident, verbose)
    _lacking(job, page, incident)


def _source(evidence: Evidence) -> str:
    at = f" at {clock_time(evidence.at)}" if evidence.at is not None else ""
    return f"  [{evidence.where}{at}]" if evidence.where or at else ""


def _ways(job: ExplainedJob, page: Page, incident: Incident | None, verbose: bool) -> None:
    """How the ranks ended, those alike together."""
    ways: dict[str, list[int]] = {}
    culprits = {culprit.rank for culprit in incident.culprits} if incident is not None else set()
    for end in job.ranks:
        way = _way(end)
        if way:
            ways.setdefault(way, []).append(end.rank)
    rows = sorted(ways.items(), key=lambda row: (culprits.isdisjoint(row[1]), len(row[1])))
    for way, ranks in rows if verbose else rows[:MOST_WAYS]:
        style = "warn" if not culprits.isdisjoint(ranks) else "dim"
        who = ranks_text(ranks) if len(fold(ranks)) <= 60 else f"{len(ranks)} ranks"
        page.sentence(Cell(f"  {who}: ", style), Cell(way, "dim"), indent=4)
    page.more(len(rows) - (len(rows) if verbose else MOST_WAYS), "ways to end (-v)", "dim")


def _way(end: RankEnd) -> str:
    parts = []
    death = end.death
    if death is not None:
        parts.append(
            {
                "exit": "failed" if death.code is None else f"exited with code {death.code}",
                "signal": f"killed by {ended_by(death.code)}",
                "oom": "killed for want of memory",
                "stopped": "ended by the launcher",
                "unknown": "waited in vain, or aborted",
            }[death.how]
        )
    if end.enqueued is not None and end.completed is not None:
        parts.append(f"launched collectives up to #{end.enqueued}, completed #{end.completed}")
    return ", ".join(parts)


def _about(gap: Gap) -> str:
    if gap.source == "ranks" and gap.item:
        return f"{'ranks' if {',', '-'} & set(gap.item) else 'rank'} {gap.item}"
    return gap.item if gap.source == "log" and gap.item else f"{gap.source} {gap.item}".strip()


def _lacking(job: ExplainedJob, page: Page, incident: Incident | None) -> None:
    for gap in job.gaps[:3]:
        page.sentence(Cell("  missing: ", "warn"), Cell(f"{_about(gap)}: {gap.why}"), indent=4)
    page.more(len(job.gaps) - 3, "gaps (--json)", "dim")
    if incident is not None and incident.next:
        page.sentence(Cell("  to be surer: ", "dim"), Cell(incident.next, "accent"), indent=4)
    said = incident.next if incident is not None else ""
    for setting in [each for each in job.settings if each not in said][:MOST_SETTINGS]:
        page.sentence(Cell("  set next time: ", "dim"), Cell(setting, "accent"), indent=4)
