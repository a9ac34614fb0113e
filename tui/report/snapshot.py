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
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.render.cells import Cell
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.render.findings import Problem, fleet_problems, is_missed, merged_gaps, severity_cell
from mltop.tui.render.fleet.header import header_cells
from mltop.tui.render.fleet.nodes import NODE_COLUMNS, node_row
from mltop.tui.render.ranks import OF_NO_JOB, RATES
from mltop.tui.report.page import Page
from mltop.tui.screens.tables import RowContext, gpu_rows, others_of, process_rows, ranks_of, unassigned_of

if TYPE_CHECKING:
    from rich.console import Console

MOST_PROBLEMS = 30
MOST_JOBS = 20
MOST_ENDS = 20
MOST_SIZES = 4  # that processes of one job claim


def print_fleet(view: FleetView, findings: Sequence[Finding], page: Page) -> None:
    """Nodes without a sample are not in the table: the page says before it who they are, and why."""
    nodes = [node for node in view.nodes if node.sample is not None]
    page.table(NODE_COLUMNS, [node_row(node, findings) for node in nodes])
    live = [node for node in nodes if node.state.state == "live"]
    _problems(fleet_problems(live, findings, view.taken_at), page)
    _jobs(nodes, page)
    _ends_of_ranks([node.sample for node in nodes if node.sample is not None], page)
    _fleet_gaps(nodes, page)
    page.lines([[], header_cells(view, [counted(len(view.nodes), "node")], page.width)])


def _problems(problems: Sequence[Problem], page: Page) -> None:
    if problems:
        page.title("findings")
    for problem in problems[:MOST_PROBLEMS]:
        first, findings = problem.first, problem.findings
        times = f" ({len(findings)} times)" if len(findings) > len(problem.nodes) else ""
        example = f" (this on {first.node})" if len({finding.message for finding in findings}) > 1 else ""
        where = Cell(f" {folded(problem.nodes)}{times}: ", "bold")
        page.sentence(severity_cell(first.severity), where, Cell((first.message or first.id) + example), indent=5)
        page.action(first.act, first.action)
    page.more(len(problems) - MOST_PROBLEMS, "findings: mltop snapshot --json has all")


def _jobs(nodes: Sequence[NodeView], page: Page) -> None:
    """A line per job: which ranks are on which nodes."""
    jobs: dict[JobKey, list[tuple[str, RankSample]]] = {}
    for node in nodes:
        for rank in node.sample.ranks if node.sample is not None else ():
            jobs.setdefault(rank.job_key, []).append((node.node, rank))
    page.lines([[], [Cell("jobs", "title") if jobs else Cell("no training ranks found", "dim")]])
    holders = [node.node for node in nodes if node.sample is not None and node.sample.unassigned]
    if holders:
        page.sentence(Cell(f"  {OF_NO_JOB} on {folded(holders)}"), indent=4)
    namesakes = Counter(job.name for job in jobs)
    for job, ranks in sorted(jobs.items(), key=lambda entry: -len(entry[1]))[:MOST_JOBS]:
        sizes = {rank.world_size for _, rank in ranks if rank.world_size}
        seen = Ranges.of(rank.rank for _, rank in ranks if rank.rank is not None)
        world = f" of world size {', '.join(map(str, sorted(sizes)[:MOST_SIZES]))}" if sizes else ""
        missing = Ranges.below(max(sizes)).without(seen) if len(sizes) == 1 else Ranges()
        whose = f" of {ranks[0][1].user}" if namesakes[job.name] > 1 else ""
        text = f"  {job.name or '(unnamed)'}{whose}: {len(ranks)} ranks{world} on {folded(node for node, _ in ranks)}"
        page.sentence(Cell(text), indent=4)
        if missing:
            page.sentence(Cell(f"    not seen: ranks {missing}", "warn"), indent=6)
    page.more(len(jobs) - MOST_JOBS, "jobs", "dim")


def _fleet_gaps(nodes: Sequence[NodeView], page: Page) -> None:
    """What could not be read, once for all nodes where it is the same."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        missed = [gap for gap in node.sample.gaps if gap.kind == "unknown"] if node.sample is not None else []
        for gap in merged_gaps(missed):
            groups.setdefault((gap.what, gap.why, gap.fix), []).append(node.node)
    if groups:
        page.title("not known")
    for (what, why, fix), names in groups.items():
        whose = "all nodes" if len(names) == len(nodes) else folded(names)
        page.sentence(Cell(f"  {whose}: {what}: "), Cell(why, "warn"), indent=4)
        page.fix(fix)


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
    of = f" of {counted(len(nodes), 'node')}" if len(nodes) > 1 else ""
    page.lines([header_cells(view, [f"mltop snapshot{of}", "mltop snapshot"], page.width)])
    page.not_well([state for state in nodes if state.state != "live"])
    if len(nodes) > FEW:
        print_fleet(view, findings, page)
        return
    if len(nodes) > 1:
        page.table(NODE_COLUMNS, [node_row(node, findings) for node in view.nodes])
    if findings:
        page.title("findings")
    for finding in findings:
        page.finding(finding)
    context = RowContext(Picture(view, tuple(findings), states=states), EarlierRanks(), lambda *_: None)
    for node in view.nodes:
        _gpus_of(node, context, page, many=len(samples) > 1)
    _processes_of(view.nodes, context, page)
    _ends_of_ranks(samples, page)
    for sample in samples:
        _gaps(f"not known on {sample.node}", sample.gaps, page)


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
            page.lines([[], [Cell("no training ranks found", "dim")]])


def _gaps(title: str, gaps: Sequence[Gap], page: Page) -> None:
    missed = [gap for gap in gaps if is_missed(gap)]
    if missed:
        page.title(title)
    for gap in merged_gaps(missed):
        page.sentence(Cell(f"  {gap.what}: "), Cell(gap.why, "warn"), indent=4)
        page.fix(gap.fix)
    absent = merged_gaps([Gap(gap.what, "") for gap in gaps if gap.kind == "unsupported"])
    for gap in absent:
        page.sentence(Cell(f"  not supported here: {gap.what}", "dim"), indent=4)
