"""The first pane where one node is watched: what is wrong, its GPUs, its ranks, and how it was going."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location, gpu_location, gpu_of_row
from mltop.tui.app.selection import Looked
from mltop.tui.render.answer import no_gpus
from mltop.tui.render.guarded import guarded
from mltop.tui.render.problems import Scope, Told, height_of, told_of, told_of_gap
from mltop.tui.screens.lines import host_cells, unknown_line
from mltop.tui.screens.overview.node_graphs import NodeGraphs
from mltop.tui.screens.pane import TextLines
from mltop.tui.screens.problems import Problems, squeezed
from mltop.tui.screens.row_context import RowContext
from mltop.tui.screens.subjects import RanksPane
from mltop.tui.screens.tabled import GpuTable, RankTable
from mltop.tui.screens.tables import free_gpus, gaps_of, gpu_rows, rank_rows
from mltop.tui.widgets.cell_view import CursorView

PROBLEMS = "problems"


class OverviewScreen(RanksPane):
    """The overview of one node."""

    AUTO_FOCUS = "#problems, LineTable"
    BINDINGS: ClassVar[list[BindingType]] = RanksPane.BINDINGS
    DEFAULT_CSS = "OverviewScreen #problems { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self._told: Sequence[Told] = ()
        self._graphs = NodeGraphs()
        self._unfolded = False  # also the GPUs that nobody uses, a row each

    def body(self) -> Iterable[Widget]:
        yield Problems(id=PROBLEMS, classes="gap-above")
        yield GpuTable(classes="gap-above")
        yield TextLines(id="host", classes="gap-above")
        yield RankTable(classes="gap-above")
        yield TextLines(id="graphs", classes="gap-above")

    def node_at_cursor(self) -> str:
        nodes = self.mltop.session.view().nodes
        return nodes[0].node if nodes else ""

    def ranks_selected(self) -> list[RankProcess]:
        """None while the cursor is on the GPUs."""
        table = self.query_one(RankTable)
        return self.ranks_of_keys([table.cursor_key or ""] if table.has_focus else [])

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if isinstance(event.view, RankTable):
            self.open_rank(event.key)
        elif event.key in self._folded_gpus()[:1] and isinstance(event.view, GpuTable):
            self._unfolded = True
            self.draw()
        elif isinstance(event.view, GpuTable):
            self.mltop.drill(gpu_location(self.node_at_cursor(), gpu_of_row(event.key)))
        else:
            self.open_told(event.key)

    def _folded_gpus(self) -> list[str]:
        """The keys of those that are one line, which has the first one's."""
        picture = self.mltop.picture
        if picture is None or not picture.view.nodes or self._unfolded or not self.filter.empty:
            return []
        return [str(gpu.index) for gpu in free_gpus(picture.view.nodes[0], self.context(picture))]

    def key_looked_at(self, view: CursorView, looked: Looked) -> str:
        key = super().key_looked_at(view, looked)
        folded = self._folded_gpus() if isinstance(view, GpuTable) else []
        return folded[0] if key in folded else key

    def open_told(self, key: str) -> None:
        """Open all of one thing that is wrong."""
        if key.startswith("?"):  # what cannot be read
            self.mltop.drill(Location("node", self.node_at_cursor()))
        else:
            self.mltop.drill(Location("incidents", incident=key, label="incident"))

    # Drawing.

    def fill(self, picture: Picture) -> None:
        if not picture.view.nodes:
            return
        node = picture.view.nodes[0]
        context = self.context(picture)
        host, gpus, ranks = self.query_one("#host", TextLines), self.query_one(GpuTable), self.query_one(RankTable)
        self._told = guarded("the problems", lambda: self._problems(picture), ())
        self.part("the host line", lambda: host.set_lines([host_cells(node, self.size.width)]))
        folded, width = not self._unfolded and self.filter.empty, self.size.width
        self.part("the GPUs", lambda: self.put(gpus, *gpu_rows(node, context, width, folded=folded)))
        self.part("the ranks", lambda: self.put(ranks, *rank_rows([node], context)))
        self._share_out(picture, node, context)

    def _problems(self, picture: Picture) -> Sequence[Told]:
        scope = Scope(one=True, acts=self.acts)
        told = told_of(picture.incidents, picture.findings, scope)
        sample = picture.view.nodes[0].sample
        gap = no_gpus(sample) if sample is not None and not sample.gpus else None
        return [*told, told_of_gap("GPUs", gap, alone=not told)] if gap is not None else told

    def _share_out(self, picture: Picture, node: NodeView, context: RowContext) -> None:
        """Give each part its lines: what has to give way is blank lines, healthy rows, then text."""
        gpus, ranks, width = self.query_one(GpuTable), self.query_one(RankTable), self.size.width
        now = picture.view.taken_at
        unknown = unknown_line(gaps_of(node), width)
        wanted = {
            "problems": height_of(self._told, now, width) + bool(unknown),
            "gpus": 1 + gpus.row_count if gpus.row_count or node.sample is None else 0,
            "host": 1,
            "ranks": 1 + max(1, ranks.row_count),
        }
        blocks = sum(lines > 0 for lines in wanted.values())
        room = self.rows
        roomy = sum(wanted.values()) + blocks <= room
        self.set_class(roomy, "-roomy")
        heights = wanted if roomy else squeezed(wanted, room, len(self._told) + bool(unknown))
        self.query_one(Problems).show(self._told, now, width, heights["problems"], [unknown] if unknown else [])
        host = self.query_one("#host", TextLines)
        host.display = heights["host"] > 0
        if 0 < heights["gpus"] < wanted["gpus"]:
            rows = gpu_rows(node, context, width, folded=not self._unfolded and self.filter.empty, gravest_first=True)
            self.part("the GPUs", lambda: self.put(gpus, *rows))
        self.limit_height(gpus, heights["gpus"])
        self.limit_height(ranks, heights["ranks"])
        spare = room - sum(heights.values()) - blocks * roomy
        left = spare - 1 if roomy else 0
        self.part(
            "the graphs",
            lambda: self.set_part("#graphs", self._graphs.lines(node, context, self.size.width, left)),
        )
