"""Which row of the table a GPU is, and what it can do at the clock and with the multiprocessors that it has."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from mltop.probes.judge.active.peak import Peak
from mltop.probes.judge.active.peaks_table import PEAKS

__all__ = ["PEAKS", "Peak", "peak_of", "peak_tflops"]

_VENDOR = re.compile(r"^(NVIDIA|AMD)\s+(Instinct\s+)?")
_MIG = re.compile(r"\s+MIG\s+\d+(c\.\d+)?g\..*$")  # torch names a slice "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
_NVML_ID = re.compile(r"(?:0x)?([0-9a-f]{4})(?:10de|1002)")  # device and vendor in one number
_ID = re.compile(r"(?:0x)?([0-9a-f]{1,4})")
_BY_ID = {number: peak for peak in PEAKS for number in peak.ids}


@lru_cache(maxsize=256)
def peak_of(name: str, pci_device: str = "") -> Peak | None:
    """The row of a GPU, by its PCI device id ("2330") or else by its product name (or the row's); None if unknown.

    The id is stronger. A name of a row that does not have the id gives that row, uncertain: it may be a variant.
    """
    number = _number(pci_device)
    if number in _BY_ID:
        return _BY_ID[number]
    plain = _MIG.sub("", _VENDOR.sub("", name.strip()))
    found = next((peak for peak in PEAKS if plain == peak.name or re.fullmatch(peak.pattern, plain)), None)
    if found is None or not number or not found.ids:
        return found
    doubts = {**found.doubts, "ids": f"PCI device id {number} is not known for this model"}
    return replace(found, doubts=doubts, certain=False)


def peak_tflops(peak: Peak, dtype: str, multiprocessors: int | None, clock_mhz: float | None) -> float | None:
    """TFLOP/s at this clock with so many multiprocessors (as the device says: boards and MIG slices differ).

    None for them: the table's. None for a dtype that the row does not have, and where a number is missing.
    """
    rate = peak.flop_per_clock.get(dtype)
    count = multiprocessors or peak.sms
    clock = clock_mhz or peak.clock_mhz(dtype)
    if not rate or not count or not clock:
        return None
    return count * rate * clock * 1e6 / 1e12


def _number(pci_device: str) -> str:
    text = pci_device.strip().lower()
    for pattern in (_NVML_ID, _ID):
        match = pattern.fullmatch(text)
        if match is not None:
            return match[1].zfill(4)
    return ""
