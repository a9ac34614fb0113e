"""Values over time as height glyphs: a fixed number of columns, each for the same whole number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

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
        if None not in values:
            whole = cast("Sequence[float]", values)
            found = [reduce(whole[start:end]) for start, end in self.spans]
            return found if self.repeated == 1 else [value for value in found for _ in range(self.repeated)]
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
    steps = len(GLYPHS.ramp) * rows
    levels = [_BLANK if share == 0 and not zero else _level(share, steps) for share in shares]
    levels[:began] = [_BLANK] * min(began, len(levels))
    wanted = [style if level >= 0 else "dim" for style, level in zip(styles, levels, strict=True)]
    return [_row(levels, wanted, rows - 1 - row, steps) for row in range(rows)]


_UNKNOWN, _BLANK = -1, -2


def _level(share: Value, steps: int) -> int:
    if share is None or math.isnan(share):
        return _UNKNOWN
    return min(int(min(max(share, 0.0), 1.0) * steps), steps - 1)


def _row(levels: Sequence[int], styles: Sequence[str], above: int, steps: int) -> list[Cell]:
    """The line with ``above`` lines below it; runs of one style are one cell, blanks belong to any."""
    height = len(GLYPHS.ramp)
    ground = height * above
    glyphs = [" " if level < ground else GLYPHS.ramp[min(level - ground, height - 1)] for level in range(steps)]
    glyphs += [" ", GLYPHS.unknown if above == 0 else " "]  # at the places of _BLANK and _UNKNOWN, from the end
    text = "".join([glyphs[level] for level in levels])
    if len(set(styles)) == 1:
        return [Cell(text, styles[0])]
    cells: list[Cell] = []
    start, now = 0, ""
    for column, (glyph, style) in enumerate(zip(text, styles, strict=True)):
        if style != now and glyph != " ":
            if text[start:column]:
                cells.append(Cell(text[start:column], now))
            start, now = column, style
    return [*cells, Cell(text[start:], now)]


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
