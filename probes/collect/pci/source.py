"""The PCI devices of this machine that training depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from mltop.probes import paths
from mltop.probes.collect.pci.acs import AcsReader
from mltop.probes.collect.pci.device import DeviceReader
from mltop.probes.collect.pci.listing import Listing
from mltop.probes.model import Gap, PciDevice

LISTED_S = 10.0
READ_S = 5.0
_EARLY_S = 0.5  # looks come once a second, some a little early

VANISHED = "device vanished from the PCI bus"
FELL_OFF = "device does not answer: its configuration reads all ones (it fell off the bus)"


class PciSource:
    """GPUs, NICs, NVSwitches and NVMe disks. Keep one object: it remembers devices.

    ``root`` is another /sys, for copied trees and tests.
    """

    def __init__(self, root: str | None = None) -> None:
        self._folder = (paths.sys().rstrip("/") if root is None else root) + "/bus/pci/devices"
        self._listing = Listing(self._folder)
        self._acs_reader = AcsReader()
        self._listed_at: float | None = None
        self._read_at: float | None = None
        self._readers: dict[str, DeviceReader] = {}
        self._acs: dict[str, bool | None] = {}
        self._vanished: set[str] = set()
        self._devices: list[PciDevice] = []
        self._gaps: list[Gap] = []
        self._no_list: Gap | None = None

    def read(self, now: float) -> tuple[list[PciDevice], list[Gap]]:
        """All devices by bus id, and what could not be read. ``now`` is monotonic, s. Does not raise.

        Devices are listed anew every 10 s and read every 5 s (until then these are the same objects: change none); ACS
        is read once of each device.
        """
        if _due(self._listed_at, now, LISTED_S):
            self._listed_at = now
            self._list()
            self._read_at = None
        if _due(self._read_at, now, READ_S):
            self._read_at = now
            self._devices = [replace(one.read(), acs=self._acs[bus_id]) for bus_id, one in self._readers.items()]
            self._gaps = self._find_gaps()
        return list(self._devices), list(self._gaps)

    def _list(self) -> None:
        try:
            kinds = self._listing.kinds()
        except FileNotFoundError:
            kinds = {}
            self._no_list = Gap("pci", "this machine shows no PCI bus", kind="unsupported")
        except OSError as error:
            self._no_list = Gap("pci", f"{self._folder} cannot be listed: {error.strerror}")
            return
        else:
            self._no_list = None
        before = self._readers.keys()
        self._vanished = (self._vanished | (before - kinds.keys())) - kinds.keys()
        self._readers = {bus_id: self._readers.get(bus_id) or self._new(bus_id, kind) for bus_id, kind in kinds.items()}

    def _new(self, bus_id: str, kind: str) -> DeviceReader:
        reader = DeviceReader(self._folder, bus_id, kind)
        asked = kind in ("gpu", "nic") and reader.upstream
        self._acs[bus_id] = self._acs_reader.is_on(reader.upstream) if asked else None
        return reader

    def _find_gaps(self) -> list[Gap]:
        if self._no_list is not None:
            return [self._no_list]
        gaps = [Gap(f"pci.{bus_id}", VANISHED) for bus_id in sorted(self._vanished)]
        dead = {bus_id for bus_id, reader in self._readers.items() if not reader.answers}
        gaps += [Gap(f"pci.{bus_id}", FELL_OFF) for bus_id in sorted(dead)]
        alive = [device for device in self._devices if device.bus_id not in dead]
        for bus_id, reader in self._readers.items():
            gaps += [Gap(f"pci.{bus_id}.{part}", why) for part, why in reader.unclear.items()]

        def lacking(part: str, why: str, lacks: Callable[[PciDevice], bool]) -> None:
            names = [one.bus_id for one in alive if lacks(one) and part not in self._readers[one.bus_id].unclear]
            gaps.extend(_one_gap(part, why, names))

        lacking("link", "no PCIe link is shown (virtual machine, or built in)", lambda one: one.link_width is None)
        lacking("aer", "this kernel keeps no PCIe error counters of it", lambda one: not one.aer)
        lacking("numa_node", "the firmware names no NUMA node", lambda one: one.numa_node is None)
        return gaps + self._acs_gaps(alive)

    def _acs_gaps(self, alive: Iterable[PciDevice]) -> list[Gap]:
        asked = [device for device in alive if device.kind in ("gpu", "nic")]
        unknown = [device.bus_id for device in asked if device.acs is None]
        if any(self._readers[bus_id].upstream for bus_id in unknown):
            return [Gap("pci.acs", "PCI config space needs root", "sudo lspci -vvv | grep ACSCtl")]
        if unknown and len(unknown) == len(asked):  # a NIC that is built into the processor has no bridge either
            return [Gap("pci.acs", "no bridge above the devices is visible (virtual machine?)", kind="unsupported")]
        return []


def _one_gap(part: str, why: str, bus_ids: list[str]) -> list[Gap]:
    """One for all devices that lack the same thing."""
    if not bus_ids:
        return []
    subject = bus_ids[0] if len(bus_ids) == 1 else "{" + ",".join(bus_ids) + "}"
    return [Gap(f"pci.{subject}.{part}", why, kind="unsupported")]


def _due(done_at: float | None, now: float, every_s: float) -> bool:
    """Also when the clock went back."""
    return done_at is None or not 0 <= now - done_at < every_s - _EARLY_S
