"""The node pane: what is wrong first, ranks before gaps, a page of what is unreadable, tips last."""

from __future__ import annotations

from mltop.probes.model import Gap
from mltop.probes.reach.view import FleetView
from mltop.tui.screens.tabled import GpuTable
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import opened


def with_gaps(count: int) -> FleetView:
    view = fake_views.one_node()
    sample = view.nodes[0].sample
    assert sample is not None
    sample.gaps = [Gap(f"gpu.{at % 8}.field_{at}", f"needs root {at}", f"sudo mltop {at}") for at in range(count)]
    return view


async def test_what_is_unreadable_is_one_line_and_ranks_have_their_rows() -> None:
    async with opened(FakeSession([with_gaps(12)]), size=(80, 24)) as screen:
        await screen.press("2")
        text = await screen.shows("12 values unavailable  u why")
        assert "needs root" not in text
        assert all(f" {pid} " in text for pid in (8120, 8121, 8122, 8123)), "all ranks of the node"
        assert text.index("GPU 6") < text.index(" GPU    SM"), "what is wrong stands before the GPUs"


async def test_u_shows_why_and_what_helps() -> None:
    async with opened(FakeSession([with_gaps(12)]), size=(80, 24)) as screen:
        await screen.press("2", "u")
        text = await screen.shows("unreadable", "gpu.0.field_0", "needs root 0", "→ ")
        assert "RANK" not in text.partition("\n")[2].partition("\n")[2]
        await screen.press("escape")
        await screen.shows("u why", "RANK")


async def test_enter_on_what_is_wrong_opens_all_of_it() -> None:
    async with opened(size=(120, 40)) as screen:
        await screen.step(2)
        await screen.press("2")
        await screen.shows("GPU 6")
        screen.app.screen.query_one("#problems").focus()
        await screen.press("enter")
        await screen.shows("incident", "evidence", "who ")


async def test_the_row_of_idle_gpus_opens_into_its_gpus_here_too() -> None:
    """At 80x24 they give way to what is wrong; Enter gives each a row."""
    async with opened(size=(80, 24)) as screen:
        await screen.press("2")
        table = screen.app.pane.query_one(GpuTable)
        await screen.until(lambda: table.row_count, "the GPUs")
        assert "4" in table.keys and "5" not in table.keys
        table.focus()
        table.move_cursor("4")
        await screen.press("enter")
        assert screen.app.trail.here.pane == "node" and {"4", "5", "7"} <= {*table.keys}
        await screen.press("enter")
        assert screen.app.trail.here.gpu == 4
