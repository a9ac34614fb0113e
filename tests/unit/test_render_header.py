"""The two header lines: totals, what is simulated or paused, and what goes first when it is narrow."""

import time

import pytest
from rich.cells import cell_len

from mltop.probes.model import GpuSample, NodeState, RankSample, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import plain
from mltop.tui.render.header import header_cells

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
    assert plain(second) == ("busy 50%  power 9000W/10.5kW  hottest 66C n2/gpu6  ranks 16  jobs 1  age 1.2s")


def test_simulated_and_paused_are_always_said():
    for width in (200, 80, 40):
        first, _ = header_cells(fleet(simulated=True), "mltop", paused=True, width=width)
        assert plain(first).startswith("mltop  SIMULATED  PAUSED")


@pytest.mark.parametrize("width", range(1, 220))
def test_lines_never_exceed_the_width(width):
    first, second = header_cells(fleet(simulated=True), "mltop", paused=True, width=width)
    assert cell_len(plain(first)) <= max(width, len("mltop"))
    assert cell_len(plain(second)) <= max(width, len("busy 50%"))


def test_nothing_is_known_yet():
    view = FleetView(AT, (NodeView(NodeState("n1", "connecting")),))
    first, second = header_cells(view, "mltop > this machine", width=120)
    assert plain(first) == "mltop > this machine  0/1 node live, 1 connecting  no GPU seen  12:41:07"
    assert plain(second) == "busy –  power –  hottest –  ranks 0  jobs 0  age –"


def test_no_nodes_at_all():
    first, _ = header_cells(FleetView(AT, ()), "mltop", width=80)
    assert "0/0 nodes live" in plain(first)


def test_lost_nodes_and_gpus_are_critical():
    first, _ = header_cells(fleet(), "mltop", width=120)
    styles = {cell.text: cell.style for cell in first}
    assert styles["2/3 nodes live, 1 lost"] == "crit"
    assert styles["15/16 GPUs ok"] == "crit"
