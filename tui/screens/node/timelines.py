"""The last ten minutes of a node's GPUs, a line or two for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltop.probes.reach.view import NodeView
from mltop.tui.app.past.track import ShownHistory, Track
from mltop.tui.render.cells import Cell
from mltop.tui.render.gpus.timelines import compact_axis, compact_lines, compact_title
from mltop.tui.widgets.cell_lines import CellLines

if TYPE_CHECKING:
    from mltop.tui.app.app import MltopApp

REDRAWN_S = 2.0  # 600 values of 8 GPUs take some 10 ms to draw, and a column stands for several seconds


class GpuTimelines(CellLines):
    """A line of clocks per GPU, coloured by what holds them down; where there is room, one of its activity too."""

    about = "gpu"

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self._history = ShownHistory()
        self._drawn: tuple[object, ...] = ()
        self._height = 0

    def show(self, app: MltopApp, node: NodeView, width: int, room: int) -> int:
        """Returns how many lines it takes, at most ``room``; none when nothing has been kept of this node."""
        sample = node.sample
        if sample is None or not sample.gpus:
            return 0
        age_s = None if node.state.state == "live" else node.state.age_s
        now = (node.node, sample.sampled_at // REDRAWN_S, age_s, app.shown, width, room)
        if now == self._drawn:
            return self._height
        tracks = [(gpu, self._history.track(app.history, app.paused, node, gpu.index)) for gpu in sample.gpus]
        newest: Track | None = next((track for _, track in tracks if track is not None), None)
        if newest is None:
            return 0
        rows = 2 if 2 * len(tracks) + 2 <= room else 1
        lines: list[list[Cell]] = []
        keys: list[str | None] = []
        for gpu, track in tracks:
            drawn = compact_lines(track, gpu, width, rows)
            lines += drawn
            keys += [str(gpu.index), *[None] * (len(drawn) - 1)]
        if len(lines) + 2 <= room:  # what scrolls has neither
            lines = [compact_title(newest, width), *lines, compact_axis(newest, width)]
            keys = [None, *keys, None]
        self.set_lines(lines, keys)
        self._drawn, self._height = now, min(len(lines), max(2, room))
        return self._height
