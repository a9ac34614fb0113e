"""One sample of everything: asks every collector in turn, and lets none take the others with it.

Also the newest samples, for requests that need to know how the node is right now.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from dataclasses import replace
from importlib import import_module
from typing import Any, Callable, Protocol, TypeVar

from mltop.probes.collect.ranks import procfs
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
    to_json,
)
from mltop.probes.model.sample import marked_not_here, traffic_of
from mltop.probes.system.limits import limit_words
from mltop.probes.system.paths import proc

PACKED_EVERY_S, MOST_PACKED = 4.5, 120  # five seconds at one sample per second, with room for its jitter
Result = TypeVar("Result")
GPUS_WAIT_S = 0.25  # for the answers of GPUs, at most half an interval
GPU_COUNTERS_S = 5.0  # a GPU that answers has told its error counters within that
KEPT = 3  # of the newest samples
_LATER = frozenset(("links", "pci", "kernel_log", "logs"))  # not in the first sample, unless they are there already
HURRY_S = 0.5  # between two samples while somebody waits for them
LOOK_S = 1.0  # how late a hurry may begin
_FIRST_LOOK_S = 0.05  # how late NVML's first answer may be seen
_POLL_S = 0.1  # how late a cancel may be


class GpuSource(Protocol):
    """Where GPU samples come from: NVML's child process, or the demo's simulation."""

    def request(self, now: float) -> None: ...
    def collect(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]: ...
    def events(self) -> list[KernelEvent]: ...
    def close(self) -> None: ...


# Below probes.collect.
_COLLECTORS = {
    "dcgm": "dcgm.DcgmSource",
    "host": "host.HostSource",
    "ranks": "ranks.RankSource",
    "rank_gpus": "ranks.gpu_devices.GpuDevices",
    "deaths": "ranks.ends.deaths.DeathSource",
    "logs": "logs.follow.LogFollower",
    "processes": "ranks.gpu_processes.GpuProcesses",
    "links": "links.LinkSource",
    "pci": "pci.PciSource",
    "kernel_log": "kernel_log.KernelLogSource",
}


class Collectors:
    """Where everything beside the GPUs' samples comes from; ``given``: what to use instead. Each is imported and made
    when it is first read: most nodes have no need of some, and the first sample does not wait for the others.
    """

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        if name not in _COLLECTORS:
            raise AttributeError(name)
        module, _, kind = _COLLECTORS[name].rpartition(".")
        made = vars(self)[name] = getattr(import_module(f"mltop.probes.collect.{module}"), kind)()
        return made


class _Reading:
    """One round of all collectors but those of ``later``: their gaps, and what each has cost (wall s)."""

    def __init__(self, later: frozenset[str]) -> None:
        self._later = later
        self.gaps: list[Gap] = []
        self.cost_s: dict[str, float] = {}

    def part(self, what: str, read: Callable[[], tuple[Result, list[Gap]]], empty: Callable[[], Result]) -> Result:
        if what in self._later:
            self.gaps.append(Gap.about(what, why="it comes with the next sample", kind="starting"))
            return empty()
        began = time.perf_counter()
        result, missing = guarded(what, read, empty)
        self.cost_s[what] = round(self.cost_s.get(what, 0.0) + time.perf_counter() - began, 6)
        self.gaps.extend(missing)
        return result


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
        self._gpus_wait_s = min(GPUS_WAIT_S, interval_s / 2)
        self._gpus_start = False  # NVML has not answered yet
        self._taken = 0

    def sample(self, now: float) -> Sample:
        """One sample at ``now`` (unix s). ``cost_s``: wall time of each collector in this process.

        The first one has what is read at once: its gaps say that the rest is starting.
        """
        is_first, self._taken = not self._taken, self._taken + 1
        clock_s = time.monotonic()  # for rates: the wall clock may jump
        reading = _Reading(_LATER - vars(self._collectors).keys() if is_first else frozenset())
        part, collectors = reading.part, self._collectors
        if not is_first:  # NVML's child works while everything else is read
            part("gpus", lambda: self._request_gpus(now), lambda: None)
        host = part("host", lambda: collectors.host.read(clock_s, self._newest_ranks, is_first), HostSample)
        links = part("links", lambda: collectors.links.read(clock_s), list[LinkSample])
        host.ports_rx_bytes_per_s, host.ports_tx_bytes_per_s = traffic_of(links)
        pci = part("pci", lambda: collectors.pci.read(clock_s), list[PciDevice])
        gpus = part("gpus", lambda: self._collect_gpus(now, 0.0 if is_first else self._gpus_wait_s), list[GpuSample])
        events = part("kernel_log", lambda: collectors.kernel_log.read(now, self._gpus.events()), list[KernelEvent])
        if gpus:
            part("dcgm", lambda: (None, collectors.dcgm.fill(gpus, now)), lambda: None)
            part("processes", lambda: (None, collectors.processes.fill(gpus, clock_s)), lambda: None)
        ranks = part("ranks", lambda: collectors.ranks.read(clock_s, gpus_of_pid(gpus)), list[RankSample])
        part("ranks", lambda: (None, collectors.rank_gpus.fill(ranks, gpus, clock_s)), lambda: None)
        deaths, lines = [], []
        if ranks or "deaths" in vars(collectors):  # there were ranks
            launchers = collectors.ranks.launchers
            deaths = part(
                "ranks", lambda: collectors.deaths.read(clock_s, now, ranks, launchers, events), list[RankDeath]
            )
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
            kernel_events=_of_ranks(events, ranks, deaths),
            gaps=marked_not_here(_of_gpus(reading.gaps, gpus, host, pci), host),
            counters_read_at=self._counters_read_at(now - clock_s, gpus),
            cost_s=reading.cost_s,
        )

    def await_gpus(self, stop: threading.Event, until_s: float) -> bool:
        """Whether NVML gives its first answer until then (monotonic s): the next sample need not wait any longer. The
        second one waits only as long as rates need.
        """
        began = self._gpus_start
        if self._taken == 1:
            guarded("gpus", lambda: self._request_gpus(time.time()), lambda: None)
            return not stop.wait(self._gpus_wait_s)
        while self._gpus_start and time.monotonic() < until_s and not stop.wait(_FIRST_LOOK_S):
            self._collect_gpus(time.time(), 0.0)
        return began and not self._gpus_start

    def _counters_read_at(self, clock_began_at: float, gpus: list[GpuSample]) -> dict[str, float]:
        """``clock_began_at``: unix s of the time 0 of the collectors' clock. Without the kinds that are not here."""
        seen_at = [gpu.last_seen_at for gpu in gpus if gpu.state == "ok" and gpu.last_seen_at is not None]
        read_at = {"gpus": min(seen_at) - GPU_COUNTERS_S} if seen_at else {}
        for kind in ("links", "pci", "host"):
            source = vars(self._collectors).get(kind)
            if source is not None and source.counters_read_at is not None:
                read_at[kind] = round(clock_began_at + source.counters_read_at, 3)
        return read_at

    def close(self) -> None:
        for source in (self._gpus, *vars(self._collectors).values()):
            if hasattr(source, "close"):
                source.close()

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


def guarded(
    what: str, read: Callable[[], tuple[Result, list[Gap]]], empty: Callable[[], Result]
) -> tuple[Result, list[Gap]]:
    """What ``read`` gives. A collector that fails costs its own part of one sample, and says so."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - the gap tells every caller, and the other collectors go on
        why = f"the collector failed: {type(error).__name__}: {shown_text(str(error))}"
        return empty(), [failure_gap(what, error, why)]


def failure_gap(what: str, error: Exception, why: str) -> Gap:
    """``why``: in words, unless a limit of the system explains it, which is no fault of ours."""
    if words := limit_words(error):
        return Gap(what, words, code="limit")
    return Gap(what, why, "please report this", code="unread")


def _of_ranks(events: list[KernelEvent], ranks: list[RankSample], deaths: list[RankDeath]) -> list[KernelEvent]:
    """Without the crashes of other programs, which are nobody's business here."""
    if not any(event.kind == "segfault" for event in events):
        return events
    pids = {rank.pid for rank in ranks} | {death.pid for death in deaths}
    return [event for event in events if event.kind != "segfault" or event.pid in pids]


def with_errors(deaths: list[RankDeath], lines: list[LogLine]) -> list[RankDeath]:
    """With what a rank wrote last, where nothing else says why it ended."""
    said = {line.pid: line for line in lines if line.pid is not None}
    return [_with_error(death, said.get(death.pid)) for death in deaths]


def _with_error(death: RankDeath, line: LogLine | None) -> RankDeath:
    if line is None or death.error or (death.how, death.code) == ("exit", 0):
        return death
    if death.started_at is not None and line.at < death.started_at:
        return death  # its pid was another's
    return replace(death, error=line.text, told_by=", ".join(filter(None, (death.told_by, "log"))))


def _of_gpus(gaps: list[Gap], gpus: list[GpuSample], host: HostSample, pci: list[PciDevice]) -> list[Gap]:
    """Those that other sources have filled are left out."""
    if gpus:
        from mltop.probes.collect.dcgm import without_filled

        gaps = without_filled(gaps, gpus)
    from mltop.probes.collect.nvml.faults import in_context

    return in_context(gaps, host, pci)


def gpus_of_pid(gpus: list[GpuSample]) -> dict[int, list[int]]:
    """Which GPUs each process holds, by NVML's process lists."""
    indexes_of: dict[int, dict[int, None]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            indexes_of.setdefault(process.pid, {})[gpu.index] = None
    return {pid: list(indexes) for pid, indexes in indexes_of.items()}


# Where requests get the newest samples from: ``RecentSamples.wait``, or samples taken for them alone.
Samples = Callable[[float, float, threading.Event, Callable[[list[Sample]], bool]], list[Sample]]


class RecentSamples:
    """The loop adds samples; requests wait for them in threads of their own. Of the last ten minutes one of every five
    seconds is kept, packed: some 6 KB.
    """

    def __init__(self) -> None:
        self._packed: deque[bytes] = deque(maxlen=MOST_PACKED)
        self._packed_at = float("-inf")
        self._newest: deque[tuple[float, Sample]] = deque(maxlen=KEPT)  # monotonic s
        self._changed = threading.Condition()
        self._waiting = 0

    def add(self, sample: Sample) -> None:
        with self._changed:
            self._newest.append((time.monotonic(), sample))
            self._changed.notify_all()
        if not 0 <= sample.sampled_at - self._packed_at < PACKED_EVERY_S:
            self._packed_at = sample.sampled_at
            self._packed.append(zlib.compress(to_json(sample).encode(), 1))

    def packed(self, most_bytes: int) -> list[bytes]:
        """The newest that are no more than so many bytes together, the oldest first: their JSON, by zlib."""
        kept: list[bytes] = []
        for one in reversed(tuple(self._packed)):
            most_bytes -= len(one)
            if most_bytes < 0:
                break
            kept.append(one)
        return kept[::-1]

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
