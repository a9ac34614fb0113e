"""One node in detail: every GPU (now, or its last ten minutes), the machine, and what is wrong or not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import NodeState
from mltop.probes.model.units import counted
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location, gpu_location, gpu_of_row
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.guarded import guarded
from mltop.tui.render.problems import Scope, Told, height_of, lines_of, told_of
from mltop.tui.screens.lines import (
    connection_cells,
    host_cells,
    state_lines,
    unreadable_count,
    unreadable_lines,
    unreadable_part,
)
from mltop.tui.screens.node.timelines import GpuTimelines
from mltop.tui.screens.pane import TextLines
from mltop.tui.screens.subjects import DIAGNOSE, OneNodePane
from mltop.tui.screens.tables import GpuTable, RankTable, gaps_of, gpu_rows, gpu_table_height, is_live, rank_rows
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

UNREADABLE = "unreadable"
FEWEST_RANKS, FEWEST_GPUS = 5, 5  # lines that stay of these tables
MOST_TIPS = 6  # lines


class NodeScreen(OneNodePane):
    """``Location.part`` "unreadable": what could not be read of the node, why, and what would help."""

    AUTO_FOCUS = "LineTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        *OneNodePane.BINDINGS,
        DIAGNOSE,
        Binding("T", "timelines", "timelines", tooltip="GPUs as a table, or their last ten minutes"),
        Binding("u", "unreadable", "unreadable", show=False, tooltip="what cannot be read here, and what helps"),
    ]
    DEFAULT_CSS = "NodeScreen #unreadable { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._as_timelines = False
        self._told: Sequence[Told] = ()

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="state")
        yield CellLines(id="problems", classes="gap-above")
        yield GpuTable(classes="gap-above")
        yield GpuTimelines(classes="gap-above")
        yield TextLines(id="host", classes="gap-above")
        yield RankTable(classes="gap-above")
        yield TextLines(id="tips", classes="gap-above")
        yield CellLines(id="unreadable", classes="gap-above", empty_text="everything could be read")

    @property
    def _alone(self) -> bool:
        return self.mltop.trail.here.part == UNREADABLE

    def fill(self, picture: Picture) -> None:
        node = self.node_here()
        if node is None:
            return
        for part in self.query("#state, #problems, GpuTable, GpuTimelines, #host, RankTable, #tips"):
            part.display = not self._alone
        unreadable = self.query_one("#unreadable", CellLines)
        unreadable.display = self._alone
        if self._alone:
            unreadable.set_lines(unreadable_lines(gaps_of(node), self.size.width - 1))
        else:
            self._fill_node(picture, node)

    def _fill_node(self, picture: Picture, node: NodeView) -> None:
        """What is wrong first, then the GPUs; what has to give way is tips, text, healthy rows."""
        context, width, now = self.context(picture), self.size.width, picture.view.taken_at
        host, gpus, ranks = self.query_one("#host", TextLines), self.query_one(GpuTable), self.query_one(RankTable)
        top = guarded("the node's state", lambda: self._show_state(node, now), 0)
        host.display = node.sample is not None and not self.has_class("-low")
        live = replace(node, state=NodeState(node.node, "live"))  # its state stands above
        self.part("the host line", lambda: host.set_lines([host_cells(live, width)]))
        self.part("the GPUs", lambda: self.put(gpus, *gpu_rows(node, context, width)))
        self.part("the ranks", lambda: self.put(ranks, *rank_rows([node], context)))
        self._told = guarded("the problems", lambda: self._problems(picture, node), ())
        none: list[list[Cell]] = []
        tips = guarded("the tips", lambda: self._tips(picture, node), none)[:MOST_TIPS]
        below = self._below(picture, node)
        room = self.size.height - 3 - bool(self.query_one("#status").display) + self.has_class("-low")
        room -= host.display + top
        gpu_height = gpu_table_height(gpus) or (2 if node.sample is None else 0)
        rank_height = 1 + max(1, ranks.row_count)
        wanted = height_of(self._told, now, width) + len(below)
        blocks = 2 + bool(wanted) + bool(gpu_height) + bool(tips)
        roomy = wanted + gpu_height + rank_height + len(tips) + blocks <= room
        self.set_class(roomy, "-roomy")
        room -= blocks * roomy
        least = len(self._told) + len(below)
        problems = max(min(wanted, room - gpu_height - min(rank_height, FEWEST_RANKS)), min(least, room // 3))
        gpu_room = max(min(FEWEST_GPUS, gpu_height), room - problems - min(rank_height, FEWEST_RANKS))
        gpu_height = self._show_gpus(node, min(gpu_height, gpu_room), gpu_room)
        self._show_problems(now, problems, below)
        left = room - problems - gpu_height
        ranks.styles.height = max(2, min(rank_height, left))
        self.set_part("#tips", tips[: max(0, left - rank_height)])
        if (self.focused is None or not self.focused.display) and ranks.row_count:
            ranks.focus()  # there are no GPUs

    def _show_problems(self, now: float, room: int, below: list[list[Cell]]) -> None:
        shown = lines_of(self._told, now, self.size.width, max(1, room - len(below)) if self._told else 0)
        lines = [*shown.lines, *below]
        problems = self.query_one("#problems", CellLines)
        problems.display = bool(lines)
        problems.styles.height = len(lines)
        problems.set_lines(lines, [*shown.keys, *[None] * len(below)])

    def _problems(self, picture: Picture, node: NodeView) -> Sequence[Told]:
        """Those of this node; its own state stands above."""
        told = told_of(picture.incidents, picture.findings, Scope(one=True), (node.node,))
        states = {f"node.{node.state.state}"}
        return [one for one in told if not one.findings or one.findings[0].id not in states]

    def _below(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        """What cannot be read, in one line; or that nothing is wrong."""
        missed = unreadable_count(gaps_of(node))
        if missed:
            why = unreadable_part(gaps_of(node))
            cells = [Cell(f"  {why}; " if why else "  ", ""), Cell(f"{counted(missed, 'value')} unreadable  ", "dim")]
            return wrap([*cells, Cell("u", "keys"), Cell(" shows why", "dim")], self.size.width, 2)
        if self._told:
            return []
        told = any(incident.until is None for incident in picture.incidents)
        return [[Cell(f"  {_without_problems(node, told)}", "dim")]]

    def _tips(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        """What is only worth knowing."""
        tips = [one for one in picture.findings if one.node == node.node and one.severity == "info"]
        lines: list[list[Cell]] = []
        for tip in tips:
            action = [Cell(f"  {GLYPHS.arrow} {tip.action}", "key")] if tip.action else []
            lines += wrap([Cell("  tip  ", "dim"), Cell(tip.message, "dim"), *action], self.size.width, 7)
        return lines

    def _show_gpus(self, node: NodeView, table_height: int, room: int) -> int:
        """Show the GPUs as a table or as timelines; returns how many lines that takes."""
        gpus, timelines = self.query_one(GpuTable), self.query_one(GpuTimelines)
        show = partial(timelines.show, self.mltop, node, self.size.width, room)
        height = guarded("the timelines", show, 0) if self._as_timelines else 0
        timelines.display = height > 0
        timelines.styles.height = height
        if not height:
            return self.limit_height(gpus, table_height)
        gpus.display = False
        return height

    def _show_state(self, node: NodeView, taken_at: float) -> int:
        """Show what is wrong with the node itself and how it was reached; returns how many lines that takes."""
        lines = state_lines(node, taken_at, self.mltop.since.of(node.node), self.size.width)
        reached = [] if self.has_class("-low") else connection_cells(node.connection, self.size.width)
        lines += [reached] if reached else []
        return self.set_part("#state", lines[: max(1, self.size.height // 3)])

    def action_timelines(self) -> None:
        """Change between table and timelines; the cursor stays on its GPU."""
        table, timelines = self.query_one(GpuTable), self.query_one(GpuTimelines)
        had_focus = self.focused in (None, table, timelines)
        at = (timelines if self._as_timelines else table).cursor_key
        self._as_timelines = not self._as_timelines
        self.draw()
        now = timelines if timelines.display else table
        if at is not None:
            now.move_cursor(str(gpu_of_row(at)))
        if had_focus and now.display:
            now.focus()

    def action_unreadable(self) -> None:
        node = self.node_at_cursor()
        if node and not self._alone:
            self.mltop.drill(Location("node", node, part=UNREADABLE, label=UNREADABLE))

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if isinstance(event.view, RankTable):
            self.open_rank(event.key)
        elif event.view.id == "problems":
            self.mltop.drill(Location("incidents", incident=event.key, label="incident"))
        elif event.view.about == "gpu":
            self.mltop.drill(gpu_location(self.node_at_cursor(), gpu_of_row(event.key)))


def _without_problems(node: NodeView, told: bool) -> str:
    """That nothing bad is known means little for a node that does not answer. ``told``: line 1 says what is wrong."""
    if node.sample is None:
        return f"nothing is known of it: {node.state.state}"
    if not is_live(node):
        return "no problems when last heard of"
    none = "no problems of the node itself found" if told else "no problems found"
    return f"{none}, everything could be read"
