"""The GPU pane and the timelines of the node pane: opened by Enter, moved through by n, alive when things vanish."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.model import Gap, MigInstance, NodeState
from mltop.probes.reach.view import FleetView
from mltop.tui.render.glyphs import GLYPHS
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession, received
from tests.tui.opened import Opened, opened
from tests.tui.test_app_goldens import SIZES


def hot_view(tick: int) -> FleetView:
    """GPU 3 is held down by heat for 2 of every 6 s, and in the minutes before for 12 of every 40 s."""
    view = fake_views.one_node(tick)
    sample = view.nodes[0].sample
    assert sample is not None
    if (tick % 6 < 4) if tick >= 0 else (tick % 40 < 28):
        sample.gpus[3] = fake_views.gpu_sample(3, tick, bad=False)
    return view


def throttled(ticks: int = 12, missing: range = range(0)) -> FakeSession:
    """The node says nothing in ``missing``."""
    return FakeSession([hot_view(tick) for tick in range(ticks) if tick not in missing])


def timeline(screen: Opened, label: str) -> str:
    return next(line for line in screen.lines() if line.startswith(label))


@pytest.mark.parametrize("pane", ["gpu", "timelines"])
async def test_what_they_look_like(pane: str) -> None:
    async with opened(throttled(), size=SIZES[0]) as screen:
        history = screen.app.history
        for tick in [*range(-500, -300), *range(-270, 0)]:
            history.feed(received(hot_view(tick)))
        assert screen.app.newest is not None
        history.feed(screen.app.newest.view)
        await screen.press("2")
        await screen.step(11)
        await screen.press(*(("j", "j", "j", "enter") if pane == "gpu" else ("T",)))
        await screen.shows(" a column" if pane == "gpu" else "SM clock, 10 min")
        for size in SIZES:
            await screen.pilot.resize_terminal(*size)
            await screen.press("home")
            await screen.is_golden(pane, size)


async def test_enter_opens_the_gpu_then_its_rank_and_esc_goes_back() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("2", "j", "enter")
        text = await screen.shows("node01 GPU 1", "rank 1", "8121", "SM active", "THROTTLED BY")
        assert text.index("ACTIVITY") < text.index("PID")
        await screen.press("enter")
        await screen.shows("> gpu 1 > rank 1")
        await screen.press("escape", "escape")
        await screen.until(lambda: screen.app.trail.here.pane == "node", "the node")
        assert screen.app.pane.tables()[0].cursor_key == "1"


@pytest.mark.parametrize(("forward", "back"), [("n", "N"), ("right", "left")])
async def test_the_next_gpu_and_round_again(forward: str, back: str) -> None:
    async with opened() as screen:
        await screen.press("2", "enter")
        await screen.shows("node01 GPU 0")
        for crumb in ("node01 GPU 1", "node01 GPU 2"):
            await screen.press(forward)
            await screen.shows(crumb)
        await screen.press(back, back, back)
        await screen.shows("node01 GPU 7")
        await screen.press(forward)
        await screen.shows("node01 GPU 0")
        await screen.press("escape")
        await screen.until(lambda: screen.app.trail.here.pane == "node", "the node")


async def test_what_is_wrong_with_this_gpu_stands_first() -> None:
    async with opened() as screen:
        await screen.press("2", "j", "j", "j", "enter")
        text = await screen.shows("node01 GPU 3", "is too hot", "CRIT", "→ check fans")
        assert "GPU 6 lost" not in text.partition("\n")[2], "below the answer"
        assert text.index("→ check fans") < text.index(" a column")


async def test_a_lost_gpu_says_so_and_keeps_its_history() -> None:
    healthy = fake_views.one_node(0)
    assert healthy.nodes[0].sample is not None
    healthy.nodes[0].sample.gpus[6] = fake_views.gpu_sample(6, 0, bad=False)
    session = FakeSession([healthy, *(fake_views.one_node(tick) for tick in range(1, 4))])
    async with opened(session, size=(120, 40)) as screen:  # a row for each GPU, also where nobody uses it
        await screen.press("2", *"jjjjjj", "enter")
        await screen.shows("node01 GPU 6", " a column")
        await screen.step(3)
        await screen.shows("LOST since 11:58:25", "GPU 6")
        assert timeline(screen, "SM clock").split()[-1] == "–"


async def test_a_throttled_gpu_is_seen_at_a_glance_and_a_silent_second_is_a_gap() -> None:
    async with opened(throttled(24, missing=range(10, 16)), size=(200, 60)) as screen:
        await screen.press("2", "j", "j", "j", "enter")
        await screen.step(17)
        await screen.shows("SM clock", "of 1.98 GHz", "slowed")
        facts = next(line for line in screen.lines() if "too hot" in line and "33%" in line)
        assert "too hot" in facts


async def test_while_paused_the_timeline_stands_still_and_goes_on_with_what_came_meanwhile() -> None:
    async with opened(throttled(20), size=(120, 40)) as screen:
        await screen.press("2", "j", "j", "j", "enter")
        await screen.step(4)
        await screen.press("p")
        await screen.shows("(-")
        still = screen.lines()[2:]
        await screen.step(10)
        assert screen.lines()[2:] == still, "all but the age of the moment"
        await screen.press("p")
        await screen.shows("12:00:14")
        assert timeline(screen, "SM clock").rstrip().endswith("GHz"), "what came meanwhile is there"


async def test_a_gpu_that_vanishes_says_so_and_n_goes_on() -> None:
    fewer = fake_views.one_node(1)
    assert fewer.nodes[0].sample is not None
    fewer.nodes[0].sample.gpus = fewer.nodes[0].sample.gpus[:2]
    async with opened(FakeSession([fake_views.one_node(), fewer])) as screen:
        await screen.press("2", "j", "j", "enter")
        await screen.shows("node01 GPU 2")
        await screen.step()
        await screen.shows("gpu 2 is not in the newest sample")
        await screen.press("enter", "n")
        await screen.shows("node01 GPU 0", "SM active")


async def test_a_node_that_went_says_so_above_its_gpu() -> None:
    live = fake_views.one_node()
    gone = replace(live, nodes=(replace(live.nodes[0], state=NodeState("node01", "lost", "ended", 31.0)),), serial=1)
    async with opened(FakeSession([live, gone])) as screen:
        await screen.press("2", "enter")
        await screen.step()
        await screen.shows("LOST 31s: ended", "last 1 min")
        assert timeline(screen, "clock").rstrip().endswith("–"), "since then nothing is known"


async def test_what_cannot_be_read_says_why_in_its_place() -> None:
    view = fake_views.one_node()
    sample = view.nodes[0].sample
    assert sample is not None
    sample.gaps = [Gap("gpu.0.ecc", "needs root", "sudo mltop"), Gap("gpu.1.fabric", "not of this one")]
    async with opened(FakeSession([view]), size=(200, 60)) as screen:
        await screen.press("2", "enter")
        await screen.shows("– needs root")
        await screen.press("end")
        text = await screen.shows("not known of this GPU", "gpu.0.ecc: needs root – sudo mltop")
        assert "not of this one" not in text


def in_mig_mode() -> FleetView:
    view = fake_views.one_node()
    assert view.nodes[0].sample is not None
    gpu = view.nodes[0].sample.gpus[1]
    gpu.mig_enabled, gpu.sm_active = True, None
    gpu.mig_instances = [MigInstance(at, name="3g.40gb", sm_active=0.25 * (at + 1)) for at in range(2)]
    return view


async def test_instances_stand_below_their_gpu_and_open_it() -> None:
    async with opened(FakeSession([in_mig_mode()]), size=(120, 40)) as screen:
        await screen.press("2", "j", "j", "j")
        table = screen.app.pane.tables()[0]
        assert table.cursor_key == "1.1"
        await screen.shows("└0", "3g.40gb", "50%")
        await screen.press("s", "s", "S")  # by busy, the smallest first
        keys = list(table.keys)
        assert keys[keys.index("1") :][:3] == ["1", "1.0", "1.1"], "sorted with their GPU"
        await screen.press("enter")
        await screen.shows("node01 GPU 1", "INSTANCES", "3g.40gb")


async def test_t_shows_the_timelines_of_all_gpus_and_keeps_the_cursor() -> None:
    async with opened(throttled(), size=(160, 40)) as screen:
        await screen.press("2")
        await screen.step(11)
        await screen.press("j", "j", "j", "T")
        await screen.shows("SM clock, 10 min", "HELD, 10 MIN", "too hot 33%")
        table = screen.app.pane.tables()[0]
        assert table.shown_keys() == ["gpu", "clocks", "clock", "held", "graph", "sm"]
        assert screen.app.pane.focused is table and table.cursor_key == "3"
        held = next(line for line in screen.lines() if "too hot 33%" in line)
        drawn = held.partition("too hot")[0]
        assert len(set(drawn) & set(GLYPHS.ramp)) >= 2, "its clock was low for a while, and is not always"
        await screen.press("j", "enter")
        await screen.shows("node01 GPU 4")
        await screen.press("escape")
        await screen.press("T")
        await screen.shows_not("SM clock, 10 min")
        assert screen.app.pane.tables()[0].cursor_key == "4" and screen.app.pane.focused is screen.app.pane.tables()[0]


async def test_timelines_follow_the_node_and_fit_small_terminals() -> None:
    async with opened(FakeSession([fake_views.fleet(nodes=3)]), size=(60, 12)) as screen:
        await screen.press("2", "T")
        await screen.shows("SM clock, 10 min")
        first = screen.lines()[:2]
        await screen.press("n")
        await screen.until(lambda: screen.lines()[:2] != first, "another node")
        await screen.shows("SM clock, 10 min")
        for size in ((20, 5), (16, 4), (10, 2), (120, 40)):
            await screen.pilot.resize_terminal(*size)
            await screen.has_lines(size[1])
        await screen.shows("HELD, 10 MIN")


async def test_of_a_node_without_gpus_t_shows_what_there_is() -> None:
    async with opened(FakeSession([fake_views.no_driver()])) as screen:
        await screen.press("2", "T")
        await screen.shows("no NVIDIA driver", "8121")
        await screen.press("T", "enter")
        await screen.shows("rank 0")


@pytest.mark.parametrize("start", [(10, 2), (250, 6)])
async def test_every_size(start: tuple[int, int]) -> None:
    async with opened(size=start) as screen:
        await screen.press("2", "j", "j", "j", "enter")
        for size in [start, (16, 4), (20, 5), (40, 8), (60, 12), (79, 23), (250, 80)]:
            await screen.pilot.resize_terminal(*size)
            await screen.press("j", "end", "n", "home")
            assert screen.app.trail.here.gpu is not None
            lines = screen.lines()
            assert len(lines) == size[1] and all(len(line) <= size[0] for line in lines) and any(lines), size


async def test_a_filter_looks_for_words_in_the_details() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.press("2", "enter", "slash", *"driver")
        await screen.shows("570.86.15")
        await screen.shows_not("SM occupancy")
        await screen.press("left", "escape")
        await screen.shows("SM occupancy", "node01 GPU 0")
