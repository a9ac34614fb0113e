"""A snapshot of many nodes: one line each, then what is wrong, the jobs, what is not known, and the totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mltop.probes.investigate.folding import folded
from mltop.probes.judge.fold import Ranges
from mltop.probes.model import Finding, JobKey, RankSample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import merged_gaps, severity_cell
from mltop.tui.render.fleet_problems import Problem, fleet_problems
from mltop.tui.render.header import header_cells
from mltop.tui.render.nodes import NODE_COLUMNS, node_row
from mltop.tui.report.page import print_action, print_fix, print_lines, print_sentence, print_table, print_title

if TYPE_CHECKING:
    from rich.console import Console

MOST_PROBLEMS = 30
MOST_JOBS = 20
MOST_SIZES = 4  # that processes of one job claim


def print_fleet(view: FleetView, findings: Sequence[Finding], console: Console) -> None:
    """Nodes without a sample are not in the table: the page says before it who they are, and why."""
    nodes = [node for node in view.nodes if node.sample is not None]
    print_table("", NODE_COLUMNS, [node_row(node, findings) for node in nodes], console)
    live = [node for node in nodes if node.state.state == "live"]
    _problems(fleet_problems(live, findings, view.taken_at), console)
    _jobs(nodes, console)
    _gaps(nodes, console)
    print_lines([[], *header_cells(view, "all nodes", width=console.width)], console)


def _problems(problems: Sequence[Problem], console: Console) -> None:
    if problems:
        print_title("findings", console)
    for problem in problems[:MOST_PROBLEMS]:
        first = problem.findings[0]
        subjects = {finding.subject for finding in problem.findings}
        subject = first.subject if len(subjects) == 1 else f"{len(problem.findings)} times"
        text = first.message or first.id
        text += f" (this on {first.node})" if len({finding.message for finding in problem.findings}) > 1 else ""
        where = Cell(f" {folded(problem.nodes)} {subject}: ", "bold")
        print_sentence([severity_cell(first.severity), where, Cell(text)], console, indent=5)
        print_action(first.action, console)
    if len(problems) > MOST_PROBLEMS:
        rest = f"and {len(problems) - MOST_PROBLEMS} more findings: mltop snapshot --json has all"
        print_lines([[Cell(rest, "warn")]], console)


def _jobs(nodes: Sequence[NodeView], console: Console) -> None:
    """A line per job: which ranks are on which nodes."""
    jobs: dict[JobKey, list[tuple[str, RankSample]]] = {}
    for node in nodes:
        for rank in node.sample.ranks if node.sample is not None else ():
            jobs.setdefault(rank.job_key, []).append((node.node, rank))
    print_lines([[], [Cell("jobs", "title") if jobs else Cell("no training ranks found", "dim")]], console)
    namesakes = Counter(job.name for job in jobs)
    for job, ranks in sorted(jobs.items(), key=lambda entry: -len(entry[1]))[:MOST_JOBS]:
        sizes = {rank.world_size for _, rank in ranks if rank.world_size}
        seen = Ranges.of(rank.rank for _, rank in ranks if rank.rank is not None)
        world = f" of world size {', '.join(map(str, sorted(sizes)[:MOST_SIZES]))}" if sizes else ""
        missing = Ranges.below(max(sizes)).without(seen) if len(sizes) == 1 else Ranges()
        whose = f" of {ranks[0][1].user}" if namesakes[job.name] > 1 else ""
        text = f"  {job.name or '(unnamed)'}{whose}: {len(ranks)} ranks{world} on {folded(node for node, _ in ranks)}"
        print_sentence([Cell(text)], console, indent=4)
        if missing:
            print_sentence([Cell(f"    not seen: ranks {missing}", "warn")], console, indent=6)
    if len(jobs) > MOST_JOBS:
        print_lines([[Cell(f"and {len(jobs) - MOST_JOBS} more jobs", "dim")]], console)


def _gaps(nodes: Sequence[NodeView], console: Console) -> None:
    """What could not be read, once for all nodes where it is the same."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        missed = [gap for gap in node.sample.gaps if gap.kind == "unknown"] if node.sample is not None else []
        for gap in merged_gaps(missed):
            groups.setdefault((gap.what, gap.why, gap.fix), []).append(node.node)
    if groups:
        print_title("not known", console)
    for (what, why, fix), names in groups.items():
        whose = "all nodes" if len(names) == len(nodes) else folded(names)
        print_sentence([Cell(f"  {whose}: {what}: "), Cell(why, "warn")], console, indent=4)
        print_fix(fix, console)
