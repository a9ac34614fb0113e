"""How ranks ended: every rank that was seen alive and whose process is gone, is a zombie, or was replaced.

While a rank lives little is done: the kernel is asked to tell its end (``exits``), and every five seconds how many
processes of its cgroup it has killed. Once it has ended, all that tells how is put together (``endings``), for a minute
and a half, as a launcher ends, a kernel line comes, a file is read later than that. Ends are kept for an hour.

Sources: the proc connector, pidfds, /proc/PID/stat of zombies (proc_pid_stat(5)), torchelastic's error files, the
kernel log, cgroups' counts of OOM kills.
"""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from mltop.probes.collect.host.cgroups import oom_kills_file, oom_kills_in
from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import in_first_namespace
from mltop.probes.collect.ranks.ends.endings import Ended, LauncherEnd, death_of
from mltop.probes.collect.ranks.ends.error_file import ErrorFile, ErrorFiles, error_file_of
from mltop.probes.collect.ranks.ends.exits import Event, Handle, ProcessEvents
from mltop.probes.collect.sysfile import OpenFiles, read_file
from mltop.probes.collect.timing import Pace
from mltop.probes.model import Gap, KernelEvent, RankDeath, RankSample
from mltop.probes.model.units import counted
from mltop.probes.system import paths

KEPT_S = 3600.0
MOST_DEATHS = 1024  # of one node
_SETTLED_AFTER_S = 90.0
_COUNTS_S = 5.0
_MOST_CGROUPS = 64
_MOST_HANDLES = 256
_KILLED_WITHIN_S = 15.0  # a large process takes seconds to end
_KILL_SIGNAL = 9
_Key = tuple[int, Optional[float]]  # pid and start


@dataclass
class _Living:
    """A rank while it lives. ``started``: in the kernel's ticks. ``event``: the end of its first thread, ``headless``:
    others of its threads were seen to be there still. ``is_left_out``: at the last look it was no rank.
    """

    sample: RankSample
    started: int
    launcher: int
    error_file: ErrorFile | None
    handle: Handle
    event: Event | None = None
    crash: Event | None = None
    headless: bool = False
    is_left_out: bool = False

    @property
    def end(self) -> Event | None:
        """The process's own. A first thread that leaves the others ends with 0; what ends all of them need not."""
        return None if self.headless and self.event is not None and not self.event.status else self.event


@dataclass
class _Launcher:
    """``started``: in the kernel's ticks, None: it is not there."""

    started: int | None
    end: LauncherEnd | None = None


@dataclass
class _Death:
    """``noticed_s``: monotonic s, as wall clocks are set back. ``is_settled``: nothing more will be learned.
    ``is_counted``: among its cgroup's killed, or not.
    """

    ended: Ended
    handle: Handle | None
    cgroup: str | None
    noticed_s: float
    is_counted: bool = False
    is_settled: bool = False
    told: RankDeath | None = None


class OomKills:
    """How many processes of a cgroup were killed for memory just now, so that as many ends are laid to it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._pace = Pace(_COUNTS_S)
        self._files: dict[str, str | None] = {}
        self._counts: dict[str, int] = {}
        self._new: dict[str, tuple[float, int]] = {}  # since when there are kills that no end was laid to, and how many

    def watch(self, ranks: Sequence[RankSample], now: float) -> None:
        """Count in their cgroups. ``now``: monotonic s."""
        if not self._pace.is_due(now) and all(rank.cgroup is None or rank.cgroup in self._files for rank in ranks):
            return
        self._pace.done(now)
        pid_of = {rank.cgroup: rank.pid for rank in ranks if rank.cgroup is not None}
        files = {cgroup: self._files.get(cgroup) for cgroup in list(pid_of)[:_MOST_CGROUPS]}
        self._files = {cgroup: file or oom_kills_file(self._root, pid_of[cgroup]) for cgroup, file in files.items()}
        self._counts = {cgroup: count for cgroup, count in self._counts.items() if cgroup in files}
        self._new = {cgroup: kills for cgroup, kills in self._new.items() if cgroup in files}
        for cgroup in files:
            self._count(cgroup, now)

    def take(self, cgroup: str | None, now: float) -> bool:
        """Whether one more was killed in it than was known and taken."""
        if cgroup is None or self._files.get(cgroup) is None:
            return False
        self._count(cgroup, now)
        since, new = self._new.get(cgroup, (now, 0))
        if new:
            self._new[cgroup] = since, new - 1
        return new > 0

    def _count(self, cgroup: str, now: float) -> None:
        since, new = self._new.get(cgroup, (now, 0))
        if now - since > _KILLED_WITHIN_S:
            new = 0
        file = self._files.get(cgroup)
        count = None if file is None else oom_kills_in(file)
        if count is not None:
            new += max(0, count - self._counts.get(cgroup, count))
            self._counts[cgroup] = count
        self._new[cgroup] = (since if new and now - since <= _KILLED_WITHIN_S else now), new


class DeathSource:
    """Keep one object. For one thread. ``root``: another /proc, for copied trees and tests."""

    def __init__(self, root: str | None = None) -> None:
        self._root = paths.proc() if root is None else root
        self._is_live = self._root == "/proc"
        self._events = ProcessEvents(self._is_live and in_first_namespace(self._root))
        self._open_files = OpenFiles(_MOST_HANDLES if self._is_live else 0)
        self._error_files = ErrorFiles()
        self._oom = OomKills(paths.SYSROOT if root is None else os.path.dirname(root))
        self._living: dict[int, _Living] = {}
        self._launchers: dict[int, _Launcher] = {}
        self._ended: dict[_Key, _Death] = {}
        self._deaths: list[RankDeath] = []
        self._remains: set[_Key] = set()  # zombies whose deaths are forgotten
        self._looked_at = 0.0
        self._changed = False

    def read(
        self,
        clock_s: float,
        now: float,
        ranks: Sequence[RankSample],
        launchers: Mapping[int, int],
        kernel_events: Sequence[KernelEvent] = (),
    ) -> tuple[list[RankDeath], list[Gap]]:
        """The ends of the last hour, the newest last, and what is not known of them.

        ``clock_s`` and ``now``: this moment, monotonic and unix s. ``ranks``: those of this moment; ``launchers``: by
        their pids what started them; ``kernel_events``: what the kernel log is known to say.
        """
        if not ranks and not self._living and not self._ended:
            return [], []
        to_unix = now - clock_s
        self._hear(to_unix)
        by_pid = {rank.pid: rank for rank in ranks}
        gone = self._leavers(by_pid)
        if gone:
            self._hear(to_unix)  # who ended just now
        for pid, zombie in gone:
            self._bury(self._living.pop(pid), zombie, clock_s, now)
        for rank in ranks:
            self._meet(rank, launchers.get(rank.pid, 0), clock_s, now)
        self._watch()
        self._settle(clock_s, now, kernel_events)
        self._oom.watch(ranks, clock_s)
        self._forget(clock_s, ranks)
        self._looked_at = now
        return list(self._deaths), self._gaps()

    def close(self) -> None:
        self._events.close()

    def _hear(self, to_unix: float) -> None:
        for event in self._events.read():
            living, launcher = self._living.get(event.pid), self._launchers.get(event.pid)
            if living is not None and event.status is None:
                living.crash = living.crash or event
            elif living is not None:
                living.event = event
            if launcher is not None and launcher.end is None and event.status is not None:
                launcher.end = LauncherEnd(event.at + to_unix, event.status)
                self._changed = True

    def _leavers(self, by_pid: Mapping[int, RankSample]) -> list[tuple[int, procfs.Stat | None]]:
        """Those that have ended, with what is left of them. Those that live on and are no ranks any more are left. That
        takes two looks: of what is about to end not everything can be read.
        """
        gone: list[tuple[int, procfs.Stat | None]] = []
        for pid, living in list(self._living.items()):
            rank = by_pid.get(pid)
            is_here = rank is not None and rank.started_at == living.sample.started_at
            if rank is not None and is_here:
                living.sample, living.is_left_out = rank, False
                if rank.state != "Z" and living.event is None:
                    continue
            try:
                stat = procfs.read_stat(self._root, pid)
            except procfs.GONE:
                gone.append((pid, None))
                continue
            except PermissionError:
                continue
            if stat.start_ticks != living.started:
                gone.append((pid, None))
            elif stat.has_ended:
                gone.append((pid, stat))
            elif not is_here and living.event is None and living.is_left_out:
                del self._living[pid]
            else:
                living.headless = stat.state in ("Z", "X")
                living.is_left_out = not is_here
        return gone

    def _bury(self, living: _Living, zombie: procfs.Stat | None, clock_s: float, now: float) -> None:
        rank, event = living.sample, living.end
        at = living.crash or event
        ended = Ended(rank.pid, rank.rank, rank.job, rank.uid, living.launcher, now)
        ended.alive_at, ended.started_at = self._looked_at, rank.started_at
        ended.at = None if at is None else at.at + now - clock_s
        ended.threads = set() if living.crash is None else {living.crash.thread}
        if event is not None:
            ended.status, ended.said_by = event.status, "proc connector"
        elif zombie is not None:
            self._ask_zombie(ended, zombie)
        self._ended[rank.pid, rank.started_at] = _Death(ended, living.handle, rank.cgroup, clock_s)
        if living.error_file is not None:
            self._error_files.ask((rank.pid, rank.started_at), living.error_file)
        self._changed = True

    def _meet(self, rank: RankSample, launcher: int, clock_s: float, now: float) -> None:
        key = rank.pid, rank.started_at
        if rank.pid in self._living or key in self._ended or key in self._remains:
            return
        stat = self._stat(rank.pid)
        if stat is None:
            return
        if stat.has_ended:  # it was never seen alive
            ended = Ended(rank.pid, rank.rank, rank.job, rank.uid, launcher, now, started_at=rank.started_at)
            self._ask_zombie(ended, stat)
            self._ended[key] = _Death(ended, None, rank.cgroup, clock_s)
            self._changed = True
            return
        file = error_file_of(self._root, rank.pid, rank.uid, launcher, rank.started_at)
        self._living[rank.pid] = _Living(rank, stat.start_ticks, launcher, file, Handle(rank.pid, self._open_files))
        if launcher > 1 and (launcher not in self._launchers or self._launchers[launcher].end is not None):
            started = self._stat(launcher)
            self._launchers[launcher] = _Launcher(None if started is None else started.start_ticks)

    def _watch(self) -> None:
        in_use = {living.launcher for living in self._living.values()}
        open_ones = {death.ended.launcher for death in self._ended.values() if not death.is_settled}
        for pid in self._launchers.keys() - in_use - open_ones:
            del self._launchers[pid]
        self._events.watch(self._living.keys() | self._launchers.keys())

    def _settle(self, clock_s: float, now: float, kernel_events: Sequence[KernelEvent]) -> None:
        """What comes later of those that ended lately, and how they are told then."""
        for key, error in self._error_files.answers():
            death = self._ended.get(key)  # type: ignore[call-overload]
            if death is not None:
                death.ended.error, death.ended.raised_at = error.text, error.at
                self._changed = True
        lately = [death for death in self._ended.values() if not death.is_settled]
        if lately:
            self._note_launchers({death.ended.launcher for death in lately}, now)
            lines = [event for event in kernel_events if event.kind in ("oom", "segfault") and event.pid is not None]
            of_pid = {event.pid: event for event in lines} if in_first_namespace(self._root) else {}
            for death in sorted(lately, key=lambda death: death.ended.when):
                self._changed |= self._learn(death, of_pid, clock_s)
                death.is_settled = clock_s - death.noticed_s >= _SETTLED_AFTER_S
        if self._changed:
            self._tell()

    def _learn(self, death: _Death, of_pid: Mapping[int | None, KernelEvent], clock_s: float) -> bool:
        ended, learned = death.ended, False
        if ended.status is None and death.handle is not None:
            ended.status, ended.said_by = death.handle.status(), "pidfd"
            learned = ended.status is not None
        if death.handle is not None and ended.status is not None:
            death.handle.close()
            death.handle = None
        for pid in (ended.pid, *ended.threads):
            if ended.kernel is None and pid in of_pid:
                learned |= ended.takes(of_pid[pid])
        if ended.status is not None and not death.is_counted:
            death.is_counted = True
            if ended.kernel is None and ended.signal == _KILL_SIGNAL and self._oom.take(death.cgroup, clock_s):
                ended.cgroup_killed = learned = True
        return learned

    def _note_launchers(self, pids: set[int], now: float) -> None:
        """Those whose end the kernel does not tell."""
        for pid in pids:
            launcher = self._launchers.get(pid)
            if launcher is None or launcher.end is not None:
                continue
            stat = self._stat(pid)
            if stat is None or stat.start_ticks != launcher.started or stat.has_ended:
                launcher.end = LauncherEnd(now)
                self._changed = True

    def _tell(self) -> None:
        faults: dict[int, list[float]] = {}
        for death in self._ended.values():
            if death.ended.is_own_fault:
                insort(faults.setdefault(death.ended.launcher, []), death.ended.when)
        for death in self._ended.values():
            if not death.is_settled or death.told is None:
                launcher = self._launchers.get(death.ended.launcher)
                end = None if launcher is None else launcher.end
                death.told = death_of(death.ended, faults.get(death.ended.launcher, []), end)
        told = [death.told for death in self._ended.values() if death.told is not None]
        self._deaths = sorted(told, key=lambda death: death.at or 0.0)
        self._changed = False

    def _forget(self, clock_s: float, ranks: Sequence[RankSample]) -> None:
        old = [key for key, death in self._ended.items() if clock_s - death.noticed_s >= KEPT_S]
        if len(self._ended) - len(old) > MOST_DEATHS:
            old += self._surplus(set(old))
        for key in old:
            del self._ended[key]
        if old:
            self._tell()
        if old or self._remains:
            self._remains = (self._remains | set(old)) & {(rank.pid, rank.started_at) for rank in ranks}

    def _surplus(self, dropped: set[_Key]) -> Iterator[_Key]:
        """The oldest of whoever has most: nobody's many push out another's few."""
        of_user: dict[int | None, list[_Key]] = {}
        for key, death in self._ended.items():
            if key not in dropped:
                of_user.setdefault(death.ended.uid, []).append(key)
        for _ in range(len(self._ended) - len(dropped) - MOST_DEATHS):
            yield max(of_user.values(), key=len).pop(0)

    def _ask_zombie(self, ended: Ended, stat: procfs.Stat) -> None:
        """The kernel says 0 also to those who may not know."""
        if stat.exit_status == 0:
            try:
                read_file(f"{self._root}/{ended.pid}/io")  # which needs the same right
            except OSError:
                return
        ended.status, ended.said_by = stat.exit_status, "zombie"

    def _stat(self, pid: int) -> procfs.Stat | None:
        """None where there is no such process, or it is hidden from us."""
        try:
            return procfs.read_stat(self._root, pid)
        except (*procfs.GONE, PermissionError):
            return None

    def _gaps(self) -> list[Gap]:
        unknown = sum(death.how == "unknown" for death in self._deaths)
        if not unknown or self._events.is_possible:
            return []
        why = f"how {counted(unknown, 'rank')} ended: the kernel reports it only to root, outside containers"
        fix = "sudo mltop" if os.geteuid() != 0 else "run mltop on the host"
        return [Gap.about("ranks", "deaths", why=why, fix=fix, code="no_permission")]
