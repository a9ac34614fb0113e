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
        text = await screen.shows("> links", "mlx5_4", "ACTIVE", "400G", "0000:1b:00.0", "x16")
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
        await screen.shows("> links > n2")


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
        await screen.shows("no events")


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
        await screen.shows("resolved after")
        await screen.press("g", "enter")
        text = await screen.shows("events > event", "rule ib.", "since")
        assert "n1" in text
        await screen.press("enter")
        await screen.until(lambda: screen.app.trail.here.pane == "node", "its node")


async def test_events_are_filtered_by_kind_node_and_severity() -> None:
    events = [xid(AT - 4000, 31), KernelEvent(AT - 60, "oom", "python", text="Killed process 4003 (python)")]
    session = FakeSession([view(0, node(0, kernel_events=events)), view(5, node(5, down=True, kernel_events=events))])
    async with opened(session, size=(80, 24)) as screen:
        await screen.press("6")
        await screen.step(1)
        await screen.shows("OOM", "XID 31", "mlx5_4 is down")
        for typed, shown, hidden in (
            ("kind=oom", ("OOM",), ("XID", "mlx5_4 is down")),
            ("kind=xid*", ("XID 31",), ("OOM",)),
            ("severity=critical node=n1", ("mlx5_4 is down", "OOM"), ()),
            ("node=n2", ("no event matches",), ("OOM", "XID")),
        ):
            await screen.press("slash", *typed, "enter")
            await screen.shows(*shown)
            body = "\n".join(screen.lines()[2:-2])
            assert not any(word in body for word in hidden), (typed, body)
            await screen.press("escape")
            await screen.shows("XID 31", "OOM")


async def test_long_events_are_whole_at_80_columns() -> None:
    text = " ".join(f"word{number}" for number in range(30))
    session = FakeSession([view(0, node(0, kernel_events=[KernelEvent(AT - 60, "oom", "python", text=text)]))])
    async with opened(session, size=(80, 24)) as screen:
        await screen.press("6")
        found = await screen.shows("word0", "word29")
        assert all(f"word{number}" in found for number in range(30)) and "…" not in "\n".join(screen.lines()[:-1])


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


def rail_nodes() -> FleetView:
    """Three nodes; a port of the second is down, one of the third carries nothing."""
    views = []
    for number in range(3):
        sample = node(0)
        sample.node = f"n{number + 1}"
        for port in sample.links:
            port.state, port.physical_state, port.rx_bytes_per_s = "ACTIVE", "LinkUp", 12e9
        if number == 1:
            sample.links[0].state, sample.links[0].physical_state = "DOWN", "Polling"
        if number == 2:
            sample.links[1].rx_bytes_per_s = 0.0
        views.append(NodeView(NodeState(sample.node, "live"), sample))
    return FleetView(AT, tuple(views), serial=1)


async def test_rails_over_all_nodes_who_differs_first() -> None:
    async with opened(FakeSession([rail_nodes()]), size=(120, 40)) as screen:
        await screen.press("5", "v")
        await screen.shows("RAIL", "OUTLIERS")
        rows = screen.lines()[next(at for at, line in enumerate(screen.lines()) if "OUTLIERS" in line) + 1 :]
        assert "2 of 3" in rows[0] and "n2 Polling" in rows[0], "what is down is on top"
        assert "n3 0B/s in" in rows[1] and "12.0GB/s" in rows[1] and "Gbit/s" in rows[1]
        assert "none" in rows[2]
        await screen.press("enter")
        await screen.until(lambda: screen.app.trail.here.node == "n2", "the ports of the node that differs")
        await screen.shows("Polling", "DEVICE")


async def test_rails_need_several_nodes() -> None:
    async with opened(FakeSession([view(0, node(0))]), size=(80, 24)) as screen:
        await screen.press("5", "v")
        await screen.shows("rails are compared over nodes")
