"""One GPU: what is wrong with it, its last ten minutes, and everything that is known of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import GpuSample, Sample
from mltop.probes.reach.view import NodeView
from mltop.tui.feed import Picture
from mltop.tui.filters.subject import of_gpu, users_of
from mltop.tui.mishaps import spared
from mltop.tui.render.cells import Cell, plain
from mltop.tui.render.timelines import timeline_lines
from mltop.tui.screens.gpu_history import ShownHistory
from mltop.tui.screens.gpu_lines import details
from mltop.tui.screens.gpu_place import GpuPlace, gpu_place
from mltop.tui.screens.gpu_watched import WatchedGpus
from mltop.tui.screens.node_parts import NO_SAMPLE, GpuTable
from mltop.tui.screens.node_state import state_lines
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.screens.problems import all_problem_lines
from mltop.tui.widgets.cell_lines import CellLines

LEAST_DETAILS = 5  # lines
MOST_TIMELINE = 28  # lines


class Details(CellLines):
    """Enter opens the rank that uses this GPU; left and right, which have nothing to scroll, go to the next GPU."""

    BINDINGS: list[BindingType] = [  # type: ignore[misc]  # noqa: RUF012
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
        self._watched = WatchedGpus()
        self._drawn: tuple[object, ...] = ()
        self._timeline: list[list[Cell]] = []

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="state")
        yield GpuTable(id="gpu-row")
        yield TextLines(id="problems")
        yield TextLines(id="timeline", classes="gap-above")
        yield Details(id="details", classes="gap-above", empty_text="no line matches")

    def node_at_cursor(self) -> str:
        return self.mltop.trail.here.node

    def fill(self, picture: Picture) -> None:
        node, gpu = self._node(), self._gpu()
        room = self.size.height - self.chrome_height()
        lines = (
            state_lines(node, picture.view.taken_at, self.mltop.since.of(node.node), self.size.width) if node else []
        )
        room -= self._set("#state", lines[: room // 3])
        table = self.query_one(GpuTable)
        table.display = gpu is not None
        if node is None or node.sample is None or gpu is None:
            self._set("#problems", [])
            self._set("#timeline", [])
            self.query_one(Details).set_lines([[Cell(self._why_nothing(node), "dim")]])
            return
        sample = node.sample
        room -= spared("the GPU's row", lambda: self._fill_row(table, node, gpu), 0)
        room -= spared("the GPU's problems", lambda: self._fill_problems(picture, node, gpu, room), 0)
        height = min(room - LEAST_DETAILS, room * 3 // 5)
        spared("the GPU's timeline", lambda: self._fill_timeline(node, gpu, height), 0)
        self.part("the GPU's details", lambda: self._fill_details(sample, gpu))

    def _fill_row(self, table: GpuTable, node: NodeView, gpu: GpuSample) -> int:
        columns, rows = table.rows_of(node, self.mltop.trends)
        own = [row for row in rows if row.key.partition(".")[0] == str(gpu.index)]
        table.set_table(columns, own)
        table.styles.height = 1 + len(own)
        return 1 + len(own)

    def _fill_problems(self, picture: Picture, node: NodeView, gpu: GpuSample, room: int) -> int:
        findings = of_gpu(gpu, [one for one in picture.findings if one.node == node.node])
        problems = all_problem_lines(findings, [], self.size.width)
        return self._set("#problems", problems[: max(1, room // 4)])

    def action_neighbour(self, step: int) -> None:
        """From the last GPU of the node on to the first."""
        node, gpu = self._node(), self._gpu()
        if node is None or node.sample is None or not node.sample.gpus:
            return
        indexes = [one.index for one in node.sample.gpus]
        at = indexes.index(gpu.index) if gpu is not None else -step
        self.mltop.trail.replace(gpu_place(node.node, indexes[(at + step) % len(indexes)]))
        self.draw()

    def on_cell_lines_selected(self) -> None:
        node, gpu = self._node(), self._gpu()
        users = users_of(node, gpu) if node is not None and gpu is not None else []
        if node is not None and users:
            self.open_rank(f"{node.node}/{users[0].pid}")

    def _fill_timeline(self, node: NodeView, gpu: GpuSample, room: int) -> int:
        """Made anew only when time went on: a key need not wait for it."""
        width, room = self.size.width, min(room, MOST_TIMELINE)
        sampled_at = node.sample.sampled_at if node.sample is not None else 0.0
        age_s = None if node.state.state == "live" else node.state.age_s
        now = (node.node, gpu.index, sampled_at, age_s, self.mltop.paused, width, room)
        if now != self._drawn:
            self._drawn = now
            track = self._history.track(self.mltop, node, gpu.index)
            self._timeline = timeline_lines(track, gpu, width, room) if track is not None else []
        return self._set("#timeline", self._timeline)

    def _fill_details(self, sample: Sample, gpu: GpuSample) -> None:
        first = self._watched.first(sample.node, gpu, sample.sampled_at)
        lines = details(sample, gpu, first, self.size.width - 1)
        if not self.filter.empty:
            lines = [line for line in lines if line and self.keeps(plain(line))]
        self.query_one(Details).set_lines(lines)

    def _set(self, selector: str, lines: list[list[Cell]]) -> int:
        """Lines into a part that is as high as they are; how many."""
        part = self.query_one(selector, CellLines)
        part.display = bool(lines)
        part.styles.height = len(lines)
        part.set_lines(lines)
        return len(lines)

    def _node(self) -> NodeView | None:
        picture, name = self.mltop.picture, self.mltop.trail.here.node
        views = picture.view.nodes if picture is not None else ()
        return next((view for view in views if view.node == name), None)

    def _gpu(self) -> GpuSample | None:
        here, node = self.mltop.trail.here, self._node()
        if node is None or node.sample is None or not isinstance(here, GpuPlace):
            return None
        return next((gpu for gpu in node.sample.gpus if gpu.index == here.gpu), None)

    def _why_nothing(self, node: NodeView | None) -> str:
        if node is None or node.sample is None:
            return NO_SAMPLE.format("GPUs")
        return f"{self.mltop.trail.here.title} is not in the newest sample"
