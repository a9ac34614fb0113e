"""Words that the rules about GPUs share: names, bus ids, clocks, times. Nothing is built before a rule fires."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import lru_cache

from mltop.probes.judge.fold import fold
from mltop.probes.model import GpuSample

_LINK = re.compile(r"\b[Ll]ink (\d{1,6})\b")


@lru_cache(maxsize=1024)
def gpu_name(index: int) -> str:
    """``GPU 3``: the subject of findings and the key of what is remembered."""
    return f"GPU {index}"


@lru_cache(maxsize=8192)
def bus_key(bus_id: str) -> str:
    """``0000:1b:00`` of NVML's ``00000000:1B:00.0``, of sysfs' ``0000:1b:00.0`` and of a log line's ``0000:1b:00``.

    The kernel log leaves out the function digit; a GPU has no second function that could be meant.
    """
    parts = bus_id.strip().lower().removeprefix("pci:").split(".")[0].split(":")
    if len(parts) == 2:  # a bus id without its domain
        parts.insert(0, "0")
    if len(parts) != 3:
        return bus_id
    return ":".join((parts[0].lstrip("0").rjust(4, "0"), parts[1], parts[2]))


def at_time(at: float) -> str:
    """``12:04:31 UTC``"""
    return f"{datetime.fromtimestamp(at, timezone.utc):%H:%M:%S} UTC"


def gigabytes(amount: float) -> str:
    """``71 GB``, ``0.6 GB``; 10^9 bytes."""
    return f"{amount / 1e9:.0f} GB" if amount >= 9.5e9 else f"{amount / 1e9:.1f} GB"


def clock_and_heat(gpu: GpuSample) -> str:
    """``, SM 1.10 of 1.98 GHz, 91 °C``: as much of it as is known."""
    parts = []
    if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz is not None:
        parts.append(f"SM {gpu.sm_clock_mhz / 1000:.2f} of {gpu.sm_clock_max_mhz / 1000:.2f} GHz")
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c:.0f} °C")
    return "".join(f", {part}" for part in parts)


def plural(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``"""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def numbered(numbers: Iterable[int]) -> str:
    """``3, 7-9``: all of them."""
    return fold(numbers).replace(",", ", ")


def links_of(texts: Iterable[str]) -> str:
    """`` on link 3``, `` on links 3, 7``: all that lines of the kernel log name; "" for none."""
    links = {int(number) for text in texts for number in _LINK.findall(text)}
    return f" on link{'s' * (len(links) > 1)} {numbered(links)}" if links else ""
