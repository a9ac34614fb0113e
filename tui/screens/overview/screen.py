"""The first pane where one node is watched: what is wrong, its GPUs, its ranks, and how it was going."""

from __future__ import annotations

from mltop.probes.investigate.acting import RankProcess
from mltop.tui.app.feed import Picture
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.answer import no_gpus
from mltop.tui.render.story import story_of_gap
from mltop.tui.screens.lines import host_cells, next_lines, unread_lines
from mltop.tui.screens.node.parts import NodeParts
from mltop.tui.screens.subjects import RanksPane
from mltop.tui.screens.tabled import RankTable
from mltop.tui.screens.tables import gaps_of


class OverviewScreen(NodeParts, RanksPane):
    """The overview of one node."""

    AUTO_FOCUS = "#problems, LineTable"
    folds = first = True

    def node_at_cursor(self) -> str:
        nodes = self.mltop.session.view().nodes
        return nodes[0].node if nodes else ""

    def ranks_selected(self) -> list[RankProcess]:
        """None while the cursor is on the GPUs."""
        table = self.query_one(RankTable)
        return self.ranks_of_keys([table.cursor_key or ""] if table.has_focus else [])

    def fill(self, picture: Picture) -> None:
        if picture.view.nodes:
            node, width = picture.view.nodes[0], self.size.width
            stories, gap = self.stories(picture), no_gpus(node)
            unread = [story_of_gap("GPUs", gap, alone=not stories)] if gap is not None else []
            self._stories = [*stories, *unread]
            keys = f"{KEYCAPS['node']}, then {KEYCAPS['unreadable']}"
            below = [*unread_lines(gaps_of(node), width, keys), *next_lines(node, width)]
            self.fill_parts(picture, node, below, host_cells(node, width))
