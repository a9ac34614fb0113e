"""F2: which columns a table has, in which order, and by which one it is sorted, as a list to tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from mltop.tui.app.shapes import Shapes
from mltop.tui.config.catalog import TABLES, column_keys
from mltop.tui.render.cells import Cell, Column
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.rows import Sort
from mltop.tui.screens.questions import Box, Lines
from mltop.tui.screens.rows import first_sort
from mltop.tui.widgets.line_table import LineTable

TITLE_WIDTH = 16


class ColumnList(Box[None]):
    """What is changed holds at once: ``draw_pane`` shows it behind the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "tick", "on or off"),
        Binding("up,k", "move(-1)", "column before"),
        Binding("down,j", "move(1)", "next column"),
        Binding("shift+up,K,f7", "carry(-1)", "to the left"),
        Binding("shift+down,J,f8", "carry(1)", "to the right"),
        Binding("s,f6", "sort", "sort by this column"),
        Binding("d,delete", "default", "default"),
        Binding("enter,escape,q,f2,f10", "leave", "leave"),
    ]

    def __init__(self, table: LineTable, shapes: Shapes, draw_pane: Callable[[], None]) -> None:
        super().__init__()
        self.title_text = f"columns of {table.kind}"
        self._kind, self._shapes, self._draw_pane = table.kind, shapes, draw_pane
        self._columns: dict[str, Column] = {column.key: column for column in TABLES[table.kind]}
        self._on = table.shown_keys()
        self._listed = [*self._on, *(key for key in column_keys(TABLES[table.kind]) if key not in self._on)]
        self._at = 0

    @property
    def _sort(self) -> Sort | None:
        return self._shapes.sorts.get(self._kind)

    def lines(self, width: int) -> Lines:  # noqa: ARG002 - meanings are short
        lines: Lines = []
        for at, key in enumerate(self._listed):
            column, style = self._columns[key], "title" if at == self._at else ""
            mark = ""
            if self._sort is not None and self._sort.column == key:
                mark = f"  sorted {GLYPHS.down if self._sort.reverse else GLYPHS.up}"
            name = f"{GLYPHS.folded if at == self._at else ' '} [{'x' if key in self._on else ' '}] {column.title}"
            lines.append([Cell(f"{name:<{TITLE_WIDTH + 6}}", style), Cell(column.meaning, "dim"), Cell(mark, "key")])
        high = max(1, self.size.height - self.chrome)
        first = max(0, min(self._at - high // 2, len(lines) - high))
        return lines[first : first + high]

    def keys(self) -> Sequence[tuple[str, str]]:
        return (("Space", "on/off"), ("J K", "move"), ("s", "sort"), ("d", "default"), ("Enter", "leave"))

    def _take(self, columns: Sequence[str]) -> None:
        self._shapes.choose(self._kind, columns)
        self._changed()

    def _changed(self) -> None:
        self._draw_pane()
        self.draw()

    def action_tick(self) -> None:
        key = self._listed[self._at]
        if key not in self._on:
            self._on.append(key)
        elif len(self._on) > 1:  # a table without columns shows nothing
            self._on.remove(key)
        self._take([key for key in self._listed if key in self._on])

    def action_move(self, step: int) -> None:
        self._at = (self._at + step) % len(self._listed)
        self.draw()

    def action_carry(self, step: int) -> None:
        to = self._at + step
        if 0 <= to < len(self._listed):
            self._listed[self._at], self._listed[to] = self._listed[to], self._listed[self._at]
            self._at = to
            self._take([key for key in self._listed if key in self._on])

    def action_sort(self) -> None:
        """By this column; again: the other way round; once more: not at all."""
        first = first_sort([*self._columns.values()], self._listed[self._at])
        last = self._sort == first.reversed()
        self._shapes.sort(self._kind, first.reversed() if self._sort == first else None if last else first)
        self._changed()

    def action_default(self) -> None:
        """All columns as they come, not sorted."""
        self._listed = column_keys(TABLES[self._kind])
        self._on = [*self._listed]
        self._shapes.sort(self._kind, None)
        self._take(())

    def action_leave(self) -> None:
        self.dismiss(None)
