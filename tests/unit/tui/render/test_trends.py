"""The screen's memory: one value per sample, holes for missing ones, bounded size."""

import sys
from copy import deepcopy

import pytest

from mltop.probes.model import GpuSample, NodeState, RankSample, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.trends import LENGTH, Trends


def view(*samples):
    return FleetView(0.0, tuple(NodeView(NodeState(s.node, "live"), s) for s in samples))


def sample(at, busy=(0.5,), node="n1", ranks=(), interval_s=1.0):
    gpus = [GpuSample(index, busy=value) for index, value in enumerate(busy)]
    return Sample(node, at, gpus=gpus, ranks=list(ranks), interval_s=interval_s)


def test_a_sample_counts_once_however_often_it_is_fed():
    trends = Trends()
    for at in (1.0, 1.0, 1.0, 2.0, 2.0):
        trends.feed(view(sample(at, busy=(at / 4,))))
    assert trends.busy("n1", 0) == [0.25, 0.5]


def test_missing_samples_leave_holes():
    trends = Trends()
    trends.feed(view(sample(10.0, busy=(1.0,))))
    trends.feed(view(sample(14.1, busy=(1.0,))))
    assert trends.busy("n1", 0) == [1.0, None, None, None, 1.0]


@pytest.mark.parametrize("interval_s", [0.0, -1.0])
def test_an_odd_interval_does_no_harm(interval_s):
    trends = Trends()
    trends.feed(view(sample(10.0, interval_s=interval_s)))
    trends.feed(view(sample(99.0, interval_s=interval_s)))
    assert trends.busy("n1", 0) == [0.5, 0.5]


def test_time_that_goes_backwards_does_no_harm():
    trends = Trends()
    trends.feed(view(sample(10.0)))
    trends.feed(view(sample(5.0)))
    assert trends.busy("n1", 0) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("busy", "kept"),
    [(None, None), (float("nan"), None), (7.0, 1.0), (-1.0, 0.0), (0.974, 0.975), (0.0, 0.0)],
)
def test_values_are_kept_to_half_a_percent(busy, kept):
    trends = Trends()
    trends.feed(view(sample(1.0, busy=(busy,))))
    assert trends.busy("n1", 0) == [kept]


def test_a_lost_gpu_and_a_gpu_that_vanished_are_unknown():
    trends = Trends()
    trends.feed(view(sample(1.0, busy=(0.5, 0.5))))
    lost = sample(2.0, busy=(0.5,))
    lost.gpus[0].state = "lost"
    trends.feed(view(lost))
    assert trends.busy("n1", 0) == [0.5, None]
    assert trends.busy("n1", 1) == [0.5, None]
    assert trends.busy("n1", 7) == trends.busy("nowhere", 0) == []


def test_nodes_that_left_are_forgotten():
    trends = Trends()
    trends.feed(view(sample(1.0), sample(1.0, node="n2")))
    trends.feed(view(sample(2.0)))
    assert trends.busy("n2", 0) == []
    assert trends.busy("n1", 0) == [0.5, 0.5]


def test_memory_is_bounded_for_4096_gpus():
    trends = Trends()
    gpus = sample(0.0, busy=(0.5,) * 8).gpus
    for at in range(1, LENGTH + 10):
        trends.feed(view(*(Sample(f"n{n}", float(at), gpus=gpus) for n in range(512))))
    assert {len(trends.busy(f"n{n}", gpu)) for n in range(512) for gpu in range(8)} == {LENGTH}
    assert sum(sys.getsizeof(node.ring) for node in trends._nodes.values()) < 1_000_000


def test_a_gpu_that_comes_late_and_one_with_an_odd_index_do_no_harm():
    trends = Trends()
    trends.feed(view(sample(1.0, busy=(0.5,))))
    late = sample(2.0, busy=(0.5, 0.25))
    late.gpus.append(GpuSample(10**9, busy=0.5))
    trends.feed(view(late))
    assert trends.busy("n1", 0) == [0.5, 0.5]
    assert trends.busy("n1", 1) == [None, 0.25]
    assert trends.busy("n1", 10**9) == []


def rank(switches, started_at=5.0, pid=9):
    return RankSample(pid, 0, started_at=started_at, voluntary_switches=switches, read_syscalls=1, write_syscalls=2)


def test_the_same_rank_one_sample_ago():
    trends = Trends()
    trends.feed(view(sample(1.0, ranks=[rank(10)])))
    assert trends.previous_rank("n1", 9) is None
    trends.feed(view(sample(3.5, ranks=[rank(20)])))
    trends.feed(view(sample(3.5, ranks=[rank(20)])))
    before = trends.previous_rank("n1", 9)
    assert (before.voluntary_switches, before.elapsed_s) == (10, 2.5)
    assert trends.previous_rank("n1", 10) is None
    assert trends.previous_rank("n2", 9) is None


def test_a_pid_that_was_used_again_is_another_process():
    trends = Trends()
    trends.feed(view(sample(1.0, ranks=[rank(10)])))
    trends.feed(view(sample(2.0, ranks=[rank(20, started_at=77.0)])))
    assert trends.previous_rank("n1", 9) is None


def test_a_copy_stands_still():
    trends = Trends()
    trends.feed(view(sample(1.0, ranks=[rank(10)])))
    trends.feed(view(sample(2.0, ranks=[rank(20)])))
    frozen = deepcopy(trends)
    trends.feed(view(sample(3.0, ranks=[rank(30)])))
    assert len(frozen.busy("n1", 0)) == 2
    assert frozen.previous_rank("n1", 9).voluntary_switches == 10
    assert len(trends.busy("n1", 0)) == 3
