"""The first pane where one node is watched: its GPUs, its ranks and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.render.guarded import guarded
from mltop.tui.screens.lines import host_cells, problem_lines
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.screens.tables import GpuTable, RankTable, gaps_of, gpu_rows, gpu_table_height, rank_rows
from mltop.tui.widgets.cell_view import CursorView

MIN_RANK_LINES = 4


class OverviewScreen(Pane):
    """The overview of one node."""

    DEFAULT_CSS = "OverviewScreen RankTable { height: 1fr; }"

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="host")
        yield GpuTable(classes="gap-above")
        yield TextLines(id="problems", classes="gap-above")
        yield RankTable(classes="gap-above")

    def node_at_cursor(self) -> str:
        nodes = self.mltop.session.view().nodes
        return nodes[0].node if nodes else ""

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if isinstance(event.view, RankTable):
            self.open_rank(event.key)
        else:
            self.mltop.drill(Location("node", self.node_at_cursor()))

    def fill(self, picture: Picture) -> None:
        if not picture.view.nodes:
            return
        node = picture.view.nodes[0]
        host, gpus, ranks = self.query_one("#host", TextLines), self.query_one(GpuTable), self.query_one(RankTable)
        self.part("the host line", lambda: host.set_lines([host_cells(node, self.size.width)]))
        self.part("the GPUs", lambda: self.put(gpus, *gpu_rows(node, self.mltop.trends)))
        self.part("the ranks", lambda: self.put(ranks, *rank_rows([node], self.mltop.trends)))
        room = self.size.height - self.chrome_height() - host.display
        rank_lines, gpu_lines = 1 + max(1, ranks.row_count), gpu_table_height(node)
        problems = guarded("the problems", lambda: self._show_problems(picture, room, room - rank_lines - gpu_lines), 0)
        height = min(gpu_lines, max(2, room - problems - min(rank_lines, MIN_RANK_LINES)))
        ranks.display = room - problems - height > 1
        self.limit_height(gpus, height if ranks.display else min(gpu_lines, max(2, room - problems)))

    def _show_problems(self, picture: Picture, room: int, free: int) -> int:
        """Show the worst, in what is ``free`` or a small part of the ``room``; returns how many lines they take."""
        most = max(room // 7, free)
        lines = problem_lines(picture.findings, gaps_of(picture.view.nodes[0]), self.size.width, most)
        return self.set_part("#problems", lines)
