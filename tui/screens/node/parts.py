"""One node, as the first pane and the node's own show it: what is wrong, its GPUs, the machine, its ranks, graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.widget import Widget

from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import gpu_location, gpu_of_row
from mltop.tui.app.selection import Looked
from mltop.tui.render.cells import Cell
from mltop.tui.render.story import Story, height_of
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.screens.problems import Problems, squeezed
from mltop.tui.screens.row_context import RowContext
from mltop.tui.screens.spare import Spare, keys_and_terms
from mltop.tui.screens.tabled import GpuTable, Lines, RankTable
from mltop.tui.screens.tables import free_gpus, gpu_rows, rank_rows
from mltop.tui.widgets.cell_view import CursorView


class NodeParts(Pane):
    """``folds``: GPUs that nobody uses are one line, also where each has room. ``first``: the cursor goes to what is
    wrong when that comes.
    """

    folds = first = False

    def __init__(self) -> None:
        super().__init__()
        self._stories: Sequence[Story] = ()
        self._spare = Spare()
        self._folded: Sequence[str] = ()  # the keys of the GPUs that are one line, which has the first one's
        self._unfolded = ""  # the node of which each has a line nevertheless

    def body(self) -> Iterable[Widget]:
        yield Problems(first=self.first, id="problems", classes="gap-above")
        yield GpuTable(classes="gap-above")
        yield TextLines(id="host", classes="gap-above")
        yield RankTable(classes="gap-above")
        yield TextLines(id="tips", classes="gap-above")
        yield TextLines(id="graphs", classes="gap-above")

    def fill_parts(
        self,
        picture: Picture,
        node: NodeView,
        below: Lines,
        host: list[Cell],
        *,
        tips: Sequence[list[Cell]] = (),
        top: int = 0,
    ) -> None:
        """Give each part its lines; graphs get those that are left. What gives way is GPUs that nobody uses, then tips,
        healthy rows, text. ``below``: lines below what is wrong; ``top``: lines that are taken above it.
        """
        context, width, now, room = self.context(picture), self.size.width, picture.view.taken_at, self.rows - top
        gpus, ranks, line = self.query_one(GpuTable), self.query_one(RankTable), self.query_one("#host", TextLines)
        self.part("the host line", lambda: line.set_lines([host]))
        self.part("the ranks", lambda: self.put(ranks, *rank_rows([node], context)))
        may_fold = self.filter.empty and self._unfolded != node.node
        folded = self.folds and may_fold
        rows = gpu_rows(node, context, width, folded=folded)
        if rows[1]:
            self.counts = None  # what a filter counts is the GPUs where there are any
        if not self.filter.empty:
            self.part("the GPUs", lambda: self.put(gpus, *rows))
        count = len(rows[1]) if self.filter.empty else max(1, gpus.row_count)
        wanted = {
            "problems": height_of(self._stories, now, width) + len(below),
            "gpus": 1 + count if rows[1] else 2 * (node.sample is None),
            "host": int(bool(host)),
            "ranks": ranks.needed,
            "tips": len(tips),
        }
        blocks = sum(lines > 0 for lines in wanted.values()) + bool(top)
        if may_fold and not folded and sum(wanted.values()) + blocks > room:
            folded, rows = True, gpu_rows(node, context, width, folded=True)
            wanted["gpus"] = 1 + len(rows[1]) if rows[1] else wanted["gpus"]
        self._folded = [str(gpu.index) for gpu in free_gpus(node, context)] if folded else []
        roomy = sum(wanted.values()) + blocks <= room
        heights = wanted if roomy else squeezed(wanted, room, len(self._stories) + len(below))
        if 0 < heights["gpus"] < wanted["gpus"]:
            rows = gpu_rows(node, context, width, folded=folded, gravest_first=True)
        self.part("the GPUs", lambda: self.put(gpus, *rows))
        self.set_class(roomy, "-roomy")
        line.display = heights["host"] > 0
        self.limit_height(gpus, heights["gpus"])
        self.query_one(Problems).show(self._stories, now, width, heights["problems"], below)
        self.limit_height(ranks, heights["ranks"])
        self.set_part("#tips", [*tips[: heights["tips"]]])
        left = room - sum(heights.values()) - blocks - 1 if roomy else 0
        self.part("the graphs", lambda: self.set_part("#graphs", self._spare_lines(node, context, left)))

    def _spare_lines(self, node: NodeView, context: RowContext, rows: int) -> Lines:
        if node.gpus or not self.first:
            return self._spare.lines(node, context, self.size.width, rows)
        return keys_and_terms(self.mltop.config.keys, self.size.width, rows)

    def key_looked_at(self, view: CursorView, looked: Looked) -> str:
        key = super().key_looked_at(view, looked)
        return self._folded[0] if isinstance(view, GpuTable) and key in self._folded else key

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if isinstance(event.view, RankTable):
            self.open_rank(event.key)
        elif event.key in self._folded[:1]:
            self._unfolded = self.node_at_cursor()
            self.draw()
        elif isinstance(event.view, GpuTable):
            self.mltop.drill(gpu_location(self.node_at_cursor(), gpu_of_row(event.key)))
