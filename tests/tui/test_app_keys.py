"""Every key of the screen does what the help says."""

from __future__ import annotations

import pytest
from textual.binding import Binding

from mltop.tui.app.keys import APP_BINDINGS, PANE_BINDINGS, help_rows, key_name
from mltop.tui.render.rows import Sort
from mltop.tui.widgets.cell_view import MOVES
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import opened


def fleet_session() -> FakeSession:
    return FakeSession([fake_views.fleet(tick) for tick in range(5)], title="job 4711")


async def test_digits_switch_panes() -> None:
    async with opened() as screen:
        for key, pane in (("2", "node"), ("3", "ranks"), ("4", "stacks"), ("1", "overview")):
            await screen.press(key)
            assert screen.app.trail.here.pane == pane
            await screen.shows(f"{key} {'main' if pane == 'overview' else pane}  1-8 panes")


async def test_a_pane_is_drawn_as_soon_as_it_is_filled() -> None:
    async with opened() as screen:
        screen.app.delay_update()  # as Textual does then
        assert screen.app._batch_count == 0, "nothing is drawn for a while"
        for key, pane in (("2", "node"), ("3", "ranks"), ("2", "node")):
            await screen.press(key)
            assert f"{key} {pane}  1-8 panes" in screen.text() and "8120" in screen.text()


@pytest.mark.parametrize("key", ["question_mark", "f1", "h"])
async def test_help_lists_every_binding_and_esc_returns(key: str) -> None:
    async with opened(size=(80, 50)) as screen:
        await screen.press("3")
        await screen.press(key)
        text = "\n".join(screen.app.pane.query_one("#keys-list").texts())
        words = " ".join(text.split())
        for binding in Binding.make_bindings([*APP_BINDINGS, *PANE_BINDINGS, *MOVES]):
            assert key_name(binding.key) in text
            assert binding.tooltip in words, f"{binding.key} has no explanation in the help"
        await screen.press("escape")
        assert screen.app.trail.here.pane == "ranks"


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
        await screen.shows("(-")
        await screen.step(3)
        assert "12:00:00" in screen.text()
        await screen.press("3")
        assert "12:00:00" in await screen.shows("> ranks", "(-")
        await screen.press("p")
        await screen.shows_not("(-")
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
        assert before.splitlines()[2:] != after.splitlines()[2:], "GPU 0 moved on"


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
        order = lambda: [key[-1] for key in screen.app.pane.tables()[0].keys]  # noqa: E731
        assert order() == ["0", "1", "2", "3"]
        await screen.press("s")
        await screen.press("S")
        assert order() == ["3", "2", "1", "0"]
        await screen.press("f6", "f6", "f6", "f6")  # gpu, pid, state, cpu: largest first
        assert screen.app.pane.tables()[0].sort == Sort("cpu", True)
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
    async with opened(size=(120, 40)) as screen:
        await screen.press("2")
        screen.app.pane.tables()[0].focus()
        places = []
        for pane in ("gpu", "rank"):
            await screen.press("enter")
            places.append(screen.app.trail.here)
            assert screen.app.trail.here.pane == pane
        assert (places[0].gpu, places[1].pid) == (0, 8120)
        for pane in ("gpu", "node", "overview"):
            await screen.press("escape")
            assert screen.app.trail.here.pane == pane
        await screen.press("escape")
        assert screen.app._running


async def test_tab_goes_to_the_ranks_and_enter_opens_one() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("tab", "tab", "j", "enter")
        assert screen.app.trail.here.pid == 8121
        await screen.shows("no dump of this rank yet: press t")
        await screen.press("escape", "tab", "enter")
        assert screen.app.trail.here.pane == "incidents"  # round again: only what can be selected takes the focus


async def test_fleet_shows_nodes_and_problems_and_opens_a_node() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        text = await screen.shows("node001", "node003")
        assert "connection reset by peer" in text
        assert "too hot" in text
        screen.app.pane.query_one("#map").focus()
        screen.app.pane.query_one("#map").move_cursor("node003")
        await screen.press("enter")
        assert screen.app.trail.here.node == "node003"
        await screen.press("escape", "2")
        assert screen.app.trail.here.node == "node003"


async def test_fleet_problem_opens_what_is_known_of_it() -> None:
    async with opened(fleet_session(), size=(120, 40)) as screen:
        screen.app.pane.query_one("#problems").focus()
        await screen.press("home", "enter")
        assert screen.app.trail.here.pane == "incidents" and screen.app.trail.here.incident


async def test_a_click_on_the_key_bar_works() -> None:
    async with opened(size=(120, 24)) as screen:
        at = screen.lines()[-1].index("3 ranks")
        await screen.pilot.click("KeyBar", offset=(at + 1, 0))
        assert screen.app.trail.here.pane == "ranks"
        at = screen.lines()[-1].index("? help")
        await screen.pilot.click("KeyBar", offset=(at + 1, 0))
        assert screen.app.trail.here.pane == "help"


async def test_a_click_on_a_title_sorts() -> None:
    async with opened() as screen:
        await screen.press("3")
        line = next(line for line in screen.lines() if "PID" in line)
        for reverse in (False, True):
            await screen.pilot.click("RankTable", offset=(line.index("PID"), 0))
            assert screen.app.pane.tables()[0].sort == Sort("pid", reverse)


async def test_without_a_driver_the_screen_works_and_says_what_helps() -> None:
    async with opened(FakeSession([fake_views.no_driver()]), size=(120, 40)) as screen:
        await screen.shows("nvml: libnvidia-ml.so.1 not found", "install the NVIDIA driver", "8121", "cpu")


async def test_simulated_stands_on_every_pane() -> None:
    async with opened(FakeSession([fake_views.one_node(simulated=True)])) as screen:
        for key in ("1", "2", "3", "4", "question_mark"):
            await screen.press(key)
            await screen.shows("SIMULATED")
