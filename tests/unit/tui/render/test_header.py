"""Line 2: what is watched, its totals, and what goes first when it is narrow."""

import time

import pytest
from rich.cells import cell_len

from mltop.probes.judge.states import HELD_BYTES
from mltop.probes.model import Gap, GpuSample, JobMotion, NodeState, RankSample, Rhythm, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import Cell, plain
from mltop.tui.render.fleet.header import header_cells, short_model, totals_of

AT = time.mktime((2026, 11, 20, 12, 41, 7, 0, 0, -1))
PAST = Cell(" 07:14:33 (-9m) ", "chip-time")


def sample(node, lost=False, simulated=False):
    gpus = [
        GpuSample(index, busy=0.5, power_w=600.0, power_limit_w=700.0, temperature_c=60.0 + index) for index in range(7)
    ]
    gpus.append(GpuSample(7, state="lost") if lost else GpuSample(7, busy=0.5, power_w=600.0, power_limit_w=700.0))
    ranks = [RankSample(100 + index, index, job="77") for index in range(8)]
    return Sample(node, AT, gpus=gpus, ranks=ranks, simulated=simulated)


def fleet(simulated=False):
    return FleetView(
        AT,
        (
            NodeView(NodeState("n1", "live", age_s=0.4), sample("n1", simulated=simulated)),
            NodeView(NodeState("n2", "live", age_s=1.2), sample("n2", lost=True, simulated=simulated)),
            NodeView(NodeState("n3", "lost", "gone")),
        ),
    )


def one(*gpus, **fields):
    return FleetView(AT, (NodeView(NodeState("n1", "live", age_s=0.4), Sample("n1", AT, gpus=list(gpus), **fields)),))


def text(view, width=200, titles=("x",), **options):
    return plain(header_cells(view, list(titles), width, **options))


def styles(view, width=200, titles=("x",), **options):
    return {cell.text: cell.style for cell in header_cells(view, list(titles), width, **options)}


def test_a_fleet():
    found = text(fleet(), 200, ["3 nodes"])
    assert found.rstrip().split("   ")[0] == (
        "3 nodes  1 lost  15 of 16 GPUs  jobs ≥1  ranks ≥16  busy 50%  power ≥9.0/10.5kW  hottest 66C n1 GPU 6"
    )
    assert found.endswith("  12:41:07") and len(found) == 200
    assert text(fleet(), 80, ["3 nodes"]).startswith(
        "3 nodes  1 lost  15 of 16 GPUs  jobs ≥1  ranks ≥16  power ≥9.0/10.5kW   "
    )
    assert styles(fleet())["1 lost"] == styles(fleet())["15 of 16 GPUs"] == "crit"


def test_one_node():
    view = FleetView(AT, (NodeView(NodeState("n1", "live", age_s=0.4), sample("n1")),))
    for gpu in view.nodes[0].sample.gpus:
        gpu.name, gpu.driver = "NVIDIA H100 80GB HBM3", "570.86.15"
    assert text(view, 120, ["n1"]).split("   ")[0] == (
        "n1  8xH100  job 77  ranks 8  busy 50%  power 4.8/5.6kW  driver 570.86.15"
    )
    view.nodes[0].sample.gpus[3].state = "lost"
    assert {" 1 not ok": "crit"}.items() <= styles(view).items()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla", "Tesla"),
        ("", ""),
    ],
)
def test_a_model_in_a_word(name, short):
    assert short_model(name) == short


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (200, "3 nodes > n1 > ranks > rank 0  1 lost  2 marked  15 of 16 GPUs"),
        (80, "3 nodes > n1 > ranks > rank 0  1 lost  2 marked"),
        (60, "rank 0  1 lost  2 marked"),
        (40, "SIM  07:14:33 (-9m)  1 lost rank 0"),
        (29, "SIM  07:14:33 (-9m)  1 lost"),
        (24, "SIM  07:14:33 (-9m)"),
        (9, "SIM"),
    ],
)
def test_another_time_simulated_and_a_bad_node_are_dropped_last(width, expected):
    found = text(fleet(simulated=True), width, ["3 nodes > n1 > ranks > rank 0", "rank 0"], clock=PAST, marked=2)
    assert found.startswith(expected)
    if width >= 60:
        assert found.rstrip().endswith("SIMULATED   07:14:33 (-9m)")


@pytest.mark.parametrize("clock", [None, PAST], ids=["now", "past"])
@pytest.mark.parametrize("titles", [["n1"], ["3 nodes > a-node-with-a-very-long-name > ranks", "ranks"]])
def test_the_line_is_never_longer_than_the_screen(titles, clock):
    for view in (fleet(simulated=True), fleet(), states(connecting=20, lost=2, refused=1, stale=1, live=40), one()):
        for width in range(1, 220):
            assert cell_len(text(view, width, titles, clock=clock, marked=12)) <= width, width


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize(("state", "style"), [("stale", "warn"), ("lost", "crit"), ("refused", "crit")])
def test_what_a_node_said_last_is_not_what_is_now(state, style, width):
    view = FleetView(AT, (NodeView(NodeState("n1", state, "why", 7.0), sample("n1")),))
    found = text(view, width, ["n1"])
    assert found.split("   ")[0] == f"n1  {state}  8xGPU", "neither its power nor its ranks"
    assert styles(view, width)[state] == style


def test_of_several_nodes_only_what_live_ones_say_is_counted():
    view = FleetView(AT, (fleet().nodes[0], NodeView(NodeState("n2", "lost", "", 41.0), sample("n2"))))
    found = text(view, 200)
    assert "8 of 16 GPUs" in found and "jobs ≥1  ranks ≥8" in found and "power ≥4.8/5.6kW" in found
    assert "lag" not in found, "that of a node that is away is no lag"


def states(**counts):
    names = [state for state, count in counts.items() for _ in range(count)]
    return FleetView(AT, tuple(NodeView(NodeState(f"n{at}", state)) for at, state in enumerate(names)))


@pytest.mark.parametrize(
    ("counts", "wide", "narrow", "style"),
    [
        ({"connecting": 63, "lost": 1}, "connecting 0/64, 1 lost", "connecting 0/64, 1 lost", "crit"),
        ({"live": 41, "connecting": 21, "lost": 2}, "connecting 41/64, 2 lost", "connecting 41/64, 2 lost", "crit"),
        (
            {"live": 40, "connecting": 20, "lost": 2, "refused": 1, "stale": 1},
            "connecting 40/64, 2 lost, 1 refused, 1 stale",
            "1 refused",
            "crit",
        ),
        ({"live": 62, "stale": 2}, "2 stale", "2 stale", "warn"),
    ],
)
def test_connecting_shows_how_far_it_is(counts, wide, narrow, style):
    for width, expected in ((160, wide), (40, narrow)):
        assert styles(states(**counts), width, ["64 nodes"])[expected] == style
    found = text(states(**counts), 160)
    assert "GPUs unknown  jobs –  ranks –  power –" in found, "nothing is known, nothing is 0"


def test_activity_is_that_of_gpus_that_somebody_uses():
    used, free = {"memory_used_bytes": HELD_BYTES}, {"memory_used_bytes": 0}
    gpus = [
        *(GpuSample(at, busy=1.0, sm_active=0.5, **used) for at in range(2)),
        *(GpuSample(at, busy=0.0, sm_active=0.0, **free) for at in range(2, 8)),
    ]
    assert "sm 50%" in text(one(*gpus)) and "busy" not in text(one(*gpus))
    for gpu in gpus:
        gpu.sm_active = None
    assert "busy 100%" in text(one(*gpus))
    unsure = [GpuSample(0, busy=1.0, **used), GpuSample(1, busy=0.0)]
    assert "busy 50%" in text(one(*unsure)), "whose memory is not known counts as used"


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([(600.0, 700.0), (600.0, 700.0)], "power 1.2/1.4kW"),
        ([(600.0, 700.0), (None, 700.0)], "power ≥600/700W"),
        ([(600.0, 700.0), (600.0, None)], "power 1.2kW"),
        ([(600.0, None), (500.0, None)], "power 1.1kW"),
        ([(600.0, None), (None, 700.0)], "power ≥600W"),
    ],
)
def test_draw_and_limit_are_summed_over_the_same_gpus(gpus, expected):
    made = [GpuSample(at, power_w=drawn, power_limit_w=limit) for at, (drawn, limit) in enumerate(gpus)]
    of_one = text(one(*made))
    assert f"  {expected}  " in of_one
    both = FleetView(AT, (*one(*made).nodes, NodeView(NodeState("n2", "connecting"))))
    assert f"  power ≥{expected.removeprefix('power ').removeprefix('≥')}  " in text(both), "of those that say"


def test_power_that_nobody_reports_is_unknown_in_a_fleet_and_left_out_on_one_node():
    nodes = tuple(NodeView(NodeState(name, "live"), Sample(name, AT, gpus=[GpuSample(0)])) for name in ("a", "b"))
    assert "power –" in text(FleetView(AT, nodes))
    assert "power" not in text(one(GpuSample(0)))


def test_the_lag_is_shown_where_it_is_worth_a_look():
    def lagging(age_s):
        return FleetView(AT, tuple(NodeView(NodeState(n, "live", age_s=age_s), sample(n)) for n in ("a", "b")))

    assert "lag" not in text(lagging(3.9))
    assert styles(lagging(41.0))["41s"] == "warn" and "lag 41s" in text(lagging(41.0))


@pytest.mark.parametrize(
    ("motion", "words"),
    [
        (JobMotion("a", 0, phase="moving", rhythm=Rhythm(2.1, 0.03, 40)), "step 2.1 s ± 3 %"),
        (JobMotion("a", 0, phase="moving"), ""),
        (JobMotion("a", 0, phase="stalled", rhythm=Rhythm(2.1, 0.03, 40), at=60.0, since=1.0), ""),
    ],
)
def test_how_fast_a_single_job_steps(motion, words):
    assert ("step" in text(fleet(), motions=[motion])) == bool(words) and words in text(fleet(), motions=[motion])
    assert "step" not in text(fleet(), motions=[motion, motion]), "of several jobs none stands for all"


def test_nothing_is_known_yet():
    view = FleetView(AT, (NodeView(NodeState("n1", "connecting")),))
    assert text(view, 120, ["this machine"]).split("   ")[0] == "this machine  connecting"
    assert "0" not in text(FleetView(AT, ()), 80, ["no nodes"]).split("   ")[0]


def test_no_gpu_is_said():
    assert "no GPU seen" in text(one())


def test_gpus_that_could_not_be_read_are_unknown():
    unread = Sample("n1", AT, gaps=[Gap("nvml", "the reader process cannot be started")])
    node = NodeView(NodeState("n1", "live"), unread)
    for view in (FleetView(AT, (node,)), FleetView(AT, (node, node))):
        assert "GPUs unknown" in text(view) and "no GPU" not in text(view)


def test_of_gpus_that_are_as_hot_the_same_one_is_named_whichever_is_hotter_by_a_hair():
    def hottest(*degrees):
        gpus = [GpuSample(index, temperature_c=celsius) for index, celsius in enumerate(degrees)]
        nodes = (NodeView(NodeState("n1", "live"), Sample("n1", AT, gpus=gpus)), *fleet().nodes[2:])
        found = totals_of(FleetView(AT, nodes)).hottest
        assert found is not None
        return found[2]

    assert {hottest(70.0, 70.4), hottest(70.4, 70.0), hottest(70.2, 70.2)} == {0}
    assert hottest(70.0, 71.0) == 1
