"""One node in detail: every GPU (now, or its last ten minutes), the machine, and what is wrong or not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import NodeState
from mltop.probes.model.units import counted
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location, gpu_location, gpu_of_row
from mltop.tui.app.past.track import ShownHistory
from mltop.tui.app.selection import Looked
from mltop.tui.render.advice import KEYCAPS, advice
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.timelines import compact_axis, compact_lines, compact_title
from mltop.tui.render.guarded import guarded
from mltop.tui.render.problems import Scope, Told, height_of, told_of
from mltop.tui.screens.lines import (
    connection_cells,
    host_cells,
    state_lines,
    unreadable_count,
    unreadable_lines,
    unreadable_part,
)
from mltop.tui.screens.overview.node_graphs import NodeGraphs
from mltop.tui.screens.pane import TextLines
from mltop.tui.screens.problems import Problems, squeezed
from mltop.tui.screens.subjects import DIAGNOSE, OneNodePane
from mltop.tui.screens.tabled import GpuTable, RankTable
from mltop.tui.screens.tables import free_gpus, gaps_of, gpu_rows, is_live, rank_rows
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

if TYPE_CHECKING:
    from mltop.tui.app.app import MltopApp

UNREADABLE = "unreadable"
MOST_TIPS = 6  # lines
REDRAWN_S = 2.0  # 600 values of 8 GPUs take some 10 ms to draw, and a column stands for several seconds


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
        self._graphs = NodeGraphs()
        self._folded: Sequence[str] = ()  # the keys of the GPUs that are one line, which has the first one's
        self._unfolded = ""  # the node of which each has a line nevertheless

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="state")
        yield Problems(first=False, id="problems", classes="gap-above")
        yield GpuTable(classes="gap-above")
        yield GpuTimelines(classes="gap-above")
        yield TextLines(id="host", classes="gap-above")
        yield RankTable(classes="gap-above")
        yield TextLines(id="tips", classes="gap-above")
        yield TextLines(id="graphs", classes="gap-above")
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
            for part in self.query("#state, #problems, GpuTable, GpuTimelines, #host, RankTable, #tips, #graphs"):
                part.display = False
            unreadable.set_lines(unreadable_lines(gaps_of(node), self.size.width - 1))
        else:
            self._fill_node(picture, node)

    def _fill_node(self, picture: Picture, node: NodeView) -> None:
        """What is wrong first, then the GPUs; graphs in the lines that are left. What has to give way is GPUs that
        nobody uses, then tips, healthy rows, text.
        """
        context, width, now = self.context(picture), self.size.width, picture.view.taken_at
        host, gpus, ranks = self.query_one("#host", TextLines), self.query_one(GpuTable), self.query_one(RankTable)
        top = guarded("the node's state", lambda: self._show_state(node, now), 0)
        live = replace(node, state=NodeState(node.node, "live"))  # its state stands above
        self.part("the host line", lambda: host.set_lines([host_cells(live, width)]))
        self.part("the ranks", lambda: self.put(ranks, *rank_rows([node], context)))
        self._told = guarded("the problems", lambda: self._problems(picture, node), ())
        none: list[list[Cell]] = []
        tips = guarded("the tips", lambda: self._tips(picture, node), none)[:MOST_TIPS]
        below = self._below(picture, node)
        room = self.rows - top
        rows = gpu_rows(node, context, width)
        wanted = {
            "problems": height_of(self._told, now, width) + len(below),
            "gpus": 1 + len(rows[1]) if rows[1] else 2 * (node.sample is None),
            "host": int(node.sample is not None and not self.has_class("-low")),
            "ranks": 1 + max(1, ranks.row_count),
            "tips": len(tips),
        }
        blocks = sum(lines > 0 for lines in wanted.values()) + bool(top)
        folded = sum(wanted.values()) + blocks > room and self.filter.empty and not self._as_timelines
        folded = folded and self._unfolded != node.node
        self._folded = [str(gpu.index) for gpu in free_gpus(node, context)] if folded else []
        if folded:
            rows = gpu_rows(node, context, width, folded=True)
            wanted["gpus"] = 1 + len(rows[1]) if rows[1] else wanted["gpus"]
        roomy = sum(wanted.values()) + blocks <= room
        heights = wanted if roomy else squeezed(wanted, room, len(self._told) + len(below))
        if 0 < heights["gpus"] < wanted["gpus"]:
            rows = gpu_rows(node, context, width, folded=folded, gravest_first=True)
        self.part("the GPUs", lambda: self.put(gpus, *rows))
        self.set_class(roomy, "-roomy")
        host.display = heights["host"] > 0
        heights["gpus"] = self._show_gpus(node, heights["gpus"], room - blocks * roomy - sum(heights.values()))
        self.query_one(Problems).show(self._told, now, width, heights["problems"], below)
        ranks.display = heights["ranks"] > 0
        ranks.styles.height = heights["ranks"]
        self.set_part("#tips", tips[: heights["tips"]])
        left = room - sum(heights.values()) - blocks - 1 if roomy else 0
        self.part("the graphs", lambda: self.set_part("#graphs", self._graphs.lines(node, context, width, left)))
        if (self.focused is None or not self.focused.display) and ranks.row_count:
            ranks.focus()  # there are no GPUs

    def _problems(self, picture: Picture, node: NodeView) -> Sequence[Told]:
        """Those of this node; its own state stands above."""
        told = told_of(picture.incidents, picture.findings, Scope(one=True, acts=self.acts), (node.node,))
        states = {f"node.{node.state.state}"}
        return [one for one in told if not one.findings or one.findings[0].id not in states]

    def _below(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        """What cannot be read, in one line; or that nothing is wrong."""
        missed = unreadable_count(gaps_of(node))
        if missed:
            why = unreadable_part(gaps_of(node))
            cells = [Cell(f"  {why}; " if why else "  ", ""), Cell(f"{counted(missed, 'value')} unreadable  ", "dim")]
            return wrap([*cells, Cell(KEYCAPS["unreadable"], "keys"), Cell(" shows why", "dim")], self.size.width, 2)
        if self._told:
            return []
        told = any(incident.until is None for incident in picture.incidents)
        return [[Cell(f"  {_without_problems(node, told)}", "dim")]]

    def _tips(self, picture: Picture, node: NodeView) -> list[list[Cell]]:
        """What is only worth knowing."""
        tips = [one for one in picture.findings if one.node == node.node and one.severity == "info"]
        lines: list[list[Cell]] = []
        for tip in tips:
            do = advice(tip.act, tip.action, self.acts)
            action = [Cell(f"  {GLYPHS.arrow} {do}", "key")] if do else []
            lines += wrap([Cell("  tip  ", "dim"), Cell(tip.message, "dim"), *action], self.size.width, 7)
        return lines

    def _show_gpus(self, node: NodeView, table_height: int, spare: int) -> int:
        """Show the GPUs as a table or, with the ``spare`` lines too, as timelines; returns how many lines it takes."""
        gpus, timelines = self.query_one(GpuTable), self.query_one(GpuTimelines)
        show = partial(timelines.show, self.mltop, node, self.size.width, table_height + max(0, spare))
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

    def key_looked_at(self, view: CursorView, looked: Looked) -> str:
        key = super().key_looked_at(view, looked)
        return self._folded[0] if isinstance(view, GpuTable) and key in self._folded else key

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if isinstance(event.view, RankTable):
            self.open_rank(event.key)
        elif event.view.id == "problems":
            self.mltop.drill(Location("incidents", incident=event.key, label="incident"))
        elif event.key in self._folded[:1] and isinstance(event.view, GpuTable):
            self._unfolded = self.node_at_cursor()
            self.draw()
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


class GpuTimelines(CellLines):
    """A line of clocks per GPU, coloured by what holds them down; where there is room, one of its activity too."""

    about = "gpu"

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self._history = ShownHistory()
        self._drawn: tuple[object, ...] = ()
        self._height = 0

    def show(self, app: MltopApp, node: NodeView, width: int, room: int) -> int:
        """Returns how many lines it takes, at most ``room``; none when nothing has been kept of this node."""
        sample = node.sample
        if sample is None or not sample.gpus:
            return 0
        age_s = None if node.state.state == "live" else node.state.age_s
        now = (node.node, sample.sampled_at // REDRAWN_S, age_s, app.shown, width, room)
        if now == self._drawn:
            return self._height
        tracks = [(gpu, self._history.track(app.history, app.paused, node, gpu.index)) for gpu in sample.gpus]
        newest = next((track for _, track in tracks if track is not None), None)
        if newest is None:
            return 0
        rows = 2 if 2 * len(tracks) + 2 <= room else 1
        lines: list[list[Cell]] = []
        keys: list[str | None] = []
        for gpu, track in tracks:
            drawn = compact_lines(track, gpu, width, rows)
            lines += drawn
            keys += [str(gpu.index), *[None] * (len(drawn) - 1)]
        if len(lines) + 2 <= room:  # what scrolls has neither
            lines = [compact_title(newest, width), *lines, compact_axis(newest, width)]
            keys = [None, *keys, None]
        self.set_lines(lines, keys)
        self._drawn, self._height = now, min(len(lines), max(2, room))
        return self._height
