"""Every key of the screen does what the help says."""

from __future__ import annotations

import pytest
from textual.binding import Binding

from mltop.tui.app.keys import APP_BINDINGS, PANE_BINDINGS, help_rows, key_name
from mltop.tui.widgets.cell_view import MOVES
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import opened


def fleet_session() -> FakeSession:
    return FakeSession([fake_views.fleet(tick) for tick in range(5)], title="job 4711")


async def test_digits_switch_panes() -> None:
    async with opened() as screen:
        for key, crumb in (("2", "node01"), ("3", "ranks"), ("4", "stacks"), ("1", "overview")):
            await screen.press(key)
            await screen.shows(f"mltop > {crumb}")


@pytest.mark.parametrize("key", ["question_mark", "f1", "h"])
async def test_help_lists_every_binding_and_esc_returns(key: str) -> None:
    async with opened(size=(120, 50)) as screen:
        await screen.press("3")
        await screen.press(key)
        text = await screen.shows("mltop > ranks > help")
        for binding in Binding.make_bindings([*APP_BINDINGS, *PANE_BINDINGS, *MOVES]):
            assert key_name(binding.key) in text
            assert binding.tooltip in text, f"{binding.key} has no explanation in the help"
        await screen.press("escape")
        await screen.shows("mltop > ranks")


def test_every_binding_explains_itself_once() -> None:
    bindings = Binding.make_bindings([*APP_BINDINGS, *PANE_BINDINGS, *MOVES])
    rows = help_rows(Binding.make_bindings([*APP_BINDINGS, *PANE_BINDINGS, *MOVES]))
    assert all(what for _, what in rows)
    assert sorted(key for keys, _ in rows for key in keys.split()) == sorted(
        key_name(binding.key) for binding in bindings
    )


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c", "ctrl+q"])
async def test_quit(key: str) -> None:
    async with opened() as screen:
        await screen.press(key)
        await screen.until(lambda: not screen.app._running, "the app's end")
    assert screen.session.closed.wait(5)


@pytest.mark.parametrize("key", ["f10", "ctrl+c"])
async def test_quit_also_while_typing_a_filter(key: str) -> None:
    async with opened() as screen:
        await screen.press("slash", "q")
        assert screen.app._running, "q is a letter while typing"
        await screen.press(key)
        await screen.until(lambda: not screen.app._running, "the app's end")


async def test_pause_freezes_every_pane_and_goes_on_with_the_newest() -> None:
    async with opened() as screen:
        await screen.shows("12:00:00")
        await screen.press("p")
        await screen.shows("PAUSED")
        await screen.step(3)
        assert "12:00:00" in screen.text()
        await screen.press("3")
        assert "12:00:00" in await screen.shows("mltop > ranks", "PAUSED")
        await screen.press("p")
        await screen.shows_not("PAUSED")
        await screen.shows("12:00:03")


@pytest.mark.parametrize("key", ["r", "f5"])
async def test_refresh_takes_a_view_at_once(key: str) -> None:
    async with opened() as screen:
        screen.session._at = 2  # changed, but nobody was told
        await screen.press(key)
        await screen.shows("12:00:02")


async def test_a_change_is_shown() -> None:
    async with opened() as screen:
        before = await screen.shows("90%")
        await screen.step(5)
        after = await screen.shows("12:00:05")
        assert before.splitlines()[4] != after.splitlines()[4], "GPU 0 moved on"


async def test_filter_narrows_and_esc_clears() -> None:
    async with opened() as screen:
        await screen.press("slash", *"sleep")
        await screen.shows_not("8120")
        assert "8122" in screen.text()
        await screen.press("enter")
        await screen.shows("filter: sleep")
        await screen.press("j")  # keys move again
        await screen.press("escape")
        await screen.shows("8120")


async def test_filter_without_a_match_says_so() -> None:
    async with opened() as screen:
        await screen.press("3", "slash", *"[x]")
        await screen.shows("no row matches '[x]'")


async def test_sort_goes_over_the_columns_and_reverses() -> None:
    async with opened() as screen:
        await screen.press("3")
        order = lambda: [line.split()[0] for line in screen.lines()[3:7]]  # noqa: E731
        assert order() == ["0", "1", "2", "3"]
        await screen.press("s")
        await screen.press("S")
        assert order() == ["3", "2", "1", "0"]
        await screen.press("f6", "f6", "f6", "f6", "f6")  # node, gpu, pid, state, cpu: largest first
        assert order()[-1] == "2", screen.text()


async def test_cursor_moves_and_stays_on_its_row_when_sorted() -> None:
    async with opened() as screen:
        await screen.press("3", "j", "j", "k", "G", "k")
        pane = screen.app.pane
        table = pane.tables()[0]
        assert table.cursor_key == "node01/8122"
        await screen.press("s", "S")
        assert table.cursor_key == "node01/8122"
        await screen.press("g")
        assert table.cursor_key == "node01/8123"


async def test_enter_goes_from_node_to_gpu_to_rank_and_esc_all_the_way_back() -> None:
    async with opened() as screen:
        crumbs = ["mltop > node01", "mltop > node01 > gpu 0", "mltop > node01 > gpu 0 > rank 0"]
        for crumb in crumbs:
            await screen.press("enter")
            await screen.shows(crumb)
        for crumb in [*reversed(crumbs[:-1]), "mltop > overview"]:
            await screen.press("escape")
            await screen.shows(crumb)
        await screen.press("escape")
        assert screen.app._running


async def test_tab_goes_to_the_ranks_and_enter_opens_one() -> None:
    async with opened() as screen:
        await screen.press("tab", "j", "enter")
        await screen.shows("mltop > rank 1", "no dump of this rank yet: press t")
        await screen.press("escape", "tab", "enter")
        await screen.shows("mltop > node01")  # round again: only tables take the focus


@pytest.mark.parametrize("keys", [("colon",), ("ctrl+p",)])
async def test_palette_runs_an_action(keys: tuple[str, ...]) -> None:
    async with opened() as screen:
        await screen.press(*keys)
        await screen.shows("Search for commands")
        await screen.press(*"pause")
        await screen.shows("freeze the screen")
        await screen.press("enter")
        await screen.shows("PAUSED")


async def test_palette_offers_each_action_once() -> None:
    async with opened() as screen:
        titles = [command.title for command in screen.app.get_system_commands(screen.app.screen)]
        assert len(titles) == len(set(titles))
        assert {"stacks", "dump", "capture", "filter", "sort", "quit"} <= set(titles)


async def test_fleet_shows_nodes_and_problems_and_opens_a_node() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        text = await screen.shows("node001", "62/64 nodes live, 1 lost, 1 stale", "job 4711")
        assert "connection reset by peer" in text
        assert "HW thermal slowdown" in text
        await screen.press("j", "k", "enter")
        await screen.shows("mltop > node003", "GPU is lost")
        await screen.press("escape", "2")
        await screen.shows("mltop > node003")


async def test_fleet_problem_opens_its_node() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        await screen.press("tab", "tab", "j", "enter")
        await screen.shows("mltop > node003")


async def test_a_click_on_the_key_bar_works() -> None:
    async with opened() as screen:
        at = screen.lines()[-1].index("3 ranks")
        await screen.pilot.click("KeyBar", offset=(at + 1, 0))
        await screen.shows("mltop > ranks")


async def test_a_click_on_a_title_sorts() -> None:
    async with opened() as screen:
        await screen.press("3")
        at = screen.lines()[2].index("PID")
        await screen.pilot.click("RankTable", offset=(at, 0))
        await screen.pilot.click("RankTable", offset=(at, 0))
        await screen.until(lambda: screen.lines()[3].split()[0] == "3", "ranks by pid, the largest first")


async def test_without_a_driver_the_screen_works_and_says_what_helps() -> None:
    async with opened(FakeSession([fake_views.no_driver()])) as screen:
        text = await screen.shows("GAP  nvml: libnvidia-ml.so.1 not found", "install the NVIDIA driver", "8121")
        assert "cpu 31% of 192" in text


async def test_simulated_stands_on_every_pane() -> None:
    async with opened(FakeSession([fake_views.one_node(simulated=True)])) as screen:
        for key in ("1", "2", "3", "4", "question_mark"):
            await screen.press(key)
            await screen.shows("SIMULATED")
