"""The heatmap: draws only visible lines, repaints only changed ones, its cursor stays on its node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from mltop.tui.render.cells import Cell
from mltop.tui.render.fleet.heat import NodeHeat
from mltop.tui.render.fleet.map import AT, Grid, fitting, line_cells
from mltop.tui.widgets.cell_view import MOVES, CellView


class Heatmap(CellView, can_focus=True):
    """Nodes in lines, as detailed as ``room`` lines allow; the cursor moves over nodes in both directions.

    The cursor belongs to a node's name, once the user has moved it: until then it is on the first node, which is the
    worst. When its node is gone, the cursor stays at its place in the order.
    """

    # A full glyph hides its background: the cursor changes the foreground too.
    DEFAULT_CSS = """
    Heatmap {
        & > .cell--cursor { background: $primary 70%; color: $foreground; text-style: bold; }
        & > .cell--cursor-blurred { background: $primary 35%; color: $foreground; }
        &:ansi > .cell--cursor { background: ansi_default; text-style: bold reverse; }
        &:ansi > .cell--cursor-blurred { background: ansi_default; text-style: bold reverse; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        Binding("left,h", "aside(-1)", "left", show=False, tooltip="to the node before"),
        Binding("right,l", "aside(1)", "right", show=False, tooltip="to the next node"),
    ]

    class Selected(Message):
        """Enter or a double click on ``node``."""

        def __init__(self, heatmap: Heatmap, node: str) -> None:
            super().__init__()
            self.heatmap = heatmap
            self.node = node

        @property
        def control(self) -> Heatmap:
            return self.heatmap

    def __init__(self, on_move: Callable[[str], None] | None = None, **widget_options: Any) -> None:
        """``on_move(node)`` is called when the cursor goes to another node: at once, so that what it draws comes in
        the same frame as the cursor, which the handler of a message would miss.
        """
        super().__init__(**widget_options)
        self._on_move = on_move
        self._heats: Sequence[NodeHeat] = ()
        self._ranks: Sequence[int] | None = None
        self._marks: Collection[str] = ()
        self._names: Mapping[str, str] = MappingProxyType({})
        self._room = 1
        self._index: dict[str, int] = {}
        self._cursor = 0
        self._cursor_node: str | None = None
        self._untouched = True
        self._wanted_column = 0  # up and down keep to it across shorter lines
        self._grid = fitting((), None, 1, 1)
        self._painted: dict[int, object] = {}

    # What the caller sets and asks.

    def set_map(
        self,
        heats: Sequence[NodeHeat],
        ranks: Sequence[int] | None,
        marks: Collection[str],
        room: int,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> Grid:
        """Show ``heats`` in this order; ``ranks``, ascending, where each begins on a line of its own.

        ``room``: lines that the map may take; returns the grid, whose rows are what it takes. ``names``: what stands
        for the nodes' names.
        """
        self._index = {heat.node: index for index, heat in enumerate(heats)}
        self._heats, self._ranks, self._marks, self._room = heats, ranks, frozenset(marks), max(1, room)
        self._names = names
        was_visible = self._is_visible(self._grid.place(self._cursor)[0]) if self._grid.rows else True
        self._follow_node()
        self._lay_out()
        if was_visible:
            self._scroll_to_cursor()
        self._repaint_changes()
        return self._grid

    @property
    def grid(self) -> Grid:
        return self._grid

    @property
    def cursor_node(self) -> str | None:
        """The node under the cursor; None on an empty map."""
        return self._cursor_node

    @property
    def at_top(self) -> bool:
        return self._cursor == 0

    def move_cursor(self, node: str) -> bool:
        """Put the cursor on ``node``; False when it is not here."""
        index = self._index.get(node)
        if index is not None:
            self._move_to(index)
        return index is not None

    # Keys and mouse.

    def action_cursor(self, step: int) -> None:
        self._move_lines(step)

    def action_page(self, step: int) -> None:
        self._move_lines(step * max(1, self.scrollable_content_region.height - 1))

    def action_aside(self, step: int) -> None:
        self._move_to(self._cursor + step)

    def action_edge(self, end: bool) -> None:
        self._move_to(len(self._heats) - 1 if end else 0)

    def action_select(self) -> None:
        if self._cursor_node is not None:
            self.post_message(self.Selected(self, self._cursor_node))

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        if spot is None:
            return
        line, column = spot.y + round(self.scroll_y), self._grid.column_of(spot.x)
        if column is None or line >= len(self._grid.rows):
            return
        first, end = self._grid.rows[line]
        if first + column < end:
            self._move_to(first + column)
            if event.chain == 2:
                self.action_select()

    # The cursor.

    def _move_lines(self, lines: int) -> None:
        if not self._heats:
            return
        line, _ = self._grid.place(self._cursor)
        target = min(max(line + lines, 0), len(self._grid.rows) - 1)
        index = self._grid.at(target, self._wanted_column)
        if index is not None and target != line:
            self._move_to(index, keep_column=True)

    def _move_to(self, index: int, keep_column: bool = False) -> None:
        if not self._heats:
            return
        self._cursor = min(max(index, 0), len(self._heats) - 1)
        self._untouched = False
        if not keep_column:
            self._wanted_column = self._grid.place(self._cursor)[1]
        self._tell_moved()
        self._scroll_to_cursor()
        self._repaint_changes()

    def _follow_node(self) -> None:
        """After a new map: the place of the cursor's node, or the node that now stands in its place."""
        held = None if self._untouched else self._cursor_node
        index = self._index.get(held) if held is not None else None
        self._cursor = min(self._cursor, max(0, len(self._heats) - 1)) if index is None else index
        self._tell_moved()

    def _tell_moved(self) -> None:
        node = self._heats[self._cursor].node if self._heats else None
        if node != self._cursor_node:
            self._cursor_node = node
            if node is not None and self._on_move is not None:
                self._on_move(node)

    def _is_visible(self, line: int) -> bool:
        return 0 <= line - round(self.scroll_y) < self.scrollable_content_region.height

    def _scroll_to_cursor(self) -> None:
        height = self.scrollable_content_region.height
        line, _ = self._grid.place(self._cursor)
        if height > 0 and self._grid.rows and not self._is_visible(line):
            top = round(self.scroll_y)
            self.scroll_to(y=line if line < top else line - height + 1, animate=False, force=True)

    # Drawing.

    def paint_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        self._painted[y] = self._content(y)
        line = y + round(self.scroll_y)
        if line >= len(self._grid.rows):
            text = self.empty_text if not self._heats and y == 0 else ""
            return self.strip([Cell(text, "dim")], width)
        cursor = self._cursor if self._cursor_node is not None else None
        return self.strip(line_cells(self._grid, self._heats, line, self._marks, cursor), width)

    def cell_style(self, name: str, over: str = "") -> Any:
        """Styles that begin with "at-" are those of the cursor."""
        if name.startswith(AT):
            return super().cell_style(name[len(AT) :], "cursor" if self.has_focus else "cursor-blurred")
        return super().cell_style(name, over)

    def _content(self, y: int) -> object:
        """Everything that screen line ``y`` is made of, to be compared."""
        line = y + round(self.scroll_y)
        if line >= len(self._grid.rows):
            return None
        first, end = self._grid.rows[line]
        heats = tuple(self._heats[first:end])
        marks = tuple(heat.node for heat in heats if heat.node in self._marks) if self._marks else ()
        cursor = (self._cursor, self.has_focus) if first <= self._cursor < end else None
        label = self._grid.labels[line] if self._grid.labels else None
        return heats, marks, cursor, label

    def _repaint_changes(self) -> None:
        height = self.size.height
        self._painted = {y: painted for y, painted in self._painted.items() if y < height}
        self.refresh_screen_lines([y for y, painted in self._painted.items() if painted != self._content(y)])

    def _lay_out(self) -> None:
        """Where every node stands; everything is drawn again only when that changed."""
        width = self.container_size.width or self.size.width or 1
        grid = fitting(self._heats, self._ranks, width, self._room, self._names)
        if len(grid.rows) > self._room:  # the scrollbar takes a column
            width -= self.styles.scrollbar_size_vertical
            grid = fitting(self._heats, self._ranks, width, self._room, self._names)
        before, self._grid = self._grid, grid
        if len(grid.rows) != len(before.rows):
            self.virtual_size = Size(0, len(grid.rows))
        if _looks(grid) != _looks(before):
            self.refresh()

    def on_resize(self) -> None:
        self._lay_out()
        self._scroll_to_cursor()

    def on_focus(self) -> None:
        self._repaint_changes()

    def on_blur(self) -> None:
        self._repaint_changes()


def _looks(grid: Grid) -> tuple[object, ...]:
    """What all lines depend on."""
    return grid.density, grid.rows, grid.margin, grid.pitch, grid.names
