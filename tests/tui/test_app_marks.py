"""Marked nodes: the keys, dumps of a selection, trying nodes again; and the pane of a node among others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mltop.probes.agent.protocol import Boot, Hello
from mltop.probes.investigate.progress import StackProgress
from mltop.probes.model import NodeState
from mltop.probes.reach.view import Connection, FleetView, NodeView
from mltop.tui.app.selection import Selection, dump_scope, first_of, retry_scope
from mltop.tui.render.cells import plain
from mltop.tui.screens.bars import connecting_line, waiting_for
from mltop.tui.screens.lines import connection_cells, state_lines
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened

REFUSED = "ssh: host key verification failed (ssh-keyscan node004 >> ~/.ssh/known_hosts, after comparing it)"


def several(nodes: int = 9) -> FakeSession:
    return FakeSession([fake_views.fleet(tick, nodes=nodes) for tick in range(4)], title="job 4711")


class RetryingSession(FakeSession):
    def __init__(self, view: FleetView) -> None:
        super().__init__([view])
        self.retried: list[Sequence[str]] = []

    def retry(self, nodes: Sequence[str] = ()) -> None:
        self.retried.append(nodes)


def marked(screen: Opened) -> tuple[str, ...]:
    return screen.app.selection.nodes


async def test_marks_in_the_ranks_pane() -> None:
    async with opened(several(4), size=(120, 40)) as screen:
        await screen.press("3", "space")
        text = await screen.shows("1 marked", "◆node001")
        assert sum("◆node001" in line for line in text.splitlines()) == 4
        await screen.press("space")
        await screen.shows_not("◆")
        await screen.press("slash", *"node003", "enter", "asterisk", "escape")
        assert marked(screen) == ("node003",)
        await screen.press("U")
        assert marked(screen) == ()


async def test_star_marks_what_the_filter_of_the_fleet_shows() -> None:
    async with opened(several(), size=(120, 40)) as screen:
        await screen.press("slash", *"node00", "enter", "asterisk")
        assert len(marked(screen)) == 9
        await screen.press("U", "escape", "slash", *"state", "equals_sign", *"stale", "enter", "asterisk")
        assert marked(screen) == ("node005",)
        await screen.shows("1 marked")


async def test_esc_clears_the_filter_then_goes_back_then_clears_marks() -> None:
    async with opened(several(), size=(120, 40)) as screen:
        await screen.press("3", "space", "slash", *"node", "enter")
        await screen.shows("filter: node")
        await screen.press("escape")
        await screen.shows_not("filter: node")
        assert marked(screen) == ("node001",)
        await screen.press("escape")
        await screen.shows("o by name", "1 marked")
        await screen.press("escape")
        assert marked(screen) == ()


async def test_of_one_node_there_is_nothing_to_mark() -> None:
    async with opened() as screen:
        await screen.press("space", "asterisk")
        assert marked(screen) == ()


async def test_t_dumps_the_marked_nodes_and_the_stacks_say_so() -> None:
    async with opened(several(), size=(120, 40)) as screen:
        screen.app.selection.update(("node002", "node008", "gone01"))
        await screen.press("t")
        await screen.shows("stacks of 2 marked nodes: dumping")
        assert screen.session.dumped_nodes == [("node002", "node008")]
        screen.session.dumps[0].finish()
        text = await screen.shows("HANG", "only node002, node008 dumped; the culprit may be elsewhere")
        assert "partial" not in text
        await screen.press("U", "t")
        assert screen.session.dumped_nodes[-1] is None
        screen.session.dumps[1].finish()
        await screen.shows_not("may be elsewhere")


async def test_a_filter_does_not_narrow_a_dump_and_that_is_said() -> None:
    async with opened(several(), size=(120, 40)) as screen:
        await screen.press("slash", *"node003", "enter", "t")
        await screen.shows("stacks of all 9 nodes: dumping")
        assert screen.session.dumped_nodes == [None]


async def test_a_capture_stays_on_all() -> None:
    async with opened(several()) as screen:
        screen.app.selection.update(("node002",))
        await screen.press("c")
        await screen.shows("capturing")
        assert len(screen.session.captures) == 1


async def test_retry_goes_to_lost_and_refused_nodes() -> None:
    session = RetryingSession(fake_views.fleet(nodes=9))
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("R")
        await screen.shows("trying 1 node again: node007")
        assert session.retried == [("node007",)]
        screen.app.selection.update(("node001",))
        await screen.press("R")
        await screen.shows("no marked node is lost or refused")
        assert len(session.retried) == 1


def test_scopes() -> None:
    view, none, some = fake_views.fleet(nodes=9), Selection(), Selection()
    some.update(f"node{at:03d}" for at in (1, 5, 7))
    assert dump_scope(view, none, False).words == "" and dump_scope(view, none, False).nodes == ()
    assert dump_scope(view, some, True).nodes == ("node001", "node005", "node007")
    assert retry_scope(view, some).nodes == ("node007",)
    some.update(node.node for node in view.nodes)
    assert dump_scope(view, some, False) == dump_scope(view, none, True), "all marked is all"
    assert first_of(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert retry_scope(fake_views.one_node(), none).words == "no node is lost or refused: nothing to try again"


def test_a_dump_of_marked_nodes_waits_for_these_only() -> None:
    view = fake_views.fleet(nodes=9)
    assert waiting_for(StackProgress("dumping"), view, ("node001", "node007")) == "waiting for node007 (lost)"
    assert waiting_for(StackProgress("dumping"), view, ("node001",)) == ""


# The pane of a node.


async def test_from_node_to_node() -> None:
    async with opened(several(3), size=(120, 40)) as screen:
        await screen.press("2")
        start = screen.app.trail.here.node
        seen = []
        for key in ("n", "n", "n", "N"):
            await screen.press(key)
            seen.append(screen.app.trail.here.node)
            await screen.shows(f"> {seen[-1]}")
        assert sorted(seen[:3]) == ["node001", "node002", "node003"] and seen[2] == start and seen[3] == seen[1]
        await screen.press("escape")
        await screen.shows("o by name")


def refused_view() -> FleetView:
    view = fake_views.fleet(nodes=4)
    bad = NodeView(NodeState("node004", "refused", REFUSED))
    return replace(view, nodes=(*view.nodes[:3], bad))


@pytest.mark.parametrize("width", [80, 120])
async def test_a_refused_node_says_why_in_full_since_when_and_what_to_do(width: int) -> None:
    async with opened(FakeSession([refused_view()]), size=(width, 24)) as screen:
        screen.app.action_pane("node")
        await screen.pilot.pause()
        while screen.app.trail.here.node != "node004":
            await screen.press("n")
        await screen.shows("REFUSED", "refused since 12:00:00", "nothing has come from it yet", "R tries again now")
        said = " ".join(line.strip() for line in screen.lines()[2:5])
        assert REFUSED in said, said


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (60, 12), (250, 6)])
async def test_a_long_reason_leaves_room_in_small_terminals(size: tuple[int, int]) -> None:
    async with opened(FakeSession([refused_view()]), size=size) as screen:
        screen.app.trail.jump(replace(screen.app.trail.here, pane="node", node="node004"))
        await screen.app._show_here()
        text = await screen.shows("REFUSED")
        assert all(len(line) <= size[0] for line in text.splitlines())


async def test_a_lost_node_keeps_what_it_said_and_when() -> None:
    async with opened(several(), size=(120, 40)) as screen:
        screen.app.trail.jump(replace(screen.app.trail.here, pane="node", node="node007"))
        await screen.app._show_here()
        await screen.shows(
            "LOST 41s: ssh: connection reset by peer", "last sample at 11:59:19, 41s ago", "60 of 192 CPUs"
        )


REACHED = Connection(
    "ssh",
    0.84,
    Boot("x86_64", "3.11.7 at /usr/bin/python3", "~/.cache/mltop", True),
    Hello("0.3", 1, 4711, "3.11.7", "node001", "x86_64"),
)


async def test_how_a_node_was_reached() -> None:
    view = fake_views.fleet(nodes=2)
    view = replace(view, nodes=(replace(view.nodes[0], connection=REACHED), view.nodes[1]))
    async with opened(FakeSession([view]), size=(120, 40)) as screen:
        await screen.press("2")
        while screen.app.trail.here.node != "node001":
            await screen.press("n")
        await screen.shows(
            "via ssh  connected in 0.8s  python 3.11.7 at /usr/bin/python3  agent in ~/.cache/mltop", "60 of 192 CPUs"
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "agent in ~/.cache/mltop"),
        ({"boot": replace(REACHED.boot, cached=False)}, "agent in ~/.cache/mltop, new"),  # type: ignore[type-var]
        ({"boot": replace(REACHED.boot, root="")}, "in memory only"),  # type: ignore[type-var]
        ({"boot": None}, "python 3.11.7  mltop 0.3"),
        ({"clock_skew_s": -12.3}, "clock -12s"),
        ({"restarts": 3}, "restarted 3 times"),
        ({"connect_s": None}, "connected in –"),
    ],
)
def test_what_is_known_of_a_connection(change: dict[str, object], words: str) -> None:
    connection = replace(REACHED, **change)  # type: ignore[arg-type]
    assert words in plain(connection_cells(connection, 200))
    for width in (20, 40, 80):
        assert len(plain(connection_cells(connection, width))) <= width
    assert connection_cells(Connection(), 80) == []
    assert "clock" not in plain(connection_cells(replace(REACHED, via="local", clock_skew_s=-12.3), 200))


def test_a_live_node_has_no_excuse_and_a_connecting_one_no_retry() -> None:
    live = fake_views.one_node().nodes[0]
    assert state_lines(live, fake_views.T0, None, 80) == []
    connecting = NodeView(NodeState("n1", "connecting", "authenticating"))
    text = " ".join(plain(line) for line in state_lines(connecting, fake_views.T0, None, 80))
    assert "CONNECTING: authenticating" in text and "tries again" not in text


def test_connecting_says_who_is_waited_for() -> None:
    states = ["live"] * 3 + ["connecting"] * 5
    nodes = [fake_views.node_view(f"n{at}", 0) for at in range(3)]
    nodes += [NodeView(NodeState(f"n{at}", state)) for at, state in enumerate(states) if state != "live"]
    line = connecting_line(FleetView(0.0, tuple(nodes)), 120)
    assert line is not None
    assert plain(line) == "connecting: 3 of 8 nodes have answered  waiting for n[3-7]"
    assert connecting_line(FleetView(0.0, tuple(nodes[:3])), 120) is None
    assert connecting_line(FleetView(0.0, tuple(nodes[3:4])), 120) is None, "of one node the header says it"
