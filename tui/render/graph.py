"""Graphs over time, as text: the newest on the right, empty before data begins, one colour or that of a state.

Each column shows the mean of what is known of its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.values import mean_of
from mltop.probes.model.incident import Doing
from mltop.probes.model.units import clock_time, known
from mltop.tui.render.cells import Cell, FittedCell, clip, line_width, runs
from mltop.tui.render.glyphs import GLYPHS

SPAN_S = 600.0
_SPANS_S = (60.0, 120.0, 300.0, SPAN_S)
_EIGHTHS = 8
# What a state is drawn in, over one line and over several.
_AREA = {"graph-waits": "area-waits", "graph-crit": "area-crit"}

Values = Sequence["float | None"]


@dataclass(frozen=True)
class TimedCell(Cell):
    """Part of a graph: its characters begin at ``since`` (unix s) and are ``column_s`` each. Two that look the same
    are equal.
    """

    since: float = field(default=0.0, compare=False)
    column_s: float = field(default=0.0, compare=False)


def time_at(cells: Iterable[Cell], x: int) -> float | None:
    """Of what the cell at ``x`` of a line is (unix s, the middle of its column); None where no graph is."""
    for cell in cells:
        width = line_width([cell])
        if x < width:
            return cell.since + (x + 0.5) * cell.column_s if isinstance(cell, TimedCell) else None
        x -= width
    return None


@dataclass(frozen=True)
class Span:
    """From ``since`` to ``until`` (unix s, None: till now) a graph's columns are drawn in ``style``."""

    since: float
    until: float | None
    style: str


@dataclass(frozen=True)
class Event:
    """A word below the axis at its time (unix s)."""

    at: float
    text: str
    style: str


def fell_still(doing: Doing) -> list[Event]:
    """When a job that stands fell still: "11:58:23 hung"; it is not called hung before that is known."""
    if doing.since is None:
        return []
    word = "no progress" if doing.state == "quiet" else "hung"
    return [Event(doing.since, f"{clock_time(doing.since)} {word}", "waits")]


def begins(at: float, scale: Scale) -> list[Event]:
    """When anything was known first, where that is seen: what is empty before it is no fall and no loss."""
    return [Event(at, f"begins {clock_time(at)}", "dim")] if scale.column(at) >= _LEAST_EMPTY else []


_LEAST_EMPTY = 4  # columns


def span_of(known_s: float, least_s: float = 0.0) -> float:
    """Of a graph of what is known for so long: ten minutes, of which one has passed, would be blank but for a tenth.
    ``least_s``: a second for each column.
    """
    return next((span_s for span_s in _SPANS_S if span_s >= max(known_s, least_s)), SPAN_S)


def last_known(values: Values) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def most_of(values: Values) -> float:
    return max((value for value in values if value is not None), default=0.0)


def shares_of_most(values: Values, most: float) -> list[float | None]:
    """Of a scale that ends at ``most``; where that is 0, all values are."""
    return [None if value is None else value / most if most else 0.0 for value in values]


@dataclass(frozen=True)
class Scale:
    """Which time each of ``width`` columns stands for. ``slot``: the number of the newest value, which is of the time
    slot x step_s; ``per``: values a column. ``moment``: of the past, which is looked at (unix s); None: now.
    ``held``: each value given stands for so many steps, until the next one was due. ``last``: when the newest value was
    taken, of what tells nothing any more (unix s).

    A column begins at a multiple of its own length: what is drawn moves a column at a time, and not every second.
    """

    slot: int
    step_s: float
    per: int
    width: int
    moment: float | None = None
    held: int = 1
    last: float | None = None

    @classmethod
    def of(cls, slot: int, step_s: float, width: int, span_s: float = SPAN_S, moment: float | None = None) -> Scale:
        """For ``span_s`` or a little more in ``width`` columns, of values that are each of ``step_s``, however long."""
        held = max(1, round(step_s))
        step_s /= held
        return cls(
            held * (slot + 1) - 1, step_s, max(1, math.ceil(span_s / step_s / max(1, width))), width, moment, held
        )

    @property
    def first(self) -> int:
        """The number of the first column, counted from time 0."""
        return self.slot // self.per - self.width + 1

    @property
    def until(self) -> float:
        """The time of the right edge, unix s."""
        return self.time_of(self.width)

    @property
    def column_s(self) -> float:
        return self.per * self.step_s

    def time_of(self, column: int) -> float:
        """When a column begins, unix s."""
        return (self.first + column) * self.column_s

    def timed(self, cells: Iterable[Cell]) -> list[Cell]:
        """A line of a graph, or its axis: a click on it shows that moment."""
        made: list[Cell] = []
        column = 0
        for cell in cells:
            made.append(TimedCell(cell.text, cell.style, self.time_of(column), self.column_s))
            column += len(cell.text)
        return made

    def column(self, at: float) -> int:
        """The column of a time; left of all it is negative."""
        return int(at // self.column_s) - self.first

    @property
    def looked_at(self) -> int:
        """The column of the moment that is looked at, the newest for now."""
        newest = self.width - 1
        return newest if self.moment is None else max(0, min(newest, self.column(self.moment)))

    def means(self, values: Values) -> list[float | None]:
        """Of ``values``, the oldest first: of each column the mean of what is known, None where nothing is."""
        if self.held > 1:
            values = [value for value in values for _ in range(self.held)]
        oldest = self.slot - len(values) + 1
        means: list[float | None] = []
        for column in range(self.first, self.first + self.width):
            start = column * self.per - oldest
            means.append(mean_of(values[max(0, start) : max(0, start + self.per)]))
        return means

    def styles(self, spans: Sequence[Span]) -> list[str]:
        """The style of each column; a later span lies over an earlier one."""
        styles = ["graph"] * self.width
        for span in spans:
            last = self.width - 1 if span.until is None else self.column(span.until)
            for column in range(max(0, self.column(span.since)), min(self.width - 1, last) + 1):
                styles[column] = span.style
        if self.moment is not None and styles:
            styles[self.looked_at] = "scrub"
        return styles


def line(values: Values, styles: Sequence[str]) -> list[Cell]:
    """One line, of fractions 0..1."""
    glyphs = ["" if value is None else GLYPHS.height(value) for value in values]
    return runs([glyph or " " for glyph in glyphs], styles)


def area(values: Values, styles: Sequence[str], rows: int, limit: str | None = None) -> list[list[Cell]]:
    """Several lines, the highest first, of fractions 0..1. What is known is seen: at least an eighth of a line.

    ``limit``: what the full height stands for, in words, None: that is no limit. Where nothing is drawn, a rule is at
    the limit, and in a high graph at every fourth line, but not in the tint of a state.
    """
    heights = [  # in eighths of a line
        None if value is None or not known(value) else max(1, round(min(max(value, 0.0), 1.0) * rows * _EIGHTHS))
        for value in values
    ]
    is_tinted = [height is not None and style in _AREA for height, style in zip(heights, styles, strict=True)]
    lines = []
    for row in range(rows - 1, -1, -1):
        filled = [0 if height is None else min(_EIGHTHS, height - row * _EIGHTHS) for height in heights]
        above = (rows - 1 - row) % _EVERY
        is_limit, is_line = limit is not None and row == rows - 1, row and rows > _EVERY and not above
        has_rule = is_limit or is_line
        ruled = [has_rule and eighths <= 0 and not tinted for eighths, tinted in zip(filled, is_tinted, strict=True)]
        glyphs = [
            GLYPHS.rest if is_ruled else GLYPHS.eighths[eighths - 1] if eighths > 0 else " "
            for eighths, is_ruled in zip(filled, ruled, strict=True)
        ]
        if is_limit and limit and ruled[: len(limit) + 1] == [True] * (len(limit) + 1):
            glyphs[: len(limit) + 1] = f"{limit} "
        drawn = [
            "track" if is_ruled else _AREA.get(style, style) if height is not None else ""
            for is_ruled, height, style in zip(ruled, heights, styles, strict=True)
        ]
        lines.append(runs(glyphs, drawn))
    return lines


_EVERY = 4  # lines of a graph from one to the next that leads the eye


def axis(scale: Scale, events: Sequence[Event] = ()) -> list[Cell]:
    """The line below: when the graph begins, how long ago, ``now``, or in its place when anything was known last;
    events in their places, which go first, and before them the moment that is looked at.
    """
    width, minutes = scale.width, max(1, round(scale.width * scale.column_s / 60.0))
    every = 1 if minutes <= _EACH_MINUTE else 2
    ago = range(every, minutes, every) if width >= _WITH_CLOCK else range(minutes // 2, minutes, minutes)
    texts, styles = [" "] * width, ["dim"] * width
    now = scale.slot * scale.step_s
    marks: list[tuple[int, str, str]] = []
    if scale.moment is not None:
        text = clock_time(scale.moment)
        marks.append((max(0, min(scale.looked_at, width - len(text))), text, "key"))
    ends_now = (scale.looked_at != width - 1 or scale.moment is None) and scale.last is None
    if scale.last is not None:
        text = f"{clock_time(scale.last)} last"
        marks.append((max(0, min(scale.column(scale.last), width - len(text))), text, "warn"))
    last, fixed = width - len(" now") * ends_now, [*marks]
    for event in sorted(events, key=lambda event: (event.style == "dim", -event.at)):
        at = scale.column(event.at)
        if 0 <= at < width:
            ends = [start - 1 for start, text, _ in fixed if start - len(event.text) <= at < start + len(text)]
            marks.append((min(at, max(0, min(last, *ends, width) - len(event.text))), event.text, event.style))
    began = scale.time_of(0)
    marks.append((0, clock_time(began) if width >= _WITH_CLOCK else f"-{round((now - began) / 60)}m", "dim"))
    if ends_now:
        marks.append((width - len("now"), "now", "dim"))
    elif scale.moment is not None:
        now = scale.moment
    marks += [(scale.column(now - 60.0 * minute), f"-{minute}m", "dim") for minute in reversed(ago) if minute]
    for at, text, style in marks:
        _place(texts, styles, at, text, style)
    return runs(texts, styles)


_WITH_CLOCK, _EACH_MINUTE = 60, 5  # cells, minutes


def _place(texts: list[str], styles: list[str], at: int, text: str, style: str) -> None:
    """Where nothing stands yet, and with a blank on either side."""
    end = at + len(text)
    if (
        at < 0
        or end > len(texts)
        or any(texts[column] != " " for column in range(max(0, at - 1), min(len(texts), end + 1)))
    ):
        return
    for column, char in enumerate(text, at):
        texts[column], styles[column] = char, style


@dataclass(frozen=True)
class GraphCell(FittedCell):
    """A graph in a column of a table. Two are the same while all but ``values`` is: these are read when it is drawn."""

    slot: int = 0
    step_s: float = 1.0
    spans: tuple[Span, ...] = ()
    moment: float | None = None
    values: Callable[[], Values] = field(default=tuple, compare=False, hash=False)

    def fitted(self, width: int) -> list[Cell]:
        scale = Scale.of(self.slot, self.step_s, width, moment=self.moment)
        return line(scale.means(self.values()), scale.styles(self.spans))


@dataclass(frozen=True)
class Series:
    """One graph: ``name``, its value ``now`` and its scale (``of`` "of 5.6 kW") in words; ``values`` as shares of it.
    ``brief``: its name where it is one line; ``before``: its value before it fell, "" where it did not; ``about``:
    whose it is; ``limit``: what the full height stands for, None: that is no limit.
    """

    name: str
    now: str
    of: str
    values: Values
    brief: str = ""
    before: str = ""
    about: str = ""
    limit: str | None = None


LABEL_WIDTH = 12
_ROWS_MOST = 18  # of one graph
_ROWS_LEAST = 2
_GAP = 3  # cells between two that stand side by side
BRIEF_GRAPH, BRIEF_LABEL = 8, 15  # cells of a graph at least, and what its name and value take at most


@dataclass(frozen=True)
class Graphs:
    """Several over the same time."""

    series: tuple[Series, ...]
    scale: Scale
    spans: tuple[Span, ...] = ()
    events: tuple[Event, ...] = ()

    def stacked(self, rows: int) -> list[list[Cell]]:
        """One below the other, as many and as high as ``rows`` lines allow, with one axis; their names at the left.
        But for the first, those of which nothing is known are left out. ``scale``: of what stands right of the names.
        """
        series = [one for place, one in enumerate(self.series) if not place or any(one.values)]
        count = min(len(series), (rows - 1) // _ROWS_LEAST)
        if count < 1:
            return []
        gap = int(rows - 1 >= count * (_ROWS_LEAST + 2) - 1)
        height, more = divmod(rows - 1 - gap * (count - 1), count)
        lines: list[list[Cell]] = []
        styles = self.scale.styles(self.spans)
        for place, one in enumerate(series[:count]):
            high = min(_ROWS_MOST, height + (place < more))
            labels = [Cell(one.name), Cell(one.now, "title"), Cell(one.of, "dim")][:high]
            lines += [[]] if lines and gap else []
            for row, drawn in enumerate(area(self.scale.means(one.values), styles, high, one.limit)):
                label = labels[row] if row < len(labels) else Cell("")
                lines.append([Cell(clip(label.text, LABEL_WIDTH), label.style), *self.scale.timed(drawn)])
        return [*lines, [Cell(" " * LABEL_WIDTH), *self.scale.timed(axis(self.scale, self.events))]]

    def beside(self, rows: int) -> list[list[Cell]]:
        """Side by side: a title, ``rows`` - 2 lines of graph and an axis."""
        styles = self.scale.styles(self.spans)
        blocks = [
            [
                _title(one, self.scale.width),
                *map(
                    self.scale.timed,
                    [*area(self.scale.means(one.values), styles, rows - 2, one.limit), axis(self.scale, self.events)],
                ),
            ]
            for one in self.series
        ]
        gap = Cell(" " * _GAP)
        return [[cell for part in parts for cell in (gap, *part)][1:] for parts in zip(*blocks, strict=True)]

    def in_one_line(self) -> list[Cell]:
        """``SM 10% ▆▆▆▆▁  power 59kW ▆▆▆▆▁  net 0B/s ▃▃▃▃▁``."""
        styles = self.scale.styles(self.spans)
        cells: list[Cell] = []
        for one in self.series:
            label = [Cell(f"{one.brief} ", "dim"), Cell(one.now, "title"), Cell(" ")]
            drawn = self.scale.timed(line(one.values, styles))
            cells += [*label, *drawn, Cell(" " * max(1, BRIEF_LABEL - line_width(label)))]
        return cells[:-1]


def width_beside(width: int, count: int = 3) -> int:
    """Cells of each of ``count`` side by side."""
    return (width - (count - 1) * _GAP) // count


def width_in_one_line(width: int) -> int:
    """Cells of each where all are one line; 0 where there is no room for them."""
    cells = width // 3 - BRIEF_LABEL
    return cells if cells >= BRIEF_GRAPH else 0


def _title(series: Series, width: int) -> list[Cell]:
    """Its name, whose it is, its value and its scale: the scale goes first, then whose it is."""
    now = Cell(f"{series.before} {GLYPHS.arrow} {series.now}" if series.before else series.now, "title")
    ways = [
        ([Cell(name), Cell(f" {about}" if about else "", "dim")], [now, Cell(f" {of}" if of else "", "dim")])
        for of in dict.fromkeys((series.of, ""))
        for about in dict.fromkeys((series.about, ""))
        for name in dict.fromkeys((series.name, series.brief))
    ]
    left, right = next((way for way in ways if line_width(way[0]) + line_width(way[1]) < width), ways[-1])
    return [*left, Cell(" " * max(1, width - line_width(left) - line_width(right))), *right]
