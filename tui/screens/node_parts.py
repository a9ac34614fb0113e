"""The parts that the overview and the node pane share: host line, GPU table, rank table, problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mltop.probes.model import HostSample, RankSample
from mltop.probes.reach.view import NodeView
from mltop.tui.feed import Picture
from mltop.tui.render.cells import Cell, Column, LazyRows, Row
from mltop.tui.render.gpus import GPU_COLUMNS, gpu_row
from mltop.tui.render.ranks import RANK_COLUMNS, rank_row
from mltop.tui.render.trends import Trends
from mltop.tui.render.units import age, bytes_text, number, of, percent
from mltop.tui.render.wrap import flow
from mltop.tui.screens.problems import gaps_of, problem_lines
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.line_table import LineTable

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
        rows = []
        for gpu in sample.gpus:
            users = [rank for rank in sample.ranks if gpu.index in rank.gpus]
            rows.append(gpu_row(gpu, users, trends.busy(node.node, gpu.index), sample.simulated))
        return GPU_COLUMNS, rows

    def full_height(self, node: NodeView) -> int:
        """Lines of the whole table, none when there are no GPUs: the problems say why then."""
        return 1 + len(node.sample.gpus) if node.sample is not None and node.sample.gpus else 0

    def limit_height(self, node: NodeView, room: int) -> int:
        """As high as needed, at most ``room`` lines; returns the height."""
        height = min(self.full_height(node), max(2, room))
        self.display = height > 0
        self.styles.height = height
        return height


class RankTable(LineTable):
    """The ranks of some nodes, ordered by job and rank; ``only`` narrows to (job, rank) pairs."""

    def __init__(self, **options: str) -> None:
        super().__init__(empty_text="no training ranks seen (processes with RANK, SLURM_PROCID, …)", **options)

    def rows_of(self, nodes: Iterable[NodeView], trends: Trends, only: tuple[str, set[int]] | None = None) -> Table:
        found = [
            (node.node, rank)
            for node in nodes
            if node.sample is not None
            for rank in node.sample.ranks
            if only is None or (rank.job == only[0] and rank.rank in only[1])
        ]
        found.sort(key=lambda pair: _rank_order(*pair))

        def make(index: int) -> Row:
            node, rank = found[index]
            return rank_row(node, rank, trends.previous_rank(node, rank.pid))

        return RANK_COLUMNS, LazyRows([f"{node}/{rank.pid}" for node, rank in found], make)


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
    """E.g. ``node01 live 0.4s  cpu 31% of 192  load 64.2  memory 848G/2.0T  shm 64G/1.0T``."""
    if node.sample is None:
        reason = f": {node.state.reason}" if node.state.reason else ""
        return [Cell(f"{node.node} {node.state.state}{reason}", "" if node.state.state == "connecting" else "crit")]
    host = node.sample.host
    parts = [
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


def _rank_order(node: str, rank: RankSample) -> tuple[str, float, str, int]:
    return rank.job, float("inf") if rank.rank is None else rank.rank, node, rank.pid
