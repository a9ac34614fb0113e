"""One GPU: what is wrong with it, its last ten minutes, and its details."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import GpuSample, Sample
from mltop.probes.model.ranks import Ranges, ranks_text
from mltop.probes.model.units import clock_time
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import gpu_location
from mltop.tui.app.past.track import DRAWN_S, Track
from mltop.tui.filters.fields import users_of
from mltop.tui.render.cells import Cell, plain
from mltop.tui.render.gpus.lanes import held_shares, lane_lines
from mltop.tui.render.guarded import guarded
from mltop.tui.render.story import Story
from mltop.tui.screens.bars import Notice
from mltop.tui.screens.gpu.details import Baselines, details
from mltop.tui.screens.lines import state_lines
from mltop.tui.screens.pane import Memo, Pane, TextLines
from mltop.tui.screens.problems import Problems
from mltop.tui.screens.row_context import RowContext
from mltop.tui.screens.subjects import DIAGNOSE
from mltop.tui.screens.tabled import Lines
from mltop.tui.screens.tables import NO_SAMPLE, gpu_of, gpus_of, is_live
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

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
        """Which GPU, and whose it is."""
        node, gpu = self._node(), self._gpu()
        if node is None or gpu is None:
            return super().titles(picture)
        name = f"{node.node} GPU {gpu.index}"
        users = users_of(node, gpu)
        ranks = ranks_text(Ranges.of(rank.rank for rank in users if rank.rank is not None))
        job = next((rank.job for rank in users if rank.job), "")
        whose = "  ".join(filter(None, (ranks if users else "", f"job {job}" if job else "")))
        model = gpu.name or ""
        return [f"{name}  {whose}  {model}  serial {gpu.serial}" if gpu.serial else f"{name}  {whose}  {model}", name]

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
        indexes = [other.index for other in gpus_of(node)]
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
