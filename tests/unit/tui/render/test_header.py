"""The two header lines: totals, what is simulated or paused, and what goes first when it is narrow."""

import time

import pytest
from rich.cells import cell_len

from mltop.probes.model import Finding, GpuSample, NodeState, RankSample, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import plain
from mltop.tui.render.fleet.header import header_cells

AT = time.mktime((2026, 11, 20, 12, 41, 7, 0, 0, -1))


def fleet(simulated=False):
    def sample(node, lost):
        gpus = [
            GpuSample(index, busy=0.5, power_w=600.0, power_limit_w=700.0, temperature_c=60.0 + index)
            for index in range(7)
        ]
        gpus.append(GpuSample(7, state="lost") if lost else GpuSample(7, busy=0.5, power_w=600.0, power_limit_w=700.0))
        ranks = [RankSample(100 + index, index, job="77") for index in range(8)]
        return Sample(node, AT, gpus=gpus, ranks=ranks, simulated=simulated)

    return FleetView(
        AT,
        (
            NodeView(NodeState("n1", "live", age_s=0.4), sample("n1", False)),
            NodeView(NodeState("n2", "live", age_s=1.2), sample("n2", True)),
            NodeView(NodeState("n3", "lost", "gone")),
        ),
    )


def test_wide():
    first, second = header_cells(fleet(), "mltop > fleet", width=200)
    assert plain(first) == "mltop > fleet  2/3 nodes live, 1 lost  15/16 GPUs ok  12:41:07"
    assert plain(second) == "busy 50%  power ≥9000W  hot 66C n1/gpu6  ranks ≥16  jobs ≥1  lag 1.2s"


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (200, "mltop > n1 > ranks > rank 0  SIMULATED  PAUSED  2/3 nodes live, 1 lost"),
        (80, "mltop > n1 > ranks > rank 0  SIMULATED  PAUSED  2/3 nodes live, 1 lost"),
        (60, "rank 0  SIMULATED  PAUSED  2/3 nodes live, 1 lost"),
        (40, "rank 0  SIMULATED  PAUSED  LOST"),
        (30, "rank 0  SIM  PAUSED  LOST"),
        (24, "SIM PAUSED LOST rank 0"),
        (20, "SIM PAUSED LOST"),
    ],
)
def test_simulated_paused_and_a_bad_node_are_always_said(width, expected):
    titles = ("mltop > n1 > ranks > rank 0", ("rank 0",))
    first, _ = header_cells(fleet(simulated=True), titles[0], paused=True, width=width, shorter=titles[1])
    assert plain(first).rstrip().startswith(expected)


def only(state, age_s=7.0):
    return FleetView(AT, (NodeView(NodeState("n1", state, "why", age_s), fleet().nodes[0].sample),))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize(("state", "style"), [("stale", "warn"), ("lost", "crit"), ("refused", "crit")])
def test_what_a_node_said_last_is_not_what_is_now(state, style, width):
    first, second = header_cells(only(state), "mltop", width=width)
    assert plain(first) == f"mltop  node {state}  8 GPUs unknown  12:41:07"
    assert plain(second) == "busy –  power –  hot –  ranks –  jobs –  age 7.0s"
    assert {cell.text: cell.style for cell in first}[f"node {state}"] == style


def test_the_lag_is_that_of_the_oldest_live_sample():
    live, lost = fleet().nodes[0], only("lost", 41.0).nodes[0]
    view = FleetView(AT, (live, lost))
    first, second = header_cells(view, "mltop", width=200)
    assert plain(first) == "mltop  1/2 nodes live, 1 lost  8/8 GPUs ok, 8 unknown  12:41:07"
    assert plain(second) == "busy 50%  power ≥4800W  hot 66C n1/gpu6  ranks ≥8  jobs ≥1  lag 0.4s"
    first, second = header_cells(view, "mltop", width=60)
    assert "8/16 GPUs ok" in plain(first), "never more than are known to be"
    assert "lag 0.4s" in plain(second)


def states(**counts):
    names = [state for state, count in counts.items() for _ in range(count)]
    return FleetView(AT, tuple(NodeView(NodeState(f"n{at}", state)) for at, state in enumerate(names)))


@pytest.mark.parametrize(
    ("counts", "wide", "narrow", "style"),
    [
        ({"connecting": 64}, "connecting 0/64", "connecting 0/64", "accent"),
        ({"live": 41, "connecting": 21, "lost": 2}, "connecting 41/64, 2 lost", "connecting 41/64, 2 lost", "crit"),
        (
            {"live": 40, "connecting": 20, "lost": 2, "refused": 1, "stale": 1},
            "connecting 40/64, 2 lost, 1 refused, 1 stale",
            "connecting 40/64, 1 refused",
            "crit",
        ),
        ({"live": 62, "stale": 2}, "62/64 nodes live, 2 stale", "62/64 nodes live, 2 stale", "warn"),
    ],
)
def test_connecting_shows_how_far_it_is(counts, wide, narrow, style):
    for width, expected in ((160, wide), (80, narrow)):
        first, second = header_cells(states(**counts), "mltop > overview", width=width)
        assert {cell.text: cell.style for cell in first}[expected] == style
        assert plain(second) == "busy –  power –  hot –  ranks –  jobs –  lag –", "nothing is known, nothing is 0"


def findings(critical, warning, info=0):
    severities = ["critical"] * critical + ["warning"] * warning + ["info"] * info
    return [Finding(f"id{at}", severity, "n1", "GPU 1", "words") for at, severity in enumerate(severities)]


@pytest.mark.parametrize(
    ("found", "text", "style"),
    [
        (findings(2, 7), "CRIT 2 WARN 7", "crit"),
        (findings(0, 7, 3), "WARN 7", "warn"),
        (findings(0, 0, 3), "INFO 3", ""),
    ],
)
def test_problems_are_counted_in_a_fleet(found, text, style):
    first, _ = header_cells(fleet(), "mltop > overview", width=80, findings=found, marked=3)
    assert plain(first).startswith(f"mltop > overview  2/3 nodes live, 1 lost  {text}  3 marked")
    assert {cell.text: cell.style for cell in first}[text] == style
    none, _ = header_cells(fleet(), "mltop > overview", width=80)
    assert "CRIT" not in plain(none) and "marked" not in plain(none)


def test_mean_sm_activity_comes_first_where_it_is_known():
    view = fleet()
    for gpu in view.nodes[0].sample.gpus:
        gpu.sm_active = 0.25
    assert plain(header_cells(view, "mltop", width=200)[1]).startswith("sm 25%  busy 50%  power")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([(600.0, 700.0), (600.0, 700.0)], "power 1200/1400W"),
        ([(600.0, 700.0), (None, 700.0)], "power 600/700W of 1 GPU"),
        ([(600.0, 700.0), (600.0, None)], "power 600/700W of 1 GPU"),
        ([(600.0, None), (500.0, None)], "power 1100W"),
        ([(600.0, None), (None, 700.0)], "power 600W of 1 GPU"),
        ([(None, 700.0), (None, None)], "power –"),
        ([(float("nan"), 700.0), (500.0, 700.0)], "power 500/700W of 1 GPU"),
    ],
)
def test_draw_and_limit_are_summed_over_the_same_gpus(gpus, expected):
    made = [GpuSample(at, power_w=drawn, power_limit_w=limit) for at, (drawn, limit) in enumerate(gpus)]
    view = FleetView(AT, (NodeView(NodeState("n1", "live", age_s=0.4), Sample("n1", AT, gpus=made)),))
    _, second = header_cells(view, "mltop", width=200)
    assert f"  {expected}  hot" in plain(second)


@pytest.mark.parametrize("width", range(1, 220))
def test_lines_never_exceed_the_width(width):
    first, second = header_cells(fleet(simulated=True), "mltop", paused=True, width=width)
    assert cell_len(plain(first)) <= max(width, len("SIM PAUSED LOST"))
    assert cell_len(plain(second)) <= max(width, len("busy 50%"))


def test_nothing_is_known_yet():
    view = FleetView(AT, (NodeView(NodeState("n1", "connecting")),))
    first, second = header_cells(view, "mltop > this machine", width=120)
    assert plain(first) == "mltop > this machine  node connecting  GPUs unknown  12:41:07"
    assert plain(second) == "busy –  power –  hot –  ranks –  jobs –  age –"


def test_no_nodes_at_all():
    first, _ = header_cells(FleetView(AT, ()), "mltop", width=80)
    assert "0/0 nodes live" in plain(first)


def test_lost_nodes_and_gpus_are_critical():
    first, _ = header_cells(fleet(), "mltop", width=120)
    styles = {cell.text: cell.style for cell in first}
    assert styles["2/3 nodes live, 1 lost"] == "crit"
    assert styles["15/16 GPUs ok"] == "crit"
