"""Whatever nodes say, the screen draws lines of printable characters, none longer than the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from mltop.probes.model import Gap
from mltop.probes.model.text import clean
from mltop.tui.screens.overview.heatmap import Heatmap
from tests.spoiled import NASTY, spoiled
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


def _copied(screen: Opened) -> list[str]:
    lines = screen.app.clipboard.split("\n")
    assert all(line.isprintable() for line in lines), lines
    return lines


async def test_a_row_is_copied_as_one_line() -> None:
    """It may be pasted into a shell, to which a line of its own is an order."""
    async with opened(FakeSession([hostile(0, 1)]), (120, 40)) as screen:
        await screen.press("3", "home", "y")
        (row,) = _copied(screen)
        assert "forged line" in row
        await screen.press("enter")
        await screen.shows("job")
        await screen.press("y")
        assert not [line for line in _copied(screen) if line.startswith("mltop: forged")]


async def test_the_name_of_a_node_on_the_map_is_copied_as_one_line() -> None:
    view = fake_views.fleet(0, 40)
    named = [replace(node, state=replace(node.state, node=f"{node.node}{NASTY}")) for node in view.nodes]
    async with opened(FakeSession([replace(view, nodes=tuple(named))]), (120, 40)) as screen:
        heatmap = screen.app.pane.query_one(Heatmap)
        await screen.until(lambda: heatmap.cursor_key, "nodes on the map")
        assert heatmap.text_at_cursor().isprintable() and "forged" in heatmap.text_at_cursor()


@pytest.mark.parametrize("name", ["n[/b]1", "n[/]1", "[@click=app.quit]n1[/]", "[red]n1[/red]", f"n1{NASTY}", "[::1]"])
async def test_the_title_of_a_question_is_no_markup(name: str) -> None:
    async with opened(size=(120, 40)) as screen:
        screen.app.show_slurm_lines([name])
        await screen.shows("for Slurm", "no names of Slurm's")
        (title,) = [line for line in screen.lines() if "for Slurm" in line]
        assert title.isprintable() and clean(name) in title


async def test_what_is_pasted_into_the_filter_is_clean() -> None:
    async with opened() as screen:
        await screen.press("slash")
        box = screen.app.pane.query_one("FilterBox")
        box.value = "a\x1b[2J\x9b1A\u202eb"  # type: ignore[attr-defined]
        await screen.pilot.pause()
        assert box.value == "ab"  # type: ignore[attr-defined]
        _clean(screen, 80)
