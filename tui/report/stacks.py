"""What `mltop stacks` prints: of every job what the stacks pane shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.model import Incident, JobReport, NodeState, Sample
from mltop.probes.model.vocabulary import COMMANDS, Act
from mltop.tui.render.cells import Cell
from mltop.tui.render.empty import NO_RANKS, ranks_unknown
from mltop.tui.render.stacks.report import Around, ReportLines
from mltop.tui.render.stacks.verdict import incident_of, job_title, jobs_left_out
from mltop.tui.report.page import Page

if TYPE_CHECKING:
    from rich.console import Console

MOST_JOBS = 32
MOST_INCIDENTS = 8
# What mltop would do next: this is what has been done.
_ACTS: Mapping[Act, str] = {act: command for act, command in COMMANDS.items() if act != "stacks"}
MOST_UNREADABLE = 8  # stacks that could not be read: after these, only their number


def print_reports(
    reports: Sequence[JobReport],
    not_answered: Sequence[NodeState],
    console: Console,
    nodes: Collection[NodeState] = (),
    incidents: Sequence[Incident] = (),
    *,
    samples: Sequence[Sample] = (),
) -> None:
    """Who did not answer first: it says how much the rest is worth. ``nodes``: all that were asked, where known.

    ``incidents``: those with more than the verdicts below are shown first: hardware and systems, deaths, what was seen
    from outside. ``samples``: the newest of the nodes, which say whether their ranks are known.
    """
    page = Page(console, _ACTS)
    page.not_well(not_answered)
    # What the verdict below does not say: hardware and systems, deaths, what was seen from outside.
    grave = (incident for incident in incidents if incident.until is None and incident.severity != "info")
    more_than_stacks = [one for one in grave if one.causes or one.kind not in ("hang", "straggler")]
    for incident in more_than_stacks[:MOST_INCIDENTS]:
        page.incident(incident)
    page.more(len(more_than_stacks) - MOST_INCIDENTS, "incidents: mltop check")
    if more_than_stacks:
        page.line()
    if not reports and not_answered and len(not_answered) == len(nodes):
        page.line(Cell("no node answered: nothing could be dumped", "dim"))
    elif not reports:
        where = " on the nodes that answered" if not_answered else ""
        unknown = ranks_unknown(samples)
        page.sentence(Cell(unknown or f"{NO_RANKS}: nothing to dump{where}", "dim"))
    answered = {state.node for state in nodes} - {state.node for state in not_answered}
    for report in reports[:MOST_JOBS]:
        shown = report
        if not_answered:  # the gaps of these nodes are said once, for all jobs
            gaps = [gap for gap in report.verdict.gaps if gap.source != "node" or gap.item in answered]
            shown = replace(report, verdict=replace(report.verdict, gaps=gaps))
        own = incident_of(report, incidents)
        if own is not None and any(own is one for one in more_than_stacks):
            own = replace(own, act="", action="")  # what to do is printed above
        _report(shown, job_title(report, reports), page, own)
    if reports[MOST_JOBS:]:
        page.line(Cell(jobs_left_out(reports[MOST_JOBS:]), "warn"))


def _report(report: JobReport, title: str, page: Page, incident: Incident | None) -> None:
    """As the stacks pane shows it."""
    began = incident.since if incident is not None and incident.since is not None else 0.0
    now = max((digest.taken_at for digest in report.digests if digest.taken_at is not None), default=began)
    around = Around(now, incident, title=title, most_unread=MOST_UNREADABLE, acts=_ACTS)
    page.lines([[*line.cells] for line in ReportLines(0, report, around, page.width).lines()])
    page.line()
