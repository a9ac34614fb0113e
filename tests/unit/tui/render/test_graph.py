"""Graphs: each column stands for its time, nothing is drawn before data begins, states colour what they span."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltop.probes.model.incident import Doing
from mltop.probes.model.units import clock_time
from mltop.probes.model.vocabulary import WorkState
from mltop.tui.render.cells import Cell, Column, Row, columns_line, line_width, plain
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.graph import (
    LABEL_WIDTH,
    SPAN_S,
    Event,
    GraphCell,
    Graphs,
    Scale,
    Series,
    Span,
    area,
    axis,
    fell_still,
    line,
)

NOW = 1_763_640_000


@pytest.mark.parametrize(
    ("length", "width", "per"), [(600, 60, 10), (600, 64, 10), (600, 34, 18), (600, 12, 50), (5, 60, 1), (600, 601, 1)]
)
def test_a_column_stands_for_as_many_values_as_it_takes(length: int, width: int, per: int) -> None:
    scale = Scale.of(NOW, 1.0, width, length)
    assert (scale.per, scale.column_s) == (per, per)
    assert scale.until - scale.time_of(0) == per * width
    assert scale.time_of(width - 1) <= NOW < scale.until, "the newest value is of the last column"


@pytest.mark.parametrize("step_s", [1.0, 10.0])
def test_columns_and_times_belong_together(step_s: float) -> None:
    scale = Scale.of(NOW, step_s, 60, 600 * step_s)
    for column in range(60):
        at = scale.time_of(column)
        assert scale.column(at) == scale.column(at + scale.column_s - 0.01) == column
    assert scale.column(scale.time_of(0) - 1) == -1 and scale.column(scale.until) == 60


def test_the_mean_of_a_column_is_of_its_own_time() -> None:
    scale = Scale.of(NOW, 1.0, 3, 30)
    values = [float(NOW - 29 + at) for at in range(30)]  # each its own time
    means = scale.means(values)
    for column, mean in enumerate(means):
        times = [at for at in values if scale.time_of(column) <= at < scale.time_of(column + 1)]
        assert mean == (sum(times) / len(times) if times else None)


def test_what_is_not_known_does_not_count_and_before_data_begins_it_is_empty() -> None:
    scale = Scale.of(7, 1.0, 4, 8)
    assert scale.means([0.0, 1.0, None, 1.0, None, None, 0.0, 0.0]) == [0.5, 1.0, None, 0.0]
    assert scale.means([1.0, 1.0]) == [None, None, None, 1.0], "two values are the newest"
    assert plain(line(scale.means([1.0, 1.0]), scale.styles(()))) == "   ▇"


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=95, max_size=95), st.integers(0, 999), st.integers(1, 30)
)
def test_columns_move_by_one_and_keep_what_they_showed(values: list[float | None], slot: int, width: int) -> None:
    """A second later all but the last column are what they were, or all have moved by one."""
    before, after = Scale.of(slot, 1.0, width, 60), Scale.of(slot + 1, 1.0, width, 60)
    moved = after.first - before.first
    assert moved in (0, 1)
    one, two = before.means(values), after.means([*values, 0.5])
    assert two[1 - moved : width - 1] == one[1 : width - 1 + moved]


def test_a_state_colours_the_columns_that_it_touches() -> None:
    scale = Scale.of(59, 1.0, 6, 60)
    assert scale.styles(()) == ["graph"] * 6
    assert scale.styles([Span(25.0, None, "graph-waits")]) == ["graph"] * 2 + ["graph-waits"] * 4
    assert scale.styles([Span(25.0, 39.9, "graph-warn")]) == ["graph"] * 2 + ["graph-warn"] * 2 + ["graph"] * 2
    both = [Span(0.0, None, "graph-warn"), Span(30.0, None, "graph-crit")]
    assert scale.styles(both) == ["graph-warn"] * 3 + ["graph-crit"] * 3, "the later lies above"
    for gone in (Span(-900.0, -800.0, "graph-crit"), Span(900.0, None, "graph-crit"), Span(700.0, 900.0, "graph-crit")):
        assert scale.styles([gone]) == ["graph"] * 6
    assert scale.styles([Span(-900.0, 9.0, "graph-waits")])[:2] == ["graph-waits", "graph"]


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_an_area_grows_with_its_value_and_the_least_is_seen(rows: int) -> None:
    values = [step / 40 for step in range(41)]
    drawn = [plain(cells).replace(GLYPHS.rest, " ") for cells in area(values, ["graph"] * 41, rows)]
    heights = [
        sum(GLYPHS.eighths.index(text[column]) + 1 for text in drawn if text[column] != " ") for column in range(41)
    ]
    assert heights == sorted(heights) and heights[0] == 1 and heights[-1] == 8 * rows
    for column in range(41):
        filled = [text[column] != " " for text in drawn]
        assert filled == sorted(filled), "from the ground up, without a hole"


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_what_is_not_known_has_no_height_and_no_colour(unknown: float | None) -> None:
    for cells in area([1.0, unknown, 1.0], ["graph-crit"] * 3, 2):
        assert [(cell.text, cell.style) for cell in cells] == [("█", "area-crit"), (" ", ""), ("█", "area-crit")]


def test_what_waits_is_violet_to_the_full_height() -> None:
    top, bottom = area([1.0, 0.0], ["graph", "graph-waits"], 2)
    assert top == [Cell("█", "graph"), Cell(" ", "area-waits")]
    assert bottom == [Cell("█", "graph"), Cell("▁", "area-waits")]


def test_the_axis_says_when_it_began_how_long_ago_and_now() -> None:
    scale = Scale.of(NOW, 1.0, 100, 600)
    text = plain(axis(scale))
    assert len(text) == 100 and text.startswith(clock_time(scale.time_of(0))) and text.endswith("now")
    for ago in (8, 6, 4, 2):
        assert text.index(f"-{ago}m") == scale.column(NOW - 60 * ago)
    short = plain(axis(Scale.of(NOW, 1.0, 34, 600)))
    assert short.startswith("-10m") and short.endswith("now") and "-5m" in short and ":" not in short


def test_events_stand_at_their_time_and_go_first() -> None:
    scale = Scale.of(NOW, 1.0, 100, 600)
    cells = axis(scale, [Event(NOW - 240.0, "hung", "waits"), Event(NOW - 9000.0, "long ago", "crit")])
    text = plain(cells)
    assert text.index("hung") == scale.column(NOW - 240.0) and "-4m" not in text and "long ago" not in text
    assert Cell("hung", "waits") in cells
    late = plain(axis(scale, [Event(NOW - 1.0, "12:00:00 hung", "waits")]))
    assert late.endswith("12:00:00 hung now"), "moved left until it is whole and now is seen"
    two = plain(axis(scale, [Event(NOW - 241.0, "first", "waits"), Event(NOW - 240.0, "second", "crit")]))
    assert "second" in two and "first" not in two, "never one in the other"


@pytest.mark.parametrize("width", range(1, 120, 7))
def test_an_axis_is_as_wide_as_its_graph(width: int) -> None:
    events = [Event(NOW - at, "an event of many words", "crit") for at in (0.0, 100.0, 500.0)]
    assert line_width(axis(Scale.of(NOW, 1.0, width, 600), events)) == width


@pytest.mark.parametrize("width", [12, 34, 64])
def test_a_graph_in_a_table_takes_its_column(width: int) -> None:
    cell = GraphCell("", "", NOW, 1.0, (Span(NOW - 120.0, None, "graph-waits"),), None, lambda: [0.5] * 600)
    columns = [Column("g", "G", width), Column("x", "X", 1)]
    drawn = columns_line(columns, Row("", (cell, Cell("x"))), [(0, width), (1, 1)])
    assert line_width(drawn) == width + 3
    styles = [item.style for item in drawn if item.text.strip()]
    assert styles == ["graph", "graph-waits", ""]
    waiting = next(item for item in drawn if item.style == "graph-waits")
    scale = Scale.of(NOW, 1.0, width, 600)
    assert len(waiting.text) == width - scale.column(NOW - 120.0)


SERIES = tuple([Series(name, "10%", "8 GPUs", tuple([0.5] * 600)) for name in ("SM active", "power", "NVLink")])


@pytest.mark.parametrize("rows", range(30))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_graphs_take_the_lines_that_there_are(rows: int, count: int) -> None:
    scale = Scale.of(NOW, 1.0, 60, 600)
    lines = Graphs(SERIES[:count], scale).stacked(rows)
    assert len(lines) <= rows
    assert all(line_width(cells) in (0, LABEL_WIDTH + 60) for cells in lines)
    text = "\n".join(plain(cells) for cells in lines)
    shown = [one.name for one in SERIES[:count] if one.name in text]
    assert shown == [one.name for one in SERIES[: len(shown)]], "the first goes last"
    assert bool(shown) == (rows >= 3), "one needs two lines and an axis"
    if rows >= 3:
        assert plain(lines[-1]).endswith("now")


@pytest.mark.parametrize(("state", "word"), [("quiet", "no progress"), ("stalled", "hung"), ("waits", "hung")])
def test_a_job_is_not_called_hung_before_that_is_known(state: WorkState, word: str) -> None:
    (event,) = fell_still(Doing(state, NOW - 240.0))
    assert (event.at, event.text) == (NOW - 240.0, f"{clock_time(NOW - 240.0)} {word}")
    assert fell_still(Doing(state)) == []


@pytest.mark.parametrize("step_s", [2.0, 5.0, 10.0, 40.0])
@pytest.mark.parametrize("width", [12, 34, 108])
def test_a_value_stands_until_the_next_one_was_due_and_what_is_missing_is_a_gap(step_s: float, width: int) -> None:
    """Of a node that is asked every so many seconds the graph is of ten minutes, too, and no picket fence."""
    slot = int(NOW // step_s)
    scale = Scale.of(slot, step_s, width)
    assert SPAN_S <= width * scale.column_s < SPAN_S + width * 1.0 + step_s
    values: list[float | None] = [0.5] * int(SPAN_S // step_s * 2)
    assert scale.means(values) == [0.5] * width
    missing = slot - int(SPAN_S // step_s) // 2
    for at in range(missing, missing + 1 + int(2 * scale.column_s // step_s)):
        values[at - slot - 1] = None
    gap = [column for column, value in enumerate(scale.means(values)) if value is None]
    assert gap and gap == list(range(gap[0], gap[-1] + 1))
    assert missing * step_s <= scale.time_of(gap[0]) < missing * step_s + scale.column_s


def test_the_end_of_what_tells_nothing_any_more_is_no_now() -> None:
    scale = replace(Scale.of(NOW, 1.0, 100, 600), last=NOW - 130.0)
    text = plain(axis(scale))
    assert "now" not in text and text.index(f"{clock_time(NOW - 130.0)} last") == scale.column(NOW - 130.0)
    assert plain(axis(replace(scale, last=float(NOW)))).endswith(f"{clock_time(NOW)} last")


def test_an_event_just_before_the_moment_that_is_looked_at_is_not_lost() -> None:
    scale = Scale.of(NOW, 1.0, 100, 600, moment=float(NOW))
    text = plain(axis(scale, [Event(NOW - 60.0, "11:58:23 hung", "waits")]))
    assert text.endswith(f"11:58:23 hung {clock_time(NOW)}")


def test_a_limit_is_drawn_where_the_graph_leaves_it_free() -> None:
    top, *others = [plain(cells) for cells in area([0.1] * 8 + [1.0] * 2, ["graph"] * 10, 2, "5.6kW")]
    assert top == f"5.6kW {GLYPHS.rest * 2}██"
    assert GLYPHS.rest not in others[0]
    top, *_ = [plain(cells) for cells in area([1.0] * 3 + [0.1] * 3, ["graph"] * 6, 2, "5.6kW")]
    assert top == f"███{GLYPHS.rest * 3}", "its words stand nowhere in the graph"


def test_a_graph_without_a_limit_has_none_and_a_high_one_is_ruled() -> None:
    low = [plain(cells) for cells in area([0.1] * 4, ["graph"] * 4, 3)]
    assert low[:2] == ["    ", "    "]
    high = [plain(cells) for cells in area([0.01] * 4, ["graph"] * 4, 12)]
    assert [row for row, line in enumerate(high) if line == GLYPHS.rest * 4] == [0, 4, 8]
