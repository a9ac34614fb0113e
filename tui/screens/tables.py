"""GPUs and ranks as rows that are only made when they are looked at, and what they show beside their samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mltop.probes.judge.states import States, is_working
from mltop.probes.model import Gap, GpuProcess, GpuSample, JobKey, RankSample
from mltop.probes.model.incident import IDLE, STANDING_STATES, WORKS, Doing
from mltop.probes.model.sample import unplaced
from mltop.probes.model.units import bytes_text, percent
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.past.track import Track, Values
from mltop.tui.filters import Subject
from mltop.tui.filters.fields import gpu_bytes_of, gpus_of, users_of
from mltop.tui.render.cells import Cell, Column, Row, Value, aged
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.render.empty import NO_SAMPLE, ranks_unknown
from mltop.tui.render.fleet.heat import FINE, Trouble, troubles
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.lanes import activity_of, held_shares, held_spans, shares_of
from mltop.tui.render.gpus.table import GPU_COLUMNS, GpuLine, free_row, gpu_columns, gpu_row, gpu_value, mig_row
from mltop.tui.render.graph import GraphCell, Span
from mltop.tui.render.guarded import guarded
from mltop.tui.render.ranks import (
    NO_JOB,
    RANK_COLUMNS,
    RATES,
    RankLine,
    is_unassigned,
    layout_cell,
    rank_columns,
    rank_number,
    rank_row,
    short_command,
)
from mltop.tui.render.states import state_word
from mltop.tui.screens.rows import SubjectRows

Tracks = Callable[[NodeView, int], "Track | None"]


class RowContext:
    """Of one picture. ``track``: the last ten minutes of a GPU, None where nothing was kept of it."""

    def __init__(
        self,
        picture: Picture,
        earlier: EarlierRanks,
        track: Tracks,
        past: bool = False,
        settled: bool = True,
        *,
        one_look: bool = False,
    ) -> None:
        """``past``: the picture is of a moment of the past; ``settled``: nothing more comes to be known of it;
        ``one_look``: it is of one sample, and a rank whose GPU is busy may as well wait in a collective.
        """
        self._past, self._one_look = past, one_look
        self.settled = settled
        self.picture = picture
        self.earlier = earlier
        self.now = picture.view.taken_at
        self.track = track
        self._troubles: Mapping[str, Trouble] | None = None

    def moment(self, node: NodeView) -> float | None:
        """That of the past which is shown, by the node's clock; None: now is shown."""
        return node.sample.sampled_at if self._past and node.sample is not None else None

    @property
    def troubles(self) -> Mapping[str, Trouble]:
        """By node: what findings say of it and its GPUs."""
        if self._troubles is None:
            self._troubles = troubles(self.picture.findings)
        return self._troubles

    def doing_of_gpu(self, node: NodeView, gpu: GpuSample, ranks: Sequence[RankSample]) -> Doing:
        return self.picture.states.gpu(node.node, gpu, ranks, gpu.processes)

    def gpu_line(self, node: NodeView, gpu: GpuSample, graph: bool = True) -> GpuLine:
        """``graph``: with its last ten minutes."""
        ranks = users_of(node, gpu)
        doing = self.doing_of_gpu(node, gpu, ranks)
        simulated = node.sample is not None and node.sample.simulated
        line = GpuLine(gpu, ranks, simulated, doing, self.now, self.mark(node, gpu, doing))
        track = self.track(node, gpu.index) if graph else None
        return line if track is None else self._with_graphs(line, node, track)

    def mark(self, node: NodeView, gpu: GpuSample, doing: Doing) -> str:
        """The style of the gravest that is wrong with this GPU: "stands" of what holds a job up, crit, warn or ""."""
        if doing.state == "stands":
            return "stands"
        if gpu.state != "ok":
            return "crit"
        trouble = self.troubles.get(node.node, FINE)
        styles = (trouble.gpus.get(gpu.index, ""), trouble.all_gpus)
        return "crit" if "crit" in styles else "warn" if "warn" in styles else ""

    def _with_graphs(self, line: GpuLine, node: NodeView, track: Track) -> GpuLine:
        held = held_spans(track)

        def graph(spans: tuple[Span, ...], values: Callable[[], Values]) -> GraphCell:
            return GraphCell("", "", track.slot, track.step_s, spans, self.moment(node), values)

        clocks = graph(held, lambda: shares_of(track.clock_mhz, line.gpu.sm_clock_max_mhz))
        activity = graph((*held, *self.spans(line.doing, line.ranks)), lambda: activity_of(track)[1])
        return line._replace(graph=activity, clocks=clocks, shares=held_shares(track))

    def spans(self, doing: Doing, ranks: Sequence[RankSample]) -> tuple[Span, ...]:
        """When it waited, or held others up."""
        spans = [
            Span(incident.since, incident.until, "graph-waits")
            for incident in self.picture.incidents
            if incident.kind in ("hang", "crash") and incident.since is not None and incident.until is not None
            if any((rank.job, rank.uid) == (incident.job, incident.uid) for rank in ranks)
        ]
        if doing.since is not None and doing.state in STANDING_STATES | {"alone"}:
            spans.append(Span(doing.since, None, "graph-crit" if doing.state in ("stands", "alone") else "graph-waits"))
        return tuple(spans)

    def rank_line(self, node: NodeView, rank: RankSample) -> RankLine:
        """Without its rates."""
        doing = self.picture.states.rank(node.node, rank, rank.state)
        if doing.state in ("unknown", "works") and not self._one_look:
            doing = self._by_its_gpus(node, rank, doing)
        return RankLine(node.node, rank, None, doing, self.now, gpu_bytes_of(node, rank))

    def _by_its_gpus(self, node: NodeView, rank: RankSample, doing: Doing) -> Doing:
        """Of a rank that works, whether it is held down; of one of which nothing is known, whether anything runs."""
        gpus = gpus_of(node, rank)
        held = [self.doing_of_gpu(node, gpu, [rank]) for gpu in gpus]
        throttled = next((one for one in held if one.state == "throttled"), None)
        if throttled is not None:
            return throttled
        works = [is_working(gpu) for gpu in gpus]
        if doing.state != "unknown" or not works or None in works:
            return doing
        return WORKS if any(works) else IDLE


Table = tuple[Sequence[Column], Sequence[Row], str]  # columns, rows, what an empty table says ("": its own text)
RankOfNode = tuple[NodeView, RankSample]
Marked = Callable[[str], str]  # by a node's name: what is shown before it where the user marked it, else ""


def rank_rows(
    nodes: Sequence[NodeView],
    context: RowContext,
    only: tuple[JobKey, set[int] | None] | None = None,
    marked: Marked | None = None,
    *,
    others: bool = False,
    tree: bool = False,
) -> Table:
    """All ranks, ordered by job, what they do and rank, below them processes of no job; ``only`` narrows to (job,
    ranks). ``others``: also those that hold GPU memory; ``tree``: children below their parents.
    """
    shown = _ranks_in_order(nodes, context.picture.states, only)
    if only is None:
        shown += [(node, process) for node in nodes for process in others_of(node)] if others else []
        shown += [(node, process) for node in nodes for process in unassigned_of(node)]
    shown, depths = in_tree(shown) if tree else (shown, [0] * len(shown))
    return *process_rows(shown, context, depths, marked), ranks_unknown([node.sample for node in nodes])


def process_rows(
    shown: Sequence[RankOfNode], context: RowContext, depths: Sequence[int] = (), marked: Marked | None = None
) -> tuple[Sequence[Column], SubjectRows]:
    """The columns that suit these processes, and a row of each. ``depths``: of those below a parent."""
    earlier = context.earlier

    def make(index: int) -> Row:
        node, rank = shown[index]
        line = context.rank_line(node, rank)._replace(before=earlier.rank(node.node, rank.pid))
        row = rank_row(line, columns)
        row = row if is_live(node) else aged(row)
        if depths and depths[index]:
            row = _prefixed(row, f"{'  ' * (depths[index] - 1)}{GLYPHS.last_fork} ", columns, "command")
        mark = marked(node.node) if marked is not None else ""
        return _prefixed(row, mark, columns, "node", "accent") if mark else row

    def value(column: str, index: int) -> Value:
        node, rank = shown[index]
        before = earlier.rank(node.node, rank.pid) if column in RATES else None
        return by_key[column].sorts_by(context.rank_line(node, rank)._replace(before=before))

    by_key = {column.key: column for column in RANK_COLUMNS}
    columns = rank_columns([rank for _, rank in shown], len({node.node for node, _ in shown}))
    rows = SubjectRows(
        [f"{node.node}/{rank.pid}" for node, rank in shown],
        make,
        subject=lambda index: Subject(shown[index][0], rank=shown[index][1]),
        value=value,
        text=lambda index: words_of_rank(*shown[index]),
    )
    return columns, rows


def _ranks_in_order(
    nodes: Sequence[NodeView], states: States, only: tuple[JobKey, set[int] | None] | None
) -> list[RankOfNode]:
    shown = [
        (node, rank)
        for node in nodes
        for rank in ranks_of(node)
        if only is None or (rank.job_key == only[0] and (only[1] is None or rank.rank in only[1]))
    ]
    return sorted(shown, key=lambda pair: _by_job_and_rank(pair, states))


def words_of_rank(node: NodeView, rank: RankSample) -> str:
    """What words look for: what the row says, without its rates."""
    number = "-" if is_unassigned(rank) else rank_number(rank.rank)
    gpus = ",".join(map(str, rank.gpus))
    return (
        f"{number} {node.node} {gpus} {rank.pid} {state_word(rank.state)} {percent(rank.cpu_fraction)} "
        f"{bytes_text(rank.rss_bytes)} {layout_cell(rank.parallel)} {rank.job or NO_JOB} {rank.launcher} {rank.user} "
        f"{short_command(rank.command)}"
    )


def _prefixed(row: Row, start: str, columns: Sequence[Column], key: str, style: str = "") -> Row:
    cells = list(row.cells)
    at = [column.key for column in columns].index(key)
    cells[at] = Cell(start + cells[at].text, style or cells[at].style)
    return replace(row, cells=tuple(cells))


def in_tree(shown: Sequence[RankOfNode]) -> tuple[list[RankOfNode], list[int]]:
    """Each process followed by its children, and how deep each is. Of children that have no row of their own only
    the pid is known.
    """
    own = {(node.node, rank.pid): (node, rank) for node, rank in shown}
    parents = _parents(shown)
    below: dict[tuple[str, int], list[RankOfNode]] = {}
    for (name, pid), parent in parents.items():
        node, owner = own[name, parent]
        child = own.get((name, pid)) or (node, RankSample(pid, user=owner.user, job=owner.job, uid=owner.uid))
        below.setdefault((name, parent), []).append(child)
    roots = [(node, rank) for node, rank in shown if (node.node, rank.pid) not in parents]
    ordered: list[RankOfNode] = []
    depths: list[int] = []
    seen: set[tuple[str, int]] = set()
    for root in (*roots, *shown):  # those of a circle, which a node may claim, have no root
        pending = [(root, 0)]
        while pending:
            (node, rank), depth = pending.pop()
            if (node.node, rank.pid) not in seen:
                seen.add((node.node, rank.pid))
                ordered.append((node, rank))
                depths.append(depth)
                pending += [(child, depth + 1) for child in reversed(below.get((node.node, rank.pid), []))]
    return ordered, depths


def _parents(shown: Sequence[RankOfNode]) -> dict[tuple[str, int], int]:
    """Of processes (node, pid) the parent's pid, where that has a row."""
    own = {(node.node, rank.pid) for node, rank in shown}
    parents: dict[tuple[str, int], int] = {}
    for node, rank in shown:
        for child in rank.children:
            if child != rank.pid:
                parents.setdefault((node.node, child), rank.pid)
        processes = [process for gpu in sampled_gpus(node) for process in gpu.processes or ()]
        for process in (one for one in processes if one.pid == rank.pid):
            if process.ppid is not None and process.ppid != rank.pid and (node.node, process.ppid) in own:
                parents.setdefault((node.node, rank.pid), process.ppid)
    return parents


def others_of(node: NodeView | None) -> list[RankSample]:
    """What holds GPU memory and is neither a rank nor a Python process of no job: as far as NVML and /proc tell. Ranks
    that NVML names by pids of another namespace are none.
    """
    listed = {rank.pid for rank in (*ranks_of(node), *unassigned_of(node))}
    found: dict[int, RankSample] = {}
    for gpu in sampled_gpus(node):
        apart = unplaced(gpu, ranks_of(node))
        for process in gpu.processes or ():
            if process.pid in listed or (process.absent == "elsewhere" and process not in apart):
                continue
            one = found.setdefault(process.pid, _as_rank(process))
            one.gpus = [*one.gpus, gpu.index]
    return [*found.values()]


def _as_rank(process: GpuProcess) -> RankSample:
    probe = f"{process.probe} probe of mltop" if process.probe else ""
    return RankSample(
        process.pid,
        user=process.user,
        command=probe or process.name or _ABSENT.get(process.absent, ""),
        state="X" if process.is_dead else process.state,
        started_at=process.started_at,
    )


_ABSENT = {"ended": "ended", "elsewhere": "in another namespace", "hidden": "hidden from mltop"}


def _by_job_and_rank(pair: RankOfNode, states: States) -> tuple[bool, str, bool, float, str, int]:
    """Stuck jobs before others, in each the blocking ranks first."""
    node, rank = pair
    held_up_by = states.rank(node.node, rank, rank.state).state in ("stands", "alone", "ended")
    of_job = states.job(node.node, rank.job, rank.uid)
    is_stuck = of_job is not None and of_job.stands
    number = float("inf") if rank.rank is None else rank.rank
    return not is_stuck, rank.job, not held_up_by, number, node.node, rank.pid


def gpu_rows(
    node: NodeView, context: RowContext, width: int = 80, *, folded: bool = False, gravest_first: bool = False
) -> Table:
    """All GPUs; one in MIG mode is followed by its instances. ``folded``: those that nobody uses are one line;
    ``gravest_first``: those that something is wrong with, where there is not room for all.
    """
    sample = node.sample
    if sample is None:
        return GPU_COLUMNS, (), NO_SAMPLE.format("GPUs")
    free = free_gpus(node, context) if folded else []
    shown = [gpu for gpu in sample.gpus if gpu.index not in {gpu.index for gpu in free[1:]}]
    if gravest_first:
        gravity = {"stands": 0, "crit": 1, "warn": 2}
        marks = {gpu.index: context.gpu_line(node, gpu, graph=False).mark for gpu in shown}
        shown.sort(key=lambda gpu: gravity.get(marks[gpu.index], len(gravity)))
    lines = [(gpu, instance) for gpu in shown for instance in (None, *gpu.mig_instances)]

    def make(index: int) -> Row:
        gpu, instance = lines[index]
        if free and gpu is free[0]:
            row = free_row(free)
        elif instance is None:
            row = gpu_row(context.gpu_line(node, gpu))
        else:
            row = mig_row(gpu, instance)
        return row if is_live(node) else aged(row)

    def value(column: str, index: int) -> Value:
        return gpu_value(column, context.gpu_line(node, lines[index][0], graph=False))

    keys = [str(gpu.index) if instance is None else f"{gpu.index}.{instance.index}" for gpu, instance in lines]
    rows = SubjectRows(keys, make, subject=lambda index: Subject(node, lines[index][0]), value=value)
    return gpu_columns(sample.gpus, width), rows, ""


def free_gpus(node: NodeView, context: RowContext) -> list[GpuSample]:
    """Those that nobody uses and nothing is wrong with, where there are several and others are used."""
    gpus = sampled_gpus(node)
    free = [gpu for gpu in gpus if guarded("a GPU", partial(_is_free, node, gpu, context), False)]
    return free if 1 < len(free) < len(gpus) else []


def _is_free(node: NodeView, gpu: GpuSample, context: RowContext) -> bool:
    doing = context.doing_of_gpu(node, gpu, users_of(node, gpu))
    return doing.state == "no_process" and not context.mark(node, gpu, doing) and not gpu.mig_instances


def is_live(node: NodeView) -> bool:
    return node.state.state == "live"


# None where nothing is known of a node.


def sampled_gpus(node: NodeView | None) -> Sequence[GpuSample]:
    return node.sample.gpus if node is not None and node.sample is not None else ()


def gpu_of(node: NodeView | None, index: int | None) -> GpuSample | None:
    return next((gpu for gpu in sampled_gpus(node) if gpu.index == index), None)


def gaps_of(node: NodeView | None) -> Sequence[Gap]:
    return node.sample.gaps if node is not None and node.sample is not None else ()


def ranks_of(node: NodeView | None) -> Sequence[RankSample]:
    return node.sample.ranks if node is not None and node.sample is not None else ()


def unassigned_of(node: NodeView | None) -> Sequence[RankSample]:
    return node.sample.unassigned if node is not None and node.sample is not None else ()


def rank_of(node: NodeView | None, pid: int) -> RankSample | None:
    listed = next((rank for rank in (*ranks_of(node), *unassigned_of(node)) if rank.pid == pid), None)
    return listed or next((process for process in others_of(node) if process.pid == pid), None)
