"""What moves of one rank, each second, with as few reads as possible.

Only a thread that has run can have changed its state, its switches and where it sleeps, and that it has run is told by
schedstat at a fourth of the cost: of a main thread that sleeps on, status and wchan are read every five seconds only.
Files stay open from second to second; one that is open can never become another process's.
Source: /proc/PID/{stat,schedstat,status,io,wchan} (proc_pid_stat(5), Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import os
from contextlib import suppress

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.counters import Counters

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
