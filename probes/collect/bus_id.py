"""PCI bus ids as different programs write them."""

from __future__ import annotations

import re

_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


def sysfs_bus_id(text: str) -> str | None:
    """As /sys writes it: NVML's "00000000:9B:00.0", the driver's log "0000:9b:00" → "0000:9b:00.0".

    Without a domain or a function number these are 0. None for anything that is no bus id.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if not match:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


def same_bus(first: str, second: str) -> bool:
    """Whether two bus ids name the same PCI function, whatever the width of the domain and the case."""
    known = sysfs_bus_id(first)
    return known is not None and known == sysfs_bus_id(second)
