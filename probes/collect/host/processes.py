"""Processes stuck in the kernel (state D) and zombies.

The state letter of every process is read, a few of them at a time: every process once in ten seconds, kernel threads
once a minute. One that has not run since the last look is in the state that it was in, and that it has not run is told
by a file at a fourth of the cost of its state. These files stay open; one that is open can never become another
process's. One that is found blocked is from then on looked at each second, as are ranks and their children that were
seen so.
Source: /proc/PID/stat, /proc/PID/task/PID/{stat,io}, /proc/PID/wchan (proc_pid_stat(5) and its neighbours),
/proc/PID/schedstat (Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mltop.probes.collect.host.part import Reading
from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.collect.sysfile import KeptFile, OpenFiles, read_file, read_known
from mltop.probes.model import BlockedProcess, RankSample

ROUND_S = 10.0
_KERNEL_THREADS_EVERY = 6  # rounds
_MOST_OPEN = 250  # of the 1024 files that a process may usually have open
_MAX_SHOWN = 40
_MAX_WATCHED = 200  # a dead file server may block thousands


@dataclass
class _Blocked:
    """``marks`` change as soon as the main thread has done something of its own."""

    name: str
    since: float
    marks: tuple[bytes | None, ...]


class Processes:
    """``blocked`` and ``zombies``, the latter of the newest whole round. Blocked is the main thread, and only for as
    long as it does nothing of its own: one that merely reads much from a disk is often found in state D, too.
    """

    FIELDS = ("zombies", "blocked")

    def __init__(self, root: str) -> None:
        self._proc = root + "/proc"
        self._open_files = OpenFiles(0 if root else _MOST_OPEN)  # files of a copied tree may be replaced
        self._schedstat: dict[int, KeptFile] = {}  # by pid
        self._runs: dict[int, bytes] = {}
        self._states: dict[int, bytes] = {}
        self._kernel_threads: set[int] = set()
        self._round = 0
        self._round_started: float | None = None
        self._queue: list[int] = []
        self._done = 0
        self._zombies = 0
        self._denied: set[int] = set()  # those that hidepid keeps from us
        # Our own children hang instead of us: what they hang in is told elsewhere.
        self._own_pid = b"" if root else str(os.getpid()).encode()
        self._blocked: dict[int, _Blocked] = {}

    def read(self, now: float, ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        in_state_d: list[int] = []
        try:
            in_state_d = self._look(now)
            reading.values["zombies"] = self._zombies
        except OSError as error:
            reading.lack(*self.FIELDS, why=f"{self._proc} cannot be listed: {error}")
        if self._denied:
            why = f"{len(self._denied)} processes of other users cannot be read (hidepid)"
            reading.lack(*self.FIELDS, why=why, fix="sudo mltop")
        self._watch(dict.fromkeys([*self._blocked, *_suspects(ranks), *in_state_d]), now)
        reading.values["blocked"] = self._shown(now, {rank.pid: rank.rank for rank in ranks})
        if len(self._blocked) > _MAX_SHOWN:
            why = f"{len(self._blocked)} processes or more are blocked: {_MAX_SHOWN} of them are shown"
            reading.lack("blocked.more", why=why)
        return reading

    def _look(self, now: float) -> list[int]:
        """Looks at as much of a round as its time has passed, at the first all at once; returns the pids in state D.

        ``now``: seconds of any one clock. Raises OSError when processes cannot be listed.
        """
        blocked: list[int] = []
        started = self._round_started
        if started is None or not 0 <= now - started < ROUND_S:
            self._look_until(len(self._queue), blocked)
            self._start_round(now)
            if started is None:
                self._look_until(len(self._queue), blocked)
                self._done = 0
            started = now
        share = (now - started) / ROUND_S
        self._look_until(min(len(self._queue), int(len(self._queue) * share) + 1), blocked)
        return blocked

    def close(self) -> None:
        for file in self._schedstat.values():
            file.close()

    def _look_until(self, end: int, blocked: list[int]) -> None:
        if end <= self._done:
            return
        for pid in self._queue[self._done : end]:
            if self._state(pid) == b"D":
                blocked.append(pid)
        self._done = end
        if end == len(self._queue):
            self._zombies = sum(state == b"Z" for state in self._states.values())

    def _start_round(self, now: float) -> None:
        pids = set(map(int, filter(str.isdigit, os.listdir(self._proc))))
        for pid in self._states.keys() - pids:
            self._forget(pid)
        self._denied &= pids
        self._kernel_threads &= pids
        skipped = self._kernel_threads if self._round % _KERNEL_THREADS_EVERY else set()
        self._queue, self._done = sorted(pids - skipped), 0
        self._round += 1
        self._round_started = now

    def _state(self, pid: int) -> bytes:
        try:
            # Read before the state: what runs in between will be looked at again.
            runs = self._runs_of(pid)
            if runs and runs == self._runs.get(pid):
                return self._states.get(pid, b"")
            data = read_file(f"{self._proc}/{pid}/stat")
            stat = procfs.parse_stat(data) if pid not in self._states else None
        except PermissionError:
            self._denied.add(pid)
            return b""
        except OSError:
            self._forget(pid)
            return b""
        # The NVIDIA driver's own threads do not count: they are looked at as often as processes.
        if stat is not None and stat.kernel_thread and not stat.comm.startswith(("nvidia", "nv_", "UVM")):
            self._kernel_threads.add(pid)
            self._forget(pid)
        at = data.rfind(b")") + 2
        state = self._states[pid] = data[at : at + 1]
        self._runs[pid] = runs
        return state

    def _runs_of(self, pid: int) -> bytes:
        """Changes each time that the process has run; b"" where the kernel does not count."""
        file = self._schedstat.get(pid)
        if file is None:
            if pid in self._kernel_threads or self._open_files.left <= 0:
                return b""
            file = self._schedstat[pid] = KeptFile(f"{self._proc}/{pid}/schedstat", self._open_files)
        try:
            runs = file.read()
        except FileNotFoundError:
            return b""
        return b"" if runs.startswith(b"0 0 0") else runs

    def _forget(self, pid: int) -> None:
        self._states.pop(pid, None)
        self._runs.pop(pid, None)
        file = self._schedstat.pop(pid, None)
        if file is not None:
            file.close()

    def _watch(self, pids: Iterable[int], now: float) -> None:
        """Look at the main threads of those that are, or may be, blocked."""
        for pid in pids:
            data = read_known(f"{self._proc}/{pid}/task/{pid}/stat") or b""
            fields = data[data.rfind(b")") + 2 :].split()
            if len(fields) < 20 or fields[0] != b"D" or fields[1] == self._own_pid:
                self._blocked.pop(pid, None)
                continue
            # A pid that is used again has another start; page faults, user time and system calls (which only its owner
            # may read) tell of work.
            marks = (fields[19], fields[7], fields[9], fields[11], read_known(f"{self._proc}/{pid}/task/{pid}/io"))
            blocked = self._blocked.get(pid)
            if blocked is None and len(self._blocked) >= _MAX_WATCHED:
                continue
            if blocked is None or blocked.marks != marks:
                name = data[data.find(b"(") + 1 : data.rfind(b")")].decode("utf-8", "replace")
                self._blocked[pid] = _Blocked(name, now, marks)

    def _shown(self, now: float, ranks: dict[int, int | None]) -> list[BlockedProcess]:
        """Ranks first, then what belongs to the GPU driver, then by time."""

        def order(item: tuple[int, _Blocked]) -> tuple[bool, bool, float, int]:
            pid, blocked = item
            return pid not in ranks, not blocked.name.startswith("nvidia"), blocked.since, pid

        return [
            BlockedProcess(
                pid=pid,
                name=shown_text(blocked.name),
                blocked_s=max(0.0, now - blocked.since),
                wchan=procfs.read_wchan(f"{self._proc}/{pid}"),
                rank=ranks.get(pid),
                uid=procfs.owner_of(self._proc, pid),
            )
            for pid, blocked in sorted(self._blocked.items(), key=order)[:_MAX_SHOWN]
        ]


def _suspects(ranks: Sequence[RankSample]) -> Iterable[int]:
    for rank in ranks:
        if rank.state == "D":
            yield rank.pid
        if rank.children_blocked:
            yield from rank.children
