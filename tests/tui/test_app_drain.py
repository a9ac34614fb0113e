"""The lines for Slurm on the screen: of which nodes, for what reason, copied but never run."""

from __future__ import annotations

import pytest

from mltop.tui.screens.questions import SlurmBox
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet, one_node
from tests.tui.opened import Opened, opened

SIZES = ((80, 24), (120, 40), (200, 60))


class SlurmSession(FakeSession):
    job = "4711"


def clipboard(screen: Opened) -> str:
    return screen.app.clipboard


async def test_a_node_with_a_hardware_problem() -> None:
    async with opened(SlurmSession([fleet(0, 8)]), size=(120, 40)) as screen:
        await screen.until(lambda: screen.app.picture and screen.app.picture.findings, "findings")
        screen.app.selection.update(("node003",))
        await screen.press("3", "D")
        await screen.shows("node003: for Slurm", "--exclude=node003", "nodename=node003", "mltop runs none of it")
        await screen.press("y")
        await screen.shows("copied: scontrol update nodename=node003 state=drain")
        assert clipboard(screen).startswith("scontrol update nodename=node003 state=drain reason=")
        await screen.press("e")
        await screen.shows("copied: --exclude=node003")
        assert clipboard(screen) == "--exclude=node003"
        await screen.press("escape")
        assert not isinstance(screen.app.screen, SlurmBox)


async def test_the_marked_nodes_and_what_is_wrong_with_them() -> None:
    async with opened(SlurmSession([fleet(0, 8)]), size=(120, 40)) as screen:
        screen.app.selection.update(("node003", "node006"))
        await screen.until(lambda: screen.app.picture and screen.app.picture.findings, "findings")
        await screen.press("D", "y")
        await screen.shows("copied")
        assert clipboard(screen).startswith('scontrol update nodename=node[003,006] state=drain reason="mltop: GPU ')


async def test_the_culprits_of_the_stacks() -> None:
    session = SlurmSession([one_node()])
    async with opened(session, size=(120, 40)) as screen:
        await screen.press("4", "D")
        await screen.shows("no node is under the cursor, and none is marked")
        await screen.press("t")
        session.dumps[0].finish()
        await screen.shows("HANG")
        await screen.press("D")
        await screen.shows("nodename=node01 state=drain", "GPU 3 is too")


async def test_a_node_without_a_hardware_problem_is_not_drained() -> None:
    async with opened(SlurmSession([fleet(0, 8)]), size=(120, 40)) as screen:
        await screen.press("3", "D")
        await screen.shows("node001: for Slurm", "--exclude=node001", "no drain line")
        assert "scontrol" not in screen.text()


async def test_without_slurm_only_the_list() -> None:
    async with opened(FakeSession([fleet(0, 4)]), size=(120, 40)) as screen:
        await screen.press("3", "D")
        await screen.shows("--exclude=node001", "y copy the list")
        assert "scontrol" not in screen.text()
        await screen.press("y")
        assert clipboard(screen) == "--exclude=node001"


async def test_read_only() -> None:
    async with opened(SlurmSession([fleet(0, 4)]), read_only=True) as screen:
        await screen.press("3", "D")
        await screen.shows("off: --read-only")


@pytest.mark.parametrize("size", SIZES)
async def test_looks(size: tuple[int, int]) -> None:
    async with opened(SlurmSession([fleet(0, 8)]), size=size) as screen:
        screen.app.selection.update(("node003", "node006"))
        await screen.until(lambda: screen.app.picture and screen.app.picture.findings, "findings")
        await screen.press("3", "D")
        await screen.shows("for Slurm")
        await screen.is_golden("slurm-lines", size)
