"""One node in detail: every GPU, the machine, and everything that is wrong or not known there."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from mltop.probes.reach.view import NodeView
from mltop.tui.feed import Picture
from mltop.tui.place import Place
from mltop.tui.render.cells import Cell
from mltop.tui.screens.node_parts import GpuTable, HostLine, RankTable
from mltop.tui.screens.pane import Pane
from mltop.tui.screens.problems import all_problem_lines
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.line_table import LineTable

MIN_PROBLEM_LINES = 4


class NodeScreen(Pane):
    DEFAULT_CSS = "NodeScreen #problems { height: 1fr; }"

    def body(self) -> Iterable[Widget]:
        yield HostLine()
        yield GpuTable(classes="gap-above")
        yield RankTable(classes="gap-above")
        yield CellLines(id="problems", classes="gap-above")

    def node_at_cursor(self) -> str:
        node = self._node()
        return node.node if node is not None else ""

    def fill(self, picture: Picture) -> None:
        node = self._node()
        if node is None:
            return
        host, gpus, ranks = self.query_one(HostLine), self.query_one(GpuTable), self.query_one(RankTable)
        host.show(node, self.size.width)
        self.put(gpus, *gpus.rows_of(node, self.mltop.trends))
        self.put(ranks, *ranks.rows_of([node], self.mltop.trends))
        room = self.size.height - self.chrome_height() - host.display
        problems = self._problems(picture, node)
        gpu_height = self.limit_height(gpus, gpus.wanted_height(node, room - min(len(problems), MIN_PROBLEM_LINES) - 2))
        ranks.styles.height = max(2, min(1 + max(1, ranks.row_count), room - gpu_height - len(problems)))
        self.query_one("#problems", CellLines).set_lines(problems)

    def on_line_table_selected(self, event: LineTable.Selected) -> None:
        if isinstance(event.table, RankTable):
            self.open_rank(event.key)
            return
        self.mltop.drill(Place("ranks", self.node_at_cursor()))

    def _node(self) -> NodeView | None:
        """The node that was asked for, or the first one."""
        picture = self.mltop.picture
        if picture is None or not picture.view.nodes:
            return None
        named = (node for node in picture.view.nodes if node.node == self.mltop.trail.here.node)
        return next(named, picture.view.nodes[0])

    def _problems(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        findings = [finding for finding in picture.findings if finding.node == node.node]
        gaps = [(node.node, gap) for gap in node.sample.gaps] if node.sample is not None else []
        lines = all_problem_lines(findings, gaps, self.size.width)
        return lines or [[Cell("no problems found, everything could be read", "dim")]]
