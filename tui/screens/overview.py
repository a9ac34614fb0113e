"""The first pane. One node: its GPUs, its ranks and what is wrong. Several: one line per node, problems below."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from mltop.probes.model import Finding
from mltop.probes.reach.view import FleetView
from mltop.tui.feed import Picture
from mltop.tui.place import Place
from mltop.tui.render.cells import LazyRows, Row
from mltop.tui.render.findings import FINDING_COLUMNS, finding_row
from mltop.tui.render.nodes import NODE_COLUMNS, node_row
from mltop.tui.screens.node_parts import GpuTable, HostLine, ProblemLines, RankTable
from mltop.tui.screens.pane import Pane
from mltop.tui.screens.problems import by_severity
from mltop.tui.widgets.line_table import LineTable

PROBLEMS = "problems"
MIN_RANK_LINES = 4
MIN_FLEET_LINES = 6


class OverviewScreen(Pane):
    """Which of the two layouts is used follows the number of nodes asked for, which does not change."""

    DEFAULT_CSS = """
    OverviewScreen #nodes { height: 1fr; }
    OverviewScreen RankTable { height: 1fr; }
    """

    def body(self) -> Iterable[Widget]:
        if self._is_fleet(self.mltop.session.view()):
            yield LineTable(id="nodes", empty_text="no nodes")
            yield LineTable(id=PROBLEMS, empty_text="no problems", classes="gap-above")
            return
        yield HostLine()
        yield GpuTable(classes="gap-above")
        yield ProblemLines(classes="gap-above")
        yield RankTable(classes="gap-above")

    def fill(self, picture: Picture) -> None:
        if self._is_fleet(picture.view):
            self._fill_fleet(picture)
        elif picture.view.nodes:
            self._fill_node(picture)

    def node_at_cursor(self) -> str:
        nodes = self.mltop.session.view().nodes
        if not self._is_fleet(self.mltop.session.view()):
            return nodes[0].node if nodes else ""
        return self.query_one("#nodes", LineTable).cursor_key or ""

    def on_line_table_selected(self, event: LineTable.Selected) -> None:
        if isinstance(event.table, RankTable):
            self.open_rank(event.key)
        else:
            node = self.node_at_cursor() if isinstance(event.table, GpuTable) else event.key.partition("/")[0]
            self.mltop.drill(Place("node", node))

    @staticmethod
    def _is_fleet(view: FleetView) -> bool:
        return len(view.nodes) > 1

    def _fill_node(self, picture: Picture) -> None:
        node = picture.view.nodes[0]
        host, gpus, ranks = self.query_one(HostLine), self.query_one(GpuTable), self.query_one(RankTable)
        host.show(node, self.size.width)
        self.put(gpus, *gpus.rows_of(node, self.mltop.trends))
        self.put(ranks, *ranks.rows_of([node], self.mltop.trends))
        room = self.size.height - self.chrome_height() - host.display
        rank_lines = 1 + max(1, ranks.row_count)
        free = room - rank_lines - gpus.full_height(node)
        problems = self.query_one(ProblemLines).show(picture, self.size.width, max(room // 7, free))
        height = gpus.wanted_height(node, room - problems - min(rank_lines, MIN_RANK_LINES))
        ranks.display = room - problems - height > 1
        self.limit_height(gpus, height if ranks.display else gpus.wanted_height(node, room - problems))

    def _fill_fleet(self, picture: Picture) -> None:
        view, findings = picture.view, by_severity(picture.findings)
        findings_of: dict[str, list[Finding]] = {}
        for finding in findings:
            findings_of.setdefault(finding.node, []).append(finding)

        def make(index: int) -> Row:
            node = view.nodes[index]
            return node_row(node, self.mltop.trends, findings_of.get(node.node, ()))

        nodes = self.query_one("#nodes", LineTable)
        self.put(nodes, NODE_COLUMNS, LazyRows([node.node for node in view.nodes], make))
        problems = self.query_one(f"#{PROBLEMS}", LineTable)
        found = [finding_row(finding) for finding in findings]
        self.put(problems, FINDING_COLUMNS, found)
        room = self.size.height - self.chrome_height()
        problems.styles.height = min(1 + max(1, len(found)), max(2, room // 3))
        problems.display = room >= MIN_FLEET_LINES
        gaps = sum(len(node.sample.gaps) for node in view.nodes if node.sample) if not found else 0
        problems.empty_text = f"no problems found; {gaps} gaps: 2 shows those of a node" if gaps else "no problems"
