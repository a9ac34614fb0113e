"""What the main panes look like, letter by letter. ``MLTOP_TEST_GOLDENS=write`` makes the files anew."""

from __future__ import annotations

import pytest

from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet
from tests.tui.opened import opened

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_panes(size: tuple[int, int]) -> None:
    keys = {"stacks": "4", "help": "question_mark", "overview": "1", "node": "2", "ranks": "3", "rank": "4 G enter"}
    async with opened(size=size) as screen:
        await screen.step(9)
        await screen.press("t")
        screen.session.dumps[0].finish()
        await screen.shows("HANG")
        for pane, pressed in keys.items():
            await screen.press(*pressed.split())
            await screen.is_golden(pane, size)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_fleet(size: tuple[int, int]) -> None:
    async with opened(FakeSession([fleet()], title="job 4711"), size=size) as screen:
        await screen.shows("node001")
        await screen.is_golden("fleet", size)
