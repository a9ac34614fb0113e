"""Nodes that stop answering, GPUs that come late, several jobs: what the screen says then, and at any width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual import events

from mltop.probes.model import Gap, NodeState
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.widgets.line_table import LineTable
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened

STALE = ("stale", "no sample for 7 s", 7.0)
LOST = ("lost", "the agent ended (killed by signal 9)", 3.2)


def went(state: tuple[str, str, float], simulated: bool = False) -> FakeSession:
    """A node that is live in the first view and not in the second."""
    live = fake_views.one_node(simulated=simulated)
    gone = replace(live, nodes=(replace(live.nodes[0], state=NodeState("node01", *state)),), serial=1)
    return FakeSession([live, gone])


def two_jobs() -> FleetView:
    view = fake_views.one_node()
    sample = view.nodes[0].sample
    assert sample is not None
    for rank in sample.ranks:
        rank.rank, rank.job = (rank.rank or 0) % 2, f"torchrun-of-ada:{29500 + rank.pid // 2 % 2}"
    return view


def styles_of(screen: Opened, word: str) -> set[str]:
    """The colours of every piece of text that contains ``word``."""
    strips = screen.app.screen._compositor.render_strips()
    return {str(segment.style) for strip in strips for segment in strip if word in segment.text}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (STALE, "STALE 7.0s: no sample for 7 s"),
        (LOST, "LOST 3.2s: the agent ended (killed by signal 9)"),
    ],
)
async def test_a_node_that_went_says_so_and_why(state: tuple[str, str, float], sentence: str, width: int) -> None:
    async with opened(went(state), size=(width, 24)) as screen:
        await screen.shows("1 not ok", "GPU 6")
        sm, pid = styles_of(screen, "84%"), styles_of(screen, "8122")
        await screen.step()
        text = await screen.shows(f"node01  {state[0]}")
        assert "power" not in text.splitlines()[1], "what it said last is not what is now"
        assert not sm & styles_of(screen, "84%"), "what the GPUs did last is dim"
        assert not pid & styles_of(screen, "8122"), "and so are the ranks"
        if state[0] == "lost":
            assert text.startswith(f"X LOST {state[2]:.1f}s"), "before all that was known of it"
        await screen.press("2")
        await screen.shows(sentence)


def never_reached(state: str = "lost") -> FakeSession:
    """The second of three nodes has never sent a sample."""
    view = fake_views.fleet(nodes=3)
    nodes = list(view.nodes)
    nodes[1] = NodeView(NodeState("node002", state, "ssh: Could not resolve hostname node002"))
    return FakeSession([replace(view, nodes=tuple(nodes))])


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("state", ["lost", "connecting"])
async def test_of_a_node_that_was_never_reached_nothing_is_known(state: str, size: tuple[int, int]) -> None:
    async with opened(never_reached(state), size=size) as screen:
        await screen.press("2")
        while "> node002" not in screen.text():
            await screen.press("n")
        text = await screen.shows(
            "GPUs unknown: no sample",
            "ranks unknown: no sample",
            f"{state} since",
            "nothing has come from it yet",
            "Could not resolve",
        )
        assert "no problems found" not in text and "no training ranks" not in text
        await screen.press("n")
        await screen.shows_not("unknown: no sample")


async def test_ranks_of_nodes_of_which_some_were_never_reached() -> None:
    view = fake_views.fleet(nodes=3)
    for node in view.nodes:
        assert node.sample is not None
        node.sample.ranks.clear()
        for gpu in node.sample.gpus:
            gpu.processes = []
    session = FakeSession([replace(view, nodes=(*view.nodes, *never_reached().view().nodes[1:2]))])
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("3")
        await screen.shows("no training ranks seen; of 1 of 4 nodes nothing is known")
    session.view().nodes[0].sample.gaps.append(Gap("ranks", "/proc cannot be listed", code="unread"))
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("3")
        await screen.shows("no training ranks seen; of 2 of 4 nodes nothing is known")
        await screen.press("2")
        await screen.shows("ranks unknown: /proc cannot be listed")


async def test_a_quiet_node_that_went_had_no_problems_when_last_heard_of() -> None:
    view = fake_views.fleet(nodes=5)
    quiet = replace(view, nodes=(replace(view.nodes[4], state=NodeState("node005", *STALE)),))
    async with opened(FakeSession([quiet]), size=(120, 40)) as screen:
        await screen.press("2")
        text = await screen.shows("no problems when last heard of")
        assert "everything could be read" not in text


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (80, 24)])
async def test_what_must_be_seen_is_seen_in_narrow_terminals(size: tuple[int, int]) -> None:
    async with opened(went(LOST, simulated=True), size=size) as screen:
        await screen.step()
        await screen.press("p", "3", "enter")
        await screen.until(lambda: "lost" in "".join(screen.lines()[:2]).lower(), "the state of the node in the head")
        if size[1] >= 10:
            await screen.shows("SIMULATED", "12:00:00 (")


async def test_long_crumbs_give_way_first() -> None:
    async with opened(went(LOST, simulated=True), size=(60, 24)) as screen:
        await screen.step()
        await screen.press("p", "3", "enter")
        await screen.shows("rank 0  lost", "SIMULATED")
        assert "node01 > ranks > rank 0" in screen.text() or "ranks > rank 0" in screen.text()


async def test_gpus_that_come_late_get_the_cursor() -> None:
    async with opened(FakeSession([fake_views.no_driver(), fake_views.one_node(1)])) as screen:
        await screen.shows("8121")
        await screen.step()
        await screen.shows("LOST since")
        await screen.until(
            lambda: screen.app.pane.focused in (screen.app.pane.tables()[0], screen.app.pane.query_one("#problems")),
            "the focus on the first part",
        )
        assert screen.app.pane.tables()[0].cursor_key == "0"


@pytest.mark.parametrize("keys", [("j",), ("tab",), ("slash",)])
async def test_a_user_who_has_begun_elsewhere_stays_there(keys: tuple[str, ...]) -> None:
    async with opened(FakeSession([fake_views.no_driver(), fake_views.one_node(1)])) as screen:
        await screen.shows("8121")
        await screen.press(*keys)
        before = screen.app.pane.focused
        assert before is not None
        await screen.step()
        await screen.shows("LOST since")
        assert screen.app.pane.focused is before


@pytest.mark.parametrize("width", [80, 120])
async def test_ranks_of_several_jobs_can_be_told_apart(width: int) -> None:
    async with opened(FakeSession([two_jobs()]), size=(width, 24)) as screen:
        for key in ("1", "3"):
            await screen.press(key)
            text = await screen.shows("JOB")
            for port in ("29500", "29501"):
                assert sum(port in line for line in text.splitlines()) == 2


async def test_two_digits_in_one_write_end_in_the_second_pane() -> None:
    async with opened() as screen:
        for _ in range(2):  # the panes' first time, then again
            for first, second, crumb, has in (
                ("3", "1", "overview", "HOST "),
                ("4", "3", "ranks", "> ranks"),
                ("2", "4", "stacks", "no dump yet"),
            ):
                for key in (first, second):
                    screen.app.post_message(events.Key(key, key))
                await screen.shows(has)
                await screen.until(lambda: screen.app.current_mode == crumb, crumb)  # noqa: B023
                assert screen.app.current_mode == screen.app.trail.here.pane == crumb


@pytest.mark.parametrize("keys", [(), ("2",), ("3",), ("3", "enter")], ids=["overview", "node", "ranks", "rank"])
async def test_a_click_on_a_title_sorts_every_table(keys: tuple[str, ...]) -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press(*keys)
        tables = screen.app.pane.tables()
        assert tables
        for table in tables:
            await screen.pilot.click(table, offset=(3, 0))
            await screen.until(lambda: _sorted(screen, table), "the arrow of the sorted column")  # noqa: B023


async def test_a_click_on_a_title_in_a_fleet_sorts_both_tables() -> None:
    async with opened(FakeSession([fake_views.fleet(nodes=9)]), size=(120, 40)) as screen:
        await screen.shows("node009")
        for table in screen.app.pane.tables():
            await screen.pilot.click(table, offset=(2, 0))
            await screen.until(lambda: _sorted(screen, table), "the arrow of the sorted column")  # noqa: B023


async def test_the_rank_pane_sorts_filters_and_reverses_without_harm() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("3", "enter")
        await screen.shows("> rank 0", "8120")
        await screen.press("s", "S", "slash", *"nothing")
        await screen.shows("no row matches 'nothing'")
        await screen.press("escape")
        await screen.shows("8120")


def _sorted(screen: Opened, table: LineTable) -> bool:
    line = screen.lines()[table.region.y]
    return "▲" in line or "▼" in line
