"""Limits and use of one cgroup. Source: cgroup-v2.rst, cgroup-v1/memory.rst, sched-bwc.rst of the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.collect.host.cgroup_places import Place
from mltop.probes.collect.host.files import number_after, read_file, read_number, read_text

_V1_UNLIMITED = 1 << 62  # version 1 prints the largest number of whole pages

_MEMORY = {
    1: {"limit": "memory.limit_in_bytes", "used": "memory.usage_in_bytes", "killed": "memory.oom_control"},
    2: {"limit": "memory.max", "used": "memory.current", "killed": "memory.events"},
}
_IDLE_CACHE = {1: b"\ntotal_inactive_file ", 2: b"\ninactive_file "}


@dataclass(frozen=True)
class MemoryLimit:
    """The lowest limit of a cgroup and its ancestors, and whose it is; ``bytes`` None: there is none."""

    folder: str
    bytes: int | None


@dataclass(frozen=True)
class CpuLimit:
    """``cores``: the lowest quota, None: there is none. ``folders``: all that have a quota."""

    cores: float | None
    folders: tuple[str, ...]


def memory_limit(root: str, place: Place) -> MemoryLimit | None:
    """None where no memory controller is at work on this cgroup."""
    limits = [
        MemoryLimit(folder, limit if limit < _V1_UNLIMITED else None)
        for folder in place.folders()
        if (limit := _limit_bytes(f"{root}{folder}/{_MEMORY[place.version]['limit']}")) is not None
    ]
    if not limits:
        return None
    return min(limits, key=lambda one: _V1_UNLIMITED if one.bytes is None else one.bytes)


def _limit_bytes(path: str) -> int | None:
    text = read_text(path)
    if text == "max":
        return _V1_UNLIMITED
    return int(text) if text is not None and text.isdigit() else None


def memory_used(root: str, place: Place, folder: str) -> int | None:
    """Bytes in use that the kernel cannot simply drop: without page cache that is not in use (as kubelet counts)."""
    used = read_number(f"{root}{folder}/{_MEMORY[place.version]['used']}")
    if used is None:
        return None
    try:
        stat = b"\n" + read_file(f"{root}{folder}/memory.stat")
    except OSError:
        return used
    return max(0, used - (number_after(stat, _IDLE_CACHE[place.version]) or 0))


def oom_kills(root: str, place: Place) -> int | None:
    """Processes of this cgroup that the kernel has killed for memory."""
    try:
        data = read_file(f"{root}{place.folders()[0]}/{_MEMORY[place.version]['killed']}")
    except OSError:
        return None
    return number_after(b"\n" + data, b"\noom_kill ")


def cpu_limit(root: str, place: Place) -> CpuLimit:
    """Of this cgroup and all above it."""
    quotas = {folder: quota for folder in place.folders() if (quota := _quota(root + folder, place.version))}
    return CpuLimit(min(quotas.values(), default=None), tuple(quotas))


def _quota(folder: str, version: int) -> float | None:
    """Cores; None without a quota."""
    if version == 2:
        words = (read_text(f"{folder}/cpu.max") or "").split()
    else:
        words = [read_text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def throttling(root: str, folder: str) -> tuple[int, int] | None:
    """Periods that have passed, and those in which the cgroup had to pause."""
    try:
        data = b"\n" + read_file(f"{root}{folder}/cpu.stat")
    except OSError:
        return None
    periods, throttled = number_after(data, b"\nnr_periods "), number_after(data, b"\nnr_throttled ")
    return None if periods is None or throttled is None else (periods, throttled)
