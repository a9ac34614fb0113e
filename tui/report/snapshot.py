"""What `mltop snapshot` prints: every GPU of a few nodes, or one line per node of a fleet, and what is wrong there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mltop.probes.judge.deaths import end_of, is_own_fault
from mltop.probes.judge.nodes import folded
from mltop.probes.judge.states import States
from mltop.probes.model import Finding, Gap, JobKey, NodeState, RankSample, Sample
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time, counted
from mltop.probes.model.vocabulary import COMMANDS
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.render.empty import NO_RANKS, ranks_unknown
from mltop.tui.render.findings import is_missed, merged_gaps
from mltop.tui.render.fleet.header import header_cells
from mltop.tui.render.fleet.nodes import NODE_COLUMNS, node_row
from mltop.tui.render.ranks import OF_NO_JOB, RATES
from mltop.tui.render.story import Scope, fold_alike, story_of_findings
from mltop.tui.report.page import Page
from mltop.tui.screens.tables import RowContext, gpu_rows, others_of, process_rows, ranks_of, unassigned_of

if TYPE_CHECKING:
    from rich.console import Console

MOST_PROBLEMS = 30
MOST_JOBS = 20
MOST_ENDS = 20
MOST_SIZES = 4  # that processes of one job claim


def _findings(findings: Sequence[Finding], page: Page) -> None:
    """Worst first, those that many nodes share as one."""
    stories = [story_of_findings(group, Scope(acts=COMMANDS)) for group in fold_alike(findings)]
    if stories:
        page.title("findings")
    for story in stories[:MOST_PROBLEMS]:
        page.story(story.findings[0], [Cell(f"{story.who}: ", "bold"), *story.what])
        page.action("", story.action)
    page.more(len(stories) - MOST_PROBLEMS, "findings: mltop snapshot --json has all")


def _jobs(nodes: Sequence[NodeView], page: Page) -> None:
    """A line per job: which ranks are on which nodes."""
    jobs: dict[JobKey, list[tuple[str, RankSample]]] = {}
    for node in nodes:
        for rank in node.sample.ranks if node.sample is not None else ():
            jobs.setdefault(rank.job_key, []).append((node.node, rank))
    none = ranks_unknown([node.sample for node in nodes]) or NO_RANKS
    page.lines([[], *([[Cell("jobs", "title")]] if jobs else wrap([Cell(none, "dim")], page.width))])
    holders = [node.node for node in nodes if node.sample is not None and node.sample.unassigned]
    if holders:
        page.sentence(Cell(f"  {OF_NO_JOB} on {folded(holders)}"), indent=4)
    namesakes = Counter(job.name for job in jobs)
    for job, ranks in sorted(jobs.items(), key=lambda entry: -len(entry[1]))[:MOST_JOBS]:
        sizes = {rank.world_size for _, rank in ranks if rank.world_size}
        seen = Ranges.of(rank.rank for _, rank in ranks if rank.rank is not None)
        world = f" of world size {', '.join(map(str, sorted(sizes)[:MOST_SIZES]))}" if sizes else ""
        missing = Ranges.below(max(sizes)).without(seen) if len(sizes) == 1 else Ranges()
        owner = f" of {ranks[0][1].user}" if namesakes[job.name] > 1 else ""
        text = f"  {job.name or '(unnamed)'}{owner}: {len(ranks)} ranks{world} on {folded(node for node, _ in ranks)}"
        page.sentence(Cell(text), indent=4)
        if missing:
            page.sentence(Cell(f"    not seen: ranks {missing}", "warn"), indent=6)
    page.more(len(jobs) - MOST_JOBS, "jobs", "dim")


def _gaps(samples: Sequence[Sample], page: Page) -> None:
    """What could not be read, once for all nodes where it is the same; of a few nodes also what their hardware has
    not.
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    absent: dict[str, list[str]] = {}
    for sample in samples:
        for gap in merged_gaps(gap for gap in sample.gaps if is_missed(gap)):
            groups.setdefault((gap.what, gap.why, gap.fix), []).append(sample.node)
        for gap in merged_gaps(Gap(gap.what, "") for gap in sample.gaps if gap.kind == "unsupported"):
            absent.setdefault(gap.what, []).append(sample.node)
    if groups:
        page.title("not known")

    def where(nodes: Sequence[str]) -> str:
        return "" if len(samples) < 2 else "all nodes: " if len(nodes) == len(samples) else f"{folded(nodes)}: "

    for (what, why, fix), nodes in groups.items():
        page.sentence(Cell(f"  {where(nodes)}{what}: "), Cell(why, "warn"), indent=4)
        page.fix(fix)
    for what, nodes in absent.items() if len(samples) <= FEW else ():
        page.sentence(Cell(f"  not supported here: {where(nodes)}{what}", "dim"), indent=4)


def _ends_of_ranks(samples: Sequence[Sample], page: Page) -> None:
    """The first of them first: it is mostly the cause of the others."""
    ends = [(death.at or 0.0, sample.node, death) for sample in samples for death in sample.deaths]
    ends.sort(key=lambda end: (end[0], end[1], end[2].pid))
    if ends:
        page.title("ranks that ended within the last hour")
    for at, node, death in ends[:MOST_ENDS]:
        style = "crit" if is_own_fault(death) else "dim"
        where = f" on {node}" if len(samples) > 1 else ""
        job = f" of {death.job}" if death.job else ""
        page.sentence(Cell(f"  {clock_time(at)} "), Cell(end_of(death), style), Cell(f"{job}{where}", "dim"), indent=11)
    page.more(len(ends) - MOST_ENDS, "ends: mltop snapshot --json has all", "dim")


FEW = 4  # nodes: of so many every GPU is shown
NO_STATES = States()
_NO_HISTORY = ("mark", "graph", *RATES)  # what one sample cannot tell; what is marked stands above


def print_snapshot(
    samples: Sequence[Sample],
    findings: Sequence[Finding],
    nodes: Sequence[NodeState],
    console: Console,
    states: States = NO_STATES,
) -> None:
    """Totals, who did not answer, nodes (when there are several), findings, GPUs, processes, what could not be read."""
    page = Page(console)
    by_node = {sample.node: sample for sample in samples}
    taken_at = max((sample.sampled_at for sample in samples), default=time.time())
    view = FleetView(taken_at, tuple(NodeView(state, by_node.get(state.node)) for state in nodes))
    number = f" of {counted(len(nodes), 'node')}" if len(nodes) > 1 else ""
    page.lines([header_cells(view, [f"mltop snapshot{number}", "mltop snapshot"], page.width)])
    page.not_well([state for state in nodes if state.state != "live"])
    answered = [node for node in view.nodes if node.sample is not None]
    if len(nodes) > 1:
        listed = answered if len(nodes) > FEW else view.nodes
        page.table(NODE_COLUMNS, [node_row(node, findings) for node in listed])
    _findings(findings, page)
    if len(nodes) > FEW:
        _jobs(view.nodes, page)
    else:
        picture = Picture(view, tuple(findings), states=states)
        context = RowContext(picture, EarlierRanks(), lambda *_: None, one_look=True)
        for node in view.nodes:
            _gpus_of(node, context, page, many=len(samples) > 1)
        _processes_of(view.nodes, context, page)
    _ends_of_ranks(samples, page)
    _gaps(samples, page)
    if len(nodes) > FEW:
        page.lines([[], header_cells(view, [counted(len(nodes), "node")], page.width)])


def _gpus_of(node: NodeView, context: RowContext, page: Page, many: bool) -> None:
    simulated = node.sample is not None and node.sample.simulated
    title = "GPUs" + (f" of {node.node}" if many else "") + (" (SIMULATED)" if simulated else "")
    columns, rows, _ = gpu_rows(node, context, page.width)
    if rows:
        page.table(columns, rows, title, _NO_HISTORY)


def _processes_of(nodes: Sequence[NodeView], context: RowContext, page: Page) -> None:
    for title, members in (("ranks", ranks_of), (OF_NO_JOB, unassigned_of), ("other GPU processes", others_of)):
        shown = [(node, process) for node in nodes for process in members(node)]
        if shown:
            page.table(*process_rows(shown, context), title, _NO_HISTORY)
        elif members is ranks_of:
            page.paragraph(Cell(ranks_unknown([node.sample for node in nodes]) or NO_RANKS, "dim"))
