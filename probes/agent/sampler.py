"""One sample of everything: asks every collector in turn, and lets none take the others with it.

Also the newest samples, for requests that need to know how the node is right now.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Protocol, TypeVar

from mltop.probes.active.supervisor.pythons import probe_of
from mltop.probes.collect.dcgm import DcgmSource, without_filled
from mltop.probes.collect.host import HostSource
from mltop.probes.collect.kernel_log import KernelLogSource, with_nvml_events
from mltop.probes.collect.links import LinkSource
from mltop.probes.collect.logs.follow import LogFollower, with_errors
from mltop.probes.collect.nvml.faults import in_context
from mltop.probes.collect.pci import PciSource
from mltop.probes.collect.ranks import RankSource, procfs
from mltop.probes.collect.ranks.ends.deaths import DeathSource
from mltop.probes.collect.ranks.gpu_devices import GpuDevices
from mltop.probes.collect.ranks.gpu_processes import GpuProcesses
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.collect.sysfile import read_text
from mltop.probes.model import (
    Gap,
    GpuProcess,
    GpuSample,
    HostSample,
    KernelEvent,
    LinkSample,
    LogLine,
    PciDevice,
    RankDeath,
    RankSample,
    Sample,
)
from mltop.probes.model.sample import marked_not_here, traffic_of
from mltop.probes.system.paths import proc

Result = TypeVar("Result")
GPU_COUNTERS_S = 5.0  # a GPU that answers has told its error counters within that
KEPT = 3  # of the newest samples
HURRY_S = 0.5  # between two samples while somebody waits for them
LOOK_S = 1.0  # how late a hurry may begin
_BRIEF_WAIT_S = 0.5  # for NVML
_FIRST_LOOK_S = 0.05  # how late NVML's first answer may be seen
_POLL_S = 0.1  # how late a cancel may be


class GpuSource(Protocol):
    """Where GPU samples come from: NVML's child process, or the demo's simulation."""

    def request(self, now: float) -> None: ...
    def collect(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]: ...
    def events(self) -> list[KernelEvent]: ...
    def close(self) -> None: ...


@dataclass
class Collectors:
    """Where everything beside the GPUs' samples comes from."""

    dcgm: DcgmSource = field(default_factory=DcgmSource)
    host: HostSource = field(default_factory=HostSource)
    ranks: RankSource = field(default_factory=RankSource)
    rank_gpus: GpuDevices = field(default_factory=GpuDevices)
    deaths: DeathSource = field(default_factory=DeathSource)
    logs: LogFollower = field(default_factory=LogFollower)
    processes: GpuProcesses = field(default_factory=lambda: GpuProcesses(probe_of=kind_of_probe))
    links: LinkSource = field(default_factory=LinkSource)
    pci: PciSource = field(default_factory=PciSource)
    kernel_log: KernelLogSource = field(default_factory=KernelLogSource)


class Sampler:
    """The collectors of one node, from one thread. ``interval_s``: between two samples."""

    def __init__(
        self, node: str, gpu_source: GpuSource, interval_s: float, collectors: Collectors | None = None
    ) -> None:
        self._node, self._gpus, self._interval_s = node, gpu_source, interval_s
        self._collectors = collectors or Collectors()
        self._boot_id = read_text(proc("sys/kernel/random/boot_id")) or ""
        self._newest_ranks: list[RankSample] = []
        self._holders = Holders()
        self._gpus_start = False  # NVML has not answered yet

    def sample(self, now: float) -> Sample:
        """One sample at ``now`` (unix s). ``cost_s``: wall time of each collector in this process."""
        clock_s = time.monotonic()  # for rates: the wall clock may jump
        collectors = self._collectors
        gaps: list[Gap] = []
        cost_s: dict[str, float] = {}

        def part(what: str, read: Callable[[], tuple[Result, list[Gap]]], empty: Callable[[], Result]) -> Result:
            began = time.perf_counter()
            result, missing = guarded(what, read, empty)
            cost_s[what] = round(cost_s.get(what, 0.0) + time.perf_counter() - began, 6)
            gaps.extend(missing)
            return result

        # NVML's child works while everything else is read.
        part("gpus", lambda: self._request_gpus(now), lambda: None)
        host = part("host", lambda: collectors.host.read(clock_s, self._newest_ranks), HostSample)
        links = part("links", lambda: collectors.links.read(clock_s), list[LinkSample])
        host.ports_rx_bytes_per_s, host.ports_tx_bytes_per_s = traffic_of(links)
        pci = part("pci", lambda: collectors.pci.read(clock_s), list[PciDevice])
        events = part("kernel_log", lambda: collectors.kernel_log.read(now), list[KernelEvent])
        wait_s = min(0.25, self._interval_s / 2)
        gpus = part("gpus", lambda: self._collect_gpus(now, wait_s), list[GpuSample])
        xids = part("gpus", lambda: (self._gpus.events(), []), list[KernelEvent])
        part("dcgm", lambda: (None, collectors.dcgm.fill(gpus, now)), lambda: None)
        part("processes", lambda: (None, collectors.processes.fill(gpus, clock_s)), lambda: None)
        ranks = part("ranks", lambda: collectors.ranks.read(clock_s, gpus_of_pid(gpus)), list[RankSample])
        part("ranks", lambda: (None, collectors.rank_gpus.fill(ranks, gpus, clock_s)), lambda: None)
        deaths = part("ranks", lambda: self._collect_deaths(clock_s, now, ranks, events), list[RankDeath])
        lines = part("logs", lambda: collectors.logs.read(now, ranks), list[LogLine])
        self._newest_ranks = ranks
        return Sample(
            node=self._node,
            sampled_at=now,
            boot_id=self._boot_id,
            interval_s=self._interval_s,
            simulated=bool(getattr(self._gpus, "simulated", False)),
            gpus=gpus,
            ranks=ranks,
            deaths=with_errors(deaths, lines),
            log_lines=lines,
            unassigned=collectors.ranks.unassigned,
            host=host,
            links=links,
            pci=pci,
            kernel_events=with_nvml_events(_of_ranks(events, ranks, deaths), xids),
            gaps=marked_not_here(in_context(without_filled(gaps, gpus), host, pci), host),
            counters_read_at=self._counters_read_at(now - clock_s, gpus),
            cost_s=cost_s,
        )

    def await_gpus(self, stop: threading.Event, until_s: float) -> bool:
        """Whether NVML gives its first answer until then (monotonic s): the next sample need not wait any longer."""
        began = self._gpus_start
        while self._gpus_start and time.monotonic() < until_s and not stop.wait(_FIRST_LOOK_S):
            self._collect_gpus(time.time(), 0.0)
        return began and not self._gpus_start

    def _counters_read_at(self, clock_began_at: float, gpus: list[GpuSample]) -> dict[str, float]:
        """``clock_began_at``: unix s of the time 0 of the collectors' clock. Without the kinds that are not here."""
        seen_at = [gpu.last_seen_at for gpu in gpus if gpu.state == "ok" and gpu.last_seen_at is not None]
        read_at = {"gpus": min(seen_at) - GPU_COUNTERS_S} if seen_at else {}
        for kind, source in (
            ("links", self._collectors.links),
            ("pci", self._collectors.pci),
            ("host", self._collectors.host),
        ):
            if source.counters_read_at is not None:
                read_at[kind] = round(clock_began_at + source.counters_read_at, 3)
        return read_at

    def close(self) -> None:
        collectors = self._collectors
        for source in (
            self._gpus,
            collectors.dcgm,
            collectors.host,
            collectors.kernel_log,
            collectors.deaths,
            collectors.logs,
        ):
            source.close()

    def _collect_deaths(
        self, clock_s: float, now: float, ranks: list[RankSample], events: list[KernelEvent]
    ) -> tuple[list[RankDeath], list[Gap]]:
        return self._collectors.deaths.read(clock_s, now, ranks, self._collectors.ranks.launchers, events)

    def _request_gpus(self, now: float) -> tuple[None, list[Gap]]:
        self._gpus.request(now)
        return None, []

    def _collect_gpus(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]:
        gpus, gaps = self._gpus.collect(now, wait_s)
        self._gpus_start = any(gap.source == "nvml" and gap.kind == "starting" for gap in gaps)
        self._holders.keep(gpus)
        return gpus, gaps


class Holders:
    """Who held each GPU when its list of processes was last known: one that is lost keeps them as long as they live."""

    def __init__(self) -> None:
        # By the GPU's index; a process has the time that it started at, as its pid may be another's later.
        self._by_gpu: dict[int, list[tuple[GpuProcess, int | None]]] = {}

    def keep(self, gpus: list[GpuSample]) -> None:
        """Note who holds those that answer; give those that do not the processes that are still there."""
        for gpu in gpus:
            if gpu.processes is not None:
                holders = self._by_gpu.get(gpu.index, [])
                if [process for process, _ in holders] != gpu.processes:
                    self._by_gpu[gpu.index] = [(process, started(process.pid)) for process in gpu.processes]
            elif gpu.state != "ok" and gpu.index in self._by_gpu:
                self._by_gpu[gpu.index] = [
                    (process, at)
                    for process, at in self._by_gpu[gpu.index]
                    if at is not None and started(process.pid) == at
                ]
                gpu.processes = [process for process, _ in self._by_gpu[gpu.index]] or None


def started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None for one that is not there, or has ended."""
    try:
        stat = procfs.read_stat(proc(), pid)
    except OSError:
        return None
    return None if stat.state in ("Z", "X") else stat.start_ticks


def kind_of_probe(argv: list[str]) -> str:
    """The kind of mltop's probe that a command line starts; "" for any other."""
    probe = probe_of(argv)
    return probe[0] if probe is not None else ""


def guarded(
    what: str, read: Callable[[], tuple[Result, list[Gap]]], empty: Callable[[], Result]
) -> tuple[Result, list[Gap]]:
    """What ``read`` gives. A collector that fails costs its own part of one sample, and says so."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - the gap tells every caller, and the other collectors go on
        why = f"the collector failed: {type(error).__name__}: {shown_text(str(error))}"
        return empty(), [Gap(what, why, "please report this")]


def _of_ranks(events: list[KernelEvent], ranks: list[RankSample], deaths: list[RankDeath]) -> list[KernelEvent]:
    """Without the crashes of other programs, which are nobody's business here."""
    if not any(event.kind == "segfault" for event in events):
        return events
    pids = {rank.pid for rank in ranks} | {death.pid for death in deaths}
    return [event for event in events if event.kind != "segfault" or event.pid in pids]


def gpus_of_pid(gpus: list[GpuSample]) -> dict[int, list[int]]:
    """Which GPUs each process holds, by NVML's process lists."""
    indexes_of: dict[int, dict[int, None]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            indexes_of.setdefault(process.pid, {})[gpu.index] = None
    return {pid: list(indexes) for pid, indexes in indexes_of.items()}


class BriefSampler:
    """Samples of what decides whether a node is free for a probe: GPUs, ranks, processors. For an agent without a loop.

    Reads NVML in a child process of its own, which ``close`` ends.
    """

    def __init__(self, node: str) -> None:
        from mltop.probes.collect.nvml.source import NvmlSource

        self._node = node
        self._gpus = NvmlSource()
        self._host, self._ranks, self._pci = HostSource(), RankSource(), PciSource()

    def sample(self, now: float) -> Sample:
        """One sample at ``now`` (unix s)."""
        clock_s = time.monotonic()
        self._gpus.request(now)
        pci, _ = guarded("pci", lambda: self._pci.read(clock_s), list[PciDevice])
        gpus, gaps = guarded("gpus", lambda: self._gpus.collect(now, _BRIEF_WAIT_S), list[GpuSample])
        ranks, _ = guarded("ranks", lambda: self._ranks.read(clock_s, gpus_of_pid(gpus)), list[RankSample])
        host, _ = guarded("host", lambda: self._host.read(clock_s, ranks), HostSample)
        return Sample(self._node, now, gpus=gpus, ranks=ranks, host=host, pci=pci, gaps=in_context(gaps, host, pci))

    def close(self) -> None:
        self._gpus.close()
        self._host.close()


# Where requests get the newest samples from: ``RecentSamples.wait``, or samples taken for them alone.
Samples = Callable[[float, float, threading.Event, Callable[[list[Sample]], bool]], list[Sample]]


class RecentSamples:
    """The loop adds samples; requests wait for them in threads of their own."""

    def __init__(self) -> None:
        self._newest: deque[tuple[float, Sample]] = deque(maxlen=KEPT)  # monotonic s
        self._changed = threading.Condition()
        self._waiting = 0

    def add(self, sample: Sample) -> None:
        with self._changed:
            self._newest.append((time.monotonic(), sample))
            self._changed.notify_all()

    def pause(self, stop: threading.Event, until_s: float) -> None:
        """The loop's wait for its next sample (monotonic s): shorter while somebody waits for samples."""
        while not stop.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            if self._waiting:
                stop.wait(min(left_s, HURRY_S))
                return
            stop.wait(min(left_s, LOOK_S))

    def wait(
        self,
        after_s: float,
        timeout_s: float,
        cancelled: threading.Event,
        suits: Callable[[list[Sample]], bool] = lambda _: True,
    ) -> list[Sample]:
        """KEPT samples taken after ``after_s`` (monotonic) that suit; at the end of the time what there is."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    new = [sample for at_s, sample in self._newest if at_s > after_s]
                    left_s = deadline_s - time.monotonic()
                    if (len(new) == KEPT and suits(new)) or left_s <= 0 or cancelled.is_set():
                        return new or [sample for _, sample in self._newest]
                    self._changed.wait(min(left_s, _POLL_S))
            finally:
                self._waiting -= 1
