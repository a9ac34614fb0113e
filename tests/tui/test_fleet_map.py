"""The overview of many nodes: map, list, cursor, marks, filter, order, problems, at several sizes."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from mltop.probes.model import NodeState
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.fleet.heat import MARK
from mltop.tui.render.fleet.map import GROUPED
from mltop.tui.screens.overview.fleet import FleetScreen
from mltop.tui.screens.overview.heatmap import AT_ONCE, Heatmap
from mltop.tui.screens.tabled import GpuTable
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.line_table import LineTable
from tests.scenes import SCENES, Scene, watched
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened

SIZES = [(80, 24), (120, 40), (200, 60)]


@functools.cache
def views_of(nodes: int, ticks: int) -> tuple[FleetView, ...]:
    return tuple(fake_views.fleet(tick, nodes=nodes) for tick in range(ticks))


def fleet(nodes: int = 64, ticks: int = 1) -> FakeSession:
    return FakeSession(views_of(nodes, ticks), title="job 4711")


def with_states(view: FleetView, **states: str) -> FleetView:
    """``view`` with other states of some nodes; those that connect have no sample yet."""
    nodes = []
    for node in view.nodes:
        state = states.get(node.node)
        if state is None:
            nodes.append(node)
        else:
            made = NodeState(node.node, state, f"{state} for a reason", None if state == "connecting" else 9.0)
            nodes.append(NodeView(made, None if state == "connecting" else node.sample))
    return replace(view, nodes=tuple(nodes), serial=view.serial + 1)


def heatmap(screen: Opened) -> Heatmap:
    return screen.app.pane.query_one(Heatmap)


async def on_map(screen: Opened) -> None:
    """The cursor goes to the map: the first part of the pane is what is wrong."""
    await screen.until(lambda: heatmap(screen).cursor_key is not None, "the map")
    heatmap(screen).focus()
    await screen.pilot.pause()


def at_cursor(screen: Opened) -> str:
    return screen.app.pane.node_at_cursor()


# Looks


async def test_512_nodes() -> None:
    """On the largest terminal all 4,096 GPUs are seen at once."""
    async with opened(fleet(512), size=SIZES[0]) as screen:
        await on_map(screen)
        await screen.until(lambda: not screen.app.picture.not_judged, "all nodes judged")
        for size in SIZES:
            await screen.pilot.resize_terminal(*size)
            await screen.press("home", "down", "space", "down", "right")
            await screen.is_golden("fleet512", size)
            await screen.press("U")
        grid = heatmap(screen).grid
        assert grid.density in ("grouped", "cells") and heatmap(screen).max_scroll_y == 0
        assert len(grid.rows) <= heatmap(screen).size.height


async def test_a_large_map_that_changed_is_painted_whole() -> None:
    """Its lines are drawn in steps and painted together: none is left as it was."""
    async with opened(fleet(300, ticks=2), size=SIZES[2]) as screen:
        await on_map(screen)
        await screen.until(lambda: not screen.app.picture.not_judged, "all nodes judged")
        map_ = heatmap(screen)

        async def painted() -> list[str]:
            await screen.pilot.pause()
            return screen.lines()[map_.region.y :][: map_.size.height]

        before = await painted()
        await screen.step()
        after = await painted()
        map_.drop_strips()
        map_.refresh()
        assert await painted() == after
        assert sum(old != new for old, new in zip(before, after, strict=True)) > AT_ONCE


async def test_list() -> None:
    async with opened(fleet(), size=SIZES[0]) as screen:
        await on_map(screen)
        await screen.press("v", "space")
        for size in SIZES:
            await screen.pilot.resize_terminal(*size)
            await screen.pilot.pause()
            await screen.is_golden("fleet-list", size)


KEYS = ("end", "up", "m", "v", "G", "v", "o", "pagedown", "home")


@pytest.mark.parametrize("nodes", [2, 700])
async def test_any_number_of_nodes_at_any_size(nodes: int) -> None:
    async with opened(fleet(nodes), size=(16, 4)) as screen:
        heatmap(screen).focus()
        for size in [(16, 4), (20, 5), (60, 12), (250, 80), (250, 6)]:
            await screen.pilot.resize_terminal(*size)
            for key in KEYS:
                await screen.press(key)
                lines = screen.lines()
                assert len(lines) == size[1] and all(len(line) <= size[0] for line in lines), (size, key)
            heatmap(screen).focus()
            await screen.press("end")
            line, _ = heatmap(screen).grid.place(nodes - 1)
            top = round(heatmap(screen).scroll_y)
            assert top <= line < top + heatmap(screen).size.height, f"{size}: the last node can be reached and seen"


@pytest.mark.parametrize("size", [(16, 4), (40, 8), (250, 6)])
async def test_it_starts_at_any_size(size: tuple[int, int]) -> None:
    async with opened(fleet(), size=size) as screen:
        await screen.press("end")
        lines = screen.lines()
        assert len(lines) == size[1] and all(len(line) <= size[0] for line in lines) and any(lines)


async def test_a_fleet_that_only_connects_does_not_look_dead() -> None:
    view = fake_views.fleet(nodes=64)
    names = [node.node for node in view.nodes]
    waiting = with_states(view, **dict.fromkeys(names, "connecting"))
    some = with_states(view, **dict.fromkeys(names[32:], "connecting"))
    async with opened(FakeSession([waiting, replace(some, serial=2), replace(view, serial=3)])) as screen:
        text = await screen.shows("connecting  0 of 64 nodes have answered", "connects")
        assert "fine" not in text and "node[001-064]  connecting for a reason" in text
        await screen.step()
        await screen.shows("connecting 30/64, 1 lost, 1 stale", "llama-7b", "no answer")
        await screen.step()
        await screen.shows_not("connecting")
        await screen.shows_not("no answer")


# Cursor, order


async def test_the_cursor_moves_in_both_directions_and_names_its_node() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        await on_map(screen)
        per_row = heatmap(screen).grid.per_row
        names = [f"node{number:03d}" for number in range(1, 65)]
        for key, at in (
            ("home", 0),
            ("right", 1),
            ("j", 1 + per_row),
            ("down", 1 + 2 * per_row),
            ("l", 2 + 2 * per_row),
            ("h", 1 + 2 * per_row),
            ("k", 1 + per_row),
            ("end", 63),
        ):
            await screen.press(key)
            assert at_cursor(screen) == names[at], key
            await screen.shows(f"{names[at]}  live")
        heatmap(screen).move_cursor("node007")
        await screen.shows("node007  lost 41s", "ssh: connection reset by peer")
        await screen.press("enter")
        await screen.shows("> node007")


async def test_the_cursor_stays_on_its_node_when_the_order_changes() -> None:
    view = fake_views.fleet(nodes=64)
    session = FakeSession([view, with_states(view, node040="lost", node041="stale")])
    async with opened(session, size=(120, 40)) as screen:
        await on_map(screen)
        heatmap(screen).move_cursor("node040")
        await screen.step()
        await screen.shows("node040  lost 9.0s", "lost for a reason")
        assert at_cursor(screen) == "node040"
        await screen.press("o")
        await screen.shows("o by job")
        assert at_cursor(screen) == "node040"


async def test_a_click_moves_the_cursor_and_a_double_click_opens() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        await on_map(screen)
        line = next(at for at, text in enumerate(screen.lines()) if "node013" in text)
        column = screen.lines()[line].index("node013")
        await screen.pilot.click(offset=(column + 2, line))
        await screen.until(lambda: at_cursor(screen) == "node013", "the cursor on the node that was clicked")
        await screen.pilot.click(offset=(column + 2, line), times=2)
        await screen.shows("> node013")


async def test_metrics_go_round_and_say_their_scale() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        await on_map(screen)
        for words in ("SM active", "SM clock of", "temperature", "power of its limit", "memory used", "SM active"):
            text = await screen.shows(f"\n{words}")
            assert ("30C" in text) == (words == "temperature")
            await screen.press("m")


async def test_order_by_name_has_no_jobs() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        text = await screen.shows("o by name")
        assert any(line.startswith("llama-7b  64 nodes") for line in text.splitlines())
        await screen.press("o")
        text = await screen.shows("o by job")
        assert not any(line.startswith("llama-7b") for line in text.splitlines())


# List, marks, filter


async def test_map_and_list_keep_the_node() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        await on_map(screen)
        await screen.press("home", "right", "v")
        await screen.shows("STATE", "v map")
        assert at_cursor(screen) == "node002"
        await screen.press("down", "v")
        assert at_cursor(screen) == "node003" and heatmap(screen).has_focus
        await screen.press("v", "s")
        table = screen.app.pane.query_one("#nodes", LineTable)
        assert "▲" in screen.lines()[table.region.y], "the list sorts like other tables"


@pytest.mark.parametrize(
    ("nodes", "variables"), [(9, {}), (64, {}), (512, {}), (64, {"NO_COLOR": "1"}), (64, {"TERM": "xterm"})]
)
async def test_marks_are_seen_on_the_map_and_in_the_list(
    nodes: int, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLORTERM", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with opened(fleet(nodes)) as screen:
        await on_map(screen)
        await screen.press("home", "space", "right", "space")
        await screen.shows("2 marked")
        assert screen.app.selection.nodes == ("node001", "node002")
        region = heatmap(screen).region
        assert "".join(screen.lines()[region.y : region.bottom]).count(MARK) == 2
        await screen.press("v")
        await screen.shows("STATE")
        marked = [line for line in screen.lines() if line.startswith(MARK) and "node" in line]
        assert len(marked) == 2


async def test_a_filter_hides_nodes_and_says_how_many_are_left() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        await on_map(screen)
        await screen.press("slash", *"node01", "enter")
        await screen.shows_not("node020")
        text = await screen.shows("node010", "node019")
        assert not any(line.startswith("▲ node003") for line in text.splitlines()), "nor what is wrong with them"
        await screen.press("escape")
        await screen.shows("node020")


async def test_a_filter_on_gpus_dims_the_others() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        await on_map(screen)
        await screen.press("slash", *"temp", "greater_than_sign", "8", "0", "enter")
        await screen.shows_not("node001")
        await screen.shows("node003")
        heat = heatmap(screen)._heats[0]
        assert heat.node == "node003"
        assert [index for index, style in enumerate(heat.styles()) if style != "dim"] == [3]


async def test_a_filter_that_nothing_matches_says_so() -> None:
    async with opened(fleet(9)) as screen:
        await screen.press("slash", *"nowhere", "enter")
        await screen.shows("no node matches 'nowhere'")
        await screen.press("enter", "down", "v", "space", "v")
        await screen.press("escape")
        await screen.shows("node009")


# Problems


async def test_lost_nodes_count_in_the_header_and_for_the_filter() -> None:
    async with opened(fleet(9), size=(120, 40)) as screen:
        await screen.shows("▲ node007", "▲ node003", "CRIT")
        await screen.press("slash", *"severity", "equals_sign", *"crit", "enter")
        await screen.shows("node003", "node007")
        await screen.shows_not("node005")
        await screen.press("escape", "slash", *"node008", "enter")
        await screen.shows_not("▲ node007")


async def test_the_gpus_below_the_map_are_those_of_the_node_under_the_cursor() -> None:
    view = fake_views.fleet(nodes=2)
    bare = replace(view.nodes[1], newest=replace(view.nodes[1].sample, gpus=view.nodes[1].sample.gpus[:2]))
    both = replace(view, nodes=(view.nodes[0], bare))
    async with opened(FakeSession([both]), size=(120, 40)) as screen:
        await on_map(screen)
        gpus = screen.app.pane.query_one(GpuTable)
        height = gpus.size.height
        await screen.press("right")
        await screen.until(lambda: 0 < gpus.size.height < height, "fewer GPUs")
        await screen.press("left")
        await screen.until(lambda: gpus.size.height == height, "all GPUs again")


async def test_one_problem_of_many_nodes_is_one_line_that_opens_the_first() -> None:
    view = fake_views.fleet(nodes=64)
    lost = [f"node{number:03d}" for number in range(20, 40)]
    async with opened(FakeSession([with_states(view, **dict.fromkeys(lost, "lost"))]), size=(120, 40)) as screen:
        text = await screen.shows("lost: lost for a reason", "node[020-0")
        assert text.count("lost: lost for a reason") == 1
        screen.app.pane.query_one("#problems").focus()
        while "020" not in screen.app.pane.query_one("#problems", CellLines).text_at_cursor():
            await screen.press("j")
        await screen.press("enter")
        await screen.shows("20 nodes: lost: lost for a reason")


async def test_one_node_has_no_map_and_its_keys_do_nothing() -> None:
    async with opened() as screen:
        text = await screen.shows("HOST")
        assert not isinstance(screen.app.pane, FleetScreen)
        await screen.press("m", "o", "v")
        await screen.shows("v: not bound here")
        assert screen.text().splitlines()[3:12] == text.splitlines()[3:12]


async def test_at_80x24_each_gpu_of_64_nodes_has_a_cell_and_every_critical_line_what_to_do() -> None:
    """The node under the cursor and the graphs give way to both."""
    async with opened(fleet(64), size=(80, 24)) as screen:
        text = await screen.shows("node061")
        grid = screen.app.screen.query_one(Heatmap).grid
        assert grid.density == GROUPED and grid.rows[-1] == (60, 64) and "SM active   per GPU 0%" in text
        marked = [line for line in text.splitlines() if line.endswith("s") and "CRIT" in line[60:]]
        assert len(marked) == 3
        assert sum(line.strip().startswith("→") for line in text.splitlines()) == 3, text


@pytest.mark.parametrize("name", ["hung-64", "hung-512"])
async def test_nodes_that_all_wait_are_one_line_where_the_culprits_place_needs_theirs(name: str) -> None:
    app = watched(replace(SCENES[name], watched_s=80.0, step_s=40.0))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Opened(app, pilot, FakeSession())
        text = await screen.shows(
            "stuck in", "ShardDataset.__getitem__ (job/data.py:53)", "more nodes  ░░░░░░░░ all wait"
        )
        culprit = next(line for line in text.splitlines() if "■node01" in line)
        assert "░░░░░■░░" in culprit and f"▲node{len(app.picture.view.nodes)}" in text
        assert "strace -p 5000005" in text, "what to do is whole, too"
        at = text.splitlines().index(culprit)
        await pilot.click(offset=(culprit.index("node01") + 2, at))
        clicked = at_cursor(screen)
        assert clicked.startswith("node01"), "the one that was shown there"
        app.redraw()
        await screen.until(lambda: "more nodes" not in screen.text(), "all nodes, with the cursor on the map")
        assert at_cursor(screen) == clicked
        await screen.press("v", *":sort worst", "enter")
        await screen.until(lambda: any(line.startswith("■  node01") for line in screen.lines()), "marked in the list")


async def test_the_row_of_several_idle_gpus_opens_the_node_and_no_one_of_them() -> None:
    scene = Scene(nodes=3, ranks=4, watched_s=10.0)
    app = watched(scene)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = Opened(app, pilot, None)  # type: ignore[arg-type]
        await screen.shows("4-7  idle, no process")
        for key, pane in (("4", "node"), ("3", "gpu")):
            table = app.pane.query_one(GpuTable)
            table.focus()
            await pilot.pause()
            table.move_cursor(key)
            await screen.press("enter")
            assert (app.trail.here.pane, app.trail.here.node) == (pane, "node01")
            await screen.press("escape")


async def test_where_there_is_no_room_for_the_gpus_the_line_of_the_node_is_no_title() -> None:
    async with opened(fleet(64), size=(120, 40)) as screen:
        await screen.shows("node003  live")
        seen = set()
        for height in range(40, 26, -2):
            await screen.pilot.resize_terminal(120, height)
            await screen.has_lines(height)
            line = next((line for line in screen.lines() if line.startswith("node003  live")), "")
            shown = screen.app.pane.query_one(GpuTable).display
            assert not line or shown or line.endswith("2 shows its GPUs"), screen.text()
            assert not shown or "2 shows" not in line
            seen.add((bool(line), shown))
        assert {(True, True), (True, False)} <= seen


async def test_the_line_of_the_cursors_node_hides_no_node_of_512() -> None:
    async with opened(fleet(512), size=(80, 24)) as screen:
        await screen.shows("node001", "per node")
        for height in range(24, 17, -1):
            await screen.pilot.resize_terminal(80, height)
            await screen.has_lines(height)
            shown, line = heatmap(screen), screen.app.pane.query_one("#node-lines")
            assert len(shown.grid.rows) <= shown.size.height or not line.display, screen.text()
