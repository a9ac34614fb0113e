"""Timelines: columns that do not tremble, gaps that are no heights, lanes that say why a clock is low."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest

from mltop.probes.model import GpuSample, NodeState, Sample
from mltop.probes.model.units import clock_time, watts
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.track import Track
from mltop.tui.render.cells import Cell, line_width, plain
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.lanes import lane_lines
from mltop.tui.render.gpus.timelines import (
    Grid,
    axis,
    compact_axis,
    compact_lines,
    compact_title,
    plot,
)
from mltop.tui.render.graph import Span

LANES = ("SM clock", "temperature", "power", "SM active", "tensor")

T0 = 1_763_640_000.0


def gpu(at: float = 0.0, **fields: object) -> GpuSample:
    """Hot for 12 of 40 s."""
    hot = at % 40 >= 28
    known: dict[str, object] = {
        "sm_clock_mhz": 1095 if hot else 1980,
        "sm_clock_max_mhz": 1980,
        "temperature_c": 87.0 if hot else 70.0,
        "temperature_slowdown_c": 87.0,
        "power_w": 330.0 if hot else 650.0,
        "power_limit_w": 700.0,
        "busy": 1.0,
        "sm_active": 0.75,
        "tensor_active": 0.5,
        "throttle_reasons": ["hw_slowdown", "hw_thermal"] if hot else [],
    }
    return GpuSample(0, **{**known, **fields})


def watched(seconds: int, missing: range = range(0), **fields: object) -> Track:
    history = Past()
    for at in range(seconds):
        if at not in missing:
            one = Sample("n1", T0 + at, gpus=[gpu(at, **fields)])
            history.feed(FleetView(T0, (NodeView(NodeState("n1", "live"), one),)))
    node = history.of("n1")
    assert node is not None
    found = node.track(0, T0 + seconds - 1)
    assert found is not None
    return found


def lines(track: Track, width: int = 80, room: int = 12, **fields: object) -> list[str]:
    return [plain(line) for line in lane_lines(track, gpu(**fields), width, room)]


@pytest.mark.parametrize("length", [1, 38, 75, 600])
@pytest.mark.parametrize("room", [1, 7, 50, 92, 170, 700])
def test_a_grid_fits_and_covers_each_value_once(length: int, room: int) -> None:
    for slot in (10**6, 10**6 + 1, 10**6 + 5):
        grid = Grid.of(length, slot, room)
        assert 1 <= grid.columns <= room or room < 1
        assert len(grid.spans) * grid.repeated == grid.columns
        covered = [index for start, end in grid.spans for index in range(start, end)]
        assert covered == list(range(covered[0], length)), "without holes, up to the newest"
        assert len(grid.reduced([1.0] * length, fmean)) == grid.columns


def test_columns_stand_still_until_all_move_by_one() -> None:
    values = [float(number) for number in range(2000)]
    seen = []
    for newest in range(1200, 1260):
        grid = Grid.of(600, newest, 52)
        seen.append(tuple(grid.reduced(values[newest - 599 : newest + 1], min))[1:-1])
    moves = sum(before != after for before, after in itertools.pairwise(seen))
    assert moves == 1259 // 12 - 1200 // 12
    assert all(after[:-1] == before[1:] for before, after in itertools.pairwise(seen) if before != after)


def test_heights_grow_with_the_share() -> None:
    drawn = plain(plot([step / 40 for step in range(41)], [""] * 41, 0))
    heights = [GLYPHS.ramp.index(glyph) for glyph in drawn]
    assert heights == sorted(heights) and drawn[-1] == GLYPHS.ramp[-1]
    assert drawn[0] == GLYPHS.ramp[0], "nothing at all is still something known"


def test_unknown_is_a_dot_on_the_ground_and_what_was_not_watched_is_blank() -> None:
    assert plain(plot([None, None, 1.0, None, float("nan")], [""] * 5, 1)) == " ·▇··"


def test_styles_come_in_runs() -> None:
    cells = plot([1.0, 0.0, 1.0], ["crit", "crit", "dim"], 0)
    assert cells == [Cell(f"▇{GLYPHS.ramp[0]}", "crit"), Cell("▇", "dim")]


@pytest.mark.parametrize(("width", "room"), [(80, 9), (80, 12), (120, 20), (200, 28), (40, 9), (20, 5)])
def test_everything_stays_in_its_place(width: int, room: int) -> None:
    for line in lane_lines(watched(300, range(100, 130)), gpu(), width, room):
        assert line_width(line) <= width
    assert len(lines(watched(300), width, room)) <= room


def test_no_room_no_timeline() -> None:
    assert lines(watched(10), room=2) == []


def test_lanes_say_what_is_now_and_of_what() -> None:
    text = lines(watched(600), 120, 20)
    assert text[0].split()[:3] == ["last", "10", "min,"] and text[0].endswith("NOW")
    labels = [line[:14].strip() for line in text]
    assert [label for label in labels if label in LANES] == [*LANES]
    clock = next(line for line in text if line.startswith("SM clock"))
    assert clock.endswith("1.09 GHz") and any(line.startswith("of 1.98 GHz") for line in text)


def test_where_the_clock_was_held_down_it_is_a_warning_and_nowhere_else() -> None:
    drawn = lane_lines(watched(600), gpu(), 120, 20)
    clock = next(line for line in drawn if plain(line).startswith("SM clock"))
    assert {cell.style for cell in clock} >= {"graph", "graph-warn"}
    power = next(line for line in drawn if plain(line).startswith("power"))
    assert "graph-warn" not in {cell.style for cell in power}


def test_a_hang_is_drawn_in_every_lane() -> None:
    drawn = lane_lines(watched(600), gpu(), 120, 20, waits=[Span(T0 + 500.0, None, "graph-waits")])
    for label in LANES:
        line = next(line for line in drawn if plain(line).startswith(label))
        assert {"graph-waits", "area-waits"} & {cell.style for cell in line}, label


def test_the_values_of_a_moment_of_the_past_stand_left_of_those_of_now() -> None:
    cold, hot = T0 + 100.0, T0 + 599.0
    track = watched(600)
    drawn = lane_lines(track, gpu(), 120, 20, moment=cold)
    assert plain(drawn[0]).split()[-2:] == [clock_time(cold), "NOW"] and drawn[0][-2].style == "keys"
    at_hot = lane_lines(track, gpu(), 120, 20, moment=hot)
    now = lane_lines(track, gpu(), 120, 20)
    for label in LANES:
        of_moment, beside, alone = (
            next(plain(line) for line in lines if plain(line).startswith(label)) for lines in (drawn, at_hot, now)
        )
        assert of_moment[-8:] == beside[-8:] == alone[-8:], "now"
        assert beside[-18:-10] == beside[-8:], "the newest moment is now"
    power = next(plain(line) for line in drawn if plain(line).startswith("power"))
    assert power.split()[-2:] == [watts(track.power_w[100]), watts(track.power_w[-1])]
    assert any("scrub" in cell.style for line in drawn for cell in line), "a column across all graphs"


def test_now_of_a_moment_that_the_graphs_do_not_reach() -> None:
    then, newest = watched(300), watched(600)
    drawn = lane_lines(then, gpu(), 120, 20, moment=T0 + 299.0, newest=newest)
    power = next(plain(line) for line in drawn if plain(line).startswith("power"))
    assert power.split()[-2:] == [watts(then.power_w[-1]), watts(newest.power_w[-1])]


def test_where_activity_is_unknown_the_coarse_one_is_shown() -> None:
    text = lines(watched(60, sm_active=None, tensor_active=None), 120, 20)
    assert any(line.startswith("busy") for line in text) and not any(line.startswith("SM active") for line in text)


def test_the_axis_counts_back_from_the_time_of_the_newest() -> None:
    found = watched(600)
    for width in (52, 92, 160):
        grid = Grid.of(600, found.slot, width)
        text = plain(axis(grid, 1.0, found.until, 10))
        assert len(text) == 10 + grid.columns
        at = text.index("-4m") - 10 - 1
        assert at == grid.columns - 1 - round(240 / grid.per_column)
    assert plain(axis(Grid.of(600, 1, 5), 1.0, found.until, 2)).strip() == ""


@pytest.mark.parametrize("rows", [1, 2])
def test_compact_lines(rows: int) -> None:
    found = watched(600)
    drawn = [plain(line) for line in compact_lines(found, gpu(), 80, rows)]
    assert len(drawn) == rows and all(len(line) <= 80 for line in drawn)
    assert drawn[0].startswith("  0 MHz ") and drawn[0].endswith("1095 too hot 30%")
    if rows == 2:
        assert drawn[1].startswith("    SM  ") and drawn[1].endswith(" 75%")
    assert len(plain(compact_title(found, 80))) <= 80 and len(plain(compact_axis(found, 80))) <= 80
    assert plain(compact_lines(None, GpuSample(3, error="GPU is lost"), 80, rows)[0]) == "  3 GPU is lost"
