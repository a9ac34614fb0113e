"""How many cores this process may use: its affinity, and the CPU quota of its cgroup and of those above it.

sched-bwc.rst and cgroup-v2.rst of the kernel. A quota does not show in what torch takes for its number of threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from mltop.probes import paths


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
