"""GPUs and ranks as rows that are only made when they are looked at: 4,096 of them cost little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mltop.probes.model import Gap, GpuSample, JobKey, RankSample
from mltop.probes.model.units import bytes_text, percent
from mltop.probes.reach.view import NodeView
from mltop.tui.filters import Subject
from mltop.tui.filters.fields import users_of
from mltop.tui.render.cells import Cell, Column, Row, Value, aged
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.table import GPU_COLUMNS, gpu_columns, gpu_row, gpu_value, mig_row
from mltop.tui.render.ranks import RANK_COLUMNS, RATES, RankLine, rank_columns, rank_row, short_command
from mltop.tui.render.states import state_word
from mltop.tui.render.trends import Trends
from mltop.tui.screens.rows import SubjectRows
from mltop.tui.widgets.line_table import LineTable

NO_SAMPLE = "{} unknown: no sample"

Table = tuple[Sequence[Column], Sequence[Row], str]  # columns, rows, what an empty table says ("": its own text)
RankOfNode = tuple[NodeView, RankSample]
Marked = Callable[[str], str]  # of a node's name: what stands before it when the user marked it, else ""


class RankTable(LineTable):
    """The ranks of some nodes: ``rank_rows``."""

    def __init__(self, **options: Any) -> None:
        seen_by = f"(processes with RANK, SLURM_PROCID, {GLYPHS.ellipsis})"
        super().__init__(empty_text=f"no training ranks seen {seen_by}", **options)


def rank_rows(
    nodes: Sequence[NodeView], trends: Trends, only: tuple[JobKey, set[int]] | None = None, marked: Marked | None = None
) -> Table:
    """All ranks, ordered by job and rank; ``only`` narrows to (job, ranks)."""
    shown: list[RankOfNode] = [
        (node, rank)
        for node in nodes
        for rank in ranks_of(node)
        if only is None or (rank.job_key == only[0] and rank.rank in only[1])
    ]
    shown.sort(key=_by_job_and_rank)

    def make(index: int) -> Row:
        node, rank = shown[index]
        row = rank_row(node.node, rank, trends.previous_rank(node.node, rank.pid))
        row = row if is_live(node) else aged(row)
        mark = marked(node.node) if marked is not None else ""
        return _with_mark(row, mark, columns) if mark else row

    def value(column: str, index: int) -> Value:
        node, rank = shown[index]
        before = trends.previous_rank(node.node, rank.pid) if column in RATES else None
        return by_key[column].sorts_by(RankLine(node.node, rank, before))

    by_key = {column.key: column for column in RANK_COLUMNS}
    columns = rank_columns(len({rank.job_key for _, rank in shown}), len({node.node for node, _ in shown}))
    rows = SubjectRows(
        [f"{node.node}/{rank.pid}" for node, rank in shown],
        make,
        subject=lambda index: Subject(shown[index][0], rank=shown[index][1]),
        value=value,
        text=lambda index: words_of_rank(*shown[index]),
    )
    return columns, rows, _why_no_ranks(nodes)


def words_of_rank(node: NodeView, rank: RankSample) -> str:
    """What words look for: what the row says, without its rates."""
    number = "?" if rank.rank is None else rank.rank
    gpus = ",".join(map(str, rank.gpus))
    return (
        f"{number} {node.node} {gpus} {rank.pid} {state_word(rank.state)} {percent(rank.cpu_fraction)} "
        f"{bytes_text(rank.rss_bytes)} {rank.job} {rank.launcher} {rank.user} {short_command(rank.command)}"
    )


def _with_mark(row: Row, mark: str, columns: Sequence[Column]) -> Row:
    cells = list(row.cells)
    at = [column.key for column in columns].index("node")
    cells[at] = Cell(mark + cells[at].text, "accent")
    return replace(row, cells=tuple(cells))


def _by_job_and_rank(pair: RankOfNode) -> tuple[str, float, str, int]:
    node, rank = pair
    return rank.job, float("inf") if rank.rank is None else rank.rank, node.node, rank.pid


def _why_no_ranks(nodes: Sequence[NodeView]) -> str:
    """Where nothing is known of some nodes, that there are no ranks means little; "" where all is known."""
    waiting = sum(node.sample is None for node in nodes)
    if not waiting:
        return ""
    if waiting == len(nodes):
        return NO_SAMPLE.format("ranks")
    return f"no training ranks seen; of {waiting} of {len(nodes)} nodes nothing is known"


class GpuTable(LineTable):
    """All GPUs of one node: ``gpu_rows``."""


def gpu_rows(node: NodeView, trends: Trends) -> Table:
    """All GPUs; one in MIG mode is followed by its instances."""
    sample = node.sample
    if sample is None:
        return GPU_COLUMNS, (), NO_SAMPLE.format("GPUs")
    lines = [(gpu, instance) for gpu in sample.gpus for instance in (None, *gpu.mig_instances)]

    def make(index: int) -> Row:
        gpu, instance = lines[index]
        if instance is None:
            row = gpu_row(gpu, users_of(node, gpu), trends.busy(node.node, gpu.index), simulated=sample.simulated)
        else:
            row = mig_row(gpu, instance)
        return row if is_live(node) else aged(row)

    def value(column: str, index: int) -> Value:
        gpu, _ = lines[index]
        return gpu_value(column, gpu, users_of(node, gpu))

    keys = [str(gpu.index) if instance is None else f"{gpu.index}.{instance.index}" for gpu, instance in lines]
    rows = SubjectRows(keys, make, subject=lambda index: Subject(node, lines[index][0]), value=value)
    return gpu_columns(sample.gpus), rows, ""


def gpu_table_height(node: NodeView) -> int:
    """The lines of the whole table, none when there are no GPUs: the problems say why then."""
    gpus = gpus_of(node)
    return 1 + sum(1 + len(gpu.mig_instances) for gpu in gpus) if gpus else 0


def is_live(node: NodeView) -> bool:
    return node.state.state == "live"


# None where nothing is known of a node.


def gpus_of(node: NodeView | None) -> Sequence[GpuSample]:
    return node.sample.gpus if node is not None and node.sample is not None else ()


def gpu_of(node: NodeView | None, index: int | None) -> GpuSample | None:
    return next((gpu for gpu in gpus_of(node) if gpu.index == index), None)


def gaps_of(node: NodeView | None) -> Sequence[Gap]:
    return node.sample.gaps if node is not None and node.sample is not None else ()


def ranks_of(node: NodeView | None) -> Sequence[RankSample]:
    return node.sample.ranks if node is not None and node.sample is not None else ()


def rank_of(node: NodeView | None, pid: int) -> RankSample | None:
    return next((rank for rank in ranks_of(node) if rank.pid == pid), None)
