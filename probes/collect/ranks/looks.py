"""Looks into processes that may be ranks, though no variable at their start says so: what libraries they have loaded,
what their environment is by now, whether they talk with other ranks.

Each such look costs a millisecond, so only Python processes without a rank of their own are looked at, more and more
seldom once they are older than half a minute, and of all together so much in each second; what is a rank is not looked
at again until it starts another program. Ranks that torchrun and its like have started are never looked at.

Source: /proc/PID/{maps,task/TID/comm,environ,mem} (proc_pid_maps(5)). Names of threads: gloo/transport/tcp/loop.cc,
torch/csrc/distributed/c10d/ProcessGroup{Gloo,NCCL}.cpp, NCCL's src/{proxy,ras}.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.identity import variables_of
from mltop.probes.collect.ranks.live_environ import Unreadable, read_live_environ
from mltop.probes.collect.ranks.roles import PYTHON_ROLES, looks_like_python
from mltop.probes.collect.ranks.roster import is_doubtful
from mltop.probes.collect.ranks.table import Process, ProcessTable, Rank, Tree
from mltop.probes.collect.sysfile import read_known, read_long

FIRST_TICK_S, TICK_S = 0.5, 0.005  # of processor time for all looks of one tick; at first everything is new
SIBLINGS_S = 0.1  # beyond that, for the others of a group of which one was found: they may not live until the next tick
FIRST_S = 1.0
SILENT_AGAIN_S = 600.0  # a process whose memory does not answer is left alone for so long
LONGEST_S, LONGEST_PLAIN_S = 60.0, 120.0  # between two looks; at one that has loaded nothing of interest
# A job may die seconds after it has begun. What ran before us is no beginner: it is looked at at once.
YOUNG_S, YOUNG_EVERY_S, YOUNG_PLAIN_EVERY_S = 30.0, 1.0, 2.0
ENOUGH = 7  # looks at what has a rank by what it inherited: a minute
_MOST_THREADS = 2048

_LIBRARY = re.compile(
    rb"/(?:(?P<torch>libtorch_python\.so|libtorch_cpu\.so)|(?P<jax>jaxlib/|libtpu\.so)"
    rb"|(?P<nccl>libnccl\.so)|(?P<gpu>dev/nvidia\d))"
)
_GROUP_THREADS = (b"gloo_tcp_loop", b"pt_gloo_runloop", b"pt_nccl_", b"NCCL ")


@dataclass
class Seen:
    """``uses``: None when that cannot be told. ``live``: the variables that tell of ranks, None when they could not be
    read; ``denied``: for want of permission.
    """

    uses: frozenset[str] | None = frozenset()
    live: dict[str, str] | None = None
    denied: bool = False
    in_group: bool = False


@dataclass
class Looks:
    """Keep one object. ``table``: whose processes are looked at, and are told what was seen."""

    table: ProcessTable
    _due_at: float = float("-inf")
    _version: int = -1
    _ranks: Sequence[Rank] = ()
    _began_at: float = float("inf")
    _hurried: set[int] = field(default_factory=set)  # in this tick
    _had_ranks: set[tuple[int, int]] = field(default_factory=set)  # those below which ranks were seen

    def refresh(self, now: float, ranks: Sequence[Rank], gpu_pids: Collection[int]) -> None:
        """One tick, after the table's. ``now``: seconds of the table's clock; ``ranks``: as they were found last."""
        is_known = self._version == self.table.version and self._ranks is ranks
        if now < self._due_at and is_known:
            return
        self._began_at = min(self._began_at, now)
        candidates = self._candidates(ranks, gpu_pids)
        self._hurried.clear()
        budget_s = FIRST_TICK_S if now - self._began_at < FIRST_S else TICK_S
        by_age = sorted(candidates, key=lambda process: process.look_at)
        # A rank may not live until the turn of its age comes. Anybody may look like one, so that is half of the time.
        likely = [process for process in by_age if process.uses or process.role == "spawned"]
        self._look_at_some(likely, budget_s / 2, now, gpu_pids)
        self._look_at_some(by_age, budget_s / 2, now, gpu_pids)
        self._due_at = min((process.look_at for process in candidates), default=float("inf"))
        self._version, self._ranks = self.table.version, ranks

    def _look_at_some(self, turn: Sequence[Process], budget_s: float, now: float, gpu_pids: Collection[int]) -> None:
        """In the order of ``turn``, those that are due; one at least, however slow the machine is."""
        until, looked = time.process_time() + budget_s, False
        for process in turn:
            more_s = SIBLINGS_S if process.pid in self._hurried else 0.0
            if process.look_at > now or (looked and time.process_time() > until + more_s):
                continue
            looked = True
            self._look(process, now, gpu_pids)

    def _candidates(self, ranks: Sequence[Rank], gpu_pids: Collection[int]) -> list[Process]:
        """Who may be a rank, or tell that something below it is one."""
        tree = Tree(self.table.processes)
        below: set[int] = set()  # a rank that may only have started the ranks
        settled: set[int] = set()
        for rank in ranks:
            if is_doubtful(rank, tree, gpu_pids):
                below.update((rank.process.pid, *tree.below(rank.top.pid)))
            elif rank.process.looks >= ENOUGH or rank.identity.source in ("environment", "live environment"):
                settled.add(rank.process.pid)
        self._hurry_parents()
        of_ranks = {pid for rank in ranks for pid in (rank.process.pid, *rank.descendants)}
        processes = self.table.processes
        others = (process for process in processes.values() if process.pid not in of_ranks)
        below.update(process.pid for process in others if process.has_inherited(processes.get(process.ppid)))
        return [p for p in processes.values() if p.pid not in settled and _is_candidate(p, p.pid in below)]

    def _hurry_parents(self) -> None:
        """Who has just started ranks without being one: Lightning's first rank is the user's own process."""
        processes = self.table.processes
        for process in processes.values():
            parent = processes.get(process.ppid) if process.identity is not None else None
            if parent is not None and parent.identity is None:
                key = (parent.pid, parent.start_ticks)
                if key not in self._had_ranks:
                    self._had_ranks = {k for k in self._had_ranks if k[0] in processes} | {key}
                    parent.looks, parent.look_at = 0, 0.0

    def _look(self, process: Process, now: float, gpu_pids: Collection[int]) -> None:
        table = self.table
        table.examine(process.pid, now)  # it may have got a title, or ended
        if table.processes.get(process.pid) is not process or process.dead:
            return
        if self._began_at < process.began_at and now - process.began_at < YOUNG_S:
            # Looks at a young one do not count: it may be no rank yet.
            process.look_at = now + (YOUNG_EVERY_S if process.uses else YOUNG_PLAIN_EVERY_S)
        else:
            process.looks += 1
            longest_s = LONGEST_S if process.uses else LONGEST_PLAIN_S
            process.look_at = now + min(2.0 ** min(process.looks - 1, 10), longest_s)
        if process.state == "D":  # whoever holds its memory's lock may hold it for long
            return
        uses = process.uses | ({"gpu"} if process.pid in gpu_pids else frozenset())
        try:
            seen = procfs.from_memory(
                table.root, process.pid, lambda: look_into(table.root, process.pid, process.start_ticks, uses)
            )
        except procfs.Silent as error:
            table.version += 1  # a gap tells of it
            process.look_at = now + (SILENT_AGAIN_S if error.pid == process.pid else procfs.ALONE_S)
            return
        except OSError:  # it has ended
            return
        if note(process, seen):
            table.version += 1
            process.looks, process.look_at = 1, now + 1.0
            # A group is there for all of its members at the same time: who counts them should find them all.
            for other in self.table.processes.values() if process.in_group else ():
                if other.ppid == process.ppid and not other.in_group:
                    other.look_at = 0.0
                    self._hurried.add(other.pid)


def _is_candidate(process: Process, is_below: bool) -> bool:
    """``is_below``: a rank that may have started others, or that rank: what they have may be inherited."""
    if process.dead or process.kernel_thread or process.role not in PYTHON_ROLES:
        return False
    if process.access in ("hidden", "denied"):
        return False
    if is_below:
        if process.looks >= ENOUGH or (process.identity is not None and process.identity.source != "environment"):
            return False
    elif process.identity is not None or process.was_child:
        return False
    return looks_like_python(process.argv, process.exe, process.comm)


def note(process: Process, seen: Seen) -> bool:
    """Write down what was seen of a process; whether that is new."""
    before = (process.identity, process.uses, process.in_group, process.live_denied)
    if seen.uses is None:
        return False
    process.is_known, process.uses = True, seen.uses
    process.in_group, process.live_denied = process.in_group or seen.in_group, seen.denied
    if seen.live is not None and seen.live != process.live:
        process.live = seen.live
        process.identify()
    if process.identity != before[0]:
        process.was_child = False
    return before != (process.identity, process.uses, process.in_group, process.live_denied)


def look_into(root: str, pid: int, start_ticks: int, uses: frozenset[str]) -> Seen:
    """``uses``: what is known of that. What cannot be read is nothing."""
    libraries = frozenset() if uses - {"gpu"} else libraries_of(root, pid)
    seen = Seen(None if libraries is None and not uses else uses | (libraries or frozenset()))
    if not seen.uses:
        return seen
    try:
        seen.live = variables_of(read_live_environ(root, pid, start_ticks))
    except PermissionError:
        seen.denied = True
    except (*procfs.GONE, OSError, Unreadable):
        pass
    seen.in_group = is_in_group(root, pid)
    return seen


def libraries_of(root: str, pid: int) -> frozenset[str] | None:
    """ "torch", "jax", "nccl" where such a library is mapped, "gpu" where a GPU is; None of a process that is gone or
    may not be read.
    """
    try:
        maps = read_long(f"{root}/{pid}/maps", procfs.MAPS_BYTES)
    except OSError:  # it has ended, or may not be read
        return None
    return frozenset(match.lastgroup or "" for match in _LIBRARY.finditer(maps))


def is_in_group(root: str, pid: int) -> bool:
    """Whether it has a thread that only members of a process group have."""
    try:
        threads = os.listdir(f"{root}/{pid}/task")[:_MOST_THREADS]
    except OSError:
        return False
    return any((read_known(f"{root}/{pid}/task/{tid}/comm") or b"").startswith(_GROUP_THREADS) for tid in threads)
