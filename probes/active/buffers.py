"""What is copied: numbers that are all different, made on the device itself, so that what arrived can be checked.

How much is copied: enough that caches hold little of it, never more than there is room for.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Any

from mltop.probes.system import paths

WORD_BYTES = 8  # int64
_FACTOR = 0x5851F42D4C957F2D  # odd, so that no two products modulo 2^64 are equal (Knuth's MMIX multiplier)
_CHUNK = 1 << 24  # words that are compared at once: 128 MiB beside what was copied


def fill(torch: Any, words: Any) -> None:
    """``words``: a tensor of int64, filled in place."""
    torch.arange(words.numel(), out=words)
    words.mul_(_FACTOR)


def is_in(torch: Any, words: Any) -> bool:
    """Whether a tensor holds what ``fill`` writes, bit for bit."""
    for begin in range(0, words.numel(), _CHUNK):
        end = min(begin + _CHUNK, words.numel())
        wanted = torch.arange(begin, end, dtype=words.dtype, device=words.device).mul_(_FACTOR)
        if not torch.equal(wanted, words[begin:end]):
            return False
    return True


GPU_BYTES = 1 << 30
CPU_BYTES = 256 << 20
CACHES = 4  # times what the caches hold
LEAST_BYTES = 1 << 20
GPU_CAP_BYTES = 4 << 30  # of a GPU's memory, for everything
_SPARE_BYTES = 256 << 20  # for checks and the context's own needs
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def fitting(wanted_bytes: int, room_bytes: int, buffers: int) -> int:
    """``wanted_bytes``, halved until so many buffers of it fit; 0 when not even small ones do."""
    size = wanted_bytes
    while size * buffers > room_bytes:
        size //= 2
        if size < LEAST_BYTES:
            return 0
    return size // 4096 * 4096


def of_gpu(free_bytes: int) -> int:
    return min(free_bytes, GPU_CAP_BYTES) - _SPARE_BYTES


def of_host() -> int:
    """A quarter of what is available, and what this process's own limit leaves."""
    available = _available()
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    limit = available if soft == resource.RLIM_INFINITY else soft // 2
    return min(available // 4, limit)


def last_level_cache_bytes() -> int | None:
    """Of all processors that this process may use: one for each group that shares one. Source: sysfs cpu/cacheinfo."""
    caches: dict[tuple[int, str], int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        for level, shared, size in _caches(cpu):
            caches[level, shared] = size
    deepest = max((level for level, _ in caches), default=0)
    total = sum(size for (level, _), size in caches.items() if level == deepest)
    return total or None


def _caches(cpu: int) -> list[tuple[int, str, int]]:
    """(level, who shares it, bytes) of the data caches of one processor."""
    folder = paths.sys("devices", "system", "cpu", f"cpu{cpu}", "cache")
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        for name in sorted(os.listdir(folder)):  # noqa: PTH208
            if name.startswith("index") and _read(f"{folder}/{name}/type") != "Instruction":
                size = _read(f"{folder}/{name}/size")
                shared = _read(f"{folder}/{name}/shared_cpu_list")
                found.append((int(_read(f"{folder}/{name}/level")), shared, int(size[:-1]) * _UNITS[size[-1:]]))
    return found


def _available() -> int:
    """MemAvailable (proc_meminfo(5)); where it is not told, little."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(paths.proc("meminfo"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 30


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
