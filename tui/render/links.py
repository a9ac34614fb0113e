"""Network ports and PCI devices as rows. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mltop.probes.model import LinkSample, PciDevice
from mltop.probes.model.units import UNKNOWN, count, known, number
from mltop.tui.render.cells import Cell, Column

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


class Counted(NamedTuple):
    """A port or a device. ``first``: its counters when the pane was opened; ``alarm``: the style of what is wrong."""

    about: Any  # LinkSample or PciDevice
    first: Mapping[str, int]
    alarm: str = ""

    @property
    def grown(self) -> dict[str, int]:
        """By how much each counter of errors has grown, the most first."""
        counters = self.about.aer if isinstance(self.about, PciDevice) else self.about.counters
        return {name: by for name, by in grown(counters, self.first).items() if name not in _FLAPS}


def grown(now: Mapping[str, int], first: Mapping[str, int]) -> dict[str, int]:
    """By how much each counter of errors has grown, the most first; one that started anew by what it shows."""
    growths = {}
    for name, value in now.items():
        before = first.get(name, value)
        if value != before and not (name.removeprefix("netdev_") in _NO_ERRORS or name.endswith(_NO_ERROR_WORDS)):
            growths[name] = value - before if value > before else value
    return dict(sorted(growths.items(), key=lambda growth: -growth[1]))


def is_up(link: LinkSample) -> bool:
    return link.state is not None and link.state.upper() in _UP


def _state(line: Counted) -> Cell:
    cell = _own_state(line.about)
    return Cell(cell.text, line.alarm or cell.style) if cell.style == "dim" else cell


def _own_state(link: LinkSample) -> Cell:
    if link.state is None:
        return Cell("GONE" if link.error_code else UNKNOWN, "crit" if link.error else "dim")
    physical = link.physical_state or ""
    if is_up(link):
        return Cell(link.state, "ok")
    word = physical if physical and physical not in ("LinkUp", link.state) else link.state
    return Cell(word, "warn" if link.state.upper().startswith("INIT") else "dim")


def _flap_counter(link: LinkSample) -> str | None:
    return next((name for name in _FLAPS if name in link.counters), None)


def _new_flaps(line: Counted) -> int | None:
    name = _flap_counter(line.about)
    return None if name is None else line.about.counters[name] - line.first.get(name, line.about.counters[name])


def _flaps(line: Counted) -> Cell:
    new = _new_flaps(line)
    if new is None:
        return Cell(UNKNOWN, "dim")
    if _flap_counter(line.about) in line.about.saturated:
        return Cell("stuck", "warn")
    return Cell(f"+{new}", "warn") if new > 0 else Cell("0", "dim")


def _errors(line: Counted) -> Cell:
    if line.about.error:
        return Cell(line.about.error, "warn")
    return _growth_cell(line.grown, bool(line.about.counters))


def _growth_cell(by_name: Mapping[str, int], counted: bool, style: str = "warn") -> Cell:
    """What has grown since the pane was opened, and by how much."""
    if not by_name:
        return Cell("none" if counted else "no counters", "dim")
    return Cell(", ".join(f"{name} +{count(by)}" for name, by in by_name.items()), style)


def gigabits(bits_per_s: float | None) -> str:
    return f"{bits_per_s / 1e9:g}Gbit/s" if bits_per_s is not None and known(bits_per_s) else UNKNOWN


def bytes_per_s(value: float | None) -> str:
    return UNKNOWN if value is None or not known(value) else f"{count(value)}B/s"


# GT/s of each generation of PCIe.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}


def _generation(speed: float | None) -> str:
    if speed is None:
        return f"Gen{UNKNOWN}"
    return f"Gen{_GENERATIONS[speed]}" if speed in _GENERATIONS else f"{speed:g}GT/s"


def _link(line: Counted) -> Cell:
    """ "Gen5 x16"; "Gen1 of 5 x8 of 16" where it is less than it could be. Idle GPUs slow their links down, so the
    generation is no alarm by itself.
    """
    device = line.about
    speed, most, width, widest = (
        device.link_speed_gt_per_s,
        device.link_speed_max_gt_per_s,
        device.link_width,
        device.link_width_max,
    )
    if speed is None and width is None:
        return Cell(UNKNOWN, "dim")
    slow = speed is not None and most is not None and speed < most
    narrow = width is not None and widest is not None and width < widest
    text = _generation(speed) + (f" of {_generation(most).removeprefix('Gen')}" if slow else "")
    text += f" x{UNKNOWN if width is None else width}" + (f" of {widest}" if narrow else "")
    return Cell(text, "warn" if narrow else "dim" if slow else "")


def _aer(line: Counted) -> Cell:
    grave = any(name != "correctable" for name in line.grown)
    return _growth_cell(line.grown, bool(line.about.aer), "crit" if grave else "warn")


def _link_speed(line: Counted) -> float | None:
    """For sorting: all lanes together."""
    speed, width = line.about.link_speed_gt_per_s, line.about.link_width
    return None if speed is None or width is None else speed * width


def _all_errors(line: Counted) -> int:
    return sum(line.grown.values())


_of = Column.of
LINK_COLUMNS = (
    _of("device", "DEVICE", 9, "about.device", cell=lambda line: Cell(link_name(line.about), line.alarm)),
    _of("kind", "KIND", 5, "about.kind", lambda kind: _KINDS.get(kind, kind) or UNKNOWN, priority=2),
    Column("state", "STATE", 8, cell=_state, value=lambda line: _state(line).text),
    _of("rate", "RATE", 9, "about.rate_bits_per_s", gigabits, right=True),
    _of("rx", "RX", 8, "about.rx_bytes_per_s", bytes_per_s, right=True),
    _of("tx", "TX", 8, "about.tx_bytes_per_s", bytes_per_s, right=True),
    Column("downed", "FLAPS", 5, right=True, cell=_flaps, value=_new_flaps),
    Column("errors", "ERRORS SINCE OPENED", 20, stretch=True, cell=_errors, value=_all_errors),
    _of("netdev", "NETDEV", 8, "about.netdev", priority=3, optional=True),
    _of("numa", "NUMA", 4, "about.numa_node", number, right=True, priority=4, optional=True),
    _of("pci", "PCI", 12, "about.pci_bus_id", priority=5, optional=True),
    _of("firmware", "FIRMWARE", 12, "about.firmware", priority=6, optional=True),
)

PCI_COLUMNS = (
    _of("bus", "PCI", 12, "about.bus_id", cell=lambda line: Cell(line.about.bus_id, line.alarm)),
    _of("kind", "KIND", 8, "about.kind"),
    _of("driver", "DRIVER", 10, "about.driver", lambda driver: driver or Cell("none", "warn")),
    Column("link", "LINK", 18, cell=_link, value=_link_speed),
    Column("errors", "AER SINCE OPENED", 20, stretch=True, cell=_aer, value=_all_errors),
    _of("numa", "NUMA", 4, "about.numa_node", number, right=True, priority=2, optional=True),
    _of("cpus", "NEAR CPUS", 14, "about.local_cpus", priority=3, optional=True),
)
