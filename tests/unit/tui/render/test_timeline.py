"""Timelines: columns that do not tremble, gaps that are no heights, lanes that say why a clock is low."""

from __future__ import annotations

import itertools

import pytest

from mltop.probes.model import GpuSample, NodeState, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.history import History, Track
from mltop.tui.render.cells import Cell, line_width, plain
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.timelines import (
    Grid,
    axis,
    compact_axis,
    compact_lines,
    compact_title,
    mean,
    plot,
    timeline_lines,
)

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
    history = History()
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
    return [plain(line) for line in timeline_lines(track, gpu(**fields), width, room)]


@pytest.mark.parametrize("length", [1, 38, 75, 600])
@pytest.mark.parametrize("room", [1, 7, 50, 92, 170, 700])
def test_a_grid_fits_and_covers_each_value_once(length: int, room: int) -> None:
    for slot in (10**6, 10**6 + 1, 10**6 + 5):
        grid = Grid.of(length, slot, room)
        assert 1 <= grid.columns <= room or room < 1
        assert len(grid.spans) * grid.repeated == grid.columns
        covered = [index for start, end in grid.spans for index in range(start, end)]
        assert covered == list(range(covered[0], length)), "without holes, up to the newest"
        assert len(grid.reduced([1.0] * length, mean)) == grid.columns


def test_columns_stand_still_until_all_move_by_one() -> None:
    values = [float(number) for number in range(2000)]
    seen = []
    for newest in range(1200, 1260):
        grid = Grid.of(600, newest, 52)
        seen.append(tuple(grid.reduced(values[newest - 599 : newest + 1], min))[1:-1])
    moves = sum(before != after for before, after in itertools.pairwise(seen))
    assert moves == 1259 // 12 - 1200 // 12
    assert all(after[:-1] == before[1:] for before, after in itertools.pairwise(seen) if before != after)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_heights_grow_over_all_rows(rows: int) -> None:
    shares = [step / 40 for step in range(41)]
    drawn = [plain(line) for line in plot(shares, [""] * 41, rows, 0)]
    filled = [
        sum(GLYPHS.ramp.index(line[column]) + 1 for line in drawn if line[column] in GLYPHS.ramp)
        for column in range(41)
    ]
    assert filled == sorted(filled) and filled[0] == 1 and filled[-1] == 8 * rows
    assert drawn[-1][0] == GLYPHS.ramp[0], "nothing at all is still something known"


def test_unknown_is_a_dot_on_the_ground_and_what_was_not_watched_is_blank() -> None:
    top, ground = (plain(line) for line in plot([None, None, 1.0, None, float("nan")], [""] * 5, 2, 1))
    assert ground == " ·█··" and top == "  █  "


def test_styles_come_in_runs_and_blanks_do_not_break_them() -> None:
    cells = plot([1.0, 0.0, 1.0, 1.0], ["crit", "warn", "crit", "dim"], 1, 0, zero=False)[0]
    assert cells == [Cell("█ █", "crit"), Cell("█", "dim")]


@pytest.mark.parametrize(("width", "room"), [(80, 9), (80, 12), (120, 20), (200, 28), (40, 9), (20, 5)])
def test_everything_stays_in_its_place(width: int, room: int) -> None:
    for line in timeline_lines(watched(300, range(100, 130)), gpu(), width, room):
        assert line_width(line) <= max(width, 27)
    assert len(lines(watched(300), width, room)) <= room


def test_no_room_no_timeline() -> None:
    assert lines(watched(10), room=2) == []


def test_lanes_say_what_held_the_clock_down_and_for_how_long() -> None:
    found = timeline_lines(watched(600), gpu(), 120, 12)
    text = [plain(line) for line in found]
    assert text[0].startswith("last 10 min, a column 7 s") and text[0].endswith("MIN  MAX LAST")
    clock = next(line for line in found if plain(line).startswith("clock MHz"))
    assert plain(clock).split()[-3:] == ["1095", "1980", "1095"]
    assert {cell.style for cell in clock} >= {"crit", "dim"}, "held down and free"
    reason = next(line for line in text if line.startswith("HW-TH"))
    assert reason.endswith("30% of time") and GLYPHS.ramp[-1] in reason and "   " in reason[12:60]
    assert not any(line.startswith(("HW-SL", "PWR", "idle")) for line in text), "only what occurred, once"
    assert [line.split()[0] for line in text[1:] if line[0] != " "] == [
        "clock",
        "HW-TH",
        "temp",
        "power",
        "SM",
        "tensor",
    ]


def test_a_slowdown_without_a_cause_has_its_lane() -> None:
    text = lines(watched(60, throttle_reasons=["hw_slowdown"]))
    assert any(line.startswith("HW-SL") and line.endswith("100% of time") for line in text)


def test_a_gap_is_seen_in_every_lane() -> None:
    text = lines(watched(600, range(300, 340)), 120, 8)
    lanes = [line for line in text[1:-1] if line[0] != " "]
    assert lanes and all("··" in line for line in lanes)


def test_where_activity_is_unknown_the_coarse_one_is_shown() -> None:
    text = lines(watched(60, sm_active=None, tensor_active=None))
    assert any(line.startswith("busy %") for line in text)
    assert not any(line.startswith(("SM", "tensor")) for line in text)


def test_a_gpu_of_which_nothing_is_known_has_figures_that_say_so() -> None:
    unknown = dict.fromkeys(("sm_clock_mhz", "temperature_c", "power_w", "busy", "sm_active", "tensor_active"))
    text = lines(watched(60, **unknown, throttle_reasons=None))
    clock = next(line for line in text if line.startswith("clock"))
    assert clock.split()[-3:] == ["–", "–", "–"] and not any(glyph in clock for glyph in GLYPHS.ramp)


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
    assert drawn[0].startswith("  0 MHz ") and drawn[0].endswith("1095 HW-TH 30%")
    if rows == 2:
        assert drawn[1].startswith("    SM  ") and drawn[1].endswith(" 75%")
    assert len(plain(compact_title(found, 80))) <= 80 and len(plain(compact_axis(found, 80))) <= 80
    assert plain(compact_lines(None, GpuSample(3, error="GPU is lost"), 80, rows)[0]) == "  3 GPU is lost"
