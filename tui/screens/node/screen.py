"""One node in detail: every GPU (now, or over its last ten minutes), the machine, and what is wrong or not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import NodeState
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.render.advice import KEYCAPS, advice
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.table import OVER_TIME
from mltop.tui.render.guarded import guarded
from mltop.tui.screens.lines import (
    connection_cells,
    host_cells,
    next_lines,
    state_lines,
    unread_lines,
    unreadable_lines,
)
from mltop.tui.screens.node.parts import NodeParts
from mltop.tui.screens.pane import TextLines
from mltop.tui.screens.subjects import DIAGNOSE, OneNodePane
from mltop.tui.screens.tabled import Lines, RankTable
from mltop.tui.screens.tables import gaps_of, is_live
from mltop.tui.widgets.cell_lines import CellLines

UNREADABLE = "unreadable"
MOST_TIPS = 6  # lines


class NodeScreen(OneNodePane, NodeParts):
    """``Location.part`` "unreadable": what could not be read of the node, why, and what would help."""

    AUTO_FOCUS = "LineTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        *OneNodePane.BINDINGS,
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
        live = replace(node, state=NodeState(node.node, "live"))  # its state stands above
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
