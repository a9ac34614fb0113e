"""How many processes the kernel has killed for want of memory where this process runs.

How many cores this process may use: its affinity, and the CPU quota of its cgroup and of those above it.

sched-bwc.rst and cgroup-v2.rst of the kernel. A quota does not show in what torch takes for its number of threads.

The CPUs beside a GPU: host memory of a copy has to be there, or the socket's interconnect is measured instead.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from mltop.probes.system import paths


def oom_kills() -> int | None:
    """Of this process's cgroup and those below it (memory.events, cgroup v2), else of the machine (/proc/vmstat).

    None where the kernel counts neither.
    """
    for path, name in ((_cgroup_events(), "oom_kill"), (paths.proc("vmstat"), "oom_kill")):
        found = _number(path, name) if path else None
        if found is not None:
            return found
    return None


def _cgroup_events() -> str:
    for line in _lines(paths.proc("self/cgroup")):
        if line.startswith("0::"):
            return paths.sys("fs/cgroup" + line[3:].rstrip("/"), "memory.events")
    return ""


def _number(path: str, name: str) -> int | None:
    for line in _lines(path):
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def allowed() -> int:
    """Whole cores, at least 1."""
    cores = float(len(os.sched_getaffinity(0)))
    return max(1, math.ceil(min([cores, *_quotas()])))


def _quotas() -> Iterator[float]:
    for version, root, path in _places(_read(paths.proc("self", "cgroup"))):
        place = PurePosixPath(path)
        # In a container the path is often the host's: what is mounted is its own cgroup, and so the last one tried.
        for folder in dict.fromkeys([place, *place.parents]):
            quota = _quota(f"{root}{str(folder).rstrip('/')}", version)
            if quota is not None:
                yield quota


def _places(text: str) -> Iterator[tuple[int, str, str]]:
    """(version, where it is usually mounted, path) of the hierarchies that can limit CPUs (cgroups(7))."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, paths.sys("fs", "cgroup"), path
        elif "cpu" in controllers.split(","):
            yield 1, paths.sys("fs", "cgroup", controllers), path
            yield 1, paths.sys("fs", "cgroup", "cpu"), path


def _quota(folder: str, version: int) -> float | None:
    """Cores, None without a quota."""
    if version == 2:
        words = _read(f"{folder}/cpu.max").split()
    else:
        words = [_read(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


@dataclass(frozen=True)
class Place:
    """``cpus``: of this process's own that are beside the GPU; ``near`` None: nobody knows where the GPU is."""

    numa_node: int | None = None
    cpus: frozenset[int] = frozenset()
    near: bool | None = None


def place_of(address: str) -> Place:
    """Of a GPU by its PCI address. Sources: sysfs numa_node and local_cpulist of the device."""
    if not address:
        return Place()
    folder = paths.sys("bus", "pci", "devices", address)
    local = _cpus(_stripped(f"{folder}/local_cpulist"))
    text = _stripped(f"{folder}/numa_node")
    node = int(text) if text.lstrip("-").isdigit() else -1  # -1: the firmware does not say
    if not local:
        return Place(node if node >= 0 else None)
    allowed = frozenset(os.sched_getaffinity(0)) & local
    return Place(node if node >= 0 else None, allowed, bool(allowed))


@contextlib.contextmanager
def on_cpus(cpus: frozenset[int]) -> Iterator[None]:
    """Memory that this thread touches first is allocated beside these CPUs. Anywhere, when there are none."""
    before = os.sched_getaffinity(0)
    moved = False
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
            moved = True
    try:
        yield
    finally:
        if moved:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


def _cpus(text: str) -> frozenset[int]:
    """``0-15,32-47``"""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return frozenset(found)


def _stripped(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
