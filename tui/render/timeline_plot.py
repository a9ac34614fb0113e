"""Values over time as height glyphs: a fixed number of columns, each for the same whole number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mltop.tui.render.cells import Cell
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.units import clock_time

Value = float | None
Reduce = Callable[[Sequence[float]], float]

TICK = "|" if GLYPHS.ascii_only else "╵"
LEAST_TICK_GAP = 8  # columns: "╵-8m" and some air
MINUTE_S = 60.0


@dataclass(frozen=True)
class Grid:
    """How ``length`` values stand in ``columns`` columns: ``per_column`` of them in each, or each ``repeated`` times.

    Columns begin at fixed moments: as time goes on only the newest changes, until all move by one.
    """

    length: int
    slot: int  # number of the newest value
    columns: int
    per_column: int
    repeated: int

    @classmethod
    def of(cls, length: int, slot: int, room: int) -> Grid:
        room = max(1, room)
        if length <= room:
            repeated = room // length
            return cls(length, slot, length * repeated, 1, repeated)
        per_column = math.ceil(length / room)
        return cls(length, slot, length // per_column, per_column, 1)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Per column (before repeating) the first value and the one after the last, oldest first."""
        newest = self.slot // self.per_column
        first = self.slot - self.length + 1  # number of the value with index 0
        return [
            (max(0, column * self.per_column - first), min(self.length, (column + 1) * self.per_column - first))
            for column in range(newest - self.length // self.per_column + 1, newest + 1)
        ]

    def reduced(self, values: Sequence[Value], reduce: Reduce) -> list[Value]:
        """One value per column; None where nothing is known."""
        found: list[Value] = []
        for start, end in self.spans:
            known = [value for value in values[start:end] if value is not None]
            found.extend([reduce(known) if known else None] * self.repeated)
        return found

    def began(self, index: int) -> int:
        """Columns before the one that holds the value ``index``: nothing was watched there."""
        return sum(end <= index for _, end in self.spans) * self.repeated


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def plot(shares: Sequence[Value], styles: Sequence[str], rows: int, began: int, zero: bool = True) -> list[list[Cell]]:
    """``rows`` lines, the top one first, of the shares 0..1 in ``styles``; blank before column ``began``.

    What is unknown is a dot on the ground, never a height. ``zero``: nothing at all has the lowest glyph too;
    otherwise it is blank.
    """
    return [_row(shares, styles, above=rows - 1 - row, rows=rows, began=began, zero=zero) for row in range(rows)]


def _row(
    shares: Sequence[Value], styles: Sequence[str], *, above: int, rows: int, began: int, zero: bool
) -> list[Cell]:
    """The line with ``above`` lines below it."""
    steps = len(GLYPHS.ramp)
    cells: list[Cell] = []
    text, now = "", ""
    for column, (share, style) in enumerate(zip(shares, styles, strict=True)):
        wanted = style
        if column < began or (share == 0 and not zero):
            glyph = " "
        elif share is None or math.isnan(share):
            glyph, wanted = (" " if above else GLYPHS.unknown), "dim"
        else:
            level = min(int(min(max(share, 0.0), 1.0) * steps * rows), steps * rows - 1) - steps * above
            glyph = " " if level < 0 else GLYPHS.ramp[min(level, steps - 1)]
        if wanted != now and glyph != " ":
            if text:
                cells.append(Cell(text, now))
            text, now = "", wanted
        text += glyph
    return [*cells, Cell(text, now)] if text else cells


def axis(grid: Grid, step_s: float, until: float, label_width: int) -> list[Cell]:
    """ "   ╵-8m     ╵-6m     ╵-4m     ╵-2m      12:00:09": whole minutes before ``until``, whose time stands right."""
    end = clock_time(until)
    line = [" "] * grid.columns
    column_s = step_s * grid.per_column / grid.repeated
    minutes = next((m for m in (1, 2, 5) if m * MINUTE_S / column_s >= LEAST_TICK_GAP), 10)
    room = grid.columns - len(end) - 1
    for minute in range(minutes, int(grid.length * step_s // MINUTE_S) + 1, minutes):
        at = grid.columns - 1 - round(minute * MINUTE_S / column_s)
        label = f"{TICK}-{minute}m"
        if at >= 0 and at + len(label) <= room:
            line[at : at + len(label)] = label
    if room >= 0:
        line[grid.columns - len(end) :] = end
    return [Cell(" " * label_width + "".join(line), "dim")]
