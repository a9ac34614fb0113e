"""One GPU's last ten minutes: clock, temperature, power and activity below each other, over one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mltop.probes.model import GpuSample
from mltop.probes.model.units import celsius, clock_time, clock_words, known, percent, seconds, watts, watts_words
from mltop.tui.app.past.track import Track, has
from mltop.tui.render.cells import Cell, clip, line_width
from mltop.tui.render.gpus.table import decimal_rate
from mltop.tui.render.gpus.throttle import BADGES
from mltop.tui.render.graph import Event, Scale, Span, Values, area, axis, line, most_of, shares_of_most, span_of

LABEL, NARROW_LABEL = 14, 9
FIGURE = 8  # cells of the value at the right
NARROW = 100
MOST_ROWS = {"clock": 3, "temperature": 3, "power": 2, "activity": 2}  # others have one
HELD_BY = ("hw_thermal", "power_brake", "sw_thermal", "hw_slowdown")  # what costs what the hardware could give
LITTLE_HEADROOM_C = 5.0
COLD_C = 30.0  # where the graph of a temperature begins: no GPU is colder


@dataclass(frozen=True)
class Lane:
    """``limit``: what its full height means, in words; ``values``: shares of that; ``figure``: the value at an
    index of these, as a cell. ``bad``: where it is drawn as a warning.
    """

    kind: str
    label: str
    short: str
    limit: str
    values: Values
    figure: Callable[[int], Cell]
    bad: tuple[Span, ...] = ()


def held_spans(track: Track, reasons: Sequence[str] = HELD_BY) -> tuple[Span, ...]:
    """When one of these reasons held the clock down."""
    bad = {bits for bits in track.reasons_seen if any(has(bits, reason) for reason in reasons)}
    return _spans(track, [bits in bad for bits in track.reasons]) if bad else ()


def _spans(track: Track, holds: Sequence[bool]) -> tuple[Span, ...]:
    spans: list[Span] = []
    first: int | None = None
    oldest = track.slot - track.length + 1
    for at, is_bad in enumerate([*holds, False]):
        if is_bad and first is None:
            first = at
        elif not is_bad and first is not None:
            spans.append(Span((oldest + first) * track.step_s, (oldest + at) * track.step_s - 1.0, "graph-warn"))
            first = None
    return tuple(spans)


def lanes_of(track: Track, gpu: GpuSample) -> list[Lane]:
    """Those of which anything is known, the most telling first."""
    short, activity = activity_of(track)
    both_ways = 2 * sum([link.speed_bytes_per_s or 0.0 for link in gpu.nvlink.links])
    lanes = [
        _clock(track, gpu),
        _temperature(track, gpu),
        _lane("power", ("power", "W"), track.power_w, watts, (gpu.power_limit_w, watts_words)),
        _lane("activity", ("SM active" if short == "SM" else short, short), activity, percent),
        _lane("tensor", ("tensor", "TC"), track.tensor_active, percent),
        _lane("dram", ("DRAM", "DRAM"), track.dram_active, percent),
        _lane("nvlink", ("NVLink", "NVL"), track.nvlink_bytes_per_s, decimal_rate, (both_ways, decimal_rate)),
    ]
    return [lane for lane in lanes if _any(lane.values) or lane.kind == "clock"]


def _any(values: Values) -> bool:
    return any(value is not None for value in values)


def _value(values: Values, at: int) -> float | None:
    return values[at] if -len(values) <= at < len(values) else None


def _lane(
    kind: str,
    names: tuple[str, str],
    values: Values,
    show: Callable[[float | None], str],
    limit: tuple[float | None, Callable[[float], str]] | None = None,
) -> Lane:
    """``limit``: what the values are drawn as shares of, and how it is written; without it they are shares."""
    most, in_words = limit or (None, str)
    shares = shares_of(values, most) if limit else values
    words = f"of {in_words(most)}" if most else ""
    return Lane(kind, *names, words, shares, lambda at: Cell(show(_value(values, at)), "title"))


def _clock(track: Track, gpu: GpuSample) -> Lane:
    most, reasons = gpu.sm_clock_max_mhz, track.reasons

    def figure(at: int) -> Cell:
        value, bits = _value(track.clock_mhz, at), _value(reasons, at)
        held = bits is not None and any(has(int(bits), reason) for reason in HELD_BY)
        return Cell("–" if value is None else clock_words(value), "warn" if held else "title")

    limit = f"of {clock_words(most)}" if most else ""
    return Lane("clock", "SM clock", "clock", limit, shares_of(track.clock_mhz, most), figure, held_spans(track))


def _temperature(track: Track, gpu: GpuSample) -> Lane:
    slows, values = gpu.temperature_slowdown_c, track.temperature_c
    near = slows - LITTLE_HEADROOM_C if slows is not None and known(slows) else None

    def is_hot(value: float | None) -> bool:
        return near is not None and value is not None and value >= near

    def figure(at: int) -> Cell:
        value = _value(values, at)
        return Cell(celsius(value), "warn" if is_hot(value) else "title")

    limit = f"slows at {celsius(slows)}" if near is not None else ""
    hot = _spans(track, [is_hot(value) for value in values])
    shares = shares_of(values, slows)
    if slows is not None and slows > COLD_C:
        shares = [None if value is None else max(0.0, value - COLD_C) / (slows - COLD_C) for value in values]
    return Lane("temperature", "temperature", "temp", limit, shares, figure, hot)


def activity_of(track: Track) -> tuple[str, Values]:
    """SM activity; where that was never known, what NVML calls busy, which says much less."""
    return ("SM", track.sm_active) if _any(track.sm_active) else ("busy", track.busy)


def shares_of(values: Values, limit: float | None) -> Values:
    """Of the limit; where that is not known of the highest value that was seen."""
    return shares_of_most(values, limit or most_of(values))


# Lines.


def lane_lines(
    track: Track,
    gpu: GpuSample,
    width: int,
    room: int,
    *,
    waits: Sequence[Span] = (),
    moment: float | None = None,
    newest: Track | None = None,
    name: str = "",
) -> list[list[Cell]]:
    """Title, lanes and axis in at most ``room`` lines; nothing where not even the clock fits. ``waits``: when its job
    was stuck; ``moment``: that the user looks at, where that is in the past: its values are left of those of now,
    which ``newest`` ends with where ``track`` does not. ``name``: of the GPU, where others are beside it; its figures
    are elsewhere then.
    """
    label = LABEL if width >= NARROW else NARROW_LABEL
    heads = [] if name else [Cell("NOW", "head")]
    if heads and moment is not None:
        heads = [Cell(clock_time(moment), "keys"), *heads]
    columns = width - label - (FIGURE + 2) * len(heads)
    if room < 3 or columns < 8:
        return []
    span_s = span_of((track.length - track.began) * track.step_s)
    scale = Scale.of(track.slot, track.step_s, columns, span_s, moment)
    lanes = lanes_of(track, gpu)[: room - 2]
    now = lanes if newest is None else lanes_of(newest, gpu)
    figures = {lane.kind: [lane.figure(-1)] for lane in now}
    if moment is not None:
        at = -1 - max(0, round((track.until - moment) / track.step_s))
        unknown = [Cell("")]
        figures = {lane.kind: [lane.figure(at), *figures.get(lane.kind, unknown)] for lane in lanes}
    heights = _heights(lanes, room - 2)
    gap = room - 2 - sum(heights) >= len(lanes) - 1 and max(heights, default=1) > 1
    lines = [[Cell(f"{name:<{label}}", "title"), *_title(scale, span_s, columns, heads)]]
    for number, (lane, height) in enumerate(zip(lanes, heights, strict=True)):
        lines += [[]] if gap and number and max(height, heights[number - 1]) > 1 else []
        first, *others = _drawn(lane, height, scale, scale.styles([*lane.bad, *waits]), label)
        first.append(Cell(" " * (label + scale.width - line_width(first))))
        shown = figures[lane.kind] if heads else ()
        first += [Cell(f"  {figure.text:>{FIGURE}}", figure.style) for figure in shown]
        lines += [first, *others]
    return [*lines, [Cell(" " * label), *scale.timed(axis(scale, _events(lanes, scale, waits)))]]


def _heights(lanes: Sequence[Lane], room: int) -> list[int]:
    """A line each, then what is left in turns."""
    heights = [1] * len(lanes)
    for _ in range(max(MOST_ROWS.values()) - 1):
        for at, lane in enumerate(lanes):
            if heights[at] < MOST_ROWS.get(lane.kind, 1) and sum(heights) < room:
                heights[at] += 1
    return heights


def _drawn(lane: Lane, height: int, scale: Scale, styles: Sequence[str], label: int) -> list[list[Cell]]:
    means = scale.means(lane.values)
    rows = area(means, styles, height, "" if lane.limit else None) if height > 1 else [line(means, styles)]
    narrow = label < LABEL
    names = [Cell(lane.short if narrow else lane.label), Cell("" if narrow else lane.limit, "dim")]
    if height == 1 and not narrow and lane.limit and len(f"{lane.label} {lane.limit}") < label:
        names = [Cell(f"{lane.label} {lane.limit}")]
    lines = []
    for row, cells in enumerate(rows):
        name = names[row] if row < len(names) else Cell("")
        lines.append([Cell(clip(name.text, label - 1) + " ", name.style), *scale.timed(cells)])
    return lines


def _title(scale: Scale, span_s: float, columns: int, heads: Sequence[Cell]) -> list[Cell]:
    text = f"last {span_s / 60:.0f} min, {seconds(scale.column_s)} a column"
    return [
        Cell(clip(text, columns), "dim"),
        *(Cell(f"  {head.text:>{FIGURE}}", head.style) for head in heads),
    ]


def _events(lanes: Sequence[Lane], scale: Scale, waits: Sequence[Span]) -> list[Event]:
    """When the clock was first held down, and when the job fell still."""
    events = []
    held = next((lane.bad for lane in lanes if lane.kind == "clock"), ())
    begun = [span.since for span in held if scale.time_of(0) < span.since]
    if begun:
        events.append(Event(begun[0], f"{clock_time(begun[0])} slowed", "warn"))
    return events + [Event(span.since, clock_time(span.since), "waits") for span in waits]


def held_shares(track: Track | None) -> dict[str, float]:
    """For how much of its time each reason held that ever did."""
    if track is None:
        return {}
    return {reason: share for reason in track.seen_reasons() if reason in BADGES and (share := track.share(reason))}
