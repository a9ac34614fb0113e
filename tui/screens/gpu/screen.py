"""One GPU: what is wrong with it, its last ten minutes, and its details."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import GpuSample, Sample
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.history import ShownHistory
from mltop.tui.app.navigation import gpu_location, gpu_of_row
from mltop.tui.filters.fields import of_gpu, users_of
from mltop.tui.render.cells import Cell, plain
from mltop.tui.render.gpus.timelines import timeline_lines
from mltop.tui.render.guarded import guarded
from mltop.tui.screens.gpu.details import Baselines, details
from mltop.tui.screens.lines import all_problem_lines, state_lines
from mltop.tui.screens.pane import Lines, Memo, Pane, TextLines
from mltop.tui.screens.tables import NO_SAMPLE, GpuTable, gpu_of, gpu_rows, gpus_of, is_live
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

LEAST_DETAILS = 5  # lines
MOST_TIMELINE = 28  # lines


class Details(CellLines):
    """Enter opens the rank that uses this GPU; left and right, which have nothing to scroll, go to the next GPU."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "screen.neighbour(-1)", "GPU before", show=False),
        Binding("right", "screen.neighbour(1)", "next GPU", show=False),
    ]

    def action_select(self) -> None:
        self.post_message(self.Selected(self, ""))


class GpuScreen(Pane):
    AUTO_FOCUS = "#details"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,right", "neighbour(1)", "next GPU", tooltip="to the next GPU of this node"),
        Binding("N,left", "neighbour(-1)", "GPU before", show=False, tooltip="to the GPU before"),
    ]
    DEFAULT_CSS = "GpuScreen #details { height: 1fr; }"
    lines_are = "lines of the GPU's details"

    def __init__(self) -> None:
        super().__init__()
        self._history = ShownHistory()
        self._baselines = Baselines()
        self._timeline = Memo[Lines]()

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="state")
        yield GpuTable(id="gpu-row", sortable=False)
        yield TextLines(id="problems")
        yield TextLines(id="timeline", classes="gap-above")
        yield Details(id="details", classes="gap-above", empty_text="no line matches")

    def node_at_cursor(self) -> str:
        return self.mltop.trail.here.node

    def fill(self, picture: Picture) -> None:
        node, gpu = self._node(), self._gpu()
        room, since = self.size.height - self.chrome_height(), self.mltop.since
        state = state_lines(node, picture.view.taken_at, since.of(node.node), self.size.width) if node else []
        room -= self.set_part("#state", state[: room // 3])
        table = self.query_one(GpuTable)
        table.display = gpu is not None
        if node is None or node.sample is None or gpu is None:
            self.set_part("#problems", [])
            self.set_part("#timeline", [])
            unknown = node is None or node.sample is None
            why = NO_SAMPLE.format("GPUs") if unknown else f"{self.mltop.trail.here.title} is not in the newest sample"
            self.query_one(Details).set_lines([[Cell(why, "dim")]])
            return
        sample = node.sample
        room -= guarded("the GPU's row", lambda: self._fill_row(table, node, gpu), 0)
        room -= guarded("the GPU's problems", lambda: self._fill_problems(picture, node, gpu, room), 0)
        height = min(room - LEAST_DETAILS, room * 3 // 5)
        guarded("the GPU's timeline", lambda: self._fill_timeline(node, gpu, height), 0)
        self.part("the GPU's details", lambda: self._fill_details(sample, gpu))

    def _fill_row(self, table: GpuTable, node: NodeView, gpu: GpuSample) -> int:
        columns, rows, _ = gpu_rows(node, self.mltop.trends)
        own = [row for row in rows if gpu_of_row(row.key) == gpu.index]
        table.set_table(columns, own)
        table.styles.height = 1 + len(own)
        return 1 + len(own)

    def _fill_problems(self, picture: Picture, node: NodeView, gpu: GpuSample, room: int) -> int:
        findings = of_gpu(gpu, [finding for finding in picture.findings if finding.node == node.node])
        problems = all_problem_lines(findings, [], self.size.width)
        return self.set_part("#problems", problems[: max(1, room // 4)])

    def action_neighbour(self, step: int) -> None:
        """Go to the next GPU, from the last one of the node to the first."""
        node, gpu = self._node(), self._gpu()
        indexes = [other.index for other in gpus_of(node)]
        if node is not None and indexes:
            at = indexes.index(gpu.index) if gpu is not None else -step
            self.mltop.trail.replace(gpu_location(node.node, indexes[(at + step) % len(indexes)]))
            self.draw()

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if not isinstance(event.view, Details):
            return
        node, gpu = self._node(), self._gpu()
        users = users_of(node, gpu) if node is not None and gpu is not None else []
        if node is not None and users:
            self.open_rank(f"{node.node}/{users[0].pid}")

    def _fill_timeline(self, node: NodeView, gpu: GpuSample, room: int) -> int:
        """The timeline is made anew only when time went on: a key need not wait for it."""
        width, room, paused = self.size.width, min(room, MOST_TIMELINE), self.mltop.paused

        def make() -> Lines:
            track = self._history.track(self.mltop.history, paused, node, gpu.index)
            return timeline_lines(track, gpu, width, room) if track is not None else []

        sampled_at = node.sample.sampled_at if node.sample is not None else 0.0
        age_s = None if is_live(node) else node.state.age_s
        source = (node.node, gpu.index, sampled_at, age_s, paused, width, room)
        return self.set_part("#timeline", self._timeline.get(source, make))

    def _fill_details(self, sample: Sample, gpu: GpuSample) -> None:
        baseline = self._baselines.of(sample.node, gpu, sample.sampled_at)
        lines = details(sample, gpu, baseline, self.size.width - 1)
        if not self.filter.empty:
            lines = [line for line in lines if line and self.keeps(plain(line))]
        self.query_one(Details).set_lines(lines)

    def _node(self) -> NodeView | None:
        return self.node_view(self.mltop.trail.here.node)

    def _gpu(self) -> GpuSample | None:
        return gpu_of(self._node(), self.mltop.trail.here.gpu)
