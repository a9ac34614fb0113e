"""One GPU's last ten minutes as lanes: clock, throttle reasons, temperature, power and activity over one time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mltop.probes.model import GpuSample
from mltop.tui.history import Track, has
from mltop.tui.render.cells import Cell, clip
from mltop.tui.render.metrics import COLDEST_C, HOTTEST_C
from mltop.tui.render.throttle import ALARMING, BADGES, style_of
from mltop.tui.render.timeline_plot import Grid, Reduce, Value, axis, mean, plot
from mltop.tui.render.units import UNKNOWN, number, percent

LABEL_WIDTH = 9
FIGURE_WIDTH = 5
FIGURES = 3
MOST_ROWS = 4  # of one lane
GROWTH = ("clock", "temperature", "power", "activity")  # what gets the lines that are left, in turns
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


def timeline_lines(track: Track, gpu: GpuSample, width: int, room: int) -> list[list[Cell]]:
    """Title, lanes and axis in ``width`` cells and at most ``room`` lines; nothing where not even the clock fits."""
    if room < 3:
        return []
    left, right = LABEL_WIDTH + 1, 1 + FIGURES * FIGURE_WIDTH
    grid = Grid.of(track.length, track.slot, width - left - right)
    lanes = _grown(lanes_of(track, gpu, grid)[: room - 2], room - 2)
    began = grid.began(track.began)
    lines = [_title(track, grid, left)]
    for lane in lanes:
        drawn = plot(lane.shares, lane.styles, lane.rows, began, lane.zero)
        for row, cells in enumerate(drawn):
            label = Cell(clip(lane.label if row == 0 else "", LABEL_WIDTH) + " ", "dim")
            lines.append([label, *_filled(cells, grid.columns), *(_figures(lane) if row == 0 else ())])
    return [*lines, axis(grid, track.step_s, track.until, left)]


def compact_title(track: Track, width: int) -> list[Cell]:
    """Over ``compact_lines``."""
    grid = _compact_grid(track, width)
    text = clip(_title(track, grid, 0)[0].text.rstrip(), COMPACT_LABEL + grid.columns)
    return [Cell(f"{text} LAST HELD DOWN BY", "title")]


def compact_lines(track: Track | None, gpu: GpuSample, width: int, rows: int) -> list[list[Cell]]:
    """The same in one or two lines: the clock coloured by what holds it down, then what the SMs do."""
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
        activity = activity_lane(track, grid)
        drawn = _filled(plot(activity.shares, ["dim"] * grid.columns, 1, began)[0], grid.columns)
        newest = activity.figures[2]
        figure = newest if newest == UNKNOWN else f"{newest}%"
        label = activity.label.partition(" ")[0]
        lines.append([Cell(f"    {label:<4}", "dim"), *drawn, Cell(f" {figure:>4}", "dim")])
    return lines


def compact_axis(track: Track, width: int) -> list[Cell]:
    return axis(_compact_grid(track, width), track.step_s, track.until, COMPACT_LABEL)


def _compact_grid(track: Track, width: int) -> Grid:
    return Grid.of(track.length, track.slot, width - COMPACT_LABEL - COMPACT_RIGHT - 1)


def lanes_of(track: Track, gpu: GpuSample, grid: Grid) -> list[Lane]:
    """Those of which anything is known, the clock and what holds it down first."""
    activity = activity_lane(track, grid)
    heat = _held_by(track, grid, _THERMAL)
    lanes = [
        clock_lane(track, gpu, grid),
        *(_reason_lane(track, reason, grid) for reason in _shown_reasons(track)),
        _lane("temperature", "temp C", track.temperature_c, grid, reduce=max, scale=_heat_scale(gpu), styles=heat),
        _lane("power", "power W", track.power_w, grid, reduce=mean, scale=_of(gpu.power_limit_w)),
        activity,
    ]
    if activity.label.startswith("SM"):
        lanes.append(_percent_lane("tensor", "tensor %", track.tensor_active, grid))
    return lanes


def clock_lane(track: Track, gpu: GpuSample, grid: Grid) -> Lane:
    """The lowest clock of each column, in the colour of what held it down."""
    styles = _held_by(track, grid, ALARMING)
    scale = _of(gpu.sm_clock_max_mhz)
    return _lane("clock", "clock MHz", track.clock_mhz, grid, reduce=min, scale=scale, styles=styles)


def activity_lane(track: Track, grid: Grid) -> Lane:
    """What the SMs do; where that was never known, how busy NVML calls the GPU, which says much less."""
    if any(value is not None for value in track.sm_active):
        return _percent_lane("activity", "SM %", track.sm_active, grid)
    return _percent_lane("activity", "busy %", track.busy, grid)


_THERMAL = ("hw_thermal", "sw_thermal")
Scale = Callable[[float], float]


def _of(most: float | None) -> Scale | None:
    """From 0 to ``most``; None: to the highest value that was seen."""
    return (lambda value: value / most) if most else None


def _heat_scale(gpu: GpuSample) -> Scale:
    slowdown = gpu.temperature_slowdown_c
    hottest = slowdown if slowdown is not None and slowdown > COLDEST_C else HOTTEST_C
    return lambda value: (value - COLDEST_C) / (hottest - COLDEST_C)


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
    found = [value for value in values if value is not None]
    to_share = scale or _of(max(found, default=0.0)) or (lambda _: 0.0)
    shares = [None if value is None else to_share(value) for value in grid.reduced(values, reduce)]
    newest = values[-1] if values else None
    figures = (number(min(found, default=None)), number(max(found, default=None)), number(newest))
    return Lane(kind, label, shares, styles or ["dim"] * len(shares), figures)


def _percent_lane(kind: str, label: str, values: Sequence[Value], grid: Grid) -> Lane:
    hundreds = [None if value is None else value * 100 for value in values]
    return _lane(kind, label, hundreds, grid, reduce=mean, scale=lambda value: value / 100)


def _reason_lane(track: Track, reason: str, grid: Grid) -> Lane:
    """Which part of each column's time the reason held; blank where it did not."""
    held: dict[int | None, Value] = {bits: float(bool(has(bits, reason))) for bits in track.reasons_seen}
    shares = grid.reduced([held.get(bits) for bits in track.reasons], mean)
    badge = BADGES[reason]
    note = f"{percent(track.share(reason))} of time"
    return Lane("reason", badge.text, shares, [badge.style] * len(shares), note=note, zero=False)


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
    styles: list[str] = []
    known: dict[frozenset[int | None], str] = {}
    for start, end in grid.spans:
        seen = frozenset(track.reasons[start:end])
        if seen not in known:
            known[seen] = style_of([reason for reason in reasons if any(has(bits, reason) for bits in seen)]) or "dim"
        styles += [known[seen]] * grid.repeated
    return styles


def _grown(lanes: list[Lane], room: int) -> list[Lane]:
    """The lanes with the lines that are left shared out, at most MOST_ROWS to each."""
    rows = [1] * len(lanes)
    growing = [place for kind in GROWTH for place, lane in enumerate(lanes) if lane.kind == kind]
    while sum(rows) < room and any(rows[place] < MOST_ROWS for place in growing):
        for place in growing:
            if sum(rows) < room and rows[place] < MOST_ROWS:
                rows[place] += 1
    return [replace(lane, rows=count) for lane, count in zip(lanes, rows, strict=True)]


def _filled(cells: Sequence[Cell], columns: int) -> list[Cell]:
    used = sum(len(cell.text) for cell in cells)
    return [*cells, Cell(" " * (columns - used))] if used < columns else list(cells)


def _title(track: Track, grid: Grid, left: int) -> list[Cell]:
    minutes = round(track.length * track.step_s / 60)
    every = track.step_s * grid.per_column
    text = f"last {minutes} min, a column {every:.0f} s" if grid.repeated == 1 else f"last {minutes} min"
    heads = "".join(f"{head:>{FIGURE_WIDTH}}" for head in ("MIN", "MAX", "LAST"))
    return [Cell(clip(text, left + grid.columns + 1), "title"), Cell(heads, "title")]


def _figures(lane: Lane) -> list[Cell]:
    if lane.note:
        return [Cell(" " + lane.note.rjust(FIGURES * FIGURE_WIDTH), lane.styles[-1] if lane.styles else "")]
    lowest, highest, newest = (figure.rjust(FIGURE_WIDTH) for figure in lane.figures)
    return [Cell(f" {lowest}{highest}", "dim"), Cell(newest)]
