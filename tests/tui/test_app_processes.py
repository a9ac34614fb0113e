"""Pane 3: ranks, whatever else holds GPU memory, children below their parents, and what changes how one runs."""

from __future__ import annotations

from mltop.probes.model import GpuProcess
from mltop.probes.reach.view import FleetView
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened


def shared() -> FleetView:
    """GPU 5 is held by a notebook, and by its child; rank 1 has two workers."""
    view = fake_views.one_node()
    sample = view.nodes[0].sample
    assert sample is not None
    sample.gpus[5].processes = [
        GpuProcess(9100, 7 << 30, user="eve", name="jupyter", state="S"),
        GpuProcess(9101, 1 << 30, user="eve", name="kernel", state="R", ppid=9100),
    ]
    sample.ranks[1].children = [8201, 8202]
    sample.ranks[1].settings = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}
    sample.ranks[1].versions = {"torch": "2.9.0"}
    return view


def line(screen: Opened, words: str) -> str:
    return next(line for line in screen.lines() if words in line)


async def test_others_that_hold_gpu_memory_are_there() -> None:
    async with opened(FakeSession([shared()]), size=(120, 40)) as screen:
        await screen.press("3")
        await screen.shows("jupyter", "kernel")
        assert "9100" in line(screen, "jupyter") and "7.0G" in line(screen, "jupyter")
        assert line(screen, "jupyter").split()[0] == "-" and screen.text().index("8121") < screen.text().index("9100")


async def test_f5_shows_children_below_their_parents_and_again_the_table() -> None:
    async with opened(FakeSession([shared()]), size=(120, 40)) as screen:
        await screen.press("3")
        await screen.shows("jupyter")
        assert "8201" not in screen.text()
        await screen.press("f5")
        await screen.shows("8201", "8202", "└ kernel")
        pids = [word for row in screen.lines() for word in row.split() if word in ("8121", "8201", "8202", "8122")]
        assert pids == ["8121", "8201", "8202", "8122"]
        await screen.press("f5")
        await screen.shows_not("8201")


async def test_a_circle_of_parents_is_no_endless_tree() -> None:
    view = shared()
    sample = view.nodes[0].sample
    assert sample is not None
    sample.ranks[0].children, sample.ranks[1].children = [sample.ranks[1].pid], [sample.ranks[0].pid]
    async with opened(FakeSession([view]), size=(120, 40)) as screen:
        await screen.press("3", "f5")
        await screen.shows("8120", "8121", "└ kernel")


async def test_e_shows_what_changes_how_it_runs() -> None:
    async with opened(FakeSession([shared()]), size=(120, 40)) as screen:
        await screen.press("3", "j", "e")
        await screen.shows("ENVIRONMENT", "NCCL_DEBUG INFO", "OMP_NUM_THREADS 8", "torch 2.9.0", "never secrets")
        await screen.press("escape", "k", "e")
        await screen.shows("nothing of its environment is known")


async def test_what_it_holds_stands_gpu_by_gpu() -> None:
    async with opened(FakeSession([shared()]), size=(120, 40)) as screen:
        await screen.press("3", "j", "enter")
        await screen.shows("GPU memory GPU 1: 60.0G")
