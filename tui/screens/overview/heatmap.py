"""The heatmap: draws only visible lines, repaints only changed ones, its cursor stays on its node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.strip import Strip

from mltop.probes.model.text import clean
from mltop.tui.render.fleet.heat import NodeHeat
from mltop.tui.render.fleet.map import AT, Grid, Section, fitting, line_cells
from mltop.tui.widgets.cell_view import CursorView
from mltop.tui.widgets.steps import Steps

AT_ONCE = 8  # lines


class Heatmap(CursorView, can_focus=True):
    """Nodes in lines, as detailed as ``room`` lines allow; the cursor moves over nodes in both directions.

    The cursor belongs to a node's name, once the user has moved it: until then it is on the first node, which is the
    worst. When its node is gone, the cursor stays at its place in the order.
    """

    about = "node"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "aside(-1)", "left", show=False, tooltip="to the node before"),
        Binding("right,l", "aside(1)", "right", show=False, tooltip="to the next node"),
    ]

    def __init__(self, on_move: Callable[[str], None] | None = None, **widget_options: Any) -> None:
        """``on_move(node)`` is called when the cursor goes to another node: at once, so that what it draws comes in
        the same frame as the cursor, which the handler of a message would miss.
        """
        super().__init__(**widget_options)
        self._on_move = on_move
        self._heats: Sequence[NodeHeat] = ()
        self._sections: Sequence[Section] = ()
        self._marks: Collection[str] = ()
        self._names: Mapping[str, str] = MappingProxyType({})
        self._room = 1
        self._untouched = True
        self._wanted_column = 0  # up and down keep to it across shorter lines
        self.grid = fitting((), (), 1, 1)
        self._steps = Steps(self)
        self._ahead: dict[int, tuple[object, Strip]] = {}  # lines that are drawn before they are painted

    def set_map(
        self,
        heats: Sequence[NodeHeat],
        sections: Sequence[Section],
        marks: Collection[str],
        room: int,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> Grid:
        """Show ``heats`` in this order; each of ``sections`` begins on a line of its own.

        ``room``: lines that the map may take; returns the grid, whose rows are what it takes. ``names``: what stands
        for the nodes' names.
        """
        self._heats, self._sections, self._marks, self._room = heats, sections, frozenset(marks), max(1, room)
        self._names = names
        self.show_lines((), [heat.node for heat in heats])
        return self.grid

    # The cursor.

    @property
    def follows_key(self) -> bool:
        """Until the user has moved it, the cursor keeps its place, not its node."""
        return not self._untouched

    def report_move(self, key: str) -> None:
        if self._on_move is not None:
            self._on_move(key)

    def line_of(self, index: int) -> int:
        return self.grid.place(index)[0]

    def item_at(self, x: int, line: int) -> int | None:
        column = self.grid.column_of(x)
        if column is None or line >= len(self.grid.rows):
            return None
        first, end = self.grid.rows[line]
        return first + column if first + column < end else None

    def place_at(self, index: int) -> None:
        self._untouched = False
        super().place_at(index)
        if self._heats:
            self._wanted_column = self.grid.place(self._cursor)[1]

    def action_cursor(self, step: int) -> None:
        if not self._heats:
            return
        line, column = self.grid.place(self._cursor)[0], self._wanted_column
        last, way = len(self.grid.rows) - 1, 1 if step > 0 else -1
        if abs(step) == 1 and not 0 <= line + step <= last and self.leave(step):
            return
        target = min(max(line + step, 0), last)
        while self.grid.at(target, column) is None and 0 < target < last:  # the line of a title
            target += way
        index = self.grid.at(target, column)
        if (index is None or target == line) and self.leave(step):
            return
        if index is not None and target != line:
            self.move_to(index)
            self._wanted_column = column

    def by_lines(self, lines: int) -> None:
        self.action_cursor(lines)

    def text_at_cursor(self) -> str:
        return clean(self.cursor_key or "")

    def texts(self) -> list[str]:
        return list(self._keys)

    def action_aside(self, step: int) -> None:
        self.move_to(self._cursor + step)

    # Drawing.

    def content(self, y: int) -> Any:
        line = self.content_line(y)
        if line >= len(self.grid.rows):
            return super().content(y)
        first, end = self.grid.rows[line]
        heats = tuple(self._heats[first:end])
        marks = tuple(heat.node for heat in heats if heat.node in self._marks) if self._marks else ()
        cursor = (self._cursor, self.cursor_style) if first <= self._cursor < end else None
        label = self.grid.labels[line] if self.grid.labels else None
        return heats, marks, cursor, label

    def paint_line(self, y: int) -> Strip:
        content, ahead = self.content(y), self._ahead.pop(y, None)
        self._painted[y] = content
        return ahead[1] if ahead is not None and ahead[0] == content else self.draw(y, content)

    def repaint_changes(self) -> None:
        """Many lines of a large map are painted in one frame and drawn in steps, but that of the cursor at once."""
        changed: list[int] = []
        at_once: list[int] = []
        for y, painted in self._painted.items():
            content = self.content(y)
            if painted != content:
                changed.append(y)
                if _has_cursor(painted) or _has_cursor(content):
                    at_once.append(y)
        if len(changed) <= AT_ONCE:
            at_once = changed
        self.refresh_screen_lines(at_once)
        if later := [y for y in changed if y not in at_once]:
            # Not now: what draws the whole pane takes long enough.
            paint = partial(self.refresh_screen_lines, later)
            self.call_later(self._steps.take, "lines of the map", self._draw_ahead(later), paint)

    def _draw_ahead(self, lines: Sequence[int]) -> Iterator[None]:
        for y in lines:
            content, ahead = self.content(y), self._ahead.get(y)
            if ahead is None or ahead[0] != content:
                self._ahead[y] = content, self.draw(y, content)
                yield

    def drop_strips(self) -> None:
        self._ahead.clear()

    def draw(self, y: int, content: Any) -> Strip:
        width = self.scrollable_content_region.width
        if content[0] is None:
            return super().draw(y, content)
        cursor = self._cursor if self.cursor_key is not None else None
        return self.strip(line_cells(self.grid, self._heats, self.content_line(y), self._marks, cursor), width)

    def cell_style(self, name: str, over: str = "") -> Any:
        """Styles that begin with "at-" are those of the cursor."""
        at_cursor = name.startswith(AT)
        return super().cell_style(name.removeprefix(AT), self.cursor_style if at_cursor else over)

    def set_items(self, keys: Sequence[Any]) -> None:
        """Also finds the place of every node; everything is drawn again only when that changed."""
        super().set_items(keys)
        width = self.container_size.width or self.size.width or 1
        grid = fitting(self._heats, self._sections, width, self._room, self._names)
        if len(grid.rows) > self._room:  # the scrollbar takes a column
            width -= self.styles.scrollbar_size_vertical
            grid = fitting(self._heats, self._sections, width, self._room, self._names)
        before, self.grid, self._lines = self.grid, grid, grid.rows
        if _looks(grid) != _looks(before):
            self.drop_strips()
            self.refresh()

    def on_resize(self) -> None:
        self.show_lines((), self._keys)


def _has_cursor(content: object) -> bool:
    return isinstance(content, tuple) and len(content) > 2 and content[2] is not None


def _looks(grid: Grid) -> tuple[object, ...]:
    """What all lines depend on."""
    return grid.density, grid.rows, grid.margin, grid.pitch, grid.names
