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
    """The line with ``above`` lines below it."""
    height = len(GLYPHS.ramp)
    ground = height * above
    glyphs = [" " if level < ground else GLYPHS.ramp[min(level - ground, height - 1)] for level in range(steps)]
    glyphs += [" ", GLYPHS.unknown if above == 0 else " "]  # at the places of _BLANK and _UNKNOWN, from the end
    text = "".join([glyphs[level] for level in levels])
    return [Cell(text, styles[0])] if len(set(styles)) == 1 else styled(text, styles)


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


FIGURE_WIDTH = 5
COMPACT_LABEL = 8
COMPACT_RIGHT = 20


@dataclass(frozen=True)
class Lane:
    """``shares``: 0..1 of its scale per column; ``figures``: lowest, highest, newest; ``note`` in their place."""

    kind: str
    label: str
    shares: Sequence[Value]
    styles: Sequence[str]
    figures: tuple[str, str, str] = ("", "", "")
    note: str = ""
    zero: bool = True
    rows: int = 1


def compact_title(track: Track, width: int) -> list[Cell]:
    """Over ``compact_lines``."""
    grid = _compact_grid(track, width)
    text = clip(_title(track, grid, 0)[0].text.rstrip(), COMPACT_LABEL + grid.columns)
    return [Cell(f"{text} LAST THROTTLED BY", "title")]


def compact_lines(track: Track | None, gpu: GpuSample, width: int, rows: int) -> list[list[Cell]]:
    """The same of one GPU in one or two lines: the clock coloured by what holds it down, then what the SMs do."""
    if track is None:
        return [[Cell(f"{gpu.index:>3} ", "bold"), Cell(gpu.error or "nothing known of it", "crit")]]
    grid = _compact_grid(track, width)
    began = grid.began(track.began)
    clock = clock_lane(track, gpu, grid)
    worst = [reason for reason in _shown_reasons(track) if reason in ALARMING]
    badge = Cell("")
    if worst:
        badge = Cell(f" {BADGES[worst[0]].text} {percent(track.share(worst[0]))}", style_of(worst[:1]))
    drawn = _filled(plot(clock.shares, clock.styles, 1, began)[0], grid.columns)
    lines = [[Cell(f"{gpu.index:>3} ", "bold"), Cell("MHz "), *drawn, Cell(f" {clock.figures[2]:>4}"), badge]]
    if rows > 1:
        drawn = _filled(plot(activity_lane(track, grid).shares, ["dim"] * grid.columns, 1, began)[0], grid.columns)
        label, values = _activity(track)
        lines.append([Cell(f"    {label:<4}", "dim"), *drawn, Cell(f" {percent(values[-1]):>4}", "dim")])
    return lines


def compact_axis(track: Track, width: int) -> list[Cell]:
    return axis(_compact_grid(track, width), track.step_s, track.until, COMPACT_LABEL)


def _compact_grid(track: Track, width: int) -> Grid:
    return Grid.of(track.length, track.slot, width - COMPACT_LABEL - COMPACT_RIGHT - 1)


def clock_lane(track: Track, gpu: GpuSample, grid: Grid) -> Lane:
    """The lowest clock of each column, in the colour of what held it down."""
    styles = _held_by(track, grid, ALARMING)
    scale = _of(gpu.sm_clock_max_mhz)
    return _lane("clock", "clock MHz", track.clock_mhz, grid, reduce=min, scale=scale, styles=styles)


def activity_lane(track: Track, grid: Grid) -> Lane:
    label, values = _activity(track)
    return _percent_lane("activity", f"{label} %", values, grid)


def _activity(track: Track) -> tuple[str, Sequence[Value]]:
    """What the SMs do; where that was never known, how busy NVML calls the GPU, which says much less."""
    return ("SM", track.sm_active) if _knows_sm(track) else ("busy", track.busy)


def _knows_sm(track: Track) -> bool:
    return any(value is not None for value in track.sm_active)


Scale = Callable[[float], float]


def _of(most: float | None) -> Scale | None:
    """From 0 to ``most``; None: to the highest value that was seen."""
    return (lambda value: value / most) if most else None


def _lane(
    kind: str,
    label: str,
    values: Sequence[Value],
    grid: Grid,
    *,
    reduce: Reduce,
    scale: Scale | None,
    styles: Sequence[str] | None = None,
) -> Lane:
    seen = [value for value in values if value is not None]
    to_share = scale or _of(max(seen, default=0.0)) or (lambda _: 0.0)
    shares = [None if value is None else to_share(value) for value in grid.reduced(values, reduce)]
    newest = values[-1] if values else None
    figures = (number(min(seen, default=None)), number(max(seen, default=None)), number(newest))
    return Lane(kind, label, shares, styles or ["dim"] * len(shares), figures)


def _percent_lane(kind: str, label: str, values: Sequence[Value], grid: Grid) -> Lane:
    hundreds = [None if value is None else value * 100 for value in values]
    return _lane(kind, label, hundreds, grid, reduce=fmean, scale=lambda value: value / 100)


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


def _title(track: Track, grid: Grid, left: int) -> list[Cell]:
    minutes = round(track.length * track.step_s / 60)
    every = track.step_s * grid.per_column
    text = f"last {minutes} min, a column {every:.0f} s" if grid.repeated == 1 else f"last {minutes} min"
    heads = "".join(f"{head:>{FIGURE_WIDTH}}" for head in ("MIN", "MAX", "LAST"))
    return [Cell(clip(text, left + grid.columns + 1), "title"), Cell(heads, "title")]
