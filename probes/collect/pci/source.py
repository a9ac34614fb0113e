"""The PCI devices of this machine that training depends on: which of its hundreds of functions, and what they say.

Source: /sys/bus/pci/devices (sysfs-bus-pci).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace

from mltop.probes.collect.sysfile import number, read_known, read_link, word
from mltop.probes.collect.timing import Pace
from mltop.probes.model import Gap, PciDevice, PciKind
from mltop.probes.model.plausible import PCI
from mltop.probes.system import paths

# Access Control Services of the bridges above a device: with them, traffic between peers goes through the CPU. Source:
# PCI Express Base Specification, "ACS Extended Capability"; the extended configuration space starts at 0x100. Only
# root may read it: the kernel gives everyone the first 64 bytes.

_EXTENDED_AT = 0x100
_ACS_CAPABILITY = 0x000D
_SOURCE_VALIDATION = 0x1
_MOST_CAPABILITIES = 64
_NO_EXTENDED_BYTES = 256  # the size of a configuration space without an extended part
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def upstream_ports(device_path: str) -> list[str]:
    """The bridges above a device, from its resolved path (…/pci0000:00/0000:00:01.0/0000:18:00.0)."""
    folder, bridges = os.path.dirname(device_path), []
    while _ADDRESS.fullmatch(os.path.basename(folder)):
        bridges.append(folder)
        folder = os.path.dirname(folder)
    return bridges


def acs_of(ports: Iterable[str], known: dict[str, bool | None]) -> bool | None:
    """Whether one of the bridges validates sources; None when none is known to and not all can be read. ``known``: of
    those that were read before, as several devices share one.
    """
    answers = []
    for port in ports:
        if port not in known:
            known[port] = source_validation(f"{port}/config")
        answers.append(known[port])
    return True if True in answers else None if None in answers else False


def source_validation(path: str) -> bool | None:
    """Whether ACSCtl has SrcValid+ in a bridge's ``config``; None where its extended part cannot be read."""
    try:
        with open(path, "rb", buffering=0) as config:
            return _walk(config.fileno())
    except (OSError, struct.error):
        return None


def _walk(descriptor: int) -> bool:
    if os.fstat(descriptor).st_size == _NO_EXTENDED_BYTES:
        return False
    at = _EXTENDED_AT
    for _ in range(_MOST_CAPABILITIES):
        header, _capability, control = struct.unpack("<IHH", os.pread(descriptor, 8, at))
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == _ACS_CAPABILITY:
            return bool(control & _SOURCE_VALIDATION)
        at = header >> 20
        if at < _EXTENDED_AT:
            return False
    return False


_AER = ("correctable", "nonfatal", "fatal")
_LONGEST_TEXT = 256


def speed_gt_per_s(data: bytes | None) -> float | None:
    """ "32.0 GT/s PCIe" → 32.0; None for "Unknown"."""
    number_text, unit, _ = (word(data, _LONGEST_TEXT) or "").partition(" GT/s")
    try:
        value = float(number_text) if unit else 0.0
    except ValueError:
        return None
    return value if PCI["link_speed_gt_per_s"].holds(value) else None


def lanes(data: bytes | None) -> int | None:
    """Lanes. None for what is no width: 0 (no link), 63 (all ones, no answer), 255 (the kernel does not know)."""
    width = number(data)
    return width if PCI["link_width"].holds(width) else None


def error_total(data: bytes | None) -> int | None:
    """The last line of aer_dev_*: "TOTAL_ERR_COR 12" → 12. Source: sysfs-bus-pci-devices-aer_stats."""
    for line in reversed((data or b"").splitlines()):
        words = line.split()
        if len(words) == 2 and words[0].startswith(b"TOTAL_ERR_"):
            return number(words[1])
    return None


class DeviceReader:
    """Keep one while the device exists: what cannot change is read once.

    ``device``: the newest sample, the same object until something about it changes. ``answers``: False where its
    configuration space reads all ones: it fell off the bus, or it is switched off. ``unclear``: by file, text without a
    meaning. ``upstream``: the folders of the bridges above it. ``facts``: what is the same in every sample; ``acs`` is
    for the owner to set. ``turn``: its position in the order.
    """

    device: PciDevice

    def __init__(self, folder: str, bus_id: str, kind: PciKind, turn: int) -> None:
        again_turn = turn % _AGAIN_TURNS
        self.pace = Pace(AGAIN_S - again_turn, READ_S - (turn % _TURNS - again_turn), READ_S)
        self.path = os.path.realpath(f"{folder}/{bus_id}")
        self.upstream = upstream_ports(self.path)
        self.answers = True
        self.unclear: dict[str, str] = {}
        self._max_unclear = ""
        self.facts = PciDevice(
            bus_id=bus_id,
            kind=kind,
            vendor_id=number(self._read("vendor"), 16),
            device_id=number(self._read("device"), 16),
            numa_node=number(self._read("numa_node")),  # -1: the firmware names none
            local_cpus=word(self._read("local_cpulist"), _LONGEST_TEXT),
        )

    def look(self, now: float) -> bool:
        """Whether that changed anything."""
        before = (getattr(self, "device", None), self.answers, self.unclear)
        self.pace.done(now)
        device = self._sample()
        if (device, self.answers, self.unclear) == before:
            return False
        self.device = device
        return True

    def _sample(self) -> PciDevice:
        """A new one. Never raises."""
        self.unclear = {}
        if self.facts.link_width_max is None or self.facts.link_speed_max_gt_per_s is None:
            self._read_most()  # again: whoever did not answer at first may do so now
        driver = read_link(f"{self.path}/driver")
        sample = replace(self.facts, driver=driver and os.path.basename(driver), aer=self._errors())
        speed, width = self._read("current_link_speed"), self._read("current_link_width")
        sample.link_speed_gt_per_s = speed_gt_per_s(speed)
        sample.link_width = lanes(width)
        if sample.link_width is None and word(self._read("power/runtime_status"), _LONGEST_TEXT) == "suspended":
            sample.link_speed_gt_per_s, self.answers = None, True
            return sample  # a laptop's GPU or NIC that sleeps: its link is off, and a look at more would wake it
        # Only a device whose link looks odd is asked, too, for the same reason.
        self.answers = sample.link_width is not None or (self._read("config") or b"")[:4] != b"\xff\xff\xff\xff"
        if not self.answers:
            sample.link_speed_gt_per_s = sample.link_width = None
            sample.link_speed_max_gt_per_s = sample.link_width_max = None
            return sample
        self._judge_link(sample, speed, width)
        return sample

    def _judge_link(self, sample: PciDevice, speed: bytes | None, width: bytes | None) -> None:
        """Tell a device without a link (no such file, or 0: built into the processor) from one that cannot be read."""
        if sample.link_width is None:
            if width is None and os.path.lexists(f"{self.path}/current_link_width"):
                self.unclear["link"] = "current_link_width cannot be read"
            elif width is not None and width.strip() != b"0":
                self.unclear["link"] = f"current_link_width reads {width.strip()[:20]!r}"
        elif sample.link_speed_gt_per_s is None:
            self.unclear["link"] = f"current_link_speed reads {(speed or b'').strip()[:20]!r}"
        elif self._max_unclear:
            self.unclear["link"] = self._max_unclear

    def _read_most(self) -> None:
        """What the link could do at best."""
        speed, width = self._read("max_link_speed"), self._read("max_link_width")
        self.facts.link_speed_max_gt_per_s = speed_gt_per_s(speed)
        self.facts.link_width_max = lanes(width)
        self._max_unclear = ""
        if width is not None and self.facts.link_width_max is None:
            self._max_unclear = f"max_link_width reads {width.strip()[:20]!r}"
        elif speed is not None and self.facts.link_speed_max_gt_per_s is None:
            self._max_unclear = f"max_link_speed reads {speed.strip()[:20]!r}"

    def _errors(self) -> dict[str, int]:
        totals = {}
        for name in _AER:
            data = self._read(f"aer_dev_{name}")
            total = error_total(data)
            if total is not None and PCI["aer.*"].holds(total):
                totals[name] = total
            elif data is not None:
                what = "has no total" if total is None else f"reads {total}, which is not a count"
                self.unclear["aer"] = f"aer_dev_{name} {what}"
        return totals

    def _read(self, name: str) -> bytes | None:
        return read_known(f"{self.path}/{name}")


NVIDIA = 0x10DE
# Class codes (PCI Code and ID Assignment Specification): base class and subclass.
_DISPLAY = (0x0300, 0x0302)  # VGA and 3D controllers
_NETWORK = 0x02  # Ethernet 0x0200, InfiniBand 0x0207, …
_NVME = 0x0108
_NVSWITCH = 0x0680
LISTED_S = 10.0
READ_S = 15.0
AGAIN_S = 5.0  # all are read a second time within that: one reading of counters does not tell whether they grow
# Devices take turns, one second each: only the first look reads all of them.
_TURNS, _AGAIN_TURNS = int(READ_S), int(AGAIN_S)

VANISHED = "device vanished from the PCI bus"
NO_BRIDGE = "no bridge above the devices is visible (virtual machine?)"
FELL_OFF = "device does not answer: its configuration reads all ones (it fell off the bus)"


def kind_of(vendor_id: int | None, pci_class: int | None) -> PciKind | None:
    """gpu | nic | nvswitch | nvme, None for all others. ``pci_class``: three bytes, as in the file ``class``."""
    if pci_class is None:
        return None
    subclass = pci_class >> 8
    if subclass >> 8 == _NETWORK:
        return "nic"
    if subclass == _NVME:
        return "nvme"
    if vendor_id != NVIDIA:
        return None
    return "gpu" if subclass in _DISPLAY else "nvswitch" if subclass == _NVSWITCH else None


class PciSource:
    """GPUs, NICs, NVSwitches and NVMe disks. Keep one object: it remembers devices.

    ``root`` is another /sys, for copied trees and tests.
    """

    def __init__(self, root: str | None = None) -> None:
        self._folder = (paths.sys().rstrip("/") if root is None else root) + "/bus/pci/devices"
        self._kinds: dict[str, PciKind | None] = {}  # of all functions: a look costs one listing of the folder
        self._acs_of_bridges: dict[str, bool | None] = {}
        self._listing_pace = Pace(LISTED_S)
        self._watched: dict[str, DeviceReader] = {}
        self._vanished: set[str] = set()
        self._gaps: list[Gap] = []
        self._no_list: Gap | None = None

    def read(self, now: float) -> tuple[list[PciDevice], list[Gap]]:
        """All devices by bus id, and what could not be read. ``now`` is monotonic, s. Does not raise.

        Devices are listed anew every 10 s, and each is read every 15 s (until then it is the same object: change none);
        ACS is read once of each device.
        """
        is_news = False
        due = [watched for watched in self._watched.values() if watched.pace.is_due(now)]
        if self._listing_pace.is_due(now):
            self._listing_pace.done(now)
            is_news = self._list(now)
        for watched in due:
            is_news = watched.look(now) or is_news
        if is_news:
            self._gaps = self._find_gaps()
        return [watched.device for watched in self._watched.values()], list(self._gaps)

    @property
    def counters_read_at(self) -> float | None:
        """Since when all devices have been read, by the clock of ``read``; None: there are none."""
        read_at = [watched.pace.done_at for watched in self._watched.values()]
        return min((at for at in read_at if at is not None), default=None)

    def _list(self, now: float) -> bool:
        """Whether that changed anything."""
        before = self._no_list
        self._no_list = None
        try:
            names = os.listdir(self._folder)
            self._kinds = {name: self._kinds[name] if name in self._kinds else self._kind(name) for name in names}
            kinds = {name: kind for name, kind in sorted(self._kinds.items()) if kind is not None}
        except FileNotFoundError:
            kinds = {}
            self._no_list = Gap.about("pci", why="this machine shows no PCI bus", kind="unsupported")
        except OSError as error:
            self._no_list = Gap.about("pci", why=f"{self._folder} cannot be listed: {error.strerror}")
            return self._no_list != before
        listed_before = self._watched
        if kinds.keys() == listed_before.keys() and kinds:
            return self._no_list != before
        self._vanished = (self._vanished | (listed_before.keys() - kinds.keys())) - kinds.keys()
        self._watched = {
            bus_id: listed_before.get(bus_id) or self._watch(bus_id, kind, now, turn)
            for turn, (bus_id, kind) in enumerate(kinds.items())
        }
        return True

    def _kind(self, name: str) -> PciKind | None:
        path = f"{self._folder}/{name}"
        kind = kind_of(number(read_known(f"{path}/vendor"), 16), number(read_known(f"{path}/class"), 16))
        # A NIC's virtual functions share its link.
        return None if os.path.lexists(f"{path}/physfn") else kind

    def _watch(self, bus_id: str, kind: PciKind, now: float, turn: int) -> DeviceReader:
        reader = DeviceReader(self._folder, bus_id, kind, turn)
        if kind in ("gpu", "nic") and reader.upstream:
            reader.facts.acs = acs_of(reader.upstream, self._acs_of_bridges)
        reader.look(now)
        return reader

    def _find_gaps(self) -> list[Gap]:
        if self._no_list is not None:
            return [self._no_list]
        gaps = [Gap.about("pci", item=bus_id, why=VANISHED) for bus_id in sorted(self._vanished)]
        silent = [bus_id for bus_id, watched in self._watched.items() if not watched.answers]
        gaps += [Gap.about("pci", item=bus_id, why=FELL_OFF) for bus_id in silent]
        alive = [watched.device for watched in self._watched.values() if watched.answers]
        for bus_id, watched in self._watched.items():
            gaps += [Gap.about("pci", part, item=bus_id, why=why) for part, why in watched.unclear.items()]

        def lacking(part: str, why: str, lacks: Callable[[PciDevice], bool]) -> None:
            unclear = {bus_id for bus_id, watched in self._watched.items() if part in watched.unclear}
            names = [device.bus_id for device in alive if lacks(device) and device.bus_id not in unclear]
            if names:  # one for all devices that lack the same thing
                item = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
                gaps.append(Gap.about("pci", part, item=item, why=why, kind="unsupported"))

        lacking(
            "link",
            "no PCIe link is shown (virtual machine, built in, asleep)",
            lambda device: device.link_width is None,
        )
        lacking("aer", "this kernel keeps no PCIe error counters of it", lambda device: not device.aer)
        lacking("numa_node", "the firmware names no NUMA node", lambda device: device.numa_node is None)
        return gaps + self._acs_gaps(alive)

    def _acs_gaps(self, alive: Iterable[PciDevice]) -> list[Gap]:
        gpus_and_nics = [device for device in alive if device.kind in ("gpu", "nic")]
        unknown = [device.bus_id for device in gpus_and_nics if device.acs is None]
        if any(self._watched[bus_id].upstream for bus_id in unknown):
            fix = "start the container with --cap-add SYS_ADMIN" if os.geteuid() == 0 else "sudo mltop"
            return [Gap.about("pci", "acs", why="PCI config space needs root (CAP_SYS_ADMIN)", fix=fix)]
        # A NIC that is built into the processor has no bridge either.
        if unknown and len(unknown) == len(gpus_and_nics):
            return [Gap.about("pci", "acs", why=NO_BRIDGE, kind="unsupported")]
        return []
