"""Whatever nodes say, the screen draws lines of printable characters, none longer than the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from mltop.probes.model import Gap
from tests.spoiled import spoiled
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened

PANES = ("1", "2", "3", "4", "5", "6", "question_mark")


def hostile(tick: int, nodes: int) -> fake_views.FleetView:
    view = fake_views.one_node(tick) if nodes == 1 else fake_views.fleet(tick, nodes=nodes)
    for node in view.nodes:
        assert node.sample is not None
        node.sample.gaps.append(Gap("kernel_log", "needs root", "sudo usermod -aG adm $USER"))
        spoiled(node.sample)
    return replace(view, nodes=tuple(replace(node, state=spoiled(node.state)) for node in view.nodes))


def _clean(screen: Opened, width: int) -> None:
    for line in screen.lines():
        assert line.isprintable(), line
        assert cell_len(line) <= width
        assert not line.startswith("mltop: forged")


@pytest.mark.parametrize(("nodes", "size"), [(1, (80, 24)), (1, (200, 60)), (9, (120, 40))])
async def test_no_pane_obeys_a_node(nodes: int, size: tuple[int, int]) -> None:
    session = FakeSession([hostile(tick, nodes) for tick in range(3)])
    async with opened(session, size) as screen:
        for key in PANES:
            await screen.press(key)
            _clean(screen, size[0])
            await screen.press("enter")
            _clean(screen, size[0])
            await screen.press("escape")
        await screen.press("1")
        assert "forged" in screen.text(), "something of it was drawn"


async def test_what_is_pasted_into_the_filter_is_clean() -> None:
    async with opened() as screen:
        await screen.press("slash")
        box = screen.app.pane.query_one("FilterBox")
        box.value = "a\x1b[2J\x9b1A\u202eb"  # type: ignore[attr-defined]
        await screen.pilot.pause()
        assert box.value == "ab"  # type: ignore[attr-defined]
        _clean(screen, 80)
