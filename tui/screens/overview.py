"""The first pane. One node: its GPUs, its ranks and what is wrong. Several: the fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from mltop.tui.feed import Picture
from mltop.tui.mishaps import spared
from mltop.tui.place import Place
from mltop.tui.screens.fleet import FLEET_BINDINGS, FleetPart
from mltop.tui.screens.node_parts import GpuTable, HostLine, ProblemLines, RankTable, why_no_ranks
from mltop.tui.screens.pane import Pane
from mltop.tui.widgets.line_table import LineTable

MIN_RANK_LINES = 4


class OverviewScreen(Pane):
    """Which of the two layouts is used follows the number of nodes asked for, which does not change."""

    AUTO_FOCUS = "Heatmap, LineTable"
    BINDINGS: ClassVar[list[BindingType]] = [*FLEET_BINDINGS]
    DEFAULT_CSS = """
    OverviewScreen RankTable { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._fleet: FleetPart | None = None

    def body(self) -> Iterable[Widget]:
        if len(self.mltop.session.view().nodes) > 1:
            self._fleet = FleetPart()
            yield self._fleet
            return
        yield HostLine()
        yield GpuTable(classes="gap-above")
        yield ProblemLines(classes="gap-above")
        yield RankTable(classes="gap-above")

    def fill(self, picture: Picture) -> None:
        if self._fleet is not None:
            self._fleet.show(picture)
        elif picture.view.nodes:
            self._fill_node(picture)

    def node_at_cursor(self) -> str:
        if self._fleet is not None:
            return self._fleet.node_at_cursor()
        nodes = self.mltop.session.view().nodes
        return nodes[0].node if nodes else ""

    def on_line_table_selected(self, event: LineTable.Selected) -> None:
        if isinstance(event.table, RankTable):
            self.open_rank(event.key)
        else:
            node = self.node_at_cursor() if isinstance(event.table, GpuTable) else event.key.partition("/")[0]
            self.mltop.drill(Place("node", node))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self._fleet is None and action in {binding.action for binding in FLEET_BINDINGS}:
            return False
        return super().check_action(action, parameters)

    def action_metric(self) -> None:
        if self._fleet is not None:
            self._fleet.next_metric()

    def action_order(self) -> None:
        if self._fleet is not None:
            self._fleet.switch_order()

    def action_sort(self) -> None:
        """On the map, the order of the nodes."""
        if self._fleet is not None and self.focused is self._fleet.main and not isinstance(self.focused, LineTable):
            self._fleet.switch_order()
        else:
            super().action_sort()

    def action_view(self) -> None:
        if self._fleet is not None:
            self._fleet.switch_view()

    def _close_filter(self) -> None:
        super()._close_filter()
        if self._fleet is not None:
            self._fleet.main.focus()

    def _fill_node(self, picture: Picture) -> None:
        node = picture.view.nodes[0]
        host, gpus, ranks = self.query_one(HostLine), self.query_one(GpuTable), self.query_one(RankTable)
        self.part("the host line", lambda: host.show(node, self.size.width))
        self.part("the GPUs", lambda: self.put(gpus, *gpus.rows_of(node, self.mltop.trends)))
        self.part(
            "the ranks",
            lambda: self.put(ranks, *ranks.rows_of([node], self.mltop.trends), why_no_ranks([node])),
        )
        room = self.size.height - self.chrome_height() - host.display
        rank_lines = 1 + max(1, ranks.row_count)
        free = room - rank_lines - gpus.full_height(node)
        lines = self.query_one(ProblemLines)
        problems = spared("the problems", lambda: lines.show(picture, self.size.width, max(room // 7, free)), 0)
        height = gpus.wanted_height(node, room - problems - min(rank_lines, MIN_RANK_LINES))
        ranks.display = room - problems - height > 1
        self.limit_height(gpus, height if ranks.display else gpus.wanted_height(node, room - problems))
