"""One node: what the first pane and the node's own show of it, and both of these panes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.model import NodeState
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location, gpu_location, gpu_of_row
from mltop.tui.app.selection import Looked
from mltop.tui.render.advice import KEYCAPS, advice
from mltop.tui.render.answer import no_gpus
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.table import OVER_TIME
from mltop.tui.render.guarded import guarded
from mltop.tui.render.story import Story, height_of, story_of_gap
from mltop.tui.screens.graphs import Spare, keys_and_terms
from mltop.tui.screens.lines import (
    connection_cells,
    host_cells,
    next_lines,
    state_lines,
    unread_lines,
    unreadable_lines,
)
from mltop.tui.screens.pane import DIAGNOSE, NODE_KEYS, RANK_KEYS, Pane, TextLines
from mltop.tui.screens.problems import Problems, squeezed
from mltop.tui.screens.tabled import GpuTable, Lines, RankTable
from mltop.tui.screens.tables import RowContext, free_gpus, gaps_of, gpu_rows, is_live, rank_rows
from mltop.tui.widgets.cell_lines import CellLines
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
        gpus, ranks = self.query_one(GpuTable), self.query_one(RankTable)
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
        self.set_part("#host", [host] if heights["host"] else [])
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


class OverviewScreen(NodeParts):
    """The overview of one node."""

    AUTO_FOCUS = "#problems, LineTable"
    BINDINGS: ClassVar[list[BindingType]] = RANK_KEYS
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


UNREADABLE = "unreadable"
MOST_TIPS = 6  # lines


class NodeScreen(NodeParts):
    """``Location.part`` "unreadable": what could not be read of the node, why, and what would help."""

    AUTO_FOCUS = "LineTable"
    of_node = True
    BINDINGS: ClassVar[list[BindingType]] = [
        *NODE_KEYS,
        DIAGNOSE,
        Binding("T", "timelines", "timelines", tooltip="GPUs: all figures of now, or their last ten minutes"),
        Binding("u", "unreadable", "unreadable", show=False, tooltip="what cannot be read here, and what helps"),
    ]
    DEFAULT_CSS = "NodeScreen #unreadable { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._over_time = False  # the GPUs' last ten minutes in place of all their figures

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="state")
        yield from super().body()
        yield CellLines(id="unreadable", classes="gap-above", empty_text="everything could be read")

    @property
    def _alone(self) -> bool:
        return self.mltop.trail.here.part == UNREADABLE

    def fill(self, picture: Picture) -> None:
        node = self.node_here()
        if node is None:
            return
        unreadable = self.query_one("#unreadable", CellLines)
        unreadable.display = self._alone
        if self._alone:
            for part in self.query("#state, #problems, GpuTable, #host, RankTable, #tips, #graphs"):
                part.display = False
            unreadable.set_lines(unreadable_lines(gaps_of(node), self.size.width - 1))
        else:
            self._fill_node(picture, node)

    def _fill_node(self, picture: Picture, node: NodeView) -> None:
        top = guarded("the node's state", lambda: self._show_state(node, picture.view.taken_at), 0)
        states = {f"node.{node.state.state}"}  # its own state is shown above
        stories = self.stories(picture, (node.node,), one=True)
        self._stories = [one for one in stories if not one.findings or one.findings[0].id not in states]
        none: Lines = []
        tips = guarded("the tips", lambda: self._tips(picture, node), none)[:MOST_TIPS]
        live = replace(node, state=NodeState(node.node, "live"))  # its state is above
        host = host_cells(live, self.size.width) if node.sample is not None and not self.has_class("-low") else []
        self.fill_parts(picture, node, self._below(picture, node), host, tips=tips, top=top)
        ranks = self.query_one(RankTable)
        if (self.focused is None or not self.focused.display) and ranks.row_count:
            ranks.focus()  # there are no GPUs

    def _below(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        """What cannot be read, in one line; or that nothing is wrong."""
        unread = unread_lines(gaps_of(node), self.size.width, KEYCAPS["unreadable"])
        if node.sample is None or not node.gpus:
            return [*unread, *(next_lines(node, self.size.width) if is_live(node) else ())]
        if unread or self._stories:
            return unread
        elsewhere = any(incident.until is None for incident in picture.incidents)
        return [[Cell(f"  {_without_problems(node, elsewhere)}", "dim")]]

    def _tips(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        """What is only worth knowing."""
        tips = [one for one in picture.findings if one.node == node.node and one.severity == "info"]
        lines: list[list[Cell]] = []
        for tip in tips:
            do = advice(tip.act, tip.action, self.acts)
            action = [Cell(f"  {GLYPHS.arrow} {do}", "key")] if do else []
            lines += wrap([Cell("  tip  ", "dim"), Cell(tip.message, "dim"), *action], self.size.width, 7)
        return lines

    def _show_state(self, node: NodeView, taken_at: float) -> int:
        """Show what is wrong with the node itself and how it was reached; returns how many lines that takes."""
        since = self.mltop.history.state_since(node.node, taken_at)
        lines = state_lines(node, taken_at, since, self.size.width)
        reached = [] if self.has_class("-low") else connection_cells(node.connection, self.size.width)
        lines += [reached] if reached else []
        return self.set_part("#state", lines[: max(1, self.size.height // 3)])

    def action_timelines(self) -> None:
        """Change between all figures of now and the last ten minutes."""
        self._over_time = not self._over_time
        self.draw()

    def chosen_columns(self, kind: str) -> Sequence[str]:
        return OVER_TIME if kind == "gpus" and self._over_time else super().chosen_columns(kind)

    def action_unreadable(self) -> None:
        node = self.node_at_cursor()
        if node and not self._alone:
            self.mltop.drill(Location("node", node, part=UNREADABLE, label=UNREADABLE))


def _without_problems(node: NodeView, elsewhere: bool) -> str:
    """That nothing bad is known means little for a node that does not answer. ``elsewhere``: line 1 says what is
    wrong.
    """
    if not is_live(node):
        return "no problems when last heard of"
    none = "no problems of the node itself found" if elsewhere else "no problems found"
    return f"{none}, everything could be read"
