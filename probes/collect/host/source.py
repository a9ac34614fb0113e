"""The machine's part of a sample: which fields are read how often, and how they come together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from mltop.probes.collect.filesystems.source import FilesystemSource
from mltop.probes.collect.host import machine, memory
from mltop.probes.collect.host.cgroups import Cgroups
from mltop.probes.collect.host.part import Part, Reading, Scheduled, folded
from mltop.probes.collect.host.processes import Processes
from mltop.probes.collect.host.psutil_loading import Psutil
from mltop.probes.collect.host.rates import Cpu, PressureStall, Traffic
from mltop.probes.collect.host.services import Services
from mltop.probes.model import Gap, HostSample, RankSample
from mltop.probes.model.sample import marked_not_here
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
        self._gaps: list[Gap] = []
        self._folded: list[Gap] = []
        confined = machine.in_container(root)

        def of_root(read: Callable[[str], Reading]) -> Part:
            return lambda _now, _ranks: read(root)

        swapping = memory.Swapping(root)
        # Fields, read every so many seconds, by whom.
        self._parts = [
            Scheduled(("hostname", "kernel", "cpu_count"), 60, of_root(machine.read_facts)),
            Scheduled(("uptime",), 0, of_root(machine.read_uptime)),
            *(Scheduled(file.fields, file.every_s, file.part(root)) for file in machine.SMALL_FILES),
            Scheduled(("memory", "swap", "shm"), 2, memory.Memory(root, psutil).read, later=True),
            Scheduled(("cpu",), 0, Cpu(psutil).read, later=True),
            Scheduled(("network", "disk"), 2, Traffic(root, psutil).read, later=True),
            Scheduled(("blocked", "zombies"), 1, self._processes.read),
            Scheduled(("pressure",), 2, PressureStall(root).read),
            Scheduled(swapping.FIELDS, 5, swapping.read, counts=True),
            Scheduled(("cgroups",), 10, Cgroups(root).read, counts=True),
            Scheduled(("filesystems",), 1, self._read_filesystems, later=True),
            Scheduled(machine.CLOCK, 10, of_root(lambda root: machine.read_clock(root, confined))),
            Scheduled(("services",), 1, self._services.read, later=True),
            Scheduled(memory.HUGE_PAGES, 30, of_root(memory.read_huge_pages)),
            Scheduled(tuple(memory.MEMORY_ERRORS), 30, of_root(memory.read_memory_errors), counts=True),
            Scheduled(("modules", "nvidia_driver"), 30, of_root(machine.read_modules)),
            Scheduled(("governor",), 60, of_root(machine.read_governor)),
            Scheduled(
                ("is_virtual", "is_confined", "sees_all_processes"), float("inf"), of_root(machine.read_surroundings)
            ),
        ]

    def read(self, now: float, ranks: Sequence[RankSample] = (), briefly: bool = False) -> tuple[HostSample, list[Gap]]:
        """One sample and what could not be read. ``now`` is in seconds of any one clock.

        ``ranks``: those of the sample before, for their cgroups and the processes that may be blocked.
        ``briefly``: without the parts that have to load or start something first.
        Rates and ``cpu_fraction`` are since the previous read, None at the first.
        """
        values: dict[str, Any] = {}
        without = None if briefly else self._psutil.gap
        gaps = [without] if without is not None else []
        for part in self._parts:
            reading = part.lack() if briefly and part.later else part.reading(now, ranks)
            values.update(reading.values)
            gaps += reading.gaps
        host = HostSample(**values)
        if len(gaps) != len(self._gaps) or any(new is not old for new, old in zip(gaps, self._gaps)):
            self._gaps, self._folded = gaps, folded(marked_not_here(gaps, host))
        return host, list(self._folded)

    @property
    def counters_read_at(self) -> float | None:
        """Since when all counters of errors have been read, by the clock of ``read``; None: they were not."""
        read_at = [part.read_at for part in self._parts if part.counts]
        read_at += [at for at in [self._filesystems.counters_read_at] if at is not None]
        times = [at for at in read_at if at is not None]
        return min(times) if len(times) == len(read_at) else None

    def close(self) -> None:
        """End the child processes. They also end with the thread that made the first read."""
        self._filesystems.close()
        self._services.close()
        self._processes.close()

    def _read_filesystems(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        filesystems, gaps = self._filesystems.read(now)
        return Reading({"filesystems": filesystems}, gaps)
