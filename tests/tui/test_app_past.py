"""The way in time: every pane shows the moment that the user went to, and what cannot be done there says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.model import KernelEvent
from mltop.probes.reach.view import FleetView
from mltop.tui.app.past.travel import STEPS_S, moment_words, step_s
from tests.scenes import NOW, Scene, watched
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import T0
from tests.tui.opened import Opened, opened, utc


def views(ticks: int = 40) -> list[FleetView]:
    """Something happens at 12:00:10 and at 12:00:20; the rank of GPU 3 is gone from 12:00:30 on."""
    made = []
    for tick in range(ticks):
        view = fake_views.one_node(tick)
        sample = view.nodes[0].sample
        assert sample is not None
        sample.gpus[0].sm_clock_mhz = 1000 + tick
        events = [KernelEvent(T0 + at, "xid", "0000:18:00.0", 94, f"Xid 94 at {at}") for at in (10, 20) if at <= tick]
        sample.kernel_events = events
        if tick >= 30:
            sample.ranks = sample.ranks[:3]
        made.append(view)
    return made


async def at_the_end(screen: Opened) -> None:
    await screen.step(len(screen.session._views) - 1)


async def then(screen: Opened, moment: float) -> None:
    def is_shown() -> bool:
        app = screen.app
        is_there = app.moment is not None and round(app.moment - T0 - 0.2) == moment
        return is_there and app.picture is not None and app.picture.view.taken_at == app.moment

    await screen.until(is_shown, f"the moment {moment}")


async def test_brackets_step_and_end_is_now() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("left_square_bracket")
        await then(screen, 38)
        await screen.shows("12:00:38 (-1s)")
        await screen.press("left_square_bracket", "left_square_bracket")
        await then(screen, 36)
        await screen.press("right_square_bracket")
        await then(screen, 37)
        await screen.press("end")
        await screen.shows_not("(-")
        assert screen.app.moment is None and screen.app.picture is screen.app.newest


async def test_esc_leaves_the_past_before_anything_else() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("3", "left_square_bracket")
        await then(screen, 38)
        await screen.press("escape")
        await screen.shows_not("(-")
        assert not screen.app.paused and screen.app.trail.here.pane == "ranks"


async def test_a_click_on_a_graph_shows_that_moment() -> None:
    async with opened(FakeSession(views()), size=(120, 50)) as screen:
        await at_the_end(screen)
        graphs = screen.app.pane.query_one("#graphs")
        await screen.until(lambda: graphs.size.height > 4, "the graphs")
        await screen.pilot.click("#graphs", offset=(graphs.size.width - 3, 1))
        await screen.until(lambda: screen.app.paused, "the past")
        assert screen.app.moment is not None and T0 < screen.app.moment < T0 + 39
        moment = screen.app.moment
        await screen.pilot.click("#graphs", offset=(3, 0))
        assert screen.app.moment == moment, "its name is of no time"


GRAPHS = {
    "overview": (),
    "node": ("2",),
    "gpu": ("2", "j", "enter"),
    "ranks": ("3",),
    "stacks": ("t",),
    "links": ("5",),
    "events": ("6",),
    "incidents": ("8",),
    "incident": ("8", "enter"),
}


@pytest.mark.parametrize("pane", GRAPHS)
async def test_a_click_on_the_graph_of_any_pane_shows_that_moment(pane: str) -> None:
    scene = Scene(hung_s=95.0, ranks=4, watched_s=120.0, step_s=6.0)
    with utc():
        app = watched(scene)
        async with app.run_test(size=(200, 80)) as pilot:
            screen = Opened(app, pilot, None)  # type: ignore[arg-type]
            await screen.until(lambda: app.picture is not None, "the first picture")
            await screen.press(*GRAPHS[pane])
            text = await screen.shows(" now")
            at, axis = next((y, line) for y, line in enumerate(text.splitlines()) if line.rstrip().endswith(" now"))
            await pilot.click(offset=(len(axis.rstrip()) - len("now") - 5, at - 1))
            await screen.until(lambda: app.moment is not None, "the past")
            assert app.moment is not None and NOW - 60.0 < app.moment < NOW
            assert app.trail.here.pane == (pane if pane != "incident" else "incidents")


async def test_home_is_the_beginning_and_nothing_was_before() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("p", "home")
        await then(screen, 0)
        await screen.press("left_square_bracket")
        await screen.shows("nothing is kept of before 12:00:00")
        await screen.press("end")
        assert not screen.app.paused


async def test_in_the_present_end_and_home_are_the_cursors() -> None:
    async with opened(FakeSession(views(3)), size=(120, 40)) as screen:
        await screen.press("2", "end")
        assert screen.app.moment is None
        await screen.press("home", "right_square_bracket")
        assert screen.app.moment is None, "there is nothing after now"


async def test_braces_jump_from_event_to_event() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await at_the_end(screen)
        times = [round(at - T0) for at, _ in screen.app.history.events()]
        assert {10, 20} <= set(times)
        expected = sorted({at for at in times if at < 39}, reverse=True)[:3]
        for at in expected:
            await screen.press("left_curly_bracket")
            await then(screen, at)
        await screen.press("right_curly_bracket")
        await then(screen, expected[-2])
        await screen.press("home")
        await then(screen, 0)
        await screen.press("left_curly_bracket")
        await screen.shows("no earlier event")


async def test_every_pane_shows_the_moment() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("p", *["left_square_bracket"] * 4)
        await then(screen, 35)
        assert screen.app.picture is not None
        node = screen.app.picture.view.nodes[0]
        assert node.sample is not None and node.sample.gpus[0].sm_clock_mhz == 1035
        assert [event.text for _, event in screen.app.picture.events] == ["Xid 94 at 10", "Xid 94 at 20"]
        for pane in ("1", "2", "3", "6"):
            await screen.press(pane)
            await screen.shows("12:00:35 (-4s)")


async def test_a_moment_has_its_own_ranks_and_events() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await at_the_end(screen)
        for moment, ranks, events in ((35, 3, 2), (25, 4, 2), (15, 4, 1), (5, 4, 0)):
            screen.app.go_to(T0 + moment)
            await then(screen, moment)
            picture = screen.app.picture
            assert picture is not None and len(picture.events) == events
            node = picture.view.nodes[0]
            assert node.sample is not None and len(node.sample.ranks) == ranks
            assert len(node.ranks) == ranks
            assert node.sample.gpus[0].sm_clock_mhz == 1000 + moment


async def test_what_comes_meanwhile_is_kept() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await screen.step(5)
        await screen.press("p")
        await screen.step(20)
        assert screen.app.moment is not None and int(screen.app.moment - T0) == 5
        await screen.shows("12:00:05 (-20s)")
        screen.app.go_to(T0 + 15)
        await then(screen, 15)
        await screen.press("p")
        assert screen.app.picture is screen.app.newest


@pytest.mark.parametrize("key", ["t", "c"])
async def test_what_can_only_be_done_now_says_so(key: str) -> None:
    async with opened(FakeSession(views(5)), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("left_square_bracket")
        await then(screen, 3)
        await screen.press(key)
        await screen.shows("this is 12:00:03: End goes back to now")
        assert not screen.session.dumps and not screen.session.captures
        await screen.press("end", key)
        assert screen.session.dumps or screen.session.captures


async def test_stacks_are_those_of_before_the_moment() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await screen.step(20)
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.until(lambda: screen.app.investigation.result is not None, "the dump")
        await screen.step(10)
        screen.app.go_to(T0 + 25)
        await then(screen, 25)
        assert screen.app.investigation.result is not None
        screen.app.go_to(T0 + 10)
        await then(screen, 10)
        assert screen.app.investigation.result is None, "at that time nobody had dumped"
        await screen.press("4")
        await screen.shows("no stacks were dumped before this moment")


async def test_graphs_go_on_to_now_and_mark_the_moment() -> None:
    async with opened(FakeSession(views()), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("p", *["left_square_bracket"] * 5)
        await then(screen, 34)
        assert screen.app.ahead_s == 5.0 and screen.app.graphs_until is None
        node = screen.app.pane.nodes[0]  # type: ignore[attr-defined]
        context = screen.app.pane.context(screen.app.picture)  # type: ignore[attr-defined]
        track = context.track(node, 0)
        assert track is not None and track.clock_mhz[-1] == 1039 and int(context.moment(node) - T0) == 34
        await screen.press("end")
        assert screen.app.ahead_s == 0.0


async def test_a_letter_of_a_filter_is_no_step() -> None:
    async with opened(FakeSession(views(5)), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("slash", "left_square_bracket", "left_curly_bracket", "home", "end")
        assert screen.app.moment is None and screen.app.pane.typing


async def test_a_fleet_shows_the_moment_too() -> None:
    made = [replace(fake_views.fleet(tick, 8), serial=tick) for tick in range(10)]
    async with opened(FakeSession(made), size=(120, 40)) as screen:
        await at_the_end(screen)
        await screen.press("left_square_bracket", "left_square_bracket")
        await then(screen, 7)
        assert screen.app.picture is not None
        states = {node.node: node.state.state for node in screen.app.picture.view.nodes}
        assert states["node005"] == "stale" and states["node007"] == "lost" and states["node001"] == "live"


def test_steps_grow() -> None:
    assert step_s(0) == 1.0 and step_s(8) == 2.0 and step_s(1000) == 60.0
    assert [length for _, length in STEPS_S] == sorted(length for _, length in STEPS_S)


def test_moments_in_words() -> None:
    assert moment_words(T0, T0 + 9.4).endswith(" (-9s)") and moment_words(T0, T0 + 373).endswith(" (-6m13s)")
