"""Any run of samples comes back as a store would tell it that keeps everything as it came."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltop.probes.model import GpuSample, HostSample, JobKey, NodeState, RankSample, Sample
from mltop.probes.model.gpu import Nvlink
from mltop.probes.model.news.row import GPU_LANES, NODE_LANES, UNKNOWN, pack_row, row_of, values_of
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.past.node import COARSE_STEP_S, NodePast
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.rings import ROWS, Ring
from mltop.tui.app.past.track import SPAN_S, Track

T0 = 1_763_640_000.0
Given = dict[int, tuple[float | None, ...]]  # by second: the clocks of the GPUs


def sample(at: float, clocks: Iterable[float | None], **fields: object) -> Sample:
    gpus = [GpuSample(at, sm_clock_mhz=clock, **fields) for at, clock in enumerate(clocks)]
    return Sample("n1", T0 + at, gpus=gpus)


def take(past: NodePast, one: Sample) -> None:
    past.take_whole(one)
    past.take(one.sampled_at, pack_row(row_of(one)))


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, tuple[float | None, ...]]]:
    """Samples: seconds go on by one, by a gap, or back; GPUs come, and are unknown now and then."""
    source = random.Random(draw(st.integers(0, 1 << 30)))
    at, gpus, made = 0, source.randint(1, 3), []
    for _ in range(draw(st.sampled_from((1, 3, 59, 61, 150, 400, 900)))):
        kind = source.random()
        at += 1 if kind < 0.95 else source.choice((2, 4, 30, 100, 700)) if kind < 0.985 else -source.choice((1, 5, 90))
        gpus = min(5, gpus + (source.random() < 0.005))
        made.append((at, tuple(None if source.random() < 0.05 else source.randrange(2048) for _ in range(gpus))))
    return made


def kept_naively(run: list[tuple[int, tuple[float | None, ...]]]) -> Given:
    """Every second by itself: gaps up to two seconds are none, and time that goes back forgets what was later."""
    kept: Given = {}
    newest = None
    for at, clocks in run:
        if at == newest:
            continue
        if newest is not None and at < newest:
            kept = {second: own for second, own in kept.items() if second < at}
        elif newest is not None and at - newest <= 2:
            kept.update(dict.fromkeys(range(newest + 1, at), clocks))
        kept[at] = clocks
        newest = at
    return kept


@settings(max_examples=60)
@given(runs())
def test_seconds_come_back_as_they_were(run: list[tuple[int, tuple[float | None, ...]]]) -> None:
    past = NodePast(1.0)
    for at, clocks in run:
        take(past, sample(at, clocks))
    kept, newest = kept_naively(run), run[-1][0]
    for gpu in range(past.gpus):
        track = past.track(gpu, T0 + newest)
        assert track is not None and track.length == SPAN_S
        wanted = [kept.get(second, ()) for second in range(newest - 599, newest + 1)]
        assert list(track.clock_mhz) == [own[gpu] if gpu < len(own) else None for own in wanted]


@settings(max_examples=30)
@given(runs())
def test_a_moment_is_that_of_the_newest_sample_before_it(run: list[tuple[int, tuple[float | None, ...]]]) -> None:
    past = NodePast(1.0)
    for at, clocks in run:
        take(past, sample(at, clocks))
    kept, newest = kept_naively(run), run[-1][0]
    for second in range(max(min(kept), newest - 600), newest + 1, 7):
        known = [at for at in kept if at <= second and set(kept[at]) != {None}]
        found = past.row_at(T0 + second)
        if known and known[-1] > newest - 600:
            assert found is not None
            own = kept[known[-1]]
            clocks = [values_of(found[2])[3 + gpu * len(GPU_LANES)] for gpu in range(len(own))]
            assert [None if math.isnan(clock) else clock for clock in clocks] == list(own)


def test_old_values_are_those_of_ten_seconds() -> None:
    past = NodePast(1.0)
    for at in range(3000):
        hot = ["hw_thermal"] if at % 10 == 3 else ["sw_power_cap"] if at % 10 == 4 else []
        one = sample(at, [2000 - at % 10], power_w=100.0 + at % 10, temperature_c=50.0 + at % 10, throttle_reasons=hot)
        one.gpus[0].memory_used_bytes = (at % 10) << 30
        take(past, one)
    track = past.track(0, T0 + 1500)
    assert track is not None and track.step_s == COARSE_STEP_S and track.length == 60
    assert set(track.clock_mhz) == {1991.0}, "the lowest: a mean hides a fall"
    assert set(track.temperature_c) == {59.0}, "the highest"
    assert list(track.power_w) == pytest.approx([104.5] * 60, rel=2e-3), "the mean"
    assert set(track.memory_used_bytes) == {9 << 30}, "the last"
    assert track.share("hw_thermal") == 1.0 and track.share("sw_power_cap") == 1.0, "all that held"
    hours = past.track(0, T0 + 2999, span_s=4 * 3600.0)
    assert hours is not None and hours.length == 1440 and hours.began == 1440 - 300


def test_four_hours_are_kept_and_no_more() -> None:
    past = NodePast(5.0)
    for at in range(0, 5 * 3600, 5):
        take(past, sample(at, [at // 10]))
    track = past.track(0, T0 + 5 * 3600 - 1, span_s=4 * 3600.0)
    assert track is not None and track.clock_mhz[0] is not None and track.clock_mhz[-2] is not None
    assert past.row_at(T0 + 60) is None and past.row_at(T0 + 2 * 3600) is not None


def test_unknown_is_never_a_number_and_too_much_is_no_end() -> None:
    past = NodePast(1.0)
    one = sample(0, [None, 10**9], power_w=1e300, throttle_reasons=None)
    one.gpus[1].nvlink = Nvlink(rx_bytes_per_s=1e11)
    take(past, one)
    lost = past.track(0, T0), past.track(1, T0)
    assert lost[0] is not None and lost[1] is not None
    assert lost[0].clock_mhz[-1] is None and lost[0].reasons[-1] is None
    assert lost[1].nvlink_bytes_per_s[-1] is None, "half of it is not known"
    assert 0 < (lost[1].clock_mhz[-1] or 0) < math.inf


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_packing_loses_only_what_is_spared(gpus: int) -> None:
    source, lanes = random.Random(gpus), (*NODE_LANES, *GPU_LANES * gpus)
    values = [[source.choice((UNKNOWN, source.uniform(0, 1000))) for _ in lanes[1:]] for _ in range(ROWS)]
    rows = [pack_row([0.5, *row]) for row in values]
    ring, again = Ring(1.0, 2), Ring(1.0, 2)
    for slot, row in enumerate(rows):
        ring.put(slot, row)
    for slot, row in enumerate(rows):
        found = ring.seen().row(slot)
        assert found is not None
        again.put(slot, found[1])
        for lane, was, now in zip(lanes, values_of(row), values_of(found[1]), strict=True):
            assert math.isnan(was) is math.isnan(now)
            assert math.isnan(was) or now == pytest.approx(was, rel=(1 << lane.spared) / 2048, abs=0.0)
            assert lane.spared or now == was or math.isnan(was)
    assert [again.seen().row(slot) for slot in range(ROWS)] == [ring.seen().row(slot) for slot in range(ROWS)]


def test_reducing_leaves_out_what_is_unknown() -> None:
    nothing = [UNKNOWN] * 13
    one = [0.5, UNKNOWN, 2.0, 1980.0, 600.0, 50.0, 1.0, 0.25, UNKNOWN, 0.5, 1.0, 64.0, 1.0]
    coarse = Ring(10.0, 2)
    ring = Ring(1.0, 2, coarse)
    for slot in range(ROWS):
        ring.put(slot, pack_row(one if slot == 27 else nothing))
    assert coarse.seen().row(5) == (2, pack_row(one)), "the others are not known at all"


# Sums.


def fleet_sample(node: int, at: float, sm: float | None = 0.5, job: str = "train", uid: int = 1) -> Sample:
    gpus = [GpuSample(index, sm_active=sm, busy=1.0, power_w=100.0) for index in range(4)]
    ranks = [RankSample(100 + index, rank=index, job=job, uid=uid, gpus=[index]) for index in range(2)]
    host = HostSample(ports_rx_bytes_per_s=1e9, ports_tx_bytes_per_s=2e9)
    return Sample(f"n{node}", T0 + at, gpus=gpus, ranks=ranks, host=host)


def summed(samples: Iterable[Sample]) -> Past:
    """A picture each second, of the newest samples by then; a node that says nothing for three seconds is stale."""
    past, newest, at = Past(), {}, T0

    def see() -> None:
        past.feed(
            FleetView(
                at,
                tuple(
                    NodeView(NodeState(one.node, "live" if at - one.sampled_at < 3.0 else "stale"), one)
                    for one in newest.values()
                ),
            )
        )

    for one in samples:
        if one.sampled_at > at:
            see()
            at = one.sampled_at
        newest[one.node] = one
    see()
    return past


TRAIN = JobKey("train", 1)


def test_a_job_is_the_sum_of_its_own_gpus_and_nodes() -> None:
    sums = summed(fleet_sample(node, at, 0.2 * node) for at in range(100) for node in range(3))
    job, every = sums.sums(TRAIN, 60), sums.sums(None, 60)
    assert job is not None and sums.sums(JobKey("train", 2), 60) is None
    assert job.column_s == 10.0 and job.began == 50
    assert job.sm_active[-1] == pytest.approx(0.2, rel=1e-3) and job.busy[-1] == 1.0 and job.activity[0] == "SM"
    assert job.power_w[-1] == pytest.approx(600.0) and every.power_w[-1] == pytest.approx(1200.0)
    assert job.network_bytes_per_s[-1] == pytest.approx(9e9, rel=1e-3)
    assert job.nodes[-1] == 3 and set(job.sm_active[:50]) == {None} and set(job.nodes[:50]) == {0}


def test_the_newest_seconds_wait_for_all_nodes() -> None:
    samples = [fleet_sample(node, at) for at in range(60) for node in range(4)]
    job = summed([*samples, fleet_sample(0, 60)]).sums(TRAIN, 600)
    assert job is not None and job.power_w[-1] == pytest.approx(800.0) and job.until == T0 + 59


def test_a_missed_second_is_not_missing_and_a_silent_node_is() -> None:
    missed = (fleet_sample(node, at) for at in range(60) for node in range(2) if at != 30 or node)
    job = summed(missed).sums(TRAIN, 600)
    assert job is not None and job.power_w[-50:] == pytest.approx([400.0] * 50)
    silent = (fleet_sample(node, at) for at in range(60) for node in range(2) if node or at < 30)
    job = summed(silent).sums(TRAIN, 600)
    assert job is not None and job.nodes[-1] == 1 and job.most_nodes == 2 and job.power_w[-1] == pytest.approx(200.0)


def test_hours_of_a_job_are_kept() -> None:
    sums = summed(fleet_sample(0, at, 0.25 if at < 3000 else 0.75) for at in range(6000))
    hour = sums.sums(TRAIN, 100, span_s=6000.0)
    assert hour is not None and hour.column_s == 60.0
    assert hour.sm_active[10] == pytest.approx(0.25) and hour.sm_active[-1] == pytest.approx(0.75)
    then = sums.sums(TRAIN, 60, T0 + 1500)
    assert then is not None and then.sm_active[-1] == pytest.approx(0.25) and then.power_w[-1] == pytest.approx(200.0)


def test_what_is_not_known_of_any_gpu_is_unknown() -> None:
    job = summed(fleet_sample(0, at, None) for at in range(30)).sums(TRAIN, 600)
    assert job is not None and set(job.sm_active) == {None} and job.activity[0] == "busy"


def test_a_track_tells_nothing_of_a_gpu_that_never_was() -> None:
    past = NodePast(1.0)
    take(past, sample(0, [1980]))
    found: Track | None = past.track(1, T0)
    assert found is None


@pytest.mark.parametrize("every_s", [5, 40])
@pytest.mark.parametrize("began_with_s", [1.0, None], ids=["slower since", "slow from the start"])
def test_nodes_that_are_asked_seldom_leave_no_gaps(every_s: int, began_with_s: float | None) -> None:
    """What a sample said holds until the next one was due by the node's own interval, and no longer."""
    past = Past()

    def see(at: int, interval_s: float) -> None:
        samples = [replace(fleet_sample(node, at + node), interval_s=interval_s) for node in range(2)]
        nodes = tuple(NodeView(NodeState(one.node, "live"), one) for one in samples)
        past.feed(FleetView(T0 + at + 1.0, nodes))

    if began_with_s is not None:
        see(-every_s, began_with_s)
    for at in range(0, 601, every_s):
        if at != 320:  # of 40 s: one that comes late is no gap yet
            see(at, float(every_s))
    whole = past.sums(None, 64, T0 + 600)
    assert None not in whole.power_w[-62:] and set(whole.nodes[-62:]) == {2}
    see(600 + 5 * every_s, float(every_s))
    gap = past.sums(None, 10 * every_s, T0 + 600 + 5 * every_s, 10.0 * every_s)
    assert gap.power_w[-3 * every_s] is None, "what is really missing is not made up"
