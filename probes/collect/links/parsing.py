"""What the text in the files of network ports means: pure functions from bytes to values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from mltop.probes.collect.sysfile import word
from mltop.probes.model.plausible import LINKS, NARROW_MAXIMA

_UNKNOWN_16_BITS = 0xFFFF
_RATE = re.compile(rb"\s*(\d{1,6}(?:\.\d{1,3})?)\s*Gb/sec")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", re.IGNORECASE)


@lru_cache(maxsize=256)
def state_word(data: bytes | None) -> str | None:
    """ "4: ACTIVE" → "ACTIVE", "5: LinkUp" → "LinkUp"."""
    text = word(data)
    return text.rpartition(":")[2].strip() or None if text else None


def rate_bits_per_s(data: bytes | None) -> float | None:
    """ "400 Gb/sec (4X NDR)" → 4e11."""
    rate = _RATE.match(data or b"")
    return _plausible(float(rate[1]) * 1e9) if rate else None


def speed_bits_per_s(data: bytes | None) -> float | None:
    """The speed of an interface, given in Mb/s; -1 (or no answer) without a carrier.

    Drivers that keep SPEED_UNKNOWN in 16 bits answer 65535 for it.
    """
    try:
        megabits = int(data or b"")
    except ValueError:
        return None
    return _plausible(megabits * 1_000_000) if megabits != _UNKNOWN_16_BITS else None


def _plausible(rate: float) -> float | None:
    return float(rate) if LINKS["rate_bits_per_s"].holds(rate) else None


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts mlx5_10 after mlx5_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def last_pci_address(path: str) -> str | None:
    """The PCI function that a device path leads through last: that of virtio2 below 0000:00:03.0 is the latter."""
    for part in reversed(path.split("/")):
        if _PCI_ADDRESS.match(part):
            return part.lower()
    return None


def saturated(counters: Mapping[str, int]) -> list[str]:
    """Counters that stand at the maximum of their narrow width."""
    return [name for name, most in NARROW_MAXIMA.items() if counters.get(name) == most]


def beyond_narrow(counters: Mapping[str, int]) -> bool:
    """Whether a value proves that this driver's counters are wider than the classic ones."""
    return any(counters.get(name, 0) > most for name, most in NARROW_MAXIMA.items())
