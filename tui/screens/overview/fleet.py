"""The first pane where several nodes are watched: all of them as a map or as a list, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import Finding
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.filters import Subject
from mltop.tui.render.cells import row_of, values_of, with_widths
from mltop.tui.render.findings import FINDING_COLUMNS, problems_of
from mltop.tui.render.fleet.heat import (
    FINE,
    METRICS,
    Heats,
    NodeHeat,
    WorstFirst,
    activity_source,
    by_name,
    next_metric,
    troubles,
)
from mltop.tui.render.fleet.map import Legend, list_legend, map_legend, name_width, node_lines, short_names
from mltop.tui.render.fleet.nodes import MARKED_NODE_COLUMNS, NodeLine
from mltop.tui.render.guarded import guarded
from mltop.tui.screens.overview.heatmap import Heatmap
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.screens.rows import SubjectRows, by_node
from mltop.tui.screens.tables import GpuTable, gpu_rows, gpu_table_height
from mltop.tui.widgets.cell_view import CursorView
from mltop.tui.widgets.line_table import LineTable

PROBLEMS = "problems"
NODE_WIDTHS = (14, 12)  # cells at least, in the list and in the table of problems
MIN_ROOM = 8  # lines: below, the map stands alone
TALL_ROOM = 12  # from here on the node under the cursor has two lines
MIN_PROBLEMS = 6  # lines that stay for problems when the GPUs of the node under the cursor are shown


class FleetScreen(Pane):
    """The overview of several nodes. Which view, order and metric: the user's, kept here."""

    AUTO_FOCUS = "Heatmap, LineTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "metric", "metric", show=False, tooltip="map: the next metric (activity, clock, temperature, …)"),
        Binding("o", "order", "order", show=False, tooltip="nodes: those with problems first, or by name"),
        Binding("v", "view", "list/map", show=False, tooltip="nodes: as a map or as a list"),
    ]
    DEFAULT_CSS = """
    FleetScreen #legend { height: 1; }
    FleetScreen #nodes { display: none; }
    FleetScreen #node-lines { height: 2; }
    FleetScreen #problems { height: 1fr; }
    FleetScreen GpuTable { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._heats = Heats(METRICS[0])
        self._order = WorstFirst()
        self._worst_first = True
        self._as_list = False
        self._picture = Picture(FleetView(0.0, ()))
        self._views: dict[str, NodeView] = {}  # of the nodes that the filter shows
        self._findings_of: Mapping[str, Sequence[Finding]] = {}
        self._troubles = troubles(())
        self._names: Mapping[str, str] = {}
        self._node_height = 0  # lines about the node under the cursor
        self._left: int | None = None  # lines below the map at the last draw; None: the list stands there

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="legend")
        yield Heatmap(self._moved, id="map", empty_text="no nodes")
        yield LineTable(id="nodes", empty_text="no nodes")
        yield TextLines(id="node-lines")
        yield GpuTable(classes="gap-above")
        yield LineTable(id=PROBLEMS, empty_text="no problems", classes="gap-above")

    @property
    def main(self) -> CursorView:
        """What the user moves on: the map or the list."""
        return self.query_one("#nodes", LineTable) if self._as_list else self.query_one(Heatmap)

    def node_at_cursor(self) -> str:
        return self.main.cursor_key or ""

    # Drawing.

    def fill(self, picture: Picture) -> None:
        if picture.findings is not self._picture.findings:
            self._findings_of, self._troubles = by_node(picture.findings), troubles(picture.findings)
        self._picture = picture
        self._names = short_names(tuple([view.node for view in picture.view.nodes]))
        self._left = None
        keep, findings = self.filter, self._findings_of
        shown = [view for view in picture.view.nodes if keep.empty or keep.node(view, findings.get(view.node, ()))]
        self._views = {view.node: view for view in shown}
        self.counts = (len(shown), len(picture.view.nodes))
        heats, ranks = self._heats_in_order()
        room = self._room()
        if self._as_list:
            self._show_list(heats, room)
        else:
            self._show_map(heats, ranks, room)

    def _heats_in_order(self) -> tuple[list[NodeHeat], list[int] | None]:
        """The nodes that are shown, and where they are ordered by what is wrong, the rank of each."""
        keep = self.filter
        matches = keep.gpu if any(field.needs_gpus for field in keep.fields) else None
        heats = {
            name: guarded(
                "a node of the map",
                partial(self._heats.of, view, self._troubles.get(name, FINE), matches),
                NodeHeat(name, view.state.state, "unknown", b"", (), "?", "crit"),
            )
            for name, view in self._views.items()
        }
        self._heats.keep_only(view.node for view in self._picture.view.nodes)
        if not self._worst_first:
            return [heats[name] for name in by_name(heats)], None
        placed = self._order.ordered(((heat.node, heat.status) for heat in heats.values()), time.monotonic())
        return [heats[name] for name, _ in placed], [rank for _, rank in placed]

    def _room(self) -> int:
        """The lines of this part without the blank ones between its widgets."""
        gpus = self.query_one(GpuTable)
        hidden_gap = bool(gpus.display) and self.has_class("-roomy")
        return self.size.height - self.chrome_height() + hidden_gap

    def _show_map(self, heats: list[NodeHeat], ranks: list[int] | None, room: int) -> None:
        legend, lines = room >= MIN_ROOM // 2, (0 if room < MIN_ROOM else 1 if room < TALL_ROOM else 2)
        reserved = 0 if room < MIN_ROOM else max(2, room // 4)
        heatmap, node_lines = self.query_one(Heatmap), self.query_one("#node-lines")
        heatmap.empty_text = self._why_empty()
        map_room = max(1, room - legend - lines - reserved)
        grid = heatmap.set_map(heats, ranks, self.mltop.selection.nodes, map_room, self._names)
        heatmap.styles.height = height = max(1, min(len(grid.rows), map_room))
        self.part("the legend", lambda: self._show_legend(legend, heats, grid.density))
        node_lines.display = lines > 0
        node_lines.styles.height = self._node_height = lines
        self._left = left = room - legend - lines - height
        self.part("the GPUs of the node under the cursor", lambda: self._show_gpus(left))
        self.part("the problems", lambda: self._show_problems(reserved > 0))
        self.part("the node under the cursor", self._show_node)

    def _show_legend(self, shown: bool, heats: list[NodeHeat], density: str = "") -> None:
        line = self.query_one("#legend", TextLines)
        line.display = shown
        metric, marked, width = self._heats.metric, len(self.mltop.selection), self.size.width
        source = ""
        if metric is METRICS[0]:
            # One GPU speaks for its node.
            summaries = (view.summary for view in self._views.values() if view.summary is not None)
            source = activity_source(gpu for summary in summaries for gpu in summary.gpus[:1])
        sorted_by = self._sorted_by() if self._as_list else ""
        legend = Legend(heats, metric, source, self._worst_first, marked, self._not_judged(), sorted_by)
        line.set_lines([list_legend(legend, width) if self._as_list else map_legend(legend, density, width)])

    def _sorted_by(self) -> str:
        """The title of the list's column that the user sorted by."""
        sort = self.query_one("#nodes", LineTable).sort
        titles = {column.key: column.title for column in MARKED_NODE_COLUMNS}
        return titles[sort.column] if sort is not None else ""

    def _not_judged(self) -> int:
        """How many of the nodes that are shown the health rules have not judged yet."""
        return len(self._picture.not_judged & self._views.keys())

    def _show_gpus(self, left: int) -> None:
        """Show the GPUs of the node under the cursor, where there is room for all of them."""
        gpus = self.query_one(GpuTable)
        view = self._views.get(self.node_at_cursor())
        wanted = gpu_table_height(view) if view is not None else 0
        gap = self.has_class("-roomy")
        gpus.display = wanted > 0 and left - wanted - gap >= MIN_PROBLEMS
        if view is not None and gpus.display:
            gpus.styles.height = wanted
            self.put(gpus, *gpu_rows(view, self.mltop.trends))

    def _show_node(self) -> None:
        view = self._views.get(self.node_at_cursor())
        lines = self.query_one("#node-lines", TextLines)
        if view is None:
            lines.set_lines([])
            return
        findings, judged = self._findings_of.get(view.node, ()), view.node not in self._picture.not_judged
        about = node_lines(view, findings, self._heats.metric, self.size.width, judged)
        lines.set_lines(about[: self._node_height])

    def _show_list(self, heats: list[NodeHeat], room: int) -> None:
        selection, metric, names = self.mltop.selection, self._heats.metric, self._names
        views = [self._views[heat.node] for heat in heats]

        def line(index: int) -> NodeLine:
            view = views[index]
            findings, name = self._findings_of.get(view.node, ()), names.get(view.node, view.node)
            return NodeLine(view, findings, name, view.node in selection, heats[index], metric)

        columns = with_widths(MARKED_NODE_COLUMNS, node=name_width(names, NODE_WIDTHS[0]))
        by_key = {column.key: column for column in columns}
        table = self.query_one("#nodes", LineTable)
        rows = SubjectRows(
            [view.node for view in views],
            lambda index: row_of(columns, line(index), views[index].node),
            lambda index: Subject(views[index]),
            lambda column, index: by_key[column].sorts_by(line(index)),
            text=lambda index: f"{views[index].node} {rows[index].text}",  # the row has the short name
        )
        self.put(table, columns, rows, self._why_empty())
        self.counts = (table.row_count, len(self._picture.view.nodes))
        legend = room >= MIN_ROOM // 2
        self.part("the legend", lambda: self._show_legend(legend, heats))
        self.query_one(GpuTable).display = False
        count = guarded("the problems", lambda: self._show_problems(room >= MIN_ROOM), 0)
        problems = min(1 + max(1, count), max(2, room // 3)) if room >= MIN_ROOM else 0
        table.styles.height = max(1, room - legend - problems)

    def _show_problems(self, shown: bool) -> int:
        """Returns how many problems there are."""
        table = self.query_one(f"#{PROBLEMS}", LineTable)
        table.display = shown
        if not shown:
            return 0
        problems = problems_of(self._views, self._picture.findings, self._names)
        rows = SubjectRows(
            [problem.row.key for problem in problems],
            lambda index: problems[index].row,
            lambda index: Subject(self._views[problems[index].nodes[0]], findings=problems[index].findings),
            values_of(FINDING_COLUMNS, problems),
            text=lambda index: " ".join([problems[index].row.text, *problems[index].nodes]),
        )
        columns = with_widths(FINDING_COLUMNS, node=name_width(self._names, NODE_WIDTHS[1]))
        counts = self.counts
        self.put(table, columns, rows, self._no_problems())
        self.counts = counts  # the filter's figures are about nodes
        return len(problems)

    def _no_problems(self) -> str:
        number, not_judged = len(self._views), self._not_judged()
        if not number:
            return self._why_empty()
        whose = " of the nodes that the filter shows" if number < len(self._picture.view.nodes) else ""
        waiting = sum(view.summary is None for view in self._views.values())
        if waiting:
            return f"no problems known{whose}; nothing is known yet of {waiting} of {number} nodes"
        if not_judged:
            judged = number - not_judged
            shown = " that the filter shows" if whose else ""
            return f"no problems in {judged} of {number} nodes{shown}, {not_judged} not judged yet"
        if whose:
            return f"no problems{whose}"
        summaries = [view.summary for view in self._views.values() if view.summary]
        gaps = sum(gap.kind == "unknown" for summary in summaries for gap in summary.gaps)
        return f"no problems found; {gaps} gaps: 2 shows those of a node" if gaps else "no problems found"

    def _why_empty(self) -> str:
        text = self.filter.text.strip()
        return f"no node matches {text!r}" if text else "no nodes"

    # Keys and mouse.

    def _moved(self, node: str) -> None:
        """Show all about the node that the cursor is on now."""
        if self._left is not None and node in self._views:  # while the map itself is drawn, the rest comes later
            self._show_node()
            self._show_gpus(self._left)

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        node = self.node_at_cursor() if isinstance(event.view, GpuTable) else event.key.partition("/")[0]
        self.mltop.drill(Location("node", node))

    def action_metric(self) -> None:
        self._heats = Heats(next_metric(self._heats.metric))
        self.draw()

    def action_order(self) -> None:
        self._worst_first = not self._worst_first
        self.draw()

    def action_sort(self) -> None:
        """Change what orders the nodes: on the map worst or name, in the list a column."""
        if isinstance(self.focused, Heatmap):
            self.action_order()
        else:
            super().action_sort()

    def action_view(self) -> None:
        """Change between map and list; the same node stays under the cursor."""
        node, had_focus = self.node_at_cursor(), self.main.has_focus
        self.main.display = False
        self._as_list = not self._as_list
        self.main.display = True
        self.query_one("#node-lines").display = not self._as_list
        self.draw()
        self.main.move_cursor(node)
        if had_focus:
            self.main.focus()

    def _close_filter(self) -> None:
        super()._close_filter()
        self.main.focus()
