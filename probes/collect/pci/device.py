"""One PCI device: what it is, its link, its errors. Source: /sys/bus/pci/devices (sysfs-bus-pci)."""

from __future__ import annotations

import os
from dataclasses import replace

from mltop.probes.collect.pci.acs import upstream_ports
from mltop.probes.collect.sysfile import number, read_known, read_link, word
from mltop.probes.model import PciDevice, PciKind
from mltop.probes.model.plausible import PCI

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

    ``answers``: False where its configuration space reads all ones: it fell off the bus, or it is switched off.
    ``unclear``: by file, text without a meaning. ``upstream``: the folders of the bridges above it. ``facts``: what is
    the same in every sample; ``acs`` is for the owner to set.
    """

    def __init__(self, folder: str, bus_id: str, kind: PciKind) -> None:
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

    def read(self) -> PciDevice:
        """A new sample. Never raises."""
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
        self.answers = sample.link_width is not None or not self._is_all_ones()
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

    def _is_all_ones(self) -> bool:
        return (self._read("config") or b"")[:4] == b"\xff\xff\xff\xff"

    def _read(self, name: str) -> bytes | None:
        return read_known(f"{self.path}/{name}")
