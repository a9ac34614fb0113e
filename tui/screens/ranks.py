"""All training ranks, or those of one node or one class of stacks."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from mltop.probes.judge.fold import unfold
from mltop.tui.feed import Picture
from mltop.tui.render.heat import MARK
from mltop.tui.screens.node_parts import RankTable, why_no_ranks
from mltop.tui.screens.pane import Pane
from mltop.tui.widgets.line_table import LineTable


class RanksScreen(Pane):
    DEFAULT_CSS = "RanksScreen RankTable { height: 1fr; }"

    def body(self) -> Iterable[Widget]:
        yield RankTable()

    def node_at_cursor(self) -> str:
        return (self.query_one(RankTable).cursor_key or "").partition("/")[0]

    def fill(self, picture: Picture) -> None:
        here = self.mltop.trail.here
        nodes = [node for node in picture.view.nodes if here.node in ("", node.node)]
        only = (here.job, set(unfold(here.ranks))) if here.job is not None else None
        table = self.query_one(RankTable)
        self.put(table, *table.rows_of(nodes, self.mltop.trends, only, self._mark), empty_text=why_no_ranks(nodes))

    def nodes_shown(self) -> list[str]:
        """The nodes of the ranks that are shown."""
        return list(dict.fromkeys(key.partition("/")[0] for key in self.shown_keys(self.query_one(RankTable))))

    def _mark(self, node: str) -> str:
        return MARK if node in self.mltop.selection else ""

    def on_line_table_selected(self, event: LineTable.Selected) -> None:
        self.open_rank(event.key)
