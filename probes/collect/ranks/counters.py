"""What moves of a rank: its state, CPU, memory, context switches, system calls, and what its children do.

Each second, with as few reads as possible: only a thread that has run can have changed its state, its switches and
where it sleeps, and that it has run is told by schedstat at a fourth of the cost. Of a main thread that sleeps on,
status and wchan are read every five seconds only. Files stay open from second to second; one that is open can never
become another process's.

Source: /proc/PID/{stat,schedstat,status,io,wchan}, /proc/PID/task/PID/io (proc_pid_stat(5),
Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.sysfile import KeptFile, OpenFiles
from mltop.probes.model import RankSample
from mltop.probes.model.sample import is_same_start
from mltop.probes.system import paths

# The clock tick is 10 ms: over less than this a share of CPU is mostly rounding.
_MIN_INTERVAL_S = 0.25
_MAX_INTERVAL_S = 60.0
_CALM_S = 5.0
_JITTER_S = 0.25
_FILES = ("stat", "schedstat", "status", "io", "wchan")
_READ_BYTES = 8192  # status, the longest, has some 1,500
# Children are looked at every five seconds for each rank, more seldom when there are so many that it would show.
_CHILDREN_EVERY_S = 5.0
_SECOND_LOOK_S = 1.0  # a share needs two looks: the second one comes soon
_MOST_CHILDREN_PER_S = 100  # of all ranks together: 8 ranks of 60 loaders each are told within 5 s


class CpuMeter:
    """Share of one core between two readings of the same process's tick counter."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], tuple[float, int, float | None]] = {}

    def fraction(self, pid: int, stat: procfs.Stat, now: float) -> float | None:
        """The share since the reading before; None at the first and after a minute's pause. ``now``: s of a clock."""
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
    """One reading: ``values`` of fields of RankSample. ``denied``: the counts of system calls need permission that we
    lack.
    """

    stat: procfs.Stat
    values: dict[str, Any]
    denied: bool = False


class RankReader:
    """Reads one process. ``open_files``: how many of its files may stay open. For one thread."""

    def __init__(self, root: str, pid: int, open_files: OpenFiles) -> None:
        names = {name: name for name in _FILES} | {"main io": f"task/{pid}/io"}
        self._files = {name: KeptFile(f"{root}/{pid}/{path}", open_files, _READ_BYTES) for name, path in names.items()}
        # Of the main thread when status was read: schedstat, its state, and when that was.
        self._runs, self._state, self._status_at = b"", "", float("-inf")
        self._status: dict[str, Any] = {}

    def read(self, now: float) -> Counters:
        """``now``: seconds of any one clock. Raises one of ``procfs.GONE`` when the process has ended."""
        runs = b""  # in a kernel that does not count
        with suppress(FileNotFoundError):
            runs = self._files["schedstat"].read()  # before the others: what runs in between is looked at the next time
        stat = procfs.parse_stat(self._files["stat"].read())
        has_slept_on = runs and runs == self._runs and stat.state == self._state
        if not has_slept_on or not 0 <= now - self._status_at < _CALM_S - _JITTER_S:
            self._status = self._read_status(stat.state)
            self._runs, self._state, self._status_at = runs, stat.state, now
        values = {**self._status, "state": stat.state, "main_cpu_s": procfs.parse_main_cpu_s(runs)}
        try:
            values["read_syscalls"], values["write_syscalls"] = procfs.parse_io(self._files["io"].read())
        except PermissionError:
            return Counters(stat, {**values, "read_syscalls": None, "write_syscalls": None}, denied=True)
        return Counters(stat, values)

    def _read_status(self, state: str) -> dict[str, Any]:
        status = procfs.parse_status(self._files["status"].read())
        values = {**vars(status), "wchan": None, "main_syscalls": None}
        del values["uid"]
        # A running thread sleeps nowhere, and unwinding a kernel stack is the dearest of these reads.
        if state not in "RZX":
            with suppress(OSError):
                values["wchan"] = procfs.parse_wchan(self._files["wchan"].read())
        with suppress(OSError):
            values["main_syscalls"] = procfs.parse_calls(self._files["main io"].read())
        return values

    def close(self) -> None:
        for file in self._files.values():
            file.close()


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
    now = time.monotonic()
    try:
        counters = RankReader(root, sample.pid, OpenFiles(0)).read(now)
        children = descendants(root, sample.pid)
    except (*procfs.GONE, PermissionError):
        return None
    started_at = procfs.started_at(root, counters.stat.start_ticks)
    if is_same_start(started_at, sample.started_at) is False:
        return None
    _meter.forget_older_than(now - _MAX_INTERVAL_S)
    cpu_fraction = _meter.fraction(sample.pid, counters.stat, now)
    counters.values["cpu_fraction"] = sample.cpu_fraction if cpu_fraction is None else cpu_fraction
    return copied(sample, children=children, **counters.values)


def descendants(root: str, pid: int) -> list[int]:
    """Pids of all processes below ``pid``, ascending."""
    below: set[int] = set()
    waiting = [pid]
    while waiting:
        try:
            children = procfs.read_children(root, waiting.pop())
        except (*procfs.GONE, PermissionError):
            continue
        if children is None:
            return _descendants_by_parent(root, pid)
        waiting += [child for child in children if child not in below]
        below.update(children)
    return sorted(below)


def _descendants_by_parent(root: str, pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for other in procfs.list_pids(root):
        with suppress(*procfs.GONE, PermissionError):
            parents[other] = procfs.read_stat(root, other).ppid
    below: set[int] = set()
    level = {pid}
    while level:
        level = {other for other, parent in parents.items() if parent in level} - below
        below |= level
    return sorted(below)


class Children:
    """What a rank's children do (data loader workers above all): processor time and how many are blocked.

    ``root``: the /proc to read.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._at, self._due_at = float("inf"), float("-inf")
        self._ticks: dict[int, tuple[int, int]] = {}  # by child: start and processor time
        self._fraction: float | None = None
        self._blocked = 0

    def add_to(self, sample: RankSample, now: float, every_s: float) -> None:
        """Fill in the newest known. ``now``: seconds of one clock."""
        if not self._at <= now < self._due_at:
            self._look(sample, now, every_s)
        sample.children_cpu_fraction, sample.children_blocked = self._fraction, self._blocked

    def _look(self, sample: RankSample, now: float, every_s: float) -> None:
        is_first = self._at > now
        # Ranks take turns: after the second look each waits for a time of its own.
        wait_s = _SECOND_LOOK_S if is_first else every_s
        if not is_first and self._fraction is None:
            wait_s *= (1 + sample.pid % 5) / 5
        before, self._ticks = self._ticks, {}
        self._blocked = spent = 0
        for child in sample.children:
            try:
                stat = procfs.read_stat(self._root, child)
            except OSError:
                continue  # it has ended: the next list of children is without it
            self._ticks[child] = (stat.start_ticks, stat.cpu_ticks)
            self._blocked += stat.state == "D"
            started, ticks = before.get(child, (None, 0))
            if started == stat.start_ticks:  # not for one that was not there at the first look
                spent += max(0, stat.cpu_ticks - ticks)
        self._fraction = None if is_first or now == self._at else spent / procfs.CLOCK_TICKS_PER_S / (now - self._at)
        self._at, self._due_at = now, now + wait_s - _JITTER_S


def children_every_s(count: int) -> float:
    """How often each rank's are looked at, where all ranks together have so many."""
    return max(_CHILDREN_EVERY_S, count / _MOST_CHILDREN_PER_S)
