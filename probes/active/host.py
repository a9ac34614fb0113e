"""What a probe asks of its node: cores, memory, caches, the CPUs beside a GPU, and how a process of it stands.

Sources: /proc, sysfs and cgroups, of both versions. What they do not say is None.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from mltop.probes.model.ranks import kernel_list
from mltop.probes.system import paths
from mltop.probes.system.limits import cgroups, cpu_quota, read_text

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cores() -> int:
    """Whole cores, at least 1: those of this process's affinity, as far as the CPU quotas of its cgroup and of those
    above it go (sched-bwc.rst of the kernel). A quota does not show in what torch takes for its number of threads.
    """
    quotas = (cpu_quota(version, folder) for version, folder in cgroups("cpu"))
    allowed = float(len(os.sched_getaffinity(0)))
    return max(1, math.ceil(min([allowed, *(quota for quota in quotas if quota is not None)])))


def available_memory_bytes() -> int | None:
    """The least of the kernel's estimate and of what this process's cgroup and those above it have left."""
    available_kib = _number(paths.proc("meminfo"), "MemAvailable")
    left = [available_kib << 10] if available_kib is not None else []
    for folder in (folder for version, folder in cgroups("memory") if version == 2):
        most, now = read_text(f"{folder}/memory.max"), read_text(f"{folder}/memory.current")
        if most.isdigit() and now.isdigit():
            # The kernel gives files in memory back when it is needed.
            files = _number(f"{folder}/memory.stat", "inactive_file") or 0
            left.append(max(0, int(most) - int(now) + files))
    return min(left, default=None)


def total_memory_bytes() -> int | None:
    total_kib = _number(paths.proc("meminfo"), "MemTotal")
    return None if total_kib is None else total_kib << 10


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory: of this process's cgroup and those below it
    (memory.events, cgroup v2), else of the machine.
    """
    own = next((folder for version, folder in cgroups("memory") if version == 2), "")
    count = _number(f"{own}/memory.events", "oom_kill") if own else None
    return _number(paths.proc("vmstat"), "oom_kill") if count is None else count


def cpu_info(field: str) -> str:
    """The first value of a field of /proc/cpuinfo, "" where there is none."""
    for line in read_text(paths.proc("cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def last_level_cache_bytes() -> int | None:
    """The last-level caches of the processors that this process may use, each once. Source: sysfs cpu/cacheinfo."""
    caches: dict[tuple[int, str], int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        for level, shared, size in _data_caches(cpu):
            caches[level, shared] = size
    deepest = max((level for level, _ in caches), default=0)
    total = sum(size for (level, _), size in caches.items() if level == deepest)
    return total or None


@dataclass(frozen=True)
class Affinity:
    """Which processors are beside a GPU: a copy's host memory has to be, or the link between sockets is measured.

    ``cpus``: of this process's own that are beside the GPU; ``near`` None: nobody knows where the GPU is.
    """

    numa_node: int | None = None
    cpus: frozenset[int] = frozenset()
    near: bool | None = None


def affinity_of(pci_address: str) -> Affinity:
    """The affinity of the GPU at this address. Sources: sysfs numa_node and local_cpulist of the device."""
    if not pci_address:
        return Affinity()
    folder = paths.sys("bus", "pci", "devices", pci_address)
    node_text = read_text(f"{folder}/numa_node")
    node = int(node_text) if node_text.isdigit() else None  # -1: the firmware does not say
    local = kernel_list(read_text(f"{folder}/local_cpulist"))
    if not local:
        return Affinity(node)
    allowed = frozenset(os.sched_getaffinity(0)) & local
    return Affinity(node, allowed, bool(allowed))


@contextlib.contextmanager
def on_cpus(cpus: frozenset[int]) -> Iterator[None]:
    """Memory that this thread touches first is allocated beside these CPUs. Anywhere, when there are none."""
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus or before)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, [] when there is no such process. Always the real /proc."""
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def start_ticks(pid: int) -> str:
    """When the process started: with its pid it is one process for ever. "" when it is gone or a zombie."""
    fields = stat_fields(pid)
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def kernel_state(pid: int) -> str:
    """E.g. "state D, in rm_ioctl" for a process that sleeps in the kernel and cannot be woken, else ""."""
    fields = stat_fields(pid)
    if fields and fields[0] in "Tt":
        return "it is stopped: SIGSTOP, or a debugger"
    if not fields or fields[0] != "D":
        return ""
    wchan = read_text(f"/proc/{pid}/wchan")
    return "D state" + (f", in {wchan}" if wchan not in ("", "0") else "")


def _data_caches(cpu: int) -> Iterator[tuple[int, str, int]]:
    """(level, who shares it, bytes) of the data caches of one processor."""
    folder = paths.sys("devices", "system", "cpu", f"cpu{cpu}", "cache")
    with contextlib.suppress(OSError, ValueError, KeyError):
        for name in sorted(os.listdir(folder)):  # noqa: PTH208
            if name.startswith("index") and read_text(f"{folder}/{name}/type") != "Instruction":
                size = read_text(f"{folder}/{name}/size")
                shared = read_text(f"{folder}/{name}/shared_cpu_list")
                yield int(read_text(f"{folder}/{name}/level")), shared, int(size[:-1]) * _SIZES[size[-1:]]


def _number(path: str, name: str) -> int | None:
    """The number in a line "name number" or "name: number kB"."""
    for line in read_text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].rstrip(":") == name and words[1].isdigit():
            return int(words[1])
    return None
