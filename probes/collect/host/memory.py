"""Memory, swap space, /dev/shm and huge pages. Source: psutil; /proc/meminfo, statvfs, /sys/kernel/mm/hugepages.

Errors of the machine's own memory modules. Source: EDAC, /sys/devices/system/edac/mc/mc*/{ce,ue}_count.

Pages swapped in and out, and processes that the kernel killed for memory. Source: /proc/vmstat.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mltop.probes.collect.host.part import Reading, starting, unreadable, unsupported
from mltop.probes.collect.host.psutil_loading import UNREADABLE, Psutil
from mltop.probes.collect.sysfile import KeptFile, number_after, read_number
from mltop.probes.model import Gap, RankSample

_HUGE = "host.{huge_pages_total_bytes,huge_pages_free_bytes}"


class Memory:
    """Memory, swap space and shared memory."""

    def __init__(self, root: str, psutil: Psutil) -> None:
        self._psutil = psutil
        self._meminfo = KeptFile(root, "/proc/meminfo")
        self._shm = root + "/dev/shm"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        module = self._psutil.module()
        if module is not None:
            try:
                memory = module.virtual_memory()
            except UNREADABLE as error:
                reading.gaps.append(unreadable("host.memory", error))
            else:
                reading.values.update(memory_total_bytes=memory.total, memory_available_bytes=memory.available)
        self._read_swap(reading)
        self._read_shared(reading)
        return reading

    def _read_swap(self, reading: Reading) -> None:
        """psutil.swap_memory() also reads /proc/vmstat, which another part does, and costs four times as much."""
        try:
            data = b"\n" + self._meminfo.read()
        except OSError as error:
            reading.gaps.append(unreadable("host.swap", error))
            return
        swap, free = number_after(data, b"\nSwapTotal:"), number_after(data, b"\nSwapFree:")
        if swap is None or free is None:
            reading.gaps.append(Gap("host.swap", f"no SwapTotal and SwapFree in {self._meminfo.path}"))
        else:
            reading.values.update(swap_total_bytes=swap * 1024, swap_used_bytes=(swap - free) * 1024)

    def _read_shared(self, reading: Reading) -> None:
        """/dev/shm, where data loader workers hand over batches; when it is full they die of SIGBUS."""
        try:
            shm = os.statvfs(self._shm)
        except OSError as error:
            reading.gaps.append(unreadable("host.shm", error))
            return
        reading.values["shm_total_bytes"] = shm.f_blocks * shm.f_frsize
        reading.values["shm_used_bytes"] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize


class HugePages:
    """Memory that is set aside as huge pages, of all sizes; meminfo alone knows the default size only."""

    def __init__(self, root: str) -> None:
        self._sizes = root + "/sys/kernel/mm/hugepages"
        self._meminfo = KeptFile(root, "/proc/meminfo")

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        pages = self._by_size() or self._by_default()
        if not pages:
            return Reading(gaps=[unsupported(_HUGE, "the kernel has no huge pages")])
        if any(None in row for row in pages):
            return Reading(gaps=[Gap(_HUGE, f"{self._sizes} cannot be read")])
        values: dict[str, Any] = {
            "huge_pages_total_bytes": sum(size * total for size, total, _ in pages),
            "huge_pages_free_bytes": sum(size * free for size, _, free in pages),
        }
        return Reading(values)

    def _by_size(self) -> list[Any]:
        """Bytes of a page, pages in all, pages free; by size."""
        try:
            names = os.listdir(self._sizes)
        except OSError:
            return []
        pages = []
        for name in names:
            kib = name[len("hugepages-") : -len("kB")]
            if name.startswith("hugepages-") and name.endswith("kB") and kib.isdigit():
                folder = f"{self._sizes}/{name}"
                row = (read_number(f"{folder}/nr_hugepages"), read_number(f"{folder}/free_hugepages"))
                pages.append((int(kib) * 1024, *row))
        return pages

    def _by_default(self) -> list[Any]:
        try:
            data = b"\n" + self._meminfo.read()
        except OSError:
            return []
        labels = (b"\nHugepagesize:", b"\nHugePages_Total:", b"\nHugePages_Free:")
        kib, total, free = (number_after(data, label) for label in labels)
        return [] if kib is None else [(kib * 1024, total, free)]


_WHAT = "host.{memory_errors_corrected,memory_errors_uncorrected}"
_FIELDS = {"memory_errors_corrected": "ce_count", "memory_errors_uncorrected": "ue_count"}


class MemoryErrors:
    """Sums over all memory controllers; one that cannot be read leaves the sum unknown."""

    def __init__(self, root: str) -> None:
        self._folder = root + "/sys/devices/system/edac/mc"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            names = [name for name in os.listdir(self._folder) if name[:2] == "mc" and name[2:].isdigit()]
        except OSError:
            names = []
        if not names:
            return Reading(gaps=[unsupported(_WHAT, "no memory controller reports errors here (no EDAC driver)")])
        reading = Reading()
        for field, file in _FIELDS.items():
            counts = [read_number(f"{self._folder}/{name}/{file}") for name in names]
            if None in counts:
                unread = sum(count is None for count in counts)
                why = f"{file} of {unread} of {len(names)} memory controllers cannot be read"
                reading.gaps.append(Gap(f"host.{field}", why))
            else:
                reading.values[field] = sum(count for count in counts if count is not None)
        return reading


_RATES = "host.{swap_in_bytes_per_s,swap_out_bytes_per_s}"
_ALL = "host.{swap_in_bytes_per_s,swap_out_bytes_per_s,oom_kills}"
_MIN_INTERVAL_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Swapping:
    """``swap_in_bytes_per_s``, ``swap_out_bytes_per_s`` since the read before, and the counter ``oom_kills``."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/vmstat", in_pieces=True)
        self._last: tuple[float, int, int] | None = None

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            data = b"\n" + self._file.read()
        except OSError as error:
            return Reading(gaps=[unreadable(_ALL, error)])
        reading = Reading({"oom_kills": number_after(data, b"\noom_kill ")})
        if reading.values["oom_kills"] is None:
            reading.gaps.append(unsupported("host.oom_kills", "this kernel does not count them (before Linux 4.13)"))
        pages_in, pages_out = number_after(data, b"\npswpin "), number_after(data, b"\npswpout ")
        if pages_in is None or pages_out is None:
            reading.gaps.append(unsupported(_RATES, "this kernel was built without swap space"))
            return reading
        last, self._last = self._last, (now, pages_in, pages_out)
        if last is None or now - last[0] < _MIN_INTERVAL_S:
            reading.gaps.append(starting(_RATES, "first look: rates need two"))
            return reading
        pages_to_rate = _PAGE_BYTES / (now - last[0])
        reading.values["swap_in_bytes_per_s"] = max(0, pages_in - last[1]) * pages_to_rate
        reading.values["swap_out_bytes_per_s"] = max(0, pages_out - last[2]) * pages_to_rate
        return reading
