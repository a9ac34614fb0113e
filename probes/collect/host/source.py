"""The machine's part of a sample: which fields are read how often, and how they come together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mltop.probes.collect.filesystems.source import FilesystemSource
from mltop.probes.collect.host.cgroups import Cgroups
from mltop.probes.collect.host.machine import (
    Clock,
    Facts,
    Governor,
    Load,
    Modules,
    OpenFiles,
    SmallFiles,
    Surroundings,
    Uptime,
    in_container,
)
from mltop.probes.collect.host.memory import HugePages, Memory, MemoryErrors, Swapping
from mltop.probes.collect.host.part import Reading, Scheduled, folded
from mltop.probes.collect.host.processes import Processes
from mltop.probes.collect.host.psutil_loading import Psutil
from mltop.probes.collect.host.rates import Cpu, PressureStall, Traffic
from mltop.probes.collect.host.services import Services
from mltop.probes.model import Gap, HostSample, RankSample
from mltop.probes.system import paths


class HostSource:
    """Reads the machine once a second. Keep one object: rates are between two reads. For one thread.

    ``root`` is put before /proc, /sys, /dev and /run (a copied tree); "" is this machine.
    """

    def __init__(self, root: str | None = None) -> None:
        root = paths.SYSROOT if root is None else root
        self._filesystems = FilesystemSource(root)
        self._services = Services(root)
        self._processes = Processes(root)
        self._psutil = psutil = Psutil(root)
        confined = in_container(root)
        self._gaps: list[Gap] = []
        self._folded: list[Gap] = []
        self._parts = [
            Scheduled("host.{hostname,kernel,cpu_count}", 60, Facts(root)),
            Scheduled("host.uptime", 0, Uptime(root)),
            Scheduled("host.load", 5, Load(root)),
            Scheduled("host.{memory,swap,shm}", 2, Memory(root, psutil)),
            Scheduled("host.cpu", 0, Cpu(psutil)),
            Scheduled("host.{network,disk}", 2, Traffic(root, psutil)),
            Scheduled("host.{blocked,zombies}", 1, self._processes),
            Scheduled("host.pressure", 2, PressureStall(root)),
            Scheduled("host.{swap_in_bytes_per_s,swap_out_bytes_per_s,oom_kills}", 5, Swapping(root), counts=True),
            Scheduled("host.cgroups", 10, Cgroups(root), counts=True),
            Scheduled("host.filesystems", 1, _Filesystems(self._filesystems)),
            Scheduled("host.{open_files,open_files_max}", 10, OpenFiles(root)),
            Scheduled("host.{clock_synchronized,clock_error_s}", 10, Clock(root, lambda: confined)),
            Scheduled("host.services", 1, self._services),
            Scheduled("host.{huge_pages_total_bytes,huge_pages_free_bytes}", 30, HugePages(root)),
            Scheduled("host.{memory_errors_corrected,memory_errors_uncorrected}", 30, MemoryErrors(root), counts=True),
            Scheduled("host.{modules,nvidia_driver}", 30, Modules(root)),
            Scheduled("host.{clocksource,ptrace_scope,lustre_health}", 30, SmallFiles(root)),
            Scheduled("host.governor", 60, Governor(root)),
            Scheduled("host.{is_virtual,is_confined}", float("inf"), Surroundings(root)),
        ]

    def read(self, now: float, ranks: Sequence[RankSample] = ()) -> tuple[HostSample, list[Gap]]:
        """One sample and what could not be read. ``now`` is in seconds of any one clock.

        ``ranks``: those of the sample before, for their cgroups and the processes that may be blocked.
        Rates and ``cpu_fraction`` are since the previous read, None at the first.
        """
        values: dict[str, Any] = {}
        without = self._psutil.gap
        gaps = [without] if without is not None else []
        for part in self._parts:
            reading = part.reading(now, ranks)
            values.update(reading.values)
            gaps += reading.gaps
        if len(gaps) != len(self._gaps) or any(new is not old for new, old in zip(gaps, self._gaps)):
            self._gaps, self._folded = gaps, folded(gaps)
        return HostSample(**values), list(self._folded)

    @property
    def counters_read_at(self) -> float | None:
        """Since when all counters of errors have been read, by the clock of ``read``; None: they were not."""
        read_at = [part.read_at for part in self._parts if part.counts]
        read_at += [at for at in [self._filesystems.counters_read_at] if at is not None]
        known = [at for at in read_at if at is not None]
        return min(known) if len(known) == len(read_at) else None

    def close(self) -> None:
        """End the child processes. They also end with the thread that made the first read."""
        self._filesystems.close()
        self._services.close()
        self._processes.close()


class _Filesystems:
    def __init__(self, source: FilesystemSource) -> None:
        self._source = source

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        filesystems, gaps = self._source.read(now)
        return Reading({"filesystems": filesystems}, gaps)
