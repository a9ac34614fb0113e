"""One port: of an RDMA device (InfiniBand, RoCE, EFA), or a network interface (Ethernet, a bond, or that of an RDMA
port).

Source: /sys/class/infiniband/D/ports/N; /sys/class/net/N (sysfs-class-net, sysfs-class-net-statistics).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from mltop.probes.collect.links.counters import ByteMeter, Counters, Port, counter_files, refusal
from mltop.probes.collect.links.discovery import (
    NetFacts,
    PortFacts,
    beyond_narrow,
    rate_bits_per_s,
    saturated,
    speed_bits_per_s,
    state_word,
)
from mltop.probes.collect.sysfile import LINE_BYTES, REFUSED, KeptFile, OpenFiles, number, read_known, read_number, word
from mltop.probes.model import Gap, LinkSample
from mltop.probes.model.vocabulary import LinkFault

LINK_DOWNED = "link_downed"
# InfiniBand counts words of four bytes (PortXmitData), EFA and some RoCE drivers bytes.
_BYTE_COUNTERS = (("port_rcv_data", "port_xmit_data", 4), ("rx_bytes", "tx_bytes", 1))
_Value = TypeVar("_Value")


class RdmaPort(Port):
    """Keep one object while the device exists. ``has_chardev`` is for the owner to set, and the interface with
    ``adopt``.

    Asking costs the firmware, not only this process: most counter files are a management datagram each, ``rate`` and
    ``phys_state`` a port query each.
    """

    def __init__(self, facts: PortFacts, subject: str, open_files: OpenFiles, turn: int = 0) -> None:
        super().__init__(facts, subject, (facts.pci_bus_id, facts.port), turn)
        self.facts = facts
        self.netdev: MergedInterface | None = None
        self.has_chardev: bool | None = None
        names = ("state", "phys_state", "rate")
        self._files = {name: KeptFile(f"{facts.folder}/{name}", open_files, LINE_BYTES) for name in names}
        self._unreadable: dict[str, str] = {}  # by file, why it has no value now
        folders = [f"{facts.folder}/counters", f"{facts.folder}/hw_counters"]
        if facts.is_first_port:
            folders.append(f"{facts.folder}/../../hw_counters")  # the device's own are reported once
        paths = counter_files(folders)
        pairs = [pair for pair in _BYTE_COUNTERS if pair[0] in paths and pair[1] in paths]
        self._has_bytes = bool(pairs)
        self._received, self._sent, unit_bytes = pairs[0] if pairs else ("", "", 1)
        self._flaps = LINK_DOWNED
        self._counters = Counters(paths, (LINK_DOWNED, self._received, self._sent), open_files, stops=True)
        self._is_wide = False  # a value has shown that this driver's counters are wider than the classic ones
        self.meter = ByteMeter(unit_bytes)

    def adopt(self, netdev: MergedInterface | None) -> None:
        """Takes another interface as its own from now on."""
        if self.netdev is not None:
            self.netdev.close()
        self.netdev = netdev
        self._pace.hurry()

    def replaced(self) -> bool:
        return self._files["state"].replaced()

    def _complete(self, sample: LinkSample) -> None:
        self.gone = self.gone or (self.netdev is not None and self.netdev.gone)
        sample.saturated = [] if self._is_wide else saturated(sample.counters)
        sample.error = self._refused or self._counters.refused
        sample.has_chardev = self.has_chardev
        if self.netdev is not None:
            self.netdev.merge_into(sample)

    def _read_state(self) -> None:
        self._state = self._meaning("state", state_word)

    def _read_seldom(self) -> None:
        self._physical_state = self._meaning("phys_state", state_word)
        self._rate_bits_per_s = self._meaning("rate", rate_bits_per_s)
        self._counters.read_seldom()
        self._is_wide = self._is_wide or beyond_narrow(self._counters.values)
        if self.netdev is not None:
            self.netdev.read()

    def _meaning(self, name: str, meaning: Callable[[bytes], _Value | None]) -> _Value | None:
        if self._refused is not None:
            return None
        self._unreadable.pop(name, None)
        try:
            content = self._files[name].read()
        except OSError as error:
            if error.errno in REFUSED:
                self._refused = refusal(name, error)
            else:
                self._unreadable[name] = error.strerror or type(error).__name__
            return None
        value = meaning(content)
        if value is None:
            self._unreadable[name] = f"reads {content[:20]!r}"
        return value

    def vanished(self) -> LinkSample:
        return vanished(self._base(), "device_vanished")

    def gaps(self) -> list[Gap]:
        counters = self._counters
        gaps = [self.gap(file, why=why) for file, why in self._unreadable.items()]
        if self._refused:
            gaps.append(self.gap(why=self._refused))
        if counters.refused:
            gaps.append(self.gap("counters", why=counters.refused))
        elif counters.unreadable:
            (name, why), *others = counters.unreadable.items()
            more = f", and {len(others)} more" if others else ""
            gaps.append(self.gap("counters", why=f"{name}: {why}{more}"))
        if counters.refused is None and not self._has_bytes:
            gaps.append(self.gap("rates", why="its driver has no byte counters", kind="unsupported"))
        else:
            gaps += self.meter.gaps(self.subject)
        if self.facts.kind == "roce" and self.netdev is None:
            gaps.append(self.gap("netdev", why="no network interface of this port is visible here"))
        if self.has_chardev is None:
            gaps.append(self.gap("has_chardev", why="/sys/class/infiniband_verbs cannot be listed"))
        merged = {} if self.netdev is None else self.netdev.unreadable()
        return gaps + [self.gap(field, why=why) for field, why in merged.items()]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._counters.close()
        if self.netdev is not None:
            self.netdev.close()

    def _base(self) -> LinkSample:
        facts = self.facts
        return LinkSample(
            device=facts.device,
            port=facts.port,
            kind=facts.kind,
            firmware=facts.firmware,
            pci_bus_id=facts.pci_bus_id,
            numa_node=facts.numa_node,
            netdev=None if self.netdev is None else self.netdev.facts.name,
        )


CARRIER = ("carrier_down_count", "carrier_up_count", "carrier_changes")
BYTES = ("statistics/rx_bytes", "statistics/tx_bytes")
ERRORS = ("statistics/rx_errors", "statistics/tx_errors", "statistics/rx_dropped", "statistics/tx_dropped")
# Each of the statistics makes the driver add up all its queues: those that tell of faults, no more.
DETAILS = (
    *("statistics/rx_packets", "statistics/tx_packets", "statistics/rx_crc_errors", "statistics/rx_frame_errors"),
    *("statistics/rx_length_errors", "statistics/rx_missed_errors", "statistics/rx_fifo_errors"),
    *("statistics/rx_over_errors", "statistics/tx_fifo_errors", "statistics/tx_carrier_errors"),
    *("statistics/tx_aborted_errors", "statistics/collisions"),
)
PREFIX = "netdev_"  # of the counters of an RDMA port's interface
_VANISHED: dict[LinkFault, str] = {"device_vanished": "device vanished", "interface_vanished": "interface vanished"}


def vanished(sample: LinkSample, fault: LinkFault) -> LinkSample:
    """``sample``, of a port that is not there any more."""
    sample.error, sample.error_code = _VANISHED[fault], fault
    return sample


_IFF_UP = 0x1  # linux/if.h: switched on by the administrator


def counter_paths(folder: str, names: tuple[str, ...], prefix: str = "") -> dict[str, str]:
    """Path by counter. A kernel or driver without one of them has no such counter: nothing is missed."""
    paths = {prefix + os.path.basename(name): f"{folder}/{name}" for name in names}
    return {name: path for name, path in paths.items() if os.path.exists(path)}


def bond_ports(folder: str, prefix: str = "") -> dict[str, int]:
    """How many ports a bond has and how many of them are up; {} where it is none."""
    if not os.path.isdir(f"{folder}/bonding"):
        return {}
    names = (read_known(f"{folder}/bonding/slaves") or b"").decode("ascii", "replace").split()
    up = sum(word(read_known(f"{os.path.dirname(folder)}/{name}/operstate")) == "up" for name in names)
    return {f"{prefix}bond_ports": len(names), f"{prefix}bond_ports_up": up}


class MergedInterface:
    """The network interface that belongs to an RDMA port: what only it knows becomes part of the port's sample.

    Of IP over InfiniBand that is the carrier, which still counts when ``link_downed`` stands at its maximum. Keep one
    object while the interface belongs to the port. ``gone``: it used to answer and does not.
    """

    def __init__(self, facts: NetFacts, open_files: OpenFiles, is_infiniband: bool) -> None:
        self.facts = facts
        self.gone = False
        names = CARRIER + ERRORS if is_infiniband else CARRIER + BYTES + ERRORS + DETAILS
        self._mtu_file = KeptFile(f"{facts.folder}/mtu", open_files, LINE_BYTES)
        self._mtu: int | None = None
        self._counters = Counters(counter_paths(facts.folder, names, PREFIX), (), open_files, stops=False)
        self._bond: dict[str, int] = {}

    def read(self) -> None:
        """Reads it anew. Never raises."""
        before = self._mtu
        try:
            self._mtu = number(self._mtu_file.read())
        except OSError:
            self._mtu = None
        self.gone = before is not None and self._mtu is None
        self._counters.read_seldom()
        self._bond = bond_ports(self.facts.folder, PREFIX)

    def merge_into(self, sample: LinkSample) -> None:
        sample.mtu = self._mtu
        sample.counters.update(self._counters.values)
        sample.counters.update(self._bond)

    def unreadable(self) -> dict[str, str]:
        """What the newest ``read`` could not tell, and why, by field."""
        mtu = {"mtu": f"cannot be read of {self.facts.name}"} if self._mtu is None else {}
        return {**mtu, **self._counters.unreadable}

    def replaced(self) -> bool:
        """Whether another interface of the same name has taken its place."""
        return self._mtu_file.replaced()

    def close(self) -> None:
        self._mtu_file.close()
        self._counters.close()


class NetDevice(Port):
    """Keep one object while the interface exists.

    Counters are the files' names: carrier_up_count (0: it never had a carrier), carrier_down_count, rx_crc_errors, …;
    of a bond also bond_ports and bond_ports_up.
    """

    def __init__(self, facts: NetFacts, open_files: OpenFiles, turn: int = 0) -> None:
        super().__init__(facts, facts.name, (facts.pci_bus_id, facts.unit), turn)
        self._facts = facts
        self._state_file = KeptFile(f"{facts.folder}/operstate", open_files, LINE_BYTES)
        paths = counter_paths(facts.folder, CARRIER + BYTES + ERRORS + DETAILS)
        self._flaps, self._received, self._sent = "carrier_down_count", "rx_bytes", "tx_bytes"
        self._counters = Counters(paths, (self._flaps, self._received, self._sent), open_files, stops=False)
        self._bond: dict[str, int] = {}
        self._mtu: int | None = None

    def replaced(self) -> bool:
        return self._state_file.replaced()

    def _complete(self, sample: LinkSample) -> None:
        sample.mtu = self._mtu
        sample.counters.update(self._bond)

    def vanished(self) -> LinkSample:
        is_there = self._facts.pci_folder is not None and os.path.exists(self._facts.pci_folder)
        return vanished(self._base(), "interface_vanished" if is_there else "device_vanished")

    def gaps(self) -> list[Gap]:
        gaps = [self.gap("state", why="its operstate cannot be read")] if self._state is None else []
        gaps += [self.gap(counter, why=why) for counter, why in self._counters.unreadable.items()]
        if self._state == "UP" and self._rate_bits_per_s is None:
            gaps.append(self.gap("rate", why="the driver names no speed", kind="unsupported"))
        return gaps + self.meter.gaps(self.subject)

    def close(self) -> None:
        self._state_file.close()
        self._counters.close()

    def _read_state(self) -> None:
        try:
            self._state = (word(self._state_file.read()) or "").upper() or None
        except OSError:
            self._state = None

    def _read_seldom(self) -> None:
        folder = self._facts.folder
        self._counters.read_seldom()
        # EINVAL here is no failure: so it answers for an interface that is down.
        self._rate_bits_per_s = speed_bits_per_s(read_known(f"{folder}/speed"))
        self._mtu = read_number(f"{folder}/mtu")
        self._physical_state = _physical_state(read_known(f"{folder}/flags"), read_known(f"{folder}/carrier"))
        self._bond = bond_ports(folder)

    def _base(self) -> LinkSample:
        facts = self._facts
        return LinkSample(
            device=facts.name,
            kind="ethernet",
            netdev=facts.name,
            pci_bus_id=facts.pci_bus_id,
            numa_node=facts.numa_node,
        )


def _physical_state(flags: bytes | None, carrier: bytes | None) -> str | None:
    """The state in the words of InfiniBand: LinkUp, LinkDown (no carrier) or Disabled (switched off by hand)."""
    bits = number(flags, 16)
    if bits is None:
        return None
    if not bits & _IFF_UP:
        return "Disabled"
    return {b"1": "LinkUp", b"0": "LinkDown"}.get((carrier or b"").strip())
