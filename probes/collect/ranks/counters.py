"""The moving numbers of one rank: state, CPU, memory, context switches, system calls, children.

What moves of one rank, each second, with as few reads as possible.

Only a thread that has run can have changed its state, its switches and where it sleeps, and that it has run is told by
schedstat at a fourth of the cost: of a main thread that sleeps on, status and wchan are read every five seconds only.
Files stay open from second to second; one that is open can never become another process's.
Source: /proc/PID/{stat,schedstat,status,io,wchan} (proc_pid_stat(5), Documentation/scheduler/sched-stats.rst).

What a rank's children do (data loader workers above all): processor time and how many are blocked.

Source: /proc/PID/stat. Every five seconds for each rank; more seldom when there are so many that it would show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.collect.ranks import procfs
from mltop.probes.model import RankSample
from mltop.probes.system import paths

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


CALM_S = 5.0
_JITTER_S = 0.25
_READ_BYTES = 8192  # status, the longest, has some 1,500


class RankReader:
    """Reads one process. ``keep``: its files may stay open. For one thread."""

    def __init__(self, root: str, pid: int, keep: bool) -> None:
        self._folder = f"{root}/{pid}"
        self._keep = keep
        self._open: dict[str, int] = {}
        self._runs = b""  # schedstat of the main thread when status was read
        self._status_at = float("-inf")
        self._status_data = b""
        self._newest: Counters | None = None

    def read(self, now: float) -> Counters:
        """``now``: seconds of any one clock. Raises one of ``procfs.GONE`` when the process has ended."""
        # Read before the others: what runs in between is looked at the next time.
        runs = self._main_runs()
        stat = procfs.parse_stat(self._read("stat"))
        before = self._newest
        status, wchan = (before.status, before.wchan) if before is not None else (None, None)
        has_slept_on = bool(runs) and runs == self._runs and before is not None and before.stat.state == stat.state
        if status is None or not has_slept_on or not 0 <= now - self._status_at < CALM_S - _JITTER_S:
            status = self._status(status)
            # A running thread sleeps nowhere, and unwinding a kernel stack is the dearest of these reads.
            wchan = None if stat.state in "RZX" else self._wchan()
            self._runs, self._status_at = runs, now
        try:
            (reads, writes), denied = procfs.parse_io(self._read("io")), False
        except PermissionError:
            (reads, writes), denied = (None, None), True
        self._newest = Counters(stat, status, wchan, procfs.parse_main_cpu_s(runs), reads, writes, denied)
        return self._newest

    def close(self) -> None:
        for descriptor in self._open.values():
            with suppress(OSError):
                os.close(descriptor)
        self._open.clear()

    def __del__(self) -> None:
        self.close()

    def _main_runs(self) -> bytes:
        """Changes each time that the main thread has run; b"" in a kernel that does not count."""
        try:
            return self._read("schedstat")
        except FileNotFoundError:
            return b""

    def _status(self, before: procfs.Status | None) -> procfs.Status:
        data = self._read("status")
        if before is None or data != self._status_data:
            self._status_data = data
            return procfs.parse_status(data)
        return before

    def _wchan(self) -> str | None:
        try:
            return procfs.parse_wchan(self._read("wchan"))
        except OSError:
            return None

    def _read(self, name: str) -> bytes:
        """A file that the kernel gives whole at the first read."""
        descriptor = self._open.get(name)
        if descriptor is not None:
            return os.pread(descriptor, _READ_BYTES, 0)
        descriptor = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if self._keep:
            self._open[name] = descriptor
            return os.pread(descriptor, _READ_BYTES, 0)
        try:
            return os.read(descriptor, _READ_BYTES)
        finally:
            os.close(descriptor)


EVERY_S = 5.0
_SECOND_LOOK_S = 1.0  # a share needs two looks: the second one comes soon
_MOST_PER_S = 20  # children of all ranks together
_JITTER_S = 0.25


@dataclass
class _Look:
    """``ticks`` by child: start and processor time."""

    at: float
    due_at: float
    ticks: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    fraction: float | None = None
    blocked: int | None = None


class Workers:
    """The children of all ranks. ``root``: the /proc to read."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._looks: dict[int, _Look] = {}
        self._every_s = EVERY_S

    def keep(self, children: dict[int, Sequence[int]]) -> None:
        """The children of each rank, by its pid; other ranks are forgotten."""
        self._looks = {pid: look for pid, look in self._looks.items() if pid in children}
        self._every_s = max(EVERY_S, sum(map(len, children.values())) / _MOST_PER_S)

    def add_to(self, sample: RankSample, now: float) -> None:
        """Fill in the newest known. ``now``: seconds of one clock."""
        look = self._looks.get(sample.pid)
        if look is None or not look.at <= now < look.due_at:
            look = self._looks[sample.pid] = self._next(look, sample, now)
        sample.children_cpu_fraction, sample.children_blocked = look.fraction, look.blocked

    def _next(self, before: _Look | None, sample: RankSample, now: float) -> _Look:
        # Ranks take turns: after the second look each waits for a time of its own.
        wait_s = _SECOND_LOOK_S if before is None else self._every_s
        if before is not None and before.fraction is None:
            wait_s *= (1 + sample.pid % 5) / 5
        look = _Look(now, now + wait_s - _JITTER_S)
        look.blocked = 0
        for child in sample.children:
            try:
                data = procfs.read_bytes(f"{self._root}/{child}/stat")
                fields = data[data.rfind(b")") + 2 :].split(None, 20)
                look.ticks[child] = (fields[19], int(fields[11]) + int(fields[12]))
            except (OSError, ValueError, IndexError):
                continue  # it has ended: the next list of children is without it
            look.blocked += fields[0] == b"D"
        if before is not None and now > before.at:
            spent = sum(_spent(before.ticks.get(child), ticks) for child, ticks in look.ticks.items())
            look.fraction = spent / procfs.CLOCK_TICKS_PER_S / (now - before.at)
        return look


def _spent(before: tuple[bytes, int] | None, now: tuple[bytes, int]) -> int:
    """Ticks between two looks at one process; 0 for one that was not there at the first."""
    return max(0, now[1] - before[1]) if before is not None and before[0] == now[0] else 0
