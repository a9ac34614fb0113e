"""The ranks of this machine once a second."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Callable

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import (
    access_gaps,
    doubtful_gaps,
    live_gaps,
    silent_gaps,
    unreadable_counters_gap,
    user_name,
)
from mltop.probes.collect.ranks.counters import Children, CpuMeter, RankReader, children_every_s, copied, descendants
from mltop.probes.collect.ranks.details import Details, missing_details
from mltop.probes.collect.ranks.looks import Looks
from mltop.probes.collect.ranks.roles import interpreter
from mltop.probes.collect.ranks.roster import DeadRank, find_ranks, find_unassigned
from mltop.probes.collect.ranks.table import NOBODY, ProcessTable, Rank, below
from mltop.probes.collect.redaction.process import shown_command
from mltop.probes.collect.redaction.values import shown_text, without_tokens
from mltop.probes.collect.sysfile import OpenFiles
from mltop.probes.collect.timing import Pace
from mltop.probes.model import Gap, RankSample
from mltop.probes.system import paths

_MOST_CHILDREN = 2048  # of a rank: data loaders have tens
_UNASSIGNED_EVERY_S = 4.0  # they go out with whole samples
_MOST_OPEN = 120  # files of ranks, five of each: a process may usually have 1,024


@dataclass
class _Watched:
    """A rank, what of its sample does not move, and what reads the rest."""

    rank: Rank
    base: RankSample
    reader: RankReader
    details: Details
    children: Children


class RankSource:
    """The training ranks of this machine. Keep one object: it remembers processes between reads.

    ``root`` is another /proc, for copied trees and tests. ``only``: see ``ProcessTable``. ``unassigned``: as in Sample.
    """

    def __init__(self, root: str | None = None, only: Callable[[], Iterable[int]] | None = None) -> None:
        self._root = paths.proc() if root is None else root
        self._own_pid = os.getpid() if self._root == "/proc" else 0
        self._only = only
        self._table = ProcessTable(self._root, only)
        self._open_files = OpenFiles(
            _MOST_OPEN if self._root == "/proc" else 0
        )  # of a copied tree they may be replaced
        self._meter = CpuMeter()
        self._looks = Looks(self._table)
        self._ranks: list[Rank] = []
        self.unassigned: list[RankSample] = []
        self._unassigned: dict[tuple[int, int], _Watched] = {}
        self._unassigned_pace = Pace(_UNASSIGNED_EVERY_S)
        self._basis: object = None
        self._watched: dict[tuple[int, int], _Watched] = {}  # by pid and start
        self._children_every_s = 0.0
        self._dead: list[RankSample] = []
        self._gaps: list[Gap] = []

    def read(self, now: float, gpus_of_pid: dict[int, list[int]]) -> tuple[list[RankSample], list[Gap]]:
        """All ranks, ordered by job and rank, and what could not be read.

        ``now`` is in seconds of any one clock. ``gpus_of_pid``: GPU indexes by process id, as NVML knows it.
        A rank that died before the first read and that its launcher has not reaped has rank None and state Z.
        Raises OSError only when /proc itself cannot be listed.
        """
        self._table.refresh(now)
        gpu_pids = set(gpus_of_pid)
        is_new = self._basis is None and self._find(gpu_pids)
        self._looks.refresh(now, self._ranks, gpu_pids)
        is_new = self._find(gpu_pids) or is_new
        samples: list[RankSample] = []
        users_unreadable: list[str] = []
        for watched in self._watched.values():
            sample, denied = self._read_one(watched, now, gpus_of_pid)
            if sample is not None:
                samples.append(sample)
                if denied:
                    users_unreadable.append(sample.user)
        if is_new or self._unassigned_pace.is_due(now):
            self._unassigned_pace.done(now)
            read = [self._read_one(watched, now, gpus_of_pid)[0] for watched in self._unassigned.values()]
            self.unassigned = [sample for sample in read if sample is not None]
        self._meter.forget_older_than(now - 60)
        gaps = [*self._gaps, *missing_details(samples)]
        if users_unreadable:
            gaps.append(unreadable_counters_gap(users_unreadable))
        return samples + [copied(dead) for dead in self._dead], gaps

    @property
    def launchers(self) -> dict[int, int]:
        """Of the ranks by pid what started them: the parent of the topmost process that has their variables."""
        return {watched.base.pid: watched.rank.top.ppid for watched in self._watched.values()}

    def process(self, pid: int) -> RankSample | None:
        """Any one process that may be looked at, also one of no job. From any thread."""
        if self._only is not None and pid not in below(self._root, self._only()):
            return None
        return _process_sample(pid, self._root)

    def _read_one(
        self, watched: _Watched, now: float, gpus_of_pid: dict[int, list[int]]
    ) -> tuple[RankSample | None, bool]:
        """A process's sample, None when it has ended; and whether its system calls may not be counted."""
        process = watched.rank.process
        try:
            counters = watched.reader.read(now)
        except (*procfs.GONE, PermissionError):
            counters = None
        if counters is None or counters.stat.start_ticks != process.start_ticks:
            process.due_at = now  # it has ended, or its pid was used again: examine it at the next tick
            return None, False
        cpu_fraction = self._meter.fraction(process.pid, counters.stat, now)
        sample = copied(watched.base, cpu_fraction=cpu_fraction, **counters.values)
        pids = (sample.pid, *sample.children) if gpus_of_pid else ()  # also of what it has started
        sample.gpus = sorted({index for pid in pids for index in gpus_of_pid.get(pid, ())})
        watched.details.add_to(sample, process, now)
        watched.children.add_to(sample, now, self._children_every_s)
        return sample, counters.denied

    def _find(self, gpu_pids: set[int]) -> bool:
        """Whether something may have changed."""
        basis = (self._table.version, gpu_pids)
        if basis == self._basis:
            return False
        ranks, dead = find_ranks(self._table.processes, gpu_pids, self._own_pid)
        for rank in ranks:
            for pid in rank.descendants:
                self._table.processes[pid].was_child = True
        self._ranks = ranks
        unassigned = find_unassigned(self._table.processes, ranks, gpu_pids, self._own_pid)
        self._watched = self._watch_all(ranks, self._watched)
        self._unassigned = self._watch_all(unassigned, self._unassigned)
        self._children_every_s = children_every_s(sum(len(rank.descendants) for rank in ranks))
        self._dead = [self._dead_sample(zombie) for zombie in dead]
        self._gaps = [*access_gaps(self._table, gpu_pids, self._own_pid), *doubtful_gaps(ranks)]
        self._gaps += [*live_gaps(unassigned), *silent_gaps(self._root)]
        self._basis = basis
        return True

    def _watch_all(self, ranks: list[Rank], before: dict[tuple[int, int], _Watched]) -> dict[tuple[int, int], _Watched]:
        """``before``: how they were watched so far; what is not among them any more is closed."""
        keys = [(rank.process.pid, rank.process.start_ticks) for rank in ranks]
        for key in before.keys() - set(keys):
            before.pop(key).reader.close()
        root, watched = self._root, {}
        for (pid, start), rank in zip(keys, ranks):
            known, base = before.get((pid, start)), base_sample(root, rank)
            if known is not None:
                watched[pid, start] = replace(known, rank=rank, base=base)
            else:
                reader = RankReader(root, pid, self._open_files)
                watched[pid, start] = _Watched(rank, base, reader, Details(root, pid), Children(root))
        return watched

    def _dead_sample(self, dead: DeadRank) -> RankSample:
        """What its living sibling and the kernel tell of it."""
        return copied(
            base_sample(self._root, dead.sibling),
            pid=dead.process.pid,
            rank=None,
            local_rank=None,
            command=f"[{shown_text(dead.process.comm)}]",
            python=None,
            state="Z",
            started_at=procfs.started_at(self._root, dead.process.start_ticks),
            children=[],
            identified_by="",
            parallel={},
        )


def _process_sample(pid: int, root: str) -> RankSample | None:
    """Any one process below the /proc ``root``, of no job; None when there is none that has memory of its own."""
    table = ProcessTable(root, only=lambda: (pid,))
    table.refresh(0.0)
    process = table.processes.get(pid)
    if process is None or process.dead or process.kernel_thread:
        return None
    return base_sample(root, Rank(process, process, NOBODY, "", descendants(root, pid)))


def base_sample(root: str, rank: Rank) -> RankSample:
    """What of a rank's sample does not move. ``root``: the /proc that it was found in."""
    process, identity = rank.process, rank.identity
    return RankSample(
        pid=process.pid,
        rank=identity.rank,
        local_rank=identity.local_rank,
        world_size=identity.world_size,
        local_world_size=identity.local_world_size,
        job=without_tokens(rank.job),
        master_address=without_tokens(identity.master_address or "") or None,
        launcher=identity.launcher,
        uid=process.uid,
        user=user_name(process.uid),
        command=shown_command(process.argv),
        python=without_tokens(interpreter(process.argv, process.exe) or "") or None,
        started_at=procfs.started_at(root, process.start_ticks),
        children=rank.descendants[:_MOST_CHILDREN],
        identified_by=identity.source,
        parallel=rank.parallel,
    )
