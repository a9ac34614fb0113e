"""One GPU: what is wrong with it, its last ten minutes, and everything that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import GpuGaps, GpuProcess, GpuSample, KernelEvent, RankSample, Sample
from mltop.probes.model.ranks import Ranges, ranks_text
from mltop.probes.model.units import UNKNOWN, bytes_text, clock_time, number, seconds
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import gpu_location
from mltop.tui.app.past.track import DRAWN_S, Track
from mltop.tui.filters.fields import users_of
from mltop.tui.render.cells import Cell, Column, plain, row_of, table_lines, wrap
from mltop.tui.render.empty import NO_SAMPLE
from mltop.tui.render.gpus.details import FIRST_COLUMN, FIRST_LABEL, NO_SHARES, block_lines, blocks_of, side_by_side
from mltop.tui.render.gpus.lanes import held_shares, lane_lines
from mltop.tui.render.gpus.table import LINK_COLUMNS, link_row
from mltop.tui.render.guarded import guarded
from mltop.tui.render.ranks import short_command
from mltop.tui.render.states import STATE_STYLE, state_word
from mltop.tui.render.story import Story
from mltop.tui.screens.bars import Notice
from mltop.tui.screens.lines import gap_cells, state_lines
from mltop.tui.screens.pane import DIAGNOSE, Memo, Pane, TextLines
from mltop.tui.screens.problems import Problems
from mltop.tui.screens.tabled import Lines
from mltop.tui.screens.tables import RowContext, gpu_of, is_live, sampled_gpus
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

LINK_PANEL = 60  # cells: wider screens show links in several panels
MOST_EVENTS = 8


@dataclass(frozen=True)
class Baseline:
    """A GPU as it was when it was first looked at (``at``: unix s): counters are worth what they grew by since."""

    at: float
    gpu: GpuSample


class Baselines:
    """The GPUs that were looked at. Another board in the place, or a time that goes back (a replay), starts anew."""

    def __init__(self) -> None:
        self._baselines: dict[tuple[str, int], Baseline] = {}

    def of(self, node: str, gpu: GpuSample, at: float) -> Baseline:
        baseline = self._baselines.get((node, gpu.index))
        if baseline is None or baseline.gpu.uuid != gpu.uuid or at < baseline.at:
            baseline = self._baselines[node, gpu.index] = Baseline(at, gpu)
        return baseline


def details(
    sample: Sample, gpu: GpuSample, baseline: Baseline, width: int, shares: Mapping[str, float] = NO_SHARES
) -> list[list[Cell]]:
    """All lines below the timeline. ``shares``: of the timeline's time in which each reason held the clock down."""
    gaps = GpuGaps(sample.gaps, gpu.index)
    blocks = blocks_of(gpu, gaps, baseline.gpu, shares)
    lines = block_lines([block for block in blocks if block.title.isupper()], width, FIRST_COLUMN, FIRST_LABEL)
    lines += [[], *process_lines(gpu, sample.ranks, gaps, width, sample.sampled_at)]
    lines += [[], *block_lines([block for block in blocks if not block.title.isupper()], width)]
    watched_s = sample.sampled_at - baseline.at
    since = f" (+: errors in the {seconds(watched_s)} that they are watched)" if watched_s > 0 else ""
    lines += _section(link_lines(gpu, baseline.gpu, width), f"NVLinks{since}")
    lines += _section(event_lines(sample.kernel_events, gpu, width), "kernel log")
    why = [line for gap in gaps.distinct() for line in wrap(gap_cells(gap), width, 5)]
    return lines + _section(why, "not known of this GPU")


def process_lines(
    gpu: GpuSample, ranks: Sequence[RankSample], gaps: GpuGaps, width: int, now: float | None = None
) -> list[list[Cell]]:
    """Who holds this GPU, a line each; ranks that NVML does not list are there too. ``now``: unix s."""
    if gpu.processes is None and not ranks:
        return [[Cell("processes ", "title"), Cell(f"{UNKNOWN} {gaps.why('processes')}", "dim")]]
    by_pid = {rank.pid: rank for rank in ranks if gpu.index in rank.gpus}
    listed = {process.pid: process for process in gpu.processes or ()}
    pids = dict.fromkeys([*by_pid, *listed])
    if not pids:
        return [[Cell("no process holds this GPU", "dim")]]
    holders = [Holder(pid, by_pid.get(pid), listed.get(pid), now) for pid in pids]
    rows = [row_of(PROCESS_COLUMNS, holder, str(holder.pid)) for holder in holders]
    return table_lines(PROCESS_COLUMNS, rows, width)


class Holder(NamedTuple):
    """Who holds a GPU: a rank, or what NVML lists, or both. ``now``: unix s."""

    pid: int
    rank: RankSample | None
    process: GpuProcess | None
    now: float | None


# Why a process cannot be seen, beside its pid.
_ABSENT = {
    "ended": Cell("ended", "crit"),
    "elsewhere": Cell("not here", "warn"),
    "hidden": Cell("hidden", "warn"),
}


def _state_cell(holder: Holder) -> Cell:
    rank, process = holder.rank, holder.process
    if rank is None and process is not None and process.absent in _ABSENT:
        return _ABSENT[process.absent]
    state = rank.state if rank is not None else process.state if process is not None else ""
    return Cell(state_word(state) if rank is not None or state else "", STATE_STYLE.get(state[:1], ""))


def _age(holder: Holder) -> str:
    who = holder.rank or holder.process
    began = who.started_at if who is not None else None
    return seconds(max(0.0, holder.now - began)) if holder.now is not None and began is not None else ""


def _command_cell(holder: Holder) -> Cell:
    """Of what is no rank only the kernel's name is known."""
    process = holder.process
    if holder.rank is not None:
        return Cell(short_command(holder.rank.command))
    probe = f"{process.probe} probe of mltop" if process is not None and process.probe else ""
    return Cell(probe or (process.name if process is not None else ""), "dim")


def _of_process(name: str, show: Callable[[Any], str], unlisted: str = "") -> Callable[[Holder], str]:
    """A field of what NVML lists; ``unlisted``: where it does not list the rank."""
    return lambda holder: unlisted if holder.process is None else show(getattr(holder.process, name))


def _known(value: int | None) -> str:
    return "" if value is None else str(value)


PROCESS_COLUMNS = (
    Column("pid", "PID", 8, right=True, cell=lambda holder: str(holder.pid)),
    Column("rank", "RANK", 5, right=True, cell=lambda holder: number(holder.rank.rank) if holder.rank else ""),
    Column("memory", "MEMORY", 6, right=True, cell=_of_process("memory_bytes", bytes_text, UNKNOWN)),
    Column("kind", "KIND", 8, cell=_of_process("kind", str, UNKNOWN)),
    Column("instance", "GI", 3, right=True, optional=True, cell=_of_process("gpu_instance", _known)),
    Column("state", "STATE", 12, priority=1, cell=_state_cell),
    Column("user", "USER", 8, priority=2, cell=lambda holder: (holder.rank or holder.process).user),
    Column("age", "AGE", 5, right=True, priority=4, cell=_age),
    Column("parent", "PARENT", 7, right=True, priority=5, cell=_of_process("ppid", _known)),
    Column("command", "COMMAND", 16, priority=3, stretch=True, cell=_command_cell),
)


def link_lines(gpu: GpuSample, earlier: GpuSample, width: int) -> list[list[Cell]]:
    """A line per NVLink, in as many panels as fit beside each other."""
    links = gpu.nvlink.links
    if not links:
        return []
    before = {link.index: link.errors for link in earlier.nvlink.links}
    panels = max(1, min(3, width // LINK_PANEL))
    each = width // panels
    rows = []
    for link in links:
        old = before.get(link.index, {})
        grown = {name: value - old[name] for name, value in link.errors.items() if name in old and value > old[name]}
        rows.append(link_row(link, grown))
    header, *drawn = table_lines(LINK_COLUMNS, rows, each - 2)
    high = -(-len(drawn) // panels)
    return side_by_side([[header, *drawn[start : start + high]] for start in range(0, len(drawn), high)], each)


def event_lines(events: Sequence[KernelEvent], gpu: GpuSample, width: int) -> list[list[Cell]]:
    """What the kernel log said of this GPU, the newest first."""
    own = _device(gpu.pci_bus_id or "")
    of_gpu = [event for event in events if own is not None and _device(event.subject) == own]
    lines = []
    for event in reversed(of_gpu[-MOST_EVENTS:]):
        what = event.kind if event.code is None else f"{event.kind.capitalize()} {event.code}"
        cells = [Cell(f"{clock_time(event.at)}  ", "dim"), Cell(f"{what}  ", "bold"), Cell(event.text)]
        lines += wrap(cells, width, 10)
    return lines


def _device(bus_id: str) -> tuple[int, str, str] | None:
    """Of a PCI bus id: "0000:1b:00" in the log is "00000000:1B:00.0" in NVML."""
    parts = bus_id.lower().split(".")[0].split(":")
    try:
        return (int(parts[0], 16), parts[1], parts[2]) if len(parts) == 3 else None
    except ValueError:
        return None


def _section(lines: list[list[Cell]], title: str) -> list[list[Cell]]:
    return [[], [Cell(title, "title")], *lines] if lines else []


LEAST_DETAILS = 8  # lines
LEAST_OF_GPU = 4  # lines of the timeline and the details
MOST_TIMELINE = 22  # lines


class Details(CellLines):
    """Enter opens the rank that uses this GPU; left and right, which have nothing to scroll, go to the next GPU."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "screen.neighbour(-1)", "GPU before", show=False),
        Binding("right", "screen.neighbour(1)", "next GPU", show=False),
    ]

    def action_select(self) -> None:
        self.select("")


class GpuScreen(Pane):
    AUTO_FOCUS = "#details"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,right", "neighbour(1)", "next GPU", tooltip="to the next GPU of this node"),
        Binding("N,left", "neighbour(-1)", "GPU before", show=False, tooltip="to the GPU before"),
        DIAGNOSE,
    ]
    DEFAULT_CSS = "GpuScreen #details { height: 1fr; }"
    lines_are = "lines of the GPU's details"
    focus_follows = False

    def __init__(self) -> None:
        super().__init__()
        self._baselines = Baselines()
        self._timeline = Memo[Lines]()

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="state")
        yield Problems(first=False, id="problems", classes="gap-above")
        yield TextLines(id="timeline", classes="gap-above")
        yield Details(id="details", classes="gap-above", empty_text="no line matches")

    def node_at_cursor(self) -> str:
        return self.mltop.trail.here.node

    def titles(self, picture: Picture) -> list[str]:
        """Which GPU, and which ranks and job use it."""
        node, gpu = self._node(), self._gpu()
        if node is None or gpu is None:
            return super().titles(picture)
        name = f"{node.node} GPU {gpu.index}"
        users = users_of(node, gpu)
        ranks = ranks_text(Ranges.of(rank.rank for rank in users if rank.rank is not None))
        job = next((rank.job for rank in users if rank.job), "")
        used_by = "  ".join(filter(None, (ranks if users else "", f"job {job}" if job else "")))
        model = gpu.name or ""
        return [
            f"{name}  {used_by}  {model}  serial {gpu.serial}" if gpu.serial else f"{name}  {used_by}  {model}",
            name,
        ]

    def fill(self, picture: Picture) -> None:
        node, gpu = self._node(), self._gpu()
        room, now, width = self.size.height - self.chrome_height(), picture.view.taken_at, self.size.width
        since = self.mltop.history.state_since(node.node, now) if node else None
        state = state_lines(node, now, since, width) if node else []
        if gpu is not None and gpu.state != "ok":
            seen = f" since {clock_time(gpu.last_seen_at)}" if gpu.last_seen_at is not None else ""
            state.append([Cell(f"{gpu.state.upper()}{seen}", "crit"), Cell(f"  {gpu.error or ''}")])
        room -= self.set_part("#state", state[: room // 3])
        if node is None or node.sample is None or gpu is None:
            self.query_one(Problems).show((), now, width, 0)
            self.set_part("#timeline", [])
            unknown = node is None or node.sample is None
            why = NO_SAMPLE.format("GPUs") if unknown else f"{self.mltop.trail.here.title} is not in the newest sample"
            self.query_one(Details).set_lines([[Cell(why, "dim")]])
            return
        sample, context = node.sample, self.context(picture)
        room -= guarded("the GPU's problems", lambda: self._show_problems(picture, node, gpu, room), 0)
        height = min(room - LEAST_DETAILS, room * 3 // 5)
        self.part("the GPU's timeline", lambda: self._fill_timeline(node, gpu, context, height))
        self.part("the GPU's details", lambda: self._fill_details(sample, gpu, context.track(node, gpu.index)))

    def _show_problems(self, picture: Picture, node: NodeView, gpu: GpuSample, room: int) -> int:
        """What is wrong with this GPU, or with who uses it; returns how many lines that takes."""
        stories = self.stories(picture, (node.node,), one=True)
        own = [one for one in stories if _is_about(one, gpu, node.node)]
        return self.query_one(Problems).fit(own, picture.view.taken_at, self.size.width, room, LEAST_OF_GPU)

    def action_neighbour(self, step: int) -> None:
        """Go to the next GPU, from the last one of the node to the first."""
        node, gpu = self._node(), self._gpu()
        indexes = [other.index for other in sampled_gpus(node)]
        if node is not None and len(indexes) > 1:
            at = indexes.index(gpu.index) if gpu is not None else -step
            self.mltop.beside(gpu_location(node.node, indexes[(at + step) % len(indexes)]))
        else:
            self.mltop.tell(Notice("this node has no other GPU", "warn"))

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        """From the details to the rank that uses this GPU."""
        if not isinstance(event.view, Details):
            return
        node, gpu = self._node(), self._gpu()
        users = users_of(node, gpu) if node is not None and gpu is not None else []
        if node is not None and users:
            self.open_rank(f"{node.node}/{users[0].pid}")

    def _fill_timeline(self, node: NodeView, gpu: GpuSample, context: RowContext, room: int) -> int:
        """The timeline is made anew only when time went on: a key need not wait for it."""
        width, room, moment = self.size.width, min(room, MOST_TIMELINE), self.mltop.moment
        users = users_of(node, gpu)
        waits = context.spans(context.doing_of_gpu(node, gpu, users), users)

        def make() -> Lines:
            track = context.track(node, gpu.index)
            if track is None:
                return []
            newest = self._newest_track(node, gpu) if moment is not None and not self.mltop.ahead_s else None
            return lane_lines(track, gpu, width, room, waits=waits, moment=moment, newest=newest)

        sampled_at = node.sample.sampled_at if node.sample is not None else 0.0
        age_s = None if is_live(node) else node.state.age_s
        source = (
            node.node,
            gpu.index,
            sampled_at,
            age_s,
            moment,
            self.mltop.shown,
            waits,
            width,
            room,
            context.settled,
        )
        return self.set_part("#timeline", self._timeline.get(source, make))

    def _newest_track(self, node: NodeView, gpu: GpuSample) -> Track | None:
        """What graphs of a moment that is long past do not reach: now."""
        newest = self.mltop.newest
        view = next((one for one in newest.view.nodes if one.node == node.node), None) if newest is not None else None
        if view is None or view.sample is None or self.mltop.player is not None:
            return None
        return self.mltop.history.track(node.node, gpu.index, view.sample.sampled_at, DRAWN_S)

    def _fill_details(self, sample: Sample, gpu: GpuSample, track: Track | None) -> None:
        baseline = self._baselines.of(sample.node, gpu, sample.sampled_at)
        lines = details(sample, gpu, baseline, self.size.width - 1, held_shares(track))
        if not self.filter.empty:
            lines = [line for line in lines if line and self.keeps(plain(line))]
        self.query_one(Details).set_lines(lines)

    def _node(self) -> NodeView | None:
        return self.node_view(self.mltop.trail.here.node)

    def _gpu(self) -> GpuSample | None:
        return gpu_of(self._node(), self.mltop.trail.here.gpu)


def _is_about(story: Story, gpu: GpuSample, node: str) -> bool:
    incident = story.incident
    if incident is None:
        return False
    causes = [cause for cause in incident.causes if cause.node == node]
    if any(gpu.index in cause.gpus or cause.is_of_all_gpus for cause in causes):
        return True
    return any((one.node, one.gpu) == (node, gpu.index) for one in incident.culprits)
