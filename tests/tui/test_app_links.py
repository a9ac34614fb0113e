"""The panes of links and events: what they show, and that they stay alive when things vanish."""

from __future__ import annotations

import pytest

from mltop.probes.model import KernelEvent, NodeState, Sample
from mltop.probes.reach.view import FleetView, NodeView
from tests.builders.health_samples import link, node_h100, xid
from tests.tui.fake_session import FakeSession
from tests.tui.opened import opened
from tests.tui.test_app_goldens import SIZES

AT = 1_763_640_000.0  # 2025-11-20 12:00:00 UTC


def view(tick: int, *samples: Sample) -> FleetView:
    nodes = tuple(NodeView(NodeState(sample.node, "live", age_s=0.4), sample) for sample in samples)
    return FleetView(AT + tick, nodes, serial=tick + 1)


def node(tick: int, name: str = "n1", down: bool = False, **more: object) -> Sample:
    """Port 4 goes down, port 2 counts symbol errors."""
    links = [link(number) for number in range(8)]
    links[2].counters["symbol_error"] = 3 * tick
    if down:
        links[4] = link(4, state="DOWN", physical_state="Polling")
        links[4].counters["link_downed"] = 3
    return node_h100(AT + tick, node=name, links=links, **more)  # type: ignore[arg-type]


async def test_ports_and_what_they_count_since_the_pane_was_opened() -> None:
    script = [view(0, node(0)), view(1, node(1)), view(2, node(2, down=True))]
    async with opened(FakeSession(script), size=(120, 40)) as screen:
        await screen.press("5")
        text = await screen.shows("mltop > links", "mlx5_4", "ACTIVE", "400G", "0000:1b:00.0", "x16")
        assert "n N: other nodes" not in text, "there is only one"
        await screen.step(1)
        await screen.shows("symbol_error +3")
        await screen.step(1)
        await screen.shows("Polling", "symbol_error +6", "+1", "mlx5_4 is down")
        await screen.press("slash", *"mlx5_4", "enter")
        await screen.shows_not("mlx5_2 ")


async def test_to_the_next_node_and_to_its_gpus() -> None:
    script = [view(0, node(0), node(0, "n2"))]
    async with opened(FakeSession(script), size=(120, 40)) as screen:
        await screen.press("5")
        await screen.shows("n1  n N: other nodes")
        await screen.press("n")
        await screen.shows("n2  n N: other nodes")
        await screen.press("enter")
        await screen.shows("mltop > links > n2")


async def test_a_node_without_links_says_so() -> None:
    bare = node_h100(AT, links=[], pci=[])
    async with opened(FakeSession([view(0, bare)]), size=(80, 24)) as screen:
        await screen.press("5")
        await screen.shows("no network ports found", "no PCI devices found")
    silent = FleetView(AT, (NodeView(NodeState("n1", "connecting")),), serial=1)
    async with opened(FakeSession([silent]), size=(80, 24)) as screen:
        await screen.press("5")
        await screen.shows("ports unknown: no sample")
        await screen.press("6")
        await screen.shows("nothing happened that mltop knows of")


async def test_what_happened_newest_first_and_what_is_over() -> None:
    events = [
        xid(AT - 4000, 31, text="pid=4003, name=python, MMU Fault"),
        KernelEvent(AT - 60, "nfs", "10.0.4.11", text="nfs: server 10.0.4.11 not responding"),
        KernelEvent(AT - 30, "nfs_ok", "10.0.4.11", text="nfs: server 10.0.4.11 OK"),
    ]
    script = [
        view(0, node(0, kernel_events=events)),
        view(5, node(5, down=True, kernel_events=events)),
        view(90, node(90, kernel_events=events)),
    ]
    async with opened(FakeSession(script), size=(120, 40)) as screen:
        await screen.press("6")
        text = await screen.shows("NFS ok", "XID 31", "not responding")
        assert text.index("NFS ok") < text.index("XID 31"), "the newest first"
        await screen.step(1)
        await screen.shows("CRIT", "mlx5_4 is down")
        await screen.step(1)
        await screen.shows("over after")
        await screen.press("enter")
        await screen.shows("mltop > events > n1")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("pane", ["links", "events"])
async def test_what_they_look_like(pane: str, size: tuple[int, int]) -> None:
    events = [xid(AT - 600, 94, text="pid=4003, name=python, Contained error")]
    script = [view(tick, node(tick, down=tick > 1, kernel_events=events)) for tick in range(4)]
    async with opened(FakeSession(script), size=size) as screen:
        await screen.press("5" if pane == "links" else "6")
        await screen.step(3)
        await screen.shows("Polling" if pane == "links" else "XID 94")
        await screen.is_golden(pane, size)
