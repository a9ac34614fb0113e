"""Ports, PCI devices and happenings as rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.model import Finding, Incident, KernelEvent, LinkSample, PciDevice
from mltop.probes.model.units import UNKNOWN, clock_time
from mltop.probes.model.vocabulary import COMMANDS
from mltop.tui.render.cells import Row, plain, row_of
from mltop.tui.render.findings import happenings
from mltop.tui.render.links import LINK_COLUMNS, PCI_COLUMNS, Counted, grown
from mltop.tui.screens.events.lines import event_lines, page_of


def cells(columns: tuple[object, ...], row: Row) -> dict[str, tuple[str, str]]:
    keys = [column.key for column in columns]  # type: ignore[attr-defined]
    return {key: (cell.text, cell.style) for key, cell in zip(keys, row.cells, strict=True)}


def link_row(link: LinkSample, first: dict[str, int]) -> Row:
    return row_of(LINK_COLUMNS, Counted(link, first), link.device)


def pci_row(device: PciDevice, first: dict[str, int]) -> Row:
    return row_of(PCI_COLUMNS, Counted(device, first), device.bus_id)


def port(**more: object) -> LinkSample:
    known: dict[str, object] = {"state": "ACTIVE", "physical_state": "LinkUp", "rate_bits_per_s": 400e9}
    return LinkSample("mlx5_4", **{**known, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("link", "state"),
    [
        (port(), ("ACTIVE", "ok")),
        (port(state="DOWN", physical_state="Polling"), ("Polling", "dim")),
        (port(state="INIT"), ("INIT", "warn")),
        (port(kind="ethernet", state="UP", physical_state="UP"), ("UP", "ok")),
        (port(state=None, physical_state=None), (UNKNOWN, "dim")),
        (port(state=None, error="device vanished at 12:00", error_code="device_vanished"), ("GONE", "crit")),
    ],
)
def test_the_state_of_a_port(link: LinkSample, state: tuple[str, str]) -> None:
    assert cells(LINK_COLUMNS, link_row(link, {}))["state"] == state


def test_only_what_grew_since_the_pane_was_opened_is_an_error() -> None:
    old = {"link_downed": 2, "port_rcv_errors": 14, "port_xmit_wait": 5, "port_xmit_data": 1, "netdev_rx_bytes": 1}
    now = {"link_downed": 4, "port_rcv_errors": 15, "port_xmit_wait": 99, "port_xmit_data": 7, "netdev_rx_bytes": 9}
    shown = cells(LINK_COLUMNS, link_row(port(counters=now), old))
    assert shown["downed"] == ("+2", "warn")
    assert shown["errors"] == ("port_rcv_errors +1", "warn")
    quiet = cells(LINK_COLUMNS, link_row(port(counters=old), old))
    assert quiet["errors"] == ("none", "dim") and quiet["downed"] == ("0", "dim")


def test_what_is_not_known_of_a_port() -> None:
    shown = cells(LINK_COLUMNS, link_row(LinkSample("eth0", 2, "ethernet"), {}))
    assert shown["device"][0] == "eth0/2"
    assert (shown["rate"][0], shown["rx"][0], shown["downed"][0]) == (UNKNOWN,) * 3
    assert shown["errors"] == ("no counters", "dim")


def test_a_counter_at_its_maximum_and_a_port_that_is_not_read() -> None:
    stuck = port(counters={"link_downed": 255}, saturated=["link_downed"])
    assert cells(LINK_COLUMNS, link_row(stuck, {}))["downed"] == ("stuck", "warn")
    unread = port(counters={"link_downed": 1}, error="not read again: EIO")
    assert cells(LINK_COLUMNS, link_row(unread, {}))["errors"] == ("not read again: EIO", "warn")


def test_a_counter_that_starts_anew() -> None:
    assert grown({"symbol_error": 3}, {"symbol_error": 90}) == {"symbol_error": 3}
    assert list(grown({"symbol_error": 3, "port_rcv_errors": 9}, {"symbol_error": 0, "port_rcv_errors": 0})) == [
        "port_rcv_errors",
        "symbol_error",
    ]


def test_a_pci_link_below_what_it_could_be() -> None:
    device = PciDevice("0000:9b:00.0", "gpu", driver="nvidia", link_width=8, link_width_max=16)
    device.link_speed_gt_per_s, device.link_speed_max_gt_per_s = 2.5, 32.0
    shown = cells(PCI_COLUMNS, pci_row(device, {}))
    assert shown["link"] == ("Gen1 of 5 x8 of 16", "warn")
    device.link_width = 16
    assert cells(PCI_COLUMNS, pci_row(device, {}))["link"] == ("Gen1 of 5 x16", "dim"), "an idle GPU's link is slow"
    device.link_speed_gt_per_s = 32.0
    assert cells(PCI_COLUMNS, pci_row(device, {}))["link"] == ("Gen5 x16", "")
    assert shown["errors"] == ("no counters", "dim")
    device.aer = {"correctable": 9, "fatal": 1}
    assert cells(PCI_COLUMNS, pci_row(device, {"correctable": 9, "fatal": 0}))["errors"] == ("fatal +1", "crit")
    assert cells(PCI_COLUMNS, pci_row(PciDevice("0000:00:01.0"), {}))["driver"] == ("none", "warn")


# Happenings

FIRING = Finding("ib.down", "critical", "n1", "mlx5_4", "mlx5_4 down", since=100.0)
ENDED = Finding("gpu.throttle.sw_thermal", "warning", "n2", "GPU 3", "GPU 3 hot", since=40.0, until=70.0)
XID = KernelEvent(90.0, "xid", "0000:9b:00", 79, "NVRM: Xid 79")


def test_what_happened_newest_first() -> None:
    found = happenings([FIRING], [ENDED], [("n1", XID)])
    assert [(one.at, one.node, one.kind) for one in found] == [
        (100.0, "n1", "CRIT"),
        (90.0, "n1", "XID 79"),
        (70.0, "n2", "END"),
        (40.0, "n2", "WARN"),
    ]
    assert found[2].text == "resolved after 30s: GPU 3 hot"
    assert len({one.key for one in found}) == 4


def test_what_happened_on_one_node() -> None:
    assert [one.kind for one in happenings([FIRING], [ENDED], [("n1", XID)], "n2")] == ["END", "WARN"]
    assert happenings([Finding("a", "info", "n1", "x", "y")], [], []) == []


def test_a_line_of_what_happened():
    title, ((line, _, _),) = event_lines(happenings([], [], [("n1", XID)]), 80, with_nodes=False)
    assert plain(title) == "TIME      KIND       WHAT"
    assert line[0].text.strip() == clock_time(90.0)
    assert (line[1].text.strip(), line[1].style) == ("XID 79", "crit")
    assert plain(line).endswith("0000:9b:00: NVRM: Xid 79")
    unheard = KernelEvent(1.0, "brand_new", text="something")
    assert "BRAND_NEW" in plain(event_lines(happenings([], [], [("n1", unheard)]), 80, with_nodes=False)[1][0].cells)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_text_of_an_event_is_whole_at_every_width(width):
    words = [f"word{number}" for number in range(40)]
    events = happenings([], [], [("a-node", KernelEvent(1.0, "oom", "python", text=" ".join(words)))])
    lines = [plain(line.cells) for line in event_lines(events, width, with_nodes=True)[1]]
    assert all(len(line) <= width for line in lines)
    assert [word for line in lines for word in line.split() if word.startswith("word")] == words


def test_all_of_an_event():
    cause = replace(ENDED, action="look at the fans", evidence=["90 C for 30 s"])
    incident = Incident("i", "hang", "critical", "job x stands", causes=[cause])
    began = happenings([], [cause], [])[1]
    text = [plain(line.cells) for line in page_of(began, [incident], 100.0, 80, COMMANDS)]
    assert text[0].split(maxsplit=1) == ["what", "GPU 3 hot"]
    for words in ("GPU 3", "n2", "it lasted 30s", "part of     job x stands", "→ look at the fans", "90 C for 30 s"):
        assert any(words in line for line in text), words
    lines = page_of(began, [incident], 100.0, 80, COMMANDS)
    assert {line.opens.pane for line in lines if line.opens is not None} == {"gpu", "incidents"}
    told = page_of(happenings([], [], [("n1", XID)])[0], [incident], 100.0, 80, COMMANDS)
    assert not any("part of" in plain(line.cells) for line in told)
