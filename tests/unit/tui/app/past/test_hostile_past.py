"""What one node says of time costs nobody else anything: neither their graphs, nor memory, nor the screen's time."""

from __future__ import annotations

import time

import pytest

from mltop.probes.model import GpuSample, JobKey, NodeState, RankSample, Sample
from mltop.probes.model.news.row import pack_row, row_of
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.past.node import LONGEST_S, NodePast
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.sums import MOST_JOBS, RunningSums, told_by

T0 = 1_000_000_000.0
JOB = JobKey("train", 1000)
LANES = pack_row(row_of(Sample("n1", T0, gpus=[GpuSample(0, sm_active=0.5)])))


def sample(at: float, node: str = "n1") -> Sample:
    ranks = [RankSample(7, 0, job=JOB.name, uid=JOB.uid)]
    return Sample(node, at, gpus=[GpuSample(index, sm_active=0.5, power_w=100.0) for index in range(2)], ranks=ranks)


def view(now: float, *samples: Sample) -> FleetView:
    nodes = [NodeView(NodeState(one.node, "live", "", 0.1), one) for one in samples]
    return FleetView(now, tuple(nodes), int(now))


@pytest.mark.parametrize("first", [1.0, 86_400.0])
def test_an_interval_that_a_node_claims_makes_no_rows(first: float) -> None:
    past = NodePast(first)
    past.take(T0, LANES)
    before = past.packed_bytes
    past.take_whole(Sample("n1", T0, interval_s=86_400.0))
    past.take(T0 + 200_000.0, LANES)
    assert past.packed_bytes - before < 100_000
    assert past.interval_s <= LONGEST_S


def test_a_clock_that_leaps_costs_no_time() -> None:
    sums = RunningSums()
    told = told_by([0.0] * 40, None)
    began = time.process_time()
    for step in (1000, 1_760_000_000, 1000, 1_760_000_001):
        sums.put(step, told, 1500)
    assert time.process_time() - began < 20.0  # 1.8e8 turns would take minutes


def test_a_node_whose_clock_goes_back_takes_nothing_from_others() -> None:
    past = Past()
    for second in range(120):
        now = T0 + second
        past.feed(view(now, sample(now, "n1"), sample(now, "n2")))
    before = past.sums(None, 10)
    assert before.most_nodes == 2
    past.feed(view(T0 + 120, sample(T0 + 120, "n1"), sample(T0 - 5000.0, "n2")))
    after = past.sums(None, 10)
    assert after.most_nodes == 2 and after.until >= before.until


def test_a_node_that_makes_up_names_of_jobs_costs_only_its_own() -> None:
    past = Past()
    for second in range(30):
        now = T0 + second
        ranks = [RankSample(pid, pid, job=f"made-up-{second}-{pid}", uid=1000) for pid in range(100)]
        past.feed(view(now, sample(now, "n1"), Sample("n2", now, ranks=ranks)))
    past.feed(view(T0 + 40, sample(T0 + 40, "n3")))
    sums = past.sums(JOB, 10)
    assert sums is not None and sums.most_nodes >= 1
    assert len(past._sums._first) <= MOST_JOBS
