"""One node in detail: every GPU (now, or its last ten minutes), the machine, and what is wrong or not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import NodeState
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import gpu_location, gpu_of_row
from mltop.tui.render.cells import Cell
from mltop.tui.render.guarded import guarded
from mltop.tui.screens.lines import all_problem_lines, connection_cells, host_cells, state_lines
from mltop.tui.screens.node.timelines import GpuTimelines
from mltop.tui.screens.pane import OneNodePane, TextLines
from mltop.tui.screens.tables import GpuTable, RankTable, gaps_of, gpu_rows, gpu_table_height, is_live, rank_rows
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

MIN_PROBLEM_LINES = 4


class NodeScreen(OneNodePane):
    BINDINGS: ClassVar[list[BindingType]] = [
        *OneNodePane.BINDINGS,
        Binding("T", "timelines", "timelines", tooltip="GPUs as a table, or their last ten minutes"),
    ]
    DEFAULT_CSS = "NodeScreen #problems { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._as_timelines = False

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="state")
        yield TextLines(id="host")
        yield GpuTable(classes="gap-above")
        yield GpuTimelines(classes="gap-above")
        yield RankTable(classes="gap-above")
        yield CellLines(id="problems", classes="gap-above")

    def fill(self, picture: Picture) -> None:
        node = self.node_here()
        if node is None:
            return
        host, gpus, ranks = self.query_one("#host", TextLines), self.query_one(GpuTable), self.query_one(RankTable)
        top = guarded("the node's state", lambda: self._show_state(node, picture.view.taken_at), 0)
        host.display = node.sample is not None and not self.has_class("-low")
        live = replace(node, state=NodeState(node.node, "live"))  # its state stands above
        self.part("the host line", lambda: host.set_lines([host_cells(live, self.size.width)]))
        self.part("the GPUs", lambda: self.put(gpus, *gpu_rows(node, self.mltop.trends)))
        self.part("the ranks", lambda: self.put(ranks, *rank_rows([node], self.mltop.trends)))
        room = self.size.height - self.chrome_height() - host.display - top
        problems: list[list[Cell]] = guarded("the problems", lambda: self._problems(picture, node), [])
        gpu_room = room - min(len(problems), MIN_PROBLEM_LINES) - 2
        unknown = 2 if node.sample is None and gpu_room > 2 else 0  # lines: that they are
        table_height = unknown or min(gpu_table_height(node), max(2, gpu_room))
        gpu_height = self._show_gpus(node, table_height, gpu_room)
        ranks.styles.height = max(2, min(1 + max(1, ranks.row_count), room - gpu_height - len(problems)))
        self.query_one("#problems", CellLines).set_lines(problems)

    def _show_gpus(self, node: NodeView, table_height: int, room: int) -> int:
        """Show the GPUs as a table or as timelines; returns how many lines that takes."""
        gpus, timelines = self.query_one(GpuTable), self.query_one(GpuTimelines)
        show = partial(timelines.show, self.mltop, node, self.size.width, room)
        height = guarded("the timelines", show, 0) if self._as_timelines else 0
        timelines.display = height > 0
        timelines.styles.height = height
        if not height:
            return self.limit_height(gpus, table_height)
        gpus.display = False
        return height

    def _show_state(self, node: NodeView, taken_at: float) -> int:
        """Show what is wrong with the node itself and how it was reached; returns how many lines that takes."""
        lines = state_lines(node, taken_at, self.mltop.since.of(node.node), self.size.width)
        reached = [] if self.has_class("-low") else connection_cells(node.connection, self.size.width)
        lines += [reached] if reached else []
        return self.set_part("#state", lines[: max(1, self.size.height // 3)])

    def action_timelines(self) -> None:
        """Change between table and timelines; the cursor stays on its GPU."""
        table, timelines = self.query_one(GpuTable), self.query_one(GpuTimelines)
        had_focus = self.focused in (None, table, timelines)
        at = (timelines if self._as_timelines else table).cursor_key
        self._as_timelines = not self._as_timelines
        self.draw()
        now = timelines if timelines.display else table
        if at is not None:
            now.move_cursor(str(gpu_of_row(at)))
        if had_focus and now.display:
            now.focus()

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if isinstance(event.view, RankTable):
            self.open_rank(event.key)
        else:
            self.mltop.drill(gpu_location(self.node_at_cursor(), gpu_of_row(event.key)))

    def _problems(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        own = (finding for finding in picture.findings if finding.node == node.node)
        findings = [finding for finding in own if not finding.id.startswith("node.")]  # its state stands above already
        lines = all_problem_lines(findings, gaps_of(node), self.size.width)
        return lines or [[Cell(_without_problems(node), "dim")]]


def _without_problems(node: NodeView) -> str:
    """That nothing bad is known means little for a node that does not answer."""
    if node.sample is None:
        return f"nothing is known of it: {node.state.state}"
    return "no problems found, everything could be read" if is_live(node) else "no problems when last heard of"
