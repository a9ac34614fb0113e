"""The first pane where several nodes are watched: what is wrong, how it was going, and all nodes as a map or a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.judge.states import States
from mltop.probes.model import Finding, GpuSample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location, gpu_location, gpu_of_row
from mltop.tui.filters import Subject
from mltop.tui.render.cells import Cell, row_of, with_widths
from mltop.tui.render.fleet.heat import (
    FINE,
    METRICS,
    Heats,
    NodeHeat,
    activity_source,
    next_metric,
    troubles,
)
from mltop.tui.render.fleet.jobs import Group, Grouping
from mltop.tui.render.fleet.map import (
    CELLS,
    GROUPED,
    Legend,
    Section,
    folded,
    list_legend,
    make_grid,
    map_legend,
    name_width,
    node_lines,
    short_names,
)
from mltop.tui.render.fleet.nodes import MARKED_NODE_COLUMNS, NodeLine, connecting_lines, nobody_answered
from mltop.tui.render.graph import width_beside, width_in_one_line
from mltop.tui.render.guarded import guarded
from mltop.tui.render.states import doing_cell
from mltop.tui.render.story import Story, height_of
from mltop.tui.screens.graphs import Spare, group_graphs, keys_and_terms
from mltop.tui.screens.overview.heatmap import Heatmap
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.screens.problems import Problems, lines_for
from mltop.tui.screens.rows import SubjectRows, by_node
from mltop.tui.screens.tabled import GpuTable
from mltop.tui.screens.tables import free_gpus, gpu_rows
from mltop.tui.widgets.cell_view import CursorView
from mltop.tui.widgets.line_table import LineTable

NODE_WIDTH = 14  # cells at least, in the list
MIN_ROOM = 8  # lines: below, the map and one line for what is wrong stand alone
ROOM_FOR_NODE = 16  # from here on the node under the cursor has a line
LEAST_MAP = 3  # lines
STEP = 32  # nodes
MOST_ROWS, OTHERS_ROWS = 9, 6  # of the graphs of the first job, and of further ones
FULL_ROWS = 4  # lines from which on the graphs have a title, rows and an axis of their own
MOST_GROUPED = 256  # nodes, of which each GPU may have a cell of the map

Matches = Callable[[NodeView, GpuSample], bool]


class FleetScreen(Pane):
    """The overview of several nodes. Which view, order and metric: the user's, kept here."""

    AUTO_FOCUS = "#problems, Heatmap, LineTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "metric", "metric", show=False, tooltip="map: the next metric (activity, clock, temperature, …)"),
        Binding("o", "order", "order", show=False, tooltip="nodes: grouped by job, or by name"),
        Binding("v", "view", "list/map", show=False, tooltip="nodes: as a map or as a list"),
    ]
    DEFAULT_CSS = """
    FleetScreen #legend { height: 1; }
    FleetScreen #nodes { display: none; }
    FleetScreen #node-lines { height: 1; }
    FleetScreen GpuTable { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._heats = Heats(METRICS[0])
        self._grouping = Grouping()
        self._by_job = True
        self._as_list = False
        self._picture = Picture(FleetView(0.0, ()))
        self._views: dict[str, NodeView] = {}  # of the nodes that the filter shows
        self._findings_of: Mapping[str, Sequence[Finding]] = {}
        self._troubles = troubles(())
        self._noted: Sequence[Finding] = ()  # of which these two were made
        self._names: Mapping[str, str] = {}
        self._stories: Sequence[Story] = ()
        self._with_node = False  # whether the node under the cursor has a line
        self._left: int | None = None  # lines below the map at the last draw; None: the list stands there
        self._groups: Sequence[Group] = ()
        self._spare = Spare(fleet=True)

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="graphs", classes="gap-above")
        yield Problems(id="problems", classes="gap-above")
        yield TextLines(id="legend", classes="gap-above")
        yield Heatmap(self._moved, id="map", empty_text="no nodes")
        yield LineTable(id="nodes", kind="nodes", empty_text="no nodes")
        yield TextLines(id="node-lines", classes="gap-above")
        yield GpuTable()
        yield TextLines(id="spare", classes="gap-above")

    @property
    def main(self) -> CursorView:
        """What the user moves on: the map or the list."""
        return self.query_one("#nodes", LineTable) if self._as_list else self.query_one(Heatmap)

    def node_at_cursor(self) -> str:
        """That of the line of a problem, where the cursor is on one."""
        problems = self.query_one(Problems)
        told = problems.at_cursor if problems.has_focus else None
        if told is not None and told.nodes:
            return told.nodes[0]
        return self.main.cursor_key or ""

    # Drawing.

    def fill(self, picture: Picture) -> None:
        self._note(picture.findings)
        self._picture = picture
        self._names = short_names(tuple([view.node for view in picture.view.nodes]))
        self._left = None
        shown = [view for view in picture.view.nodes if self._is_shown(view)]
        self._views = {view.node: view for view in shown}
        self.counts = (len(shown), len(picture.view.nodes))
        self._stories = self._problems()
        heats, sections = self._heats_in_order()
        room = self.rows
        if self._as_list:
            self._show_list(heats, room)
        else:
            self._show_map(heats, sections, room)

    def prepare(self, picture: Picture) -> Iterator[None]:
        """The cells of a large map."""
        self._note(picture.findings)
        matches = self._matches()
        for count, view in enumerate(picture.view.nodes):
            if count % STEP == STEP - 1:
                yield
            if self._is_shown(view):
                self._heat(view, matches, picture.states)

    def _note(self, findings: Sequence[Finding]) -> None:
        if findings is not self._noted:
            self._findings_of, self._troubles, self._noted = by_node(findings), troubles(findings), findings

    def _is_shown(self, view: NodeView) -> bool:
        return self.filter.empty or self.filter.node(view, self._findings_of.get(view.node, ()))

    def _problems(self) -> Sequence[Story]:
        shown = () if self.filter.empty else [*self._views]
        return self.stories(self._picture, shown, names=self._names) if self.filter.empty or shown else ()

    def _heats_in_order(self) -> tuple[list[NodeHeat], list[Section]]:
        """The nodes that are shown in their order, and which belong together."""
        states, matches = self._picture.states, self._matches()
        groups = self._groups = self._grouping.of([*self._views.values()], states, self._picture.view.taken_at)
        heats: list[NodeHeat] = []
        sections: list[Section] = []
        for group in groups if self._by_job else [self._grouping.all_by_name([*self._views.values()])]:
            if self._by_job and (len(groups) > 1 or group.job is not None):
                sections.append(Section(len(heats), group.title, group.about))
            heats += [self._heat(view, matches, states) for view in group.nodes]
        self._heats.keep_only(view.node for view in self._picture.view.nodes)
        return heats, sections

    def _matches(self) -> Matches | None:
        """Which GPUs the filter shows; None: all."""
        return self.filter.gpu if any(field.needs_gpus for field in self.filter.fields) else None

    def _heat(self, view: NodeView, matches: Matches | None, states: States) -> NodeHeat:
        def make() -> NodeHeat:
            standing = self._grouping.standing(view, states)
            return self._heats.of(view, self._troubles.get(view.node, FINE), matches, standing)

        made = guarded("a node of the map", make, None)
        return made or NodeHeat(view.node, view.state.state, "unknown", b"", "?", "crit")

    def _show_map(self, heats: list[NodeHeat], sections: list[Section], room: int) -> None:
        heatmap, width, all_heats = self.query_one(Heatmap), self.size.width, heats
        if nobody_answered(self._picture.view):
            self._show_connecting(heats, sections, room)
            return
        legend, node, graphs = room >= MIN_ROOM, room >= ROOM_FOR_NODE, int(room >= ROOM_FOR_NODE)
        whole = height_of(self._stories, self._picture.view.taken_at, width)
        heatmap.empty_text = self._why_empty()
        of_map = legend + node + graphs + LEAST_MAP
        room_for_both = room - legend - node - graphs
        # With the cursor on the map none is left out, from the next picture on: a click is meant for what is shown.
        if not heatmap.has_focus and self._needed(heats, sections) + whole > room_for_both:
            heats, sections = folded(heats, sections, self.mltop.selection.nodes)
        text = lines_for(self._stories, whole, room, min(max(of_map, room // 2), room - 1))
        node, graphs, text = self._room_for_gpus(heats, sections, room - legend, (node, graphs, text))
        others = legend + node + graphs + text
        map_room = max(min(LEAST_MAP, room - 1), room - others)
        grid = heatmap.set_map(heats, sections, self.mltop.selection.nodes, map_room, self._names)
        height = max(1, min(len(grid.rows), map_room))
        heatmap.styles.height = height
        spare = room - legend - node - height - graphs
        blanks = 3 + bool(whole)
        roomy = spare - whole >= blanks
        self.set_class(roomy, "-roomy")
        lines = self._show_problems(spare)
        left = spare - lines - blanks * roomy
        view = self._views.get(self.node_at_cursor())
        below = 1 + len(view.gpus) if view is not None and view.newest is not None else 0  # for its GPUs
        left -= guarded("the graphs", lambda: self._show_graphs(graphs, left if roomy else 0, below), 0)
        self.part("the legend", lambda: self._show_legend(legend, all_heats, grid.density))
        self._left, self._with_node = left, node
        self.part("the GPUs of the node under the cursor", lambda: self._show_gpus(left))
        self.part("the node under the cursor", self._show_node)

    def _show_connecting(self, heats: list[NodeHeat], sections: list[Section], room: int) -> None:
        """The nodes, and how each is being reached: there is nothing else to say."""
        heatmap, view = self.query_one(Heatmap), self._picture.view
        lines: list[list[Cell]] = [[], *connecting_lines(view, self.size.width, room // 2)]
        grid = heatmap.set_map(heats, sections, self.mltop.selection.nodes, room - len(lines), self._names)
        heatmap.styles.height = max(1, min(len(grid.rows), room - len(lines)))
        self.set_class(False, "-roomy")
        self._show_problems(0)
        self.set_part("#graphs", [])
        self._show_gpus(0)
        left = room - len(lines) - len(grid.rows) - 1
        left -= self.set_part("#legend", [[]] if left >= 1 else [])  # between the header and the nodes
        self.set_part("#node-lines", lines)
        self.set_part("#spare", [[], *keys_and_terms(self.mltop.config.keys, self.size.width, left)])

    def _needed(self, heats: Sequence[NodeHeat], sections: Sequence[Section]) -> int:
        """The lines of a map in which each GPU has a cell; of very many nodes each node."""
        density = CELLS if len(heats) > MOST_GROUPED else GROUPED
        return len(make_grid(heats, sections, self.size.width, density, self._names, headed=False).rows)

    def _room_for_gpus(
        self, heats: list[NodeHeat], sections: list[Section], room: int, others: tuple[bool, int, int]
    ) -> tuple[bool, int, int]:
        """``others``: whether the node under the cursor has a line, how many the graphs and what is wrong have: these
        give way, in this order, as far as each GPU gets a cell of the map for it; of very many nodes each node.
        """
        node, graphs, text = others
        if len(heats) < 2:
            return others
        many, needed = len(heats) > MOST_GROUPED, self._needed(heats, sections)
        ways = [(node, graphs, text), (False, graphs, text), (False, 0, text)]
        ways += [(False, 0, min(text, max(room // 3, room - needed)))] * (not many)
        return next((way for way in ways if needed <= room - sum(way)), ways[-1] if many else others)

    def _show_graphs(self, least: int, more: int, below: int) -> int:
        """Of the first job in one line, or higher where ``more`` lines are left, but not where ``below`` lines would do
        without; of others where these stay free. Returns how many lines they take of these.
        """
        width, rows = self.size.width, min(MOST_ROWS, least + more)
        if below and FULL_ROWS <= least + more - below < rows:
            rows = least + more - below
        is_full = rows >= FULL_ROWS
        columns = (width_beside(width) if is_full else width_in_one_line(width)) if least else 0
        lines: list[list[Cell]] = []
        groups = [group for group in self._groups if group.job is not None]
        groups.sort(key=lambda group: (group.still_since is None, -len(group.nodes)))  # who stands still, the largest
        groups = groups or ([Group("", (), tuple(self._views.values()))] if self._views else [])
        for group in groups if columns > 0 else ():
            if lines and (not is_full or least + more - below - len(lines) <= OTHERS_ROWS):
                break
            graphs = group_graphs(self.mltop, group, columns)
            if graphs is not None and is_full:
                lines += [[], *graphs.beside(OTHERS_ROWS)] if lines else graphs.beside(rows)
            elif graphs is not None:
                lines = [graphs.in_one_line()]
        self.set_part("#graphs", lines)
        return len(lines) - least

    def _show_problems(self, room: int) -> int:
        """Returns how many lines they take."""
        return self.query_one(Problems).show(self._stories, self._picture.view.taken_at, self.size.width, room)

    def _show_legend(self, shown: bool, heats: list[NodeHeat], density: str = "") -> None:
        metric, width = self._heats.metric, self.size.width
        source = ""
        if metric is METRICS[0]:
            source = activity_source(gpu for view in self._views.values() for gpu in view.gpus[:1])  # one of each node
        sort = self.query_one("#nodes", LineTable).sort if self._as_list else None
        sorted_by = next((column.title for column in MARKED_NODE_COLUMNS if sort and column.key == sort.column), "")
        not_judged = len(self._picture.not_judged & self._views.keys())
        legend = Legend(heats, metric, source, self._by_job, not_judged, sorted_by)
        line = list_legend(legend, width) if self._as_list else map_legend(legend, density, width)
        self.set_part("#legend", [line] if shown else [])

    def _show_gpus(self, left: int) -> None:
        """Show the GPUs of the node under the cursor, where there is room for all of them, and how that was going."""
        gpus, context, width = self.query_one(GpuTable), self.context(self._picture), self.size.width
        view = self._views.get(self.node_at_cursor())
        if view is None or left < 2:
            gpus.display = False
            self.set_part("#spare", [])
            return
        self.put(gpus, *gpu_rows(view, context, width, folded=True))
        wanted = 1 + gpus.row_count if gpus.row_count else 0  # without GPUs the problems say why
        gpus.display = 0 < wanted <= left
        gpus.styles.height = wanted
        rows = left - wanted * gpus.display - 1
        self.part("spare rows", lambda: self.set_part("#spare", self._spare.lines(view, context, width, rows)))

    def _show_node(self) -> None:
        view = self._views.get(self.node_at_cursor())
        lines: list[list[Cell]] = [[]]  # the room for it is kept
        if view is not None:
            below = self.query_one(GpuTable).display
            lines = node_lines(view, self._heats.metric, self.size.width, below, self._still(view))[:1]
        self.set_part("#node-lines", lines if self._with_node else [])

    def _still(self, view: NodeView) -> Cell | None:
        """How the job of this node stands, where it does."""
        standing = self._grouping.standing(view, self._picture.states)
        return doing_cell(standing.usual, self._picture.view.taken_at) if standing is not None else None

    def _show_list(self, heats: list[NodeHeat], room: int) -> None:
        selection, metric, names = self.mltop.selection, self._heats.metric, self._names
        views = [self._views[heat.node] for heat in heats]

        def line(index: int) -> NodeLine:
            view = views[index]
            findings, name = self._findings_of.get(view.node, ()), names.get(view.node, view.node)
            still = self._still(view)
            return NodeLine(view, findings, name, view.node in selection, heats[index], metric, still)

        columns = with_widths(MARKED_NODE_COLUMNS, node=name_width(names, NODE_WIDTH))
        by_key = {column.key: column for column in columns}
        table = self.query_one("#nodes", LineTable)
        rows = SubjectRows(
            [view.node for view in views],
            lambda index: row_of(columns, line(index), views[index].node),
            lambda index: Subject(views[index]),
            lambda column, index: by_key[column].sorts_by(line(index)),
            full_name=lambda index: views[index].node,
        )
        self.put(table, columns, rows, self._why_empty())
        self.counts = (table.row_count, len(self._picture.view.nodes))
        legend = room >= MIN_ROOM
        self.set_class(False, "-roomy")
        self.part("the legend", lambda: self._show_legend(legend, heats))
        lines = guarded("the problems", lambda: self._show_problems(room // 3), 0)
        room -= legend + lines
        height = table.styles.height = max(1, min(room, 1 + table.row_count))
        self.part("the GPUs of the node under the cursor", lambda: self._show_gpus(room - height))

    def _why_empty(self) -> str:
        text = self.filter.text.strip()
        return f"no node matches {text!r}" if text else "no nodes"

    # Keys and mouse.

    def _moved(self, node: str) -> None:
        """Show all about the node that the cursor is on now."""
        if self._left is not None and node in self._views:  # while the map itself is drawn, the rest comes later
            self._show_gpus(self._left)
            self._show_node()

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        if isinstance(event.view, GpuTable) and self._is_folded(event.key):
            self.mltop.drill(Location("node", self.node_at_cursor()))
        elif isinstance(event.view, GpuTable):
            self.mltop.drill(gpu_location(self.node_at_cursor(), gpu_of_row(event.key)))
        else:
            self.mltop.drill(Location("node", event.key))

    def _is_folded(self, key: str) -> bool:
        """Whether the row of this key is several GPUs that nobody uses."""
        view = self._views.get(self.node_at_cursor())
        free = free_gpus(view, self.context(self._picture)) if view is not None else []
        return bool(free) and key == str(free[0].index)

    def action_metric(self) -> None:
        self._heats = Heats(next_metric(self._heats.metric))
        self.draw()

    def action_order(self) -> None:
        self._by_job = not self._by_job
        self.draw()

    def action_sort(self) -> None:
        """Change what orders the nodes: on the map job or name, in the list a column."""
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
        self.set_focus(self.main)
