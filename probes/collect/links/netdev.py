"""What there is to read of a network interface, whether it is a port of its own or belongs to an RDMA port.

The network interface that belongs to an RDMA port: what only it knows becomes part of the port's sample.

Of IP over InfiniBand that is the carrier, which still counts when ``link_downed`` stands at its maximum.

One Ethernet port, or a bond of several. Source: /sys/class/net/N (sysfs-class-net, sysfs-class-net-statistics).
"""

from __future__ import annotations

import os

from mltop.probes.collect.links import parsing
from mltop.probes.collect.links.counters import ByteMeter, CounterFiles, Tier
from mltop.probes.collect.links.discovery import NetFacts
from mltop.probes.collect.links.parsing import word
from mltop.probes.collect.sysfile import OpenFiles, counter, read_small
from mltop.probes.model import Gap, LinkSample

CARRIER = ("carrier_down_count", "carrier_up_count", "carrier_changes")
BYTES = ("statistics/rx_bytes", "statistics/tx_bytes")
ERRORS = ("statistics/rx_errors", "statistics/tx_errors", "statistics/rx_dropped", "statistics/tx_dropped")
# Each of the statistics makes the driver add up all its queues: those that tell of faults, no more.
DETAILS = (
    "statistics/rx_packets",
    "statistics/tx_packets",
    "statistics/rx_crc_errors",
    "statistics/rx_frame_errors",
    "statistics/rx_length_errors",
    "statistics/rx_missed_errors",
    "statistics/rx_fifo_errors",
    "statistics/rx_over_errors",
    "statistics/tx_fifo_errors",
    "statistics/tx_carrier_errors",
    "statistics/tx_aborted_errors",
    "statistics/collisions",
)


def counter_paths(folder: str, names: tuple[str, ...], prefix: str = "") -> dict[str, str]:
    """Path by counter. A kernel or driver without one of them has no such counter: nothing is missed."""
    paths = {prefix + os.path.basename(name): f"{folder}/{name}" for name in names}
    return {name: path for name, path in paths.items() if os.path.exists(path)}


def bond_ports(folder: str, prefix: str = "") -> dict[str, int]:
    """How many ports a bond has and how many of them are up."""
    names = (read_small(f"{folder}/bonding/slaves") or b"").decode("ascii", "replace").split()
    up = sum(word(read_small(f"{os.path.dirname(folder)}/{name}/operstate")) == "up" for name in names)
    return {f"{prefix}bond_ports": len(names), f"{prefix}bond_ports_up": up}


PREFIX = "netdev_"


class MergedInterface:
    """Keep one object while the interface belongs to the port. ``gone``: it used to answer and does not."""

    def __init__(self, facts: NetFacts, files: OpenFiles, is_infiniband: bool) -> None:
        self.facts = facts
        self.gone = False
        names = CARRIER + ERRORS if is_infiniband else CARRIER + BYTES + ERRORS + DETAILS
        self._mtu_file = files.attribute(f"{facts.folder}/mtu")
        self._mtu: int | None = None
        self._counters = CounterFiles(counter_paths(facts.folder, names, PREFIX), files, stops=False)
        self._is_bond = os.path.isdir(f"{facts.folder}/bonding")
        self._bond: dict[str, int] = {}

    def read(self) -> None:
        """Never raises."""
        before = self._mtu
        try:
            self._mtu = counter(self._mtu_file.read())
        except OSError:
            self._mtu = None
        self.gone = before is not None and self._mtu is None
        self._counters.read()
        if self._is_bond:
            self._bond = bond_ports(self.facts.folder, PREFIX)

    def merge_into(self, sample: LinkSample) -> None:
        sample.mtu = self._mtu
        sample.counters.update(self._counters.values)
        sample.counters.update(self._bond)

    def gaps(self, name: str) -> list[Gap]:
        """What the newest ``read`` could not tell; ``name``: of the port, "links.mlx5_0"."""
        found = [Gap(f"{name}.mtu", f"cannot be read of {self.facts.name}")] if self._mtu is None else []
        return found + [Gap(f"{name}.{one}", why) for one, why in self._counters.unreadable.items()]

    def replaced(self) -> bool:
        """Whether another interface of the same name has taken its place."""
        return self._mtu_file.replaced()

    def close(self) -> None:
        self._mtu_file.close()
        self._counters.close()


DEVICE_VANISHED = "device vanished"
INTERFACE_VANISHED = "interface vanished"  # its PCI device is still there: moved to a container, driver unloaded
_IFF_UP = 0x1  # linux/if.h: switched on by the administrator
_FLAPS = "carrier_down_count"


class NetDevice:
    """Keep one object while the interface exists. ``turn``: its place in the list.

    Counters are the files' names: carrier_up_count (0: it never had a carrier), carrier_down_count, rx_crc_errors, …;
    of a bond also bond_ports and bond_ports_up.
    """

    def __init__(self, facts: NetFacts, files: OpenFiles, turn: int = 0) -> None:
        self.facts = facts
        self.gone = False
        self._state_file = files.attribute(f"{facts.folder}/operstate")
        seldom = counter_paths(facts.folder, CARRIER + BYTES + ERRORS + DETAILS)
        often = {name: seldom.pop(name) for name in (_FLAPS, "rx_bytes", "tx_bytes") if name in seldom}
        self._often = CounterFiles(often, files, stops=False)
        self._seldom = CounterFiles(seldom, files, stops=False)
        self._is_bond = os.path.isdir(f"{facts.folder}/bonding")
        self._bond: dict[str, int] = {}
        self._state: str | None = None
        self._physical: str | None = None
        self._speed: float | None = None
        self._mtu: int | None = None
        self._meter = ByteMeter()
        self._tier = Tier(turn=turn)

    @property
    def rates_why(self) -> str:
        """Why the newest rates are None, "" when they are not."""
        return self._meter.why

    @property
    def place(self) -> tuple[str | None, int]:
        """What stays when an interface is renamed."""
        return self.facts.pci_bus_id, self.facts.unit

    @property
    def counters_read_at(self) -> float | None:
        """When the slowest of its counters were read."""
        return self._tier.read_at

    def replaced(self) -> bool:
        """Whether another interface of the same name has taken its place."""
        return self._state_file.replaced()

    def read(self, now: float) -> LinkSample:
        """Never raises; ``now`` is monotonic, s."""
        before = self._state, self._often.values.get(_FLAPS)
        self._read_state()
        self._often.read()
        counters = self._often.values
        if self._tier.due(now) or before != (self._state, counters.get(_FLAPS)):
            self._tier.done(now)
            self._read_seldom()
        sample = self._base()
        sample.state, sample.physical_state = self._state, self._physical
        sample.rate_bits_per_s, sample.mtu = self._speed, self._mtu
        sample.counters = {**counters, **self._seldom.values, **self._bond}
        rates = self._meter.rates(now, counters.get("rx_bytes"), counters.get("tx_bytes"))
        sample.rx_bytes_per_s, sample.tx_bytes_per_s = rates
        return sample

    def vanished(self) -> LinkSample:
        """What is left to say when the interface is not there any more."""
        sample = self._base()
        there = self.facts.pci_folder is not None and os.path.exists(self.facts.pci_folder)
        sample.error = INTERFACE_VANISHED if there else DEVICE_VANISHED
        return sample

    def gaps(self) -> list[Gap]:
        """What the newest ``read`` could not tell, but for rates of a first sample."""
        name = f"links.{self.facts.name}"
        found = [Gap(f"{name}.state", "its operstate cannot be read")] if self._state is None else []
        unreadable = {**self._often.unreadable, **self._seldom.unreadable}
        found += [Gap(f"{name}.{one}", why) for one, why in unreadable.items()]
        if self._state == "UP" and self._speed is None:
            found.append(Gap(f"{name}.rate", "the driver names no speed", kind="unsupported"))
        return found + self._meter.gaps(name)

    def close(self) -> None:
        self._state_file.close()
        self._often.close()
        self._seldom.close()

    def _read_state(self) -> None:
        before = self._state
        try:
            self._state = (parsing.word(self._state_file.read()) or "").upper() or None
        except OSError:
            self._state = None
        self.gone = before is not None and self._state is None

    def _read_seldom(self) -> None:
        folder = self.facts.folder
        self._seldom.read()
        # EINVAL here is no failure: so it answers for an interface that is down.
        self._speed = parsing.speed_bits_per_s(read_small(f"{folder}/speed"))
        self._mtu = counter(read_small(f"{folder}/mtu") or b"")
        self._physical = _physical_state(read_small(f"{folder}/flags"), read_small(f"{folder}/carrier"))
        if self._is_bond:
            self._bond = bond_ports(folder)

    def _base(self) -> LinkSample:
        facts = self.facts
        return LinkSample(
            device=facts.name,
            kind="ethernet",
            netdev=facts.name,
            pci_bus_id=facts.pci_bus_id,
            numa_node=facts.numa_node,
        )


def _physical_state(flags: bytes | None, carrier: bytes | None) -> str | None:
    """In the words of InfiniBand: LinkUp, LinkDown (no carrier) or Disabled (switched off by hand)."""
    text = parsing.word(flags) or ""
    try:
        is_on = bool(int(text, 16) & _IFF_UP)
    except ValueError:
        return None
    if not is_on:
        return "Disabled"
    return {b"1": "LinkUp", b"0": "LinkDown"}.get((carrier or b"").strip())
