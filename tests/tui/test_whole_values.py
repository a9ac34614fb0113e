"""Values one size larger than usual, on every pane: each stands there whole, or an ellipsis says that it does not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mltop.probes.model import GpuProcess, Remap
from mltop.probes.reach.view import FleetView
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import GIB, fleet, one_node
from tests.tui.opened import Opened, opened

SIZES = [(80, 24), (120, 40), (200, 60)]
NODE = "gpu-node-0017-rack-12-building-3"
USER = "a-user-with-thirty-letters-001"
UID = "4294967294"
JOB = "pretraining-of-a-large-model-4711"
# As they are written; of none of them only a beginning may stand alone.
VALUES = [
    *("1395/1400W", "281/288G", "104C", "107C", "wants gpu reset", "12345678", "23.5M"),
    *("4194300", "131070", "12800%", USER, UID, JOB, NODE),
]
LEGAL = {"104", "107", "gpu"}  # what is written of other things


def large(view: FleetView) -> FleetView:
    """The same with large values: GB300-like GPUs, ranks of a large job, users without a name."""
    for number, node in enumerate(view.nodes):
        assert node.sample is not None
        for gpu in node.sample.gpus:
            if gpu.state != "ok":
                continue
            gpu.power_w, gpu.power_limit_w, gpu.power_limit_default_w = 1395.0, 1400.0, 1400.0
            gpu.memory_used_bytes, gpu.memory_total_bytes = 281 * GIB, 288 * GIB
            gpu.temperature_c, gpu.memory_temperature_c = 104.0, 107.0
            gpu.recovery_action = "gpu_reset"
            gpu.remap = Remap(uncorrected=12345678)
            gpu.ecc = replace(gpu.ecc, corrected_volatile=23456789, uncorrected_volatile=12345678)
            gpu.pcie = replace(gpu.pcie, rx_bytes_per_s=63.2e9, tx_bytes_per_s=62.9e9)
            gpu.processes = [
                GpuProcess(4194300 + gpu.index % 4, 281 * GIB, user=USER, name="python3.11", state="R"),
                GpuProcess(4194300 - gpu.index, 281 * GIB, user=UID, name="ollama-server-1", state="S"),
            ]
        for rank in node.sample.ranks:
            rank.pid, rank.rank, rank.user = 4194300 + (rank.rank or 0), 131070 + (rank.rank or 0), USER
            rank.uid, rank.job, rank.cpu_fraction, rank.rss_bytes = 4294967294, JOB, 128.0, 1536 * GIB
        node.sample.ranks[0].user = UID
        node.sample.node = NODE.replace("0017", f"{number:04d}")
    nodes = [replace(node, state=replace(node.state, node=node.sample.node)) for node in view.nodes if node.sample]
    return replace(view, nodes=tuple(nodes))


def cut_silently(text: str) -> list[str]:
    """The lines that have a beginning of one of the values alone, as if it were all."""
    beginnings = {value[:end] for value in VALUES for end in range(3, len(value))} - LEGAL
    alone = re.compile(rf"(?<![\w/.…-])(?:{'|'.join(map(re.escape, beginnings))})(?=  |$)")
    whole = re.compile("|".join(map(re.escape, VALUES)))
    return [line for line in text.splitlines() if alone.search(whole.sub("#", line))]


async def check(screen: Opened, *keys: str) -> str:
    await screen.press(*keys)
    assert cut_silently(screen.text()) == [], keys
    return screen.text()


def test_what_is_cut_silently_is_found() -> None:
    cut = ["  1395", "1395/140  ", "  429496729  x", "wants", "wants gpu  x", " a-user-w  ", "gpu-node-0017"]
    assert cut_silently("\n".join(cut)) and all(cut_silently(line) for line in cut)
    assert not cut_silently("1395/1400W 1395/14… wants… wants gpu reset a-user-w… …building-3 4294967294")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_panes_of_one_node(size: tuple[int, int]) -> None:
    views = [large(one_node(tick)) for tick in range(4)]
    async with opened(FakeSession(views), size=size) as screen:
        await screen.step(3)
        await screen.shows("1395/1400W")
        for keys in ("1", "2", "T", "T", "3", "5", "6", "8", "1 t", "4"):
            await check(screen, *keys.split())
        text = await check(screen, "2", "home", "enter")
        assert "ACTIVITY" in text or size[1] < 40
        for _ in range(6):
            await check(screen, "pagedown")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_panes_of_a_fleet(size: tuple[int, int]) -> None:
    async with opened(FakeSession([large(fleet(nodes=24))]), size=size) as screen:
        await screen.shows("…")
        for keys in ("1", "down", "m", "m", "v", "down", "s", "3", "5", "6", "8", "colon", "escape"):
            await check(screen, *keys.split())
