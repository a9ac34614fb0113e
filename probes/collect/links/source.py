"""The network ports of this machine once a second: those that are there, and those that were."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from mltop.probes.collect.links import discovery
from mltop.probes.collect.links.discovery import natural
from mltop.probes.collect.links.ports import MergedInterface, NetDevice, RdmaPort
from mltop.probes.collect.sysfile import OpenFiles
from mltop.probes.collect.timing import FIRST_LOOK, Pace
from mltop.probes.model import Gap, GapKind, LinkSample
from mltop.probes.system import paths

_Key = TypeVar("_Key", bound=Hashable)
_Port = TypeVar("_Port", RdmaPort, NetDevice)
LISTED_S = 10.0
_STILL_THERE = ", its PCI device is still there (in a container, or driver unloaded?)"


class Ports(Generic[_Key, _Port]):
    """``present`` and ``lost`` ports by key; a port is in one of them: one that is missing is a finding."""

    def __init__(self) -> None:
        self.present: dict[_Key, _Port] = {}
        self.lost: dict[_Key, _Port] = {}

    def update(self, keys: Sequence[_Key], make: Callable[[_Key], _Port]) -> None:
        """``keys``: of all that are there now, in the order to show. ``make`` builds the reader of a new one."""
        for key, port in list(self.present.items()):
            if key not in keys:
                self.lost[key] = port
            elif not port.replaced():
                continue
            port.close()
            del self.present[key]
        self.present = {key: self.present.get(key) or make(key) for key in keys}
        # Forget those that are back, that have another name now, and virtual functions: these come and go.
        slots = {port.slot for port in self.present.values() if port.slot[0]}
        for key, port in list(self.lost.items()):
            if key in keys or port.slot in slots or port.is_virtual_function:
                del self.lost[key]

    def close(self) -> None:
        for port in self.present.values():
            port.close()


class LinkSource:
    """Ports of RDMA devices and of Ethernet. Keep one object: it remembers ports, and rates are between two reads.

    An interface that belongs to an RDMA port is part of its sample, with ``netdev_`` before its counters' names.
    ``root`` is another /sys, for copied trees and tests. ``most_open``: so many files may stay open.
    """

    def __init__(self, root: str | None = None, most_open: int | None = None) -> None:
        self._root = paths.sys().rstrip("/") if root is None else root
        self._open_files = OpenFiles(most_open)
        self._rdma: Ports[tuple[str, int], RdmaPort] = Ports()
        self._net: Ports[str, NetDevice] = Ports()
        self._listing = Pace(LISTED_S)
        self._listing_gaps: dict[str, Gap] = {}

    def read(self, now: float) -> tuple[list[LinkSample], list[Gap]]:
        """All ports, RDMA first, and what could not be read. ``now`` is monotonic, s. Does not raise.

        A port that was there before and is not now stays listed, with ``error`` and without a state.
        """
        if self._listing.is_due(now):
            self._list(now)
        ports = self._ports()
        samples = [port.read(now) for port in ports]
        if any(port.gone for port in ports):
            self._list(now)
            looked, ports = dict(zip(ports, samples)), self._ports()
            samples = [looked.get(port) or port.read(now) for port in ports]
        gaps = [*self._listing_gaps.values(), *(gap for port in ports for gap in port.gaps())]
        if any(port.meter.is_first for port in ports):
            gaps.append(Gap.about("links", "rates", why=FIRST_LOOK, kind="starting"))
        return self._with_lost(samples, gaps), gaps

    @property
    def counters_read_at(self) -> float | None:
        """Since when all ports' counters have been read, by the clock of ``read``; None: there are none."""
        return min((at for port in self._ports() if (at := port.counters_read_at) is not None), default=None)

    def close(self) -> None:
        """Close all files that are kept open."""
        self._rdma.close()
        self._net.close()

    def _ports(self) -> list[RdmaPort | NetDevice]:
        return [*self._rdma.present.values(), *self._net.present.values()]

    def _with_lost(self, samples: list[LinkSample], gaps: list[Gap]) -> list[LinkSample]:
        lost_ports: list[RdmaPort | NetDevice] = [*self._rdma.lost.values(), *self._net.lost.values()]
        if not lost_ports:
            return samples
        lost = [port.vanished() for port in lost_ports]
        for sample in lost:
            more = _STILL_THERE if sample.error_code == "interface_vanished" else ""
            gaps.append(Gap.about("links", item=sample.device, why=f"{sample.error}{more}"))
        return sorted([*samples, *lost], key=lambda port: (port.kind == "ethernet", natural(port.device), port.port))

    def _list(self, now: float) -> None:
        self._listing.done(now)
        self._listing_gaps = {}
        self._list_rdma()
        self._list_interfaces()

    def _list_rdma(self) -> None:
        try:
            keys = discovery.list_rdma_ports(self._root)
        except FileNotFoundError:
            keys = []
        except OSError as error:
            self._note("infiniband", error.strerror or "cannot be listed")
            return
        present = self._rdma.present
        keys = [key for key in keys if key in present or not discovery.is_idle_function(self._root, *key)]
        devices = [device for device, _ in keys]

        def make(key: tuple[str, int]) -> RdmaPort:
            subject = key[0] if devices.count(key[0]) == 1 else f"{key[0]}.{key[1]}"
            return RdmaPort(discovery.port_facts(self._root, *key), subject, self._open_files, keys.index(key))

        self._rdma.update(keys, make)
        owners = discovery.chardev_owners(self._root)
        for port in self._rdma.present.values():
            port.has_chardev = None if owners is None else port.facts.device in owners
            self._find_interface(port)
        if not keys and not self._rdma.lost:
            self._note("infiniband", "no RDMA device is here, or its driver is not loaded", "unsupported")

    def _find_interface(self, port: RdmaPort) -> None:
        name, current = discovery.netdev_of(self._root, port.facts), port.netdev
        if name is None:
            if current is not None:
                port.adopt(None)
        elif current is None or current.facts.name != name or current.replaced():
            facts = discovery.net_facts(self._root, name)
            port.adopt(MergedInterface(facts, self._open_files, port.facts.kind == "infiniband"))

    def _list_interfaces(self) -> None:
        claimed = {port.netdev.facts.name for port in self._rdma.present.values() if port.netdev is not None}
        try:
            keys = discovery.list_interfaces(self._root, claimed, self._net.present)
        except OSError as error:
            self._note("ethernet", error.strerror or "cannot be listed")
            return
        root, files = self._root, self._open_files
        self._net.update(keys, lambda name: NetDevice(discovery.net_facts(root, name), files, keys.index(name)))
        for name in claimed & self._net.lost.keys():
            del self._net.lost[name]  # it belongs to an RDMA device by now

    def _note(self, field: str, why: str, kind: GapKind = "unknown") -> None:
        self._listing_gaps[field] = Gap.about("links", field, why=why, kind=kind)
