"""Memory, swap space, /dev/shm and huge pages. Source: psutil; /proc/meminfo, statvfs, /sys/kernel/mm/hugepages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mltop.probes.collect.host.files import KeptFile, number_after, read_number
from mltop.probes.collect.host.part import Reading, unreadable, unsupported
from mltop.probes.collect.host.psutil_loading import UNREADABLE, Psutil
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
