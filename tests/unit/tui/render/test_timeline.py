"""The lanes of one GPU: each in its place, and they say why a clock is low."""

from __future__ import annotations

import pytest

from mltop.probes.model import GpuSample, NodeState, Sample
from mltop.probes.model.units import clock_time, watts
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.track import Track
from mltop.tui.render.cells import line_width, plain
from mltop.tui.render.gpus.lanes import lane_lines
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
    found = history.track("n1", 0, T0 + seconds - 1)
    assert found is not None
    return found


def lines(track: Track, width: int = 80, room: int = 12, **fields: object) -> list[str]:
    return [plain(line) for line in lane_lines(track, gpu(**fields), width, room)]


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
