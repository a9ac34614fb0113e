"""What the screen keeps and does for every picture.

Few look for cycles (COLLECT_AFTER), so what is not used any more must be in none. Where everything is and how large
it is, which Textual works out anew for the whole screen, does not change with a picture like the one before.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mltop.tui.app.feed import Picture
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet, one_node
from tests.tui.opened import Opened, opened

PICTURES, STILL_USED = 6, 3  # the newest, the one before, and one that is on its way
# The keys that lead to each pane, and change what is drawn there.
OF_NODE = ["1", "2", "3", "3 f5", "4", "5", "6", "7", "8", "1 enter", "1 / s m enter", "question_mark"]
OF_FLEET = [*OF_NODE, "1 v", "1 v s", "1 m", "1 tab tab l l"]


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("keys", OF_NODE)
@pytest.mark.usefixtures("_no_collector")
async def test_pictures_of_one_node_go_when_the_next_ones_come(keys: str) -> None:
    async with opened(FakeSession([one_node(tick) for tick in range(12)]), size=(120, 40)) as screen:
        await _goes(screen, keys)


@pytest.mark.parametrize("keys", OF_FLEET)
@pytest.mark.usefixtures("_no_collector")
async def test_pictures_of_a_fleet_go_when_the_next_ones_come(keys: str) -> None:
    async with opened(FakeSession([fleet(tick, nodes=8) for tick in range(12)]), size=(120, 40)) as screen:
        await _goes(screen, keys)


async def _goes(screen: Opened, keys: str) -> None:
    """And where nothing but figures changes, nothing is laid out anew for a picture like the one before."""
    for key in keys.split():
        await screen.press(key)
    laid_out: list[object] = []
    if keys in "123568":
        await screen.step(4)
        screen.app.screen.screen_layout_refresh_signal.subscribe(screen.app.screen, laid_out.append, immediate=True)
    seen: list[weakref.ref[Picture]] = []
    for _ in range(PICTURES):
        await screen.step()
        assert screen.app.newest is not None
        seen.append(weakref.ref(screen.app.newest))
    alive = [at for at, picture in enumerate(seen) if picture() is not None]
    assert len(alive) <= STILL_USED, f"pictures {alive} of {PICTURES} are still held after {keys!r}"
    assert len(laid_out) < PICTURES / 2
