"""What is said while nodes have not answered: what is tried, since when, each fact once, no node hidden."""

from __future__ import annotations

import pytest

from mltop.probes.model import NodeState
from mltop.probes.model.units import clock_time
from mltop.probes.reach.view import Connection, FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.render.answer import answer_of
from mltop.tui.render.cells import line_width, plain
from mltop.tui.render.fleet.header import header_cells
from mltop.tui.render.fleet.nodes import connecting_lines
from mltop.tui.screens.bars import connecting_line

NOW = 1_763_640_000.0


def asked(node: str, why: str = "starting ssh", ago_s: float | None = 12.0) -> NodeView:
    tried_at = None if ago_s is None else NOW - ago_s
    return NodeView(NodeState(node, "connecting", why), connection=Connection(trying="ssh", tried_at=tried_at))


def fleet(*nodes: NodeView) -> FleetView:
    return FleetView(NOW, nodes)


FOUR = fleet(*(asked(f"node{at:02d}") for at in (1, 2, 3)), asked("node04", "waiting for a slot", None))


def test_who_is_tried_since_when_and_what_is_waited_for() -> None:
    first, second, hint = [plain(line) for line in connecting_lines(FOUR, 80, 9)]
    assert first == f"node[01-03]  starting ssh for 12s, since {clock_time(NOW - 12.0)}"
    assert second == "node04       waiting for a slot"
    assert hint.strip() == "to see why, run: ssh node01 true"
    fresh = fleet(asked("n1", ago_s=3.0))
    assert len(connecting_lines(fresh, 80, 9)) == 1, "nobody is to worry yet"


def test_line_1_says_for_how_long_and_line_2_not_the_same_again() -> None:
    line = plain(answer_of(Picture(FOUR)).line(80))
    assert line.startswith("connecting 12s  0 of 4 nodes have answered")
    assert plain(header_cells(FOUR, ["4 nodes"], 80)).split() == ["4", "nodes", clock_time(NOW)]
    assert connecting_line(FOUR, 80) is None
    alone = plain(answer_of(Picture(fleet(asked("n1")))).line(80))
    assert alone.startswith("connecting 12s  to n1: starting ssh")


def test_the_status_line_hides_no_name_behind_and_more() -> None:
    sampled = fleet(*FOUR.nodes, NodeView(NodeState("node05", "connecting"), None))
    line = connecting_line(FleetView(NOW, sampled.nodes), 80)
    assert line is None
    from tests.tui import fake_views

    live = fake_views.fleet(0, nodes=1).nodes
    text = plain(connecting_line(FleetView(NOW, (*live, *sampled.nodes)), 80) or [])
    assert "waiting for node[01-05]" in text and "more" not in text


@pytest.mark.parametrize("width", [16, 40, 80, 200])
@pytest.mark.parametrize("nodes", [1, 4, 512])
def test_it_fits(width: int, nodes: int) -> None:
    view = fleet(*(asked(f"gpu-node-{at:04d}", f"why {at % 7}") for at in range(nodes)))
    lines = connecting_lines(view, width, 5)
    assert 0 < len(lines) <= 5 and all(line_width(line) <= width for line in lines)
