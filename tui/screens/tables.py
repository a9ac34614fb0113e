"""The ranks of some nodes as rows that are only made when they are looked at: 4,096 of them cost little.

The parts that the overview and the node pane share: host line, GPU table, rank table, problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.model import HostSample, JobKey, RankSample, Sample
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.filters import Subject
from mltop.tui.render.cells import Cell, Column, Row, aged, flow
from mltop.tui.render.fleet.nodes import state_sentence
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.table import GPU_COLUMNS, gpu_columns, gpu_row, gpu_value, mig_row
from mltop.tui.render.ranks import rank_columns, rank_row, short_command
from mltop.tui.render.states import state_word
from mltop.tui.render.trends import EarlierRank, Trends
from mltop.tui.render.units import age, bytes_text, number, of, percent
from mltop.tui.screens.problems import gaps_of, problem_lines
from mltop.tui.screens.rows import SortValue, SubjectRows
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.line_table import LineTable

if TYPE_CHECKING:
    pass

Found = tuple[NodeView, RankSample]
Marked = Callable[[str], str]  # of a node's name: what stands before it when the user marked it, else ""


def rank_rows(
    nodes: Iterable[NodeView], trends: Trends, only: tuple[JobKey, set[int]] | None, marked: Marked | None = None
) -> tuple[Sequence[Column], SubjectRows]:
    """Columns and rows, ordered by job and rank; ``only`` narrows to (job, ranks)."""
    found: list[Found] = [
        (node, rank)
        for node in nodes
        if node.sample is not None
        for rank in node.sample.ranks
        if only is None or (rank.job_key == only[0] and rank.rank in only[1])
    ]
    found.sort(key=_place)

    def make(index: int) -> Row:
        node, rank = found[index]
        row = rank_row(node.node, rank, trends.previous_rank(node.node, rank.pid))
        row = row if node.state.state == "live" else aged(row)
        mark = marked(node.node) if marked is not None else ""
        return _with_mark(row, mark, columns) if mark else row

    columns = rank_columns(len({rank.job_key for _, rank in found}), len({node.node for node, _ in found}))
    keys = [f"{node.node}/{rank.pid}" for node, rank in found]
    rows = SubjectRows(
        keys,
        make,
        subject=lambda index: Subject(found[index][0], rank=found[index][1]),
        value=lambda column, index: sort_value(column, *found[index], trends),
        text=lambda index: words_of_rank(*found[index]),
    )
    return columns, rows


def sort_value(column: str, node: NodeView, rank: RankSample, trends: Trends) -> SortValue:
    """What a rank is sorted by; None: unknown. Rates are those that its row shows."""
    if column in ("switches", "syscalls"):
        return _rate(column, rank, trends.previous_rank(node.node, rank.pid))
    value = _SORT_VALUES[column](node, rank)
    return value.casefold() or None if isinstance(value, str) else value


_SORT_VALUES: dict[str, Callable[[NodeView, RankSample], SortValue]] = {
    "rank": lambda _, rank: rank.rank,
    "node": lambda node, _: node.node,
    "gpus": lambda _, rank: min(rank.gpus, default=None),
    "pid": lambda _, rank: rank.pid,
    "state": lambda _, rank: rank.state,
    "cpu": lambda _, rank: rank.cpu_fraction,
    "rss": lambda _, rank: rank.rss_bytes,
    "job": lambda _, rank: rank.job,
    "launcher": lambda _, rank: rank.launcher,
    "user": lambda _, rank: rank.user,
    "command": lambda _, rank: short_command(rank.command),
}


def words_of_rank(node: NodeView, rank: RankSample) -> str:
    """What words look for: what the row says, without its rates."""
    number = "?" if rank.rank is None else rank.rank
    gpus = ",".join(map(str, rank.gpus))
    return (
        f"{number} {node.node} {gpus} {rank.pid} {state_word(rank.state)} {percent(rank.cpu_fraction)} "
        f"{bytes_text(rank.rss_bytes)} {rank.job} {rank.launcher} {rank.user} {short_command(rank.command)}"
    )


def _rate(column: str, rank: RankSample, before: EarlierRank | None) -> float | None:
    if before is None or before.elapsed_s <= 0:
        return None
    names = ("voluntary_switches",) if column == "switches" else ("read_syscalls", "write_syscalls")
    differences = []
    for name in names:
        earlier, now = getattr(before, name), getattr(rank, name)
        if earlier is None or now is None:
            return None
        differences.append(now - earlier)
    return None if sum(differences) < 0 else sum(differences) / before.elapsed_s


def _with_mark(row: Row, mark: str, columns: Sequence[Column]) -> Row:
    cells = list(row.cells)
    at = [column.key for column in columns].index("node")
    cells[at] = Cell(mark + cells[at].text, "accent")
    return replace(row, cells=tuple(cells))


def _place(pair: Found) -> tuple[str, float, str, int]:
    node, rank = pair
    return rank.job, float("inf") if rank.rank is None else rank.rank, node.node, rank.pid


NO_SAMPLE = "{} unknown: no sample"

Table = tuple[Sequence[Column], Sequence[Row]]


class HostLine(CellLines, can_focus=False):
    """One line about the machine, or why there is no sample."""

    DEFAULT_CSS = "HostLine { height: 1; }"

    def show(self, node: NodeView, width: int) -> None:
        self.set_lines([host_cells(node, width)])


class GpuTable(LineTable):
    """All GPUs of one node, as high as they need or as there is room for."""

    def rows_of(self, node: NodeView, trends: Trends) -> Table:
        sample = node.sample
        if sample is None:
            return GPU_COLUMNS, ()
        users = users_of_gpus(sample)
        # A GPU in MIG mode is followed by its instances.
        lines = [(gpu, one) for gpu in sample.gpus for one in (None, *gpu.mig_instances)]

        def make(index: int) -> Row:
            gpu, instance = lines[index]
            if instance is None:
                busy = trends.busy(node.node, gpu.index)
                row = gpu_row(gpu, users.get(gpu.index, ()), busy, sample.simulated)
            else:
                row = mig_row(gpu, instance)
            return row if is_live(node) else aged(row)

        keys = [str(gpu.index) if one is None else f"{gpu.index}.{one.index}" for gpu, one in lines]
        rows = SubjectRows(
            keys,
            make,
            subject=lambda index: Subject(node, lines[index][0]),
            value=lambda column, index: gpu_value(column, lines[index][0], users.get(lines[index][0].index, ())),
        )
        return gpu_columns(sample.gpus), rows

    def full_height(self, node: NodeView) -> int:
        """Lines of the whole table, none when there are no GPUs: the problems say why then."""
        gpus = node.sample.gpus if node.sample is not None else ()
        return 1 + sum(1 + len(gpu.mig_instances) for gpu in gpus) if gpus else 0

    def wanted_height(self, node: NodeView, room: int) -> int:
        """As high as needed, at most ``room`` lines; 0: nothing to show."""
        return min(self.full_height(node), max(2, room))


class RankTable(LineTable):
    """The ranks of some nodes, ordered by job and rank; ``only`` narrows to (job, rank) pairs."""

    def __init__(self, **options: str) -> None:
        seen_by = f"(processes with RANK, SLURM_PROCID, {GLYPHS.ellipsis})"
        super().__init__(empty_text=f"no training ranks seen {seen_by}", **options)

    def rows_of(
        self,
        nodes: Iterable[NodeView],
        trends: Trends,
        only: tuple[JobKey, set[int]] | None = None,
        marked: Marked | None = None,
    ) -> Table:
        return rank_rows(nodes, trends, only, marked)


def why_no_ranks(nodes: Sequence[NodeView]) -> str:
    """What an empty rank table says where nothing is known of some nodes; "" where all is: the table's own text."""
    waiting = sum(node.sample is None for node in nodes)
    if not waiting:
        return ""
    if waiting == len(nodes):
        return NO_SAMPLE.format("ranks")
    return f"no training ranks seen; of {waiting} of {len(nodes)} nodes nothing is known"


class ProblemLines(CellLines, can_focus=False):
    """The worst findings and gaps, a line each; no height when all is well."""

    def show(self, picture: Picture, width: int, room: int) -> int:
        """How many lines they take, at most ``room``."""
        lines = problem_lines(picture.findings, gaps_of(picture.view), width, room)
        self.display = bool(lines)
        self.styles.height = len(lines)
        self.set_lines(lines)
        return len(lines)


def host_cells(node: NodeView, width: int) -> list[Cell]:
    """E.g. ``cpu 31% of 192  memory 848G/2.0T  load 64 60 58``; first of all why what follows is not of now."""
    state = [] if node.state.state == "live" else [state_sentence(node)]
    if node.sample is None:
        return [Cell(f"{node.node} ", "bold"), *state]
    host = node.sample.host
    parts = [
        (0, state),
        (0, _labelled("cpu", f"{percent(host.cpu_fraction)} of {number(host.cpu_count)}")),
        (1, _labelled("memory", of(bytes_text(_used_memory(host)), bytes_text(host.memory_total_bytes)))),
        (2, _labelled("load", " ".join(map(_load, _known_loads(host))))),
        (3, _labelled("shm", of(bytes_text(host.shm_used_bytes), bytes_text(host.shm_total_bytes)))),
        (4, _labelled("in", _per_s(host.network_rx_bytes_per_s))),
        (4, _labelled("out", _per_s(host.network_tx_bytes_per_s))),
        (5, _labelled("up", age(host.uptime_s))),
        (6, _labelled("kernel", host.kernel)),
    ]
    return flow(parts, width)


def is_live(node: NodeView) -> bool:
    return node.state.state == "live"


def users_of_gpus(sample: Sample) -> dict[int, list[RankSample]]:
    """By GPU index, the ranks that use it."""
    users: dict[int, list[RankSample]] = {}
    for rank in sample.ranks:
        for index in rank.gpus:
            users.setdefault(index, []).append(rank)
    return users


def _labelled(label: str, value: str) -> list[Cell]:
    return [Cell(f"{label} ", "dim"), Cell(value)]


def _used_memory(host: HostSample) -> int | None:
    if host.memory_total_bytes is None or host.memory_available_bytes is None:
        return None
    return host.memory_total_bytes - host.memory_available_bytes


def _known_loads(host: HostSample) -> list[float | None]:
    """Over 1, 5 and 15 minutes, as far as they are known; one unknown when none is."""
    loads = [load for load in (host.load_1m, host.load_5m, host.load_15m) if load is not None]
    return [*loads] or [None]


def _load(value: float | None) -> str:
    return number(value) if value is None or value >= 10 else f"{value:.1f}"


def _per_s(value: float | None) -> str:
    return f"{bytes_text(value)}/s"
