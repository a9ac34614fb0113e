"""Ten minutes of every GPU: gaps are gaps, time may go back, and old values come as those of ten seconds."""

from __future__ import annotations

import math

import pytest

from mltop.probes.model import GpuSample, NodeState, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.track import SPAN_S, ShownHistory, Track, has

T0 = 1_763_640_000.0


def sample(at: float, clock: int | None = 1980, node: str = "n1", interval_s: float = 1.0, **fields: object) -> Sample:
    gpus = [GpuSample(0, sm_clock_mhz=clock, **fields), GpuSample(1, sm_clock_mhz=1000, throttle_reasons=[])]
    return Sample(node, T0 + at, interval_s=interval_s, gpus=gpus)


def view(*samples: Sample) -> FleetView:
    return FleetView(T0, tuple(NodeView(NodeState(one.node, "live"), one) for one in samples))


def fed(*samples: Sample) -> Past:
    history = Past()
    for one in samples:
        history.feed(view(one))
    return history


def track(history: Past, until: float, gpu: int = 0, node: str = "n1") -> Track:
    taken = history.track(node, gpu, T0 + until)
    assert taken is not None
    return taken


def test_values_come_back_newest_last_and_nothing_before_the_first() -> None:
    found = track(fed(*(sample(at, 1000 + at) for at in range(5))), 4)
    assert list(found.clock_mhz[-5:]) == [1000, 1001, 1002, 1003, 1004]
    assert set(found.clock_mhz[:-5]) == {None} and len(found.clock_mhz) == SPAN_S
    assert found.began == len(found.clock_mhz) - 5 and found.step_s == 1.0


def test_all_lanes_are_kept() -> None:
    one = sample(
        0,
        power_w=612.5,
        temperature_c=-3.0,
        busy=0.97,
        sm_active=0.5,
        tensor_active=0.25,
        throttle_reasons=["hw_thermal", "something_new"],
    )
    found = track(fed(one), 0)
    newest = (found.power_w, found.temperature_c, found.busy, found.sm_active, found.tensor_active)
    assert [values[-1] for values in newest] == pytest.approx([612.5, -3.0, 0.97, 0.5, 0.25], rel=1e-3)
    assert has(found.reasons[-1], "hw_thermal") and not has(found.reasons[-1], "power_brake")
    assert has(None, "hw_thermal") is None
    assert found.seen_reasons() == ["hw_thermal"] and found.share("hw_thermal") == 1.0


def test_the_same_sample_counts_once_and_jitter_makes_no_gap() -> None:
    history = fed(*(sample(at) for at in (0.02, 0.02, 1.01, 1.99, 3.01, 4.0)))
    assert list(track(history, 4.0).clock_mhz[-5:]) == [1980] * 5


def test_a_pause_of_the_node_is_a_gap_not_a_value() -> None:
    found = track(fed(sample(0, 1000), sample(1, 1001), sample(9, 1009)), 9)
    assert list(found.clock_mhz[-10:]) == [1000, 1001, *[None] * 7, 1009]
    assert found.began == len(found.clock_mhz) - 10, "what was missed was watched"


def test_a_node_that_is_silent_by_now_ends_in_a_gap() -> None:
    history = fed(sample(0), sample(1))
    assert track(history, 2.4).clock_mhz[-1] == 1980, "the next sample is not overdue"
    silent = track(history, 31)
    assert list(silent.clock_mhz[-32:]) == [1980, 1980, *[None] * 30]
    assert set(track(history, 4000).clock_mhz) == {None}


def test_unknown_and_lost_are_gaps_and_the_other_gpus_stay() -> None:
    lost = sample(2)
    lost.gpus[0].state = "lost"
    history = fed(sample(0), sample(1, None), lost, sample(3, busy=math.nan))
    assert list(track(history, 3).clock_mhz[-4:]) == [1980, None, None, 1980]
    assert track(history, 3).busy[-1] is None
    assert list(track(history, 3, gpu=1).clock_mhz[-4:]) == [1000] * 4
    assert list(track(history, 3, gpu=1).reasons[-4:]) == [0] * 4, "no reason holds: that is known"
    assert history.track("n1", 7, T0) is None and history.track("elsewhere", 0, T0) is None


def test_a_long_interval_is_no_gap() -> None:
    found = track(fed(*(sample(at, interval_s=5.0) for at in range(0, 50, 5))), 45)
    assert found.step_s == 5.0 and set(found.clock_mhz[-10:]) == {1980}


def test_a_gpu_that_comes_later_was_unknown_before() -> None:
    few = sample(0)
    few.gpus.pop()
    found = track(fed(few, sample(1)), 1, gpu=1)
    assert list(found.clock_mhz[-2:]) == [None, 1000]


def test_hidden_gpus_keep_their_index() -> None:
    hidden = sample(0)
    hidden.gpus[1].index = 5
    assert track(fed(hidden), 0, gpu=5).clock_mhz[-1] == 1000
    assert track(fed(hidden), 0, gpu=3).clock_mhz[-1] is None


def test_time_that_goes_back_forgets_what_was_later() -> None:
    history = fed(*(sample(at, 1000 + at) for at in range(20)), sample(5, 2005), sample(6, 2006))
    assert list(track(history, 6).clock_mhz[-4:]) == [1003, 1004, 2005, 2006]
    far = fed(sample(5000), sample(0, 1500))
    assert track(far, 0).clock_mhz[-1] == 1500 and set(track(far, 0).clock_mhz[:-1]) == {None}


def test_more_than_ten_minutes_forget_the_oldest() -> None:
    found = track(fed(*(sample(at, at) for at in range(700))), 699)
    assert found.clock_mhz[0] == 100 and found.clock_mhz[-1] == 699 and found.began == 0


def test_what_a_paused_pane_shows_stands_still() -> None:
    history, shown = fed(sample(0, 1000)), ShownHistory()
    then = view(sample(0, 1000)).nodes[0]
    still = shown.track(history, True, then, 0)
    for at in range(1, 3000):
        history.feed(view(sample(at, 1001)))
    assert still is not None and shown.track(history, True, then, 0) is still
    assert still.clock_mhz[-1] == 1000 and still.power_w[-1] is None, "lanes looked at later are of then, too"
    live = shown.track(history, False, view(sample(2999)).nodes[0], 0)
    assert live is not None and live.clock_mhz[-1] == 1001


def test_nodes_that_left_are_forgotten() -> None:
    history = fed(sample(0), sample(0, node="n2"))
    assert history.track("n1", 0, T0) is None and history.track("n2", 0, T0) is not None


def test_what_is_still_being_read_is_not_kept_as_all_that_there_is() -> None:
    """The newest values of a recording may come between two looks, together with the word that this is all."""
    past = fed(sample(0, 1000))

    class Reading:
        settled = False

        def is_settled(self, moment: float) -> bool:
            return self.settled

        def track(self, node: str, gpu: int, until: float, span_s: float = SPAN_S) -> Track | None:
            return past.track(node, gpu, until, span_s) if self.settled else None

    reading, shown = Reading(), ShownHistory()
    then = view(sample(0, 1000)).nodes[0]
    assert shown.track(reading, True, then, 0) is None
    reading.settled = True
    assert shown.track(reading, True, then, 0) is not None
