"""What one node says of time costs nobody else anything: neither their graphs, nor memory, nor the screen's time."""

from __future__ import annotations

import time

import pytest

from mltop.probes.model import JobKey, NodeState
from mltop.probes.reach.view import FleetView, GpuSummary, NodeView, RankSummary, Received, SampleSummary
from mltop.tui.app.past.node import LONGEST_S, NodePast
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.sums import MOST_JOBS, RunningSums, told_by

T0 = 1_000_000_000.0
JOB = JobKey("train", 1000)


def summary(at: float, node: str = "n1", interval_s: float = 1.0, gpus: int = 2) -> SampleSummary:
    ranks = (RankSummary(7, 0, JOB.name, JOB.uid),)
    cards = tuple(GpuSummary(index, sm_active=0.5, power_w=100.0) for index in range(gpus))
    return SampleSummary(at, node, interval_s, gpus=cards, ranks=ranks)


def view(now: float, *summaries: SampleSummary) -> FleetView:
    nodes = [NodeView(NodeState(one.node, "live", "", 0.1), Received(b"", one, lambda *_: None)) for one in summaries]
    return FleetView(now, tuple(nodes), int(now))


@pytest.mark.parametrize("first", [1.0, 86_400.0])
def test_an_interval_that_a_node_claims_makes_no_rows(first: float) -> None:
    past = NodePast(first)
    past.take(summary(T0, interval_s=first))
    before = past.packed_bytes
    past.take(summary(T0 + 200_000.0, interval_s=86_400.0))
    assert past.packed_bytes - before < 100_000
    assert past.interval_s <= LONGEST_S


def test_a_clock_that_leaps_costs_no_time() -> None:
    sums = RunningSums()
    told = told_by([0.0] * 40, None)
    began = time.process_time()
    for step in (1000, 1_760_000_000, 1000, 1_760_000_001):
        sums.add((step,), told)
        sums.forget_after(step)
    assert time.process_time() - began < 20.0  # 1.8e8 turns would take minutes


def test_a_node_whose_clock_goes_back_takes_nothing_from_others() -> None:
    past = Past()
    for second in range(120):
        now = T0 + second
        past.feed(view(now, summary(now, "n1"), summary(now, "n2")))
    before = past.of_nodes(10)
    assert before.most_nodes == 2
    past.feed(view(T0 + 120, summary(T0 + 120, "n1"), summary(T0 - 5000.0, "n2")))
    after = past.of_nodes(10)
    assert after.most_nodes == 2 and after.until >= before.until


def test_a_node_that_makes_up_names_of_jobs_costs_only_its_own() -> None:
    past = Past()
    for second in range(30):
        now = T0 + second
        ranks = tuple(RankSummary(pid, pid, f"made-up-{second}-{pid}", 1000) for pid in range(100))
        past.feed(view(now, summary(now, "n1"), SampleSummary(now, "n2", 1.0, ranks=ranks)))
    past.feed(view(T0 + 40, summary(T0 + 40, "n3")))
    sums = past.of_job(JOB, 10)
    assert sums is not None and sums.most_nodes >= 1
    assert len(past._sums._jobs) <= MOST_JOBS
