"""The moving numbers of one rank: state, CPU, memory, context switches, system calls, children."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mltop.probes import paths
from mltop.probes.collect.ranks import procfs
from mltop.probes.model import RankSample

# The clock tick is 10 ms: over less than this a share of CPU is mostly rounding.
_MIN_INTERVAL_S = 0.25
_MAX_INTERVAL_S = 60.0
_START_TOLERANCE_S = 2.0  # the kernel computes the boot time anew; clock adjustment moves it


class CpuMeter:
    """Share of one core between two readings of the same process's tick counter."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], tuple[float, int, float | None]] = {}

    def fraction(self, pid: int, stat: procfs.Stat, now: float) -> float | None:
        """None at the first reading of a process and after a minute's pause; ``now``: s of one clock."""
        key = (pid, stat.start_ticks)
        before = self._last.get(key)
        if before is not None and 0 <= now - before[0] < _MIN_INTERVAL_S:
            return before[2]
        value = None
        if before is not None and 0 < now - before[0] <= _MAX_INTERVAL_S:
            value = (stat.cpu_ticks - before[1]) / procfs.CLOCK_TICKS_PER_S / (now - before[0])
        self._last[key] = (now, stat.cpu_ticks, value)
        return value

    def forget_older_than(self, oldest: float) -> None:
        self._last = {key: value for key, value in list(self._last.items()) if value[0] >= oldest}


@dataclass
class Counters:
    """One reading. ``denied``: the system call counts need permission that we lack."""

    stat: procfs.Stat
    status: procfs.Status
    wchan: str | None
    main_cpu_s: float | None
    read_syscalls: int | None
    write_syscalls: int | None
    denied: bool


def count(root: str, pid: int) -> Counters:
    """Raises one of ``procfs.GONE`` when the process has ended."""
    stat = procfs.read_stat(root, pid)
    status = procfs.read_status(root, pid)
    try:
        (reads, writes), denied = procfs.read_io(root, pid), False
    except PermissionError:
        (reads, writes), denied = (None, None), True
    # A running thread sleeps nowhere, and unwinding a kernel stack is the dearest of these reads.
    wchan = None if stat.state in "RZX" else procfs.read_wchan(root, pid)
    return Counters(stat, status, wchan, procfs.read_main_cpu_s(root, pid), reads, writes, denied)


def with_counters(sample: RankSample, counters: Counters, cpu_fraction: float | None) -> RankSample:
    """A copy of ``sample`` with everything that moves replaced."""
    status = counters.status
    return copied(
        sample,
        state=counters.stat.state,
        wchan=counters.wchan,
        cpu_fraction=cpu_fraction,
        rss_bytes=status.rss_bytes,
        voluntary_switches=status.voluntary_switches,
        main_cpu_s=counters.main_cpu_s,
        read_syscalls=counters.read_syscalls,
        write_syscalls=counters.write_syscalls,
        cpus_allowed=status.cpus_allowed,
        numa_nodes=status.numa_nodes,
    )


def copied(sample: RankSample, **changes: Any) -> RankSample:
    """A copy with some fields replaced. dataclasses.replace costs ten times as much, for every rank and second."""
    fresh = object.__new__(RankSample)
    fresh.__dict__ = {**vars(sample), **changes}
    return fresh


_meter = CpuMeter()


def read_counters(sample: RankSample) -> RankSample | None:
    """A copy of ``sample`` with fresh state, counters, wchan and children; None when the process is gone.

    ``cpu_fraction`` is since the previous call for this process, at the first call the sample's own. May be
    called from several threads. A process that merely got the same pid counts as gone: its start differs.
    """
    root = paths.proc()
    try:
        counters = count(root, sample.pid)
        children = descendants(root, sample.pid)
    except (*procfs.GONE, PermissionError):
        return None
    if not _same_start(sample, counters.stat, procfs.boot_time(root)):
        return None
    now = time.monotonic()
    _meter.forget_older_than(now - _MAX_INTERVAL_S)
    cpu_fraction = _meter.fraction(sample.pid, counters.stat, now)
    fresh = with_counters(sample, counters, sample.cpu_fraction if cpu_fraction is None else cpu_fraction)
    fresh.children = children
    return fresh


def started_at(stat: procfs.Stat, boot_time: float | None) -> float | None:
    """Unix s."""
    return None if boot_time is None else boot_time + stat.start_ticks / procfs.CLOCK_TICKS_PER_S


def descendants(root: str, pid: int) -> list[int]:
    """Pids of all processes below ``pid``, ascending."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        try:
            children = procfs.read_children(root, waiting.pop())
        except (*procfs.GONE, PermissionError):
            continue
        if children is None:
            return _descendants_by_parent(root, pid)
        waiting += [child for child in children if child not in found]
        found.update(children)
    return sorted(found)


def _descendants_by_parent(root: str, pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for other in procfs.list_pids(root):
        try:
            parents[other] = procfs.read_stat(root, other).ppid
        except (*procfs.GONE, PermissionError):
            continue
    found: set[int] = set()
    level = {pid}
    while level:
        level = {other for other, parent in parents.items() if parent in level} - found
        found |= level
    return sorted(found)


def _same_start(sample: RankSample, stat: procfs.Stat, boot_time: float | None) -> bool:
    started = started_at(stat, boot_time)
    if started is None or sample.started_at is None:
        return True
    return abs(started - sample.started_at) <= _START_TOLERANCE_S
