"""Memory, swap space, /dev/shm, huge pages, and errors of memory modules.

Source: psutil; /proc/meminfo, /proc/vmstat, statvfs, /sys/kernel/mm/hugepages, EDAC.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from mltop.probes.collect.host.part import Reading, kept_file
from mltop.probes.collect.host.psutil_loading import UNREADABLE, Psutil
from mltop.probes.collect.sysfile import names_in, number_after, read_known, read_number
from mltop.probes.collect.timing import LastLook
from mltop.probes.model import RankSample

HUGE_PAGES = ("huge_pages_total_bytes", "huge_pages_free_bytes")
MEMORY_ERRORS = {"memory_errors_corrected": "ce_count", "memory_errors_uncorrected": "ue_count"}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Memory, swap space and shared memory."""

    def __init__(self, root: str, psutil: Psutil) -> None:
        self._psutil = psutil
        self._meminfo = kept_file(root, "/proc/meminfo")
        self._shm = root + "/dev/shm"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        module = self._psutil.module()
        if module is not None:
            try:
                memory = module.virtual_memory()
            except UNREADABLE as error:
                reading.lack_unreadable("memory", error=error)
            else:
                reading.values.update(memory_total_bytes=memory.total, memory_available_bytes=memory.available)
        self._read_swap(reading)
        try:  # where data loader workers hand over batches; when it is full they die of SIGBUS
            shm = os.statvfs(self._shm)
        except OSError as error:
            return reading.lack_unreadable("shm", error=error)
        reading.values["shm_total_bytes"] = shm.f_blocks * shm.f_frsize
        reading.values["shm_used_bytes"] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
        return reading

    def _read_swap(self, reading: Reading) -> None:
        """psutil.swap_memory() also reads /proc/vmstat, which another part does, and costs four times as much."""
        try:
            content = self._meminfo.read()
        except OSError as error:
            reading.lack_unreadable("swap", error=error)
            return
        total_kib, free_kib = number_after(content, b"SwapTotal:"), number_after(content, b"SwapFree:")
        if total_kib is None or free_kib is None:
            reading.lack("swap", why=f"no SwapTotal and SwapFree in {self._meminfo.path}")
        else:
            reading.values.update(swap_total_bytes=total_kib * 1024, swap_used_bytes=(total_kib - free_kib) * 1024)


def read_huge_pages(root: str) -> Reading:
    """Memory that is set aside as huge pages, of all sizes; meminfo alone knows the default size only."""
    sizes = f"{root}/sys/kernel/mm/hugepages"
    pages = _pages_by_size(sizes) or _pages_of_default_size(root)
    if not pages:
        return Reading().lack(*HUGE_PAGES, why="the kernel has no huge pages", kind="unsupported")
    total_bytes = free_bytes = 0
    for size_bytes, total, free in pages:
        if total is None or free is None:
            return Reading().lack(*HUGE_PAGES, why=f"{sizes} cannot be read")
        total_bytes += size_bytes * total
        free_bytes += size_bytes * free
    return Reading({"huge_pages_total_bytes": total_bytes, "huge_pages_free_bytes": free_bytes})


def _pages_by_size(folder: str) -> list[tuple[int, int | None, int | None]]:
    """Bytes of a page, pages in all, pages free."""
    kib_of = {name: name[len("hugepages-") : -len("kB")] for name in names_in(folder) if name.startswith("hugepages-")}
    return [
        (int(kib) * 1024, read_number(f"{folder}/{name}/nr_hugepages"), read_number(f"{folder}/{name}/free_hugepages"))
        for name, kib in kib_of.items()
        if name.endswith("kB") and kib.isdigit()
    ]


def _pages_of_default_size(root: str) -> list[tuple[int, int | None, int | None]]:
    content = read_known(f"{root}/proc/meminfo") or b""
    kib = number_after(content, b"Hugepagesize:")
    counts = number_after(content, b"HugePages_Total:"), number_after(content, b"HugePages_Free:")
    return [] if kib is None else [(kib * 1024, *counts)]


def read_memory_errors(root: str) -> Reading:
    """Errors of the machine's own memory modules, summed over all memory controllers; one that cannot be read leaves
    the sum unknown. Source: EDAC, /sys/devices/system/edac/mc/mc*/{ce,ue}_count.
    """
    folder = f"{root}/sys/devices/system/edac/mc"
    names = [name for name in names_in(folder) if name[:2] == "mc" and name[2:].isdigit()]
    if not names:
        why = "no memory controller reports errors here (no EDAC driver)"
        return Reading().lack(*MEMORY_ERRORS, why=why, kind="unsupported")
    reading = Reading()
    for field, file in MEMORY_ERRORS.items():
        counts = [read_number(f"{folder}/{name}/{file}") for name in names]
        readable = [count for count in counts if count is not None]
        unread = len(counts) - len(readable)
        why = f"{file} of {unread} of {len(names)} memory controllers cannot be read"
        reading.put(field, None if unread else sum(readable), why)
    return reading


class Swapping:
    """Bytes per second swapped in and out since the read before, and the counter ``oom_kills``: processes that the
    kernel killed for memory. Source: /proc/vmstat.
    """

    RATES = ("swap_in_bytes_per_s", "swap_out_bytes_per_s")
    FIELDS = (*RATES, "oom_kills")

    def __init__(self, root: str) -> None:
        self._file = kept_file(root, "/proc/vmstat", in_pieces=True)
        self._last_look: LastLook[tuple[int, int]] = LastLook()  # pages in and out

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            content = self._file.read()
        except OSError as error:
            return Reading().lack_unreadable(*self.FIELDS, error=error)
        reading, why = Reading(), "this kernel does not count them (before Linux 4.13)"
        reading.put("oom_kills", number_after(content, b"oom_kill "), why, "unsupported")
        pages_in, pages_out = number_after(content, b"pswpin "), number_after(content, b"pswpout ")
        if pages_in is None or pages_out is None:
            return reading.lack(*self.RATES, why="this kernel was built without swap space", kind="unsupported")
        look_before = self._last_look.since(now, (pages_in, pages_out))
        if look_before is None:
            return reading.lack(*self.RATES, why="first look: rates need two", kind="starting")
        passed_s, pages_before = look_before
        for field, pages, before in zip(self.RATES, (pages_in, pages_out), pages_before):
            reading.values[field] = max(0, pages - before) * _PAGE_BYTES / passed_s
        return reading
