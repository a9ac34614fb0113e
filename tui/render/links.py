"""Network ports and PCI devices as rows. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from mltop.probes.model import LinkSample, PciDevice
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.units import UNKNOWN, bytes_text, count, known

LINK_COLUMNS = (
    Column("device", "DEVICE", 9),
    Column("kind", "KIND", 5),
    Column("state", "STATE", 8),
    Column("rate", "RATE", 6, right=True),
    Column("rx", "RX", 7, right=True),
    Column("tx", "TX", 7, right=True),
    Column("downed", "FLAPS", 6, right=True),
    Column("errors", "ERRORS SINCE OPENED", 20, stretch=True),
    Column("netdev", "NETDEV", 8, priority=3, optional=True),
    Column("numa", "NUMA", 4, right=True, priority=4, optional=True),
    Column("pci", "PCI", 12, priority=5, optional=True),
    Column("firmware", "FIRMWARE", 12, priority=6, optional=True),
)

PCI_COLUMNS = (
    Column("bus", "PCI", 12),
    Column("kind", "KIND", 8),
    Column("driver", "DRIVER", 10),
    Column("speed", "GT/S", 9, right=True),
    Column("width", "WIDTH", 7, right=True),
    Column("errors", "AER SINCE OPENED", 20, stretch=True),
    Column("numa", "NUMA", 4, right=True, priority=2, optional=True),
    Column("cpus", "NEAR CPUS", 14, priority=3, optional=True),
)

_KINDS = {"infiniband": "IB", "roce": "RoCE", "ethernet": "eth", "efa": "EFA"}
_UP = ("ACTIVE", "UP")
# Counters that only say how much was sent, or that somebody waited: their growth is no error.
_NO_ERRORS = (
    "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "unicast_xmit_packets",
    "unicast_rcv_packets", "multicast_xmit_packets", "multicast_rcv_packets", "port_xmit_wait", "rx_bytes", "tx_bytes",
    "rx_packets", "tx_packets", "multicast", "carrier_up_count",
)  # fmt: skip
_NO_ERROR_WORDS = ("_read_requests", "_write_requests", "_atomic_requests", "lifespan", "_bytes", "_pkts", "_packets")
_FLAPS = ("link_downed", "carrier_down_count", "carrier_changes")


def link_name(link: LinkSample) -> str:
    return link.device if link.port == 1 else f"{link.device}/{link.port}"


def link_row(link: LinkSample, first: Mapping[str, int], alarm: str = "") -> Row:
    """``first``: the counters when the pane was opened; ``alarm``: the style of what is wrong with it, "" nothing."""
    state = _state(link)
    cells = (
        Cell(link_name(link), alarm),
        Cell(_KINDS.get(link.kind, link.kind)),
        Cell(state.text, alarm or state.style) if state.style == "dim" else state,
        Cell(_gigabits(link.rate_bits_per_s)),
        Cell(_per_s(link.rx_bytes_per_s)),
        Cell(_per_s(link.tx_bytes_per_s)),
        _flaps(link, first),
        _errors(link, first),
        Cell(link.netdev or UNKNOWN),
        Cell(UNKNOWN if link.numa_node is None else str(link.numa_node)),
        Cell(link.pci_bus_id or UNKNOWN),
        Cell(link.firmware or UNKNOWN),
    )
    return Row(link_name(link), cells)


def grown(now: Mapping[str, int], first: Mapping[str, int]) -> dict[str, int]:
    """What has grown, the most first; a counter that started anew has grown by what it shows."""
    found = {}
    for name, value in now.items():
        before = first.get(name, value)
        if value != before and not _counts_no_error(name):
            found[name] = value - before if value > before else value
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _counts_no_error(name: str) -> bool:
    name = name.removeprefix("netdev_")
    return name in _NO_ERRORS or name.endswith(_NO_ERROR_WORDS)


def _state(link: LinkSample) -> Cell:
    if link.state is None:
        return Cell("GONE" if link.error and "vanished" in link.error else UNKNOWN, "crit" if link.error else "dim")
    physical = link.physical_state or ""
    if link.state.upper() in _UP:
        return Cell(link.state, "ok")
    word = physical if physical and physical not in ("LinkUp", link.state) else link.state
    return Cell(word, "warn" if link.state.upper().startswith("INIT") else "dim")


def _flaps(link: LinkSample, first: Mapping[str, int]) -> Cell:
    name = next((name for name in _FLAPS if name in link.counters), None)
    if name is None:
        return Cell(UNKNOWN, "dim")
    if name in link.saturated:
        return Cell("stuck", "warn")
    new = link.counters[name] - first.get(name, link.counters[name])
    return Cell(f"+{new}", "warn") if new > 0 else Cell("0", "dim")


def _errors(link: LinkSample, first: Mapping[str, int]) -> Cell:
    if link.error:
        return Cell(link.error, "warn")
    found = {name: by for name, by in grown(link.counters, first).items() if name not in _FLAPS}
    if not found:
        return Cell("none", "dim") if link.counters else Cell("no counters", "dim")
    return Cell(", ".join(f"{name} +{count(by)}" for name, by in found.items()), "warn")


def _gigabits(bits_per_s: float | None) -> str:
    return UNKNOWN if bits_per_s is None or not known(bits_per_s) else f"{bits_per_s / 1e9:g}G"


def _per_s(value: float | None) -> str:
    return UNKNOWN if value is None else f"{bytes_text(value)}/s"


def pci_row(device: PciDevice, first: Mapping[str, int], alarm: str = "") -> Row:
    cells = (
        Cell(device.bus_id, alarm),
        Cell(device.kind),
        Cell(device.driver or "none", "" if device.driver else "warn"),
        _part(device.link_speed_gt_per_s, device.link_speed_max_gt_per_s, ""),
        _part(device.link_width, device.link_width_max, "x"),
        _aer(device, first),
        Cell(UNKNOWN if device.numa_node is None else str(device.numa_node)),
        Cell(device.local_cpus or UNKNOWN),
    )
    return Row(device.bus_id, cells)


def _part(now: float | None, most: float | None, sign: str) -> Cell:
    """ "x8/x16" where it is less than it could be; idle GPUs slow their links down, so that is no alarm by itself."""
    if now is None:
        return Cell(UNKNOWN, "dim")
    if most is None or now >= most:
        return Cell(f"{sign}{now:g}")
    return Cell(f"{sign}{now:g}/{most:g}", "warn" if sign else "dim")


def _aer(device: PciDevice, first: Mapping[str, int]) -> Cell:
    if not device.aer:
        return Cell("no counters", "dim")
    found = grown(device.aer, first)
    if not found:
        return Cell("none", "dim")
    grave = any(name != "correctable" for name in found)
    return Cell(", ".join(f"{name} +{count(by)}" for name, by in found.items()), "crit" if grave else "warn")
