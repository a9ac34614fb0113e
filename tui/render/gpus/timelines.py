"""The last ten minutes of each of a node's GPUs in a line or two: its clock, what held it down, and its activity.

A fixed number of columns, each for the same whole number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean
from typing import cast

from mltop.probes.model import GpuSample
from mltop.probes.model.units import clock_time, number, percent
from mltop.tui.app.past.track import Track, has
from mltop.tui.render.cells import Cell, clip, styled
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.throttle import ALARMING, BADGES, style_of
from mltop.tui.render.graph import shares_of_most

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
        if None not in values:
            whole = cast("Sequence[float]", values)
            reduced: list[Value] = [reduce(whole[start:end]) for start, end in self.spans]
        else:
            parts = [[value for value in values[start:end] if value is not None] for start, end in self.spans]
            reduced = [reduce(part) if part else None for part in parts]
        return reduced if self.repeated == 1 else [value for value in reduced for _ in range(self.repeated)]

    def began(self, index: int) -> int:
        """Columns before the one that holds the value ``index``: nothing was watched there."""
        return sum(end <= index for _, end in self.spans) * self.repeated


def plot(shares: Sequence[Value], styles: Sequence[str], began: int) -> list[Cell]:
    """A line of the shares 0..1 in ``styles``; blank before column ``began``. What is unknown is a dot, no height."""
    glyphs = [" " if column < began else GLYPHS.height(share) for column, share in enumerate(shares)]
    wanted = ["dim" if glyph in (" ", GLYPHS.unknown) else style for glyph, style in zip(glyphs, styles, strict=True)]
    return styled("".join(glyphs), wanted)


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


COMPACT_LABEL = 8
COMPACT_RIGHT = 20


def compact_title(track: Track, width: int) -> list[Cell]:
    """Over ``compact_lines``."""
    grid = _compact_grid(track, width)
    text = f"last {round(track.length * track.step_s / 60)} min"
    if grid.repeated == 1:
        text += f", a column {track.step_s * grid.per_column:.0f} s"
    return [Cell(f"{clip(text, COMPACT_LABEL + grid.columns)} LAST THROTTLED BY", "title")]


def compact_lines(track: Track | None, gpu: GpuSample, width: int, rows: int) -> list[list[Cell]]:
    """The same of one GPU in one or two lines: the clock coloured by what holds it down, then what the SMs do."""
    if track is None:
        return [[Cell(f"{gpu.index:>3} ", "bold"), Cell(gpu.error or "nothing known of it", "crit")]]
    grid = _compact_grid(track, width)
    began = grid.began(track.began)
    worst = [reason for reason in _shown_reasons(track) if reason in ALARMING]
    badge = Cell("")
    if worst:
        badge = Cell(f" {BADGES[worst[0]].text} {percent(track.share(worst[0]))}", style_of(worst[:1]))
    most = gpu.sm_clock_max_mhz or max((value for value in track.clock_mhz if value is not None), default=0.0)
    clocks = shares_of_most(grid.reduced(track.clock_mhz, min), most)
    drawn = _filled(plot(clocks, _held_by(track, grid, ALARMING), began), grid.columns)
    newest = number(track.clock_mhz[-1] if track.clock_mhz else None)
    lines = [[Cell(f"{gpu.index:>3} ", "bold"), Cell("MHz "), *drawn, Cell(f" {newest:>4}"), badge]]
    if rows > 1:
        label, values = _activity(track)
        drawn = _filled(plot(grid.reduced(values, fmean), ["dim"] * grid.columns, began), grid.columns)
        lines.append([Cell(f"    {label:<4}", "dim"), *drawn, Cell(f" {percent(values[-1]):>4}", "dim")])
    return lines


def compact_axis(track: Track, width: int) -> list[Cell]:
    return axis(_compact_grid(track, width), track.step_s, track.until, COMPACT_LABEL)


def _compact_grid(track: Track, width: int) -> Grid:
    return Grid.of(track.length, track.slot, width - COMPACT_LABEL - COMPACT_RIGHT - 1)


def _activity(track: Track) -> tuple[str, Sequence[Value]]:
    """What the SMs do; where that was never known, how busy NVML calls the GPU, which says much less."""
    return ("SM", track.sm_active) if any(value is not None for value in track.sm_active) else ("busy", track.busy)


def _shown_reasons(track: Track) -> list[str]:
    """Those that occurred; a slowdown only where it held without one of its causes."""
    seen = [reason for reason in track.seen_reasons() if reason != "gpu_idle"]
    unexplained = any(
        has(bits, "hw_slowdown") and not (has(bits, "hw_thermal") or has(bits, "power_brake"))
        for bits in track.reasons_seen
    )
    return [reason for reason in seen if reason != "hw_slowdown" or unexplained]


def _held_by(track: Track, grid: Grid, reasons: Sequence[str]) -> list[str]:
    """Per column the style of the worst of these reasons that held in it."""

    @cache
    def worst_of(seen: frozenset[int | None]) -> str:
        return style_of([reason for reason in reasons if any(has(bits, reason) for bits in seen)]) or "dim"

    columns = [worst_of(frozenset(track.reasons[start:end])) for start, end in grid.spans]
    return [style for style in columns for _ in range(grid.repeated)]


def _filled(cells: Sequence[Cell], columns: int) -> list[Cell]:
    used = sum(len(cell.text) for cell in cells)
    return [*cells, Cell(" " * (columns - used))] if used < columns else list(cells)
