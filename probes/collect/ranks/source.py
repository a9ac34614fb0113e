"""The ranks of this machine once a second."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Callable

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import access_gaps, doubtful_gaps, unreadable_counters_gap, user_name
from mltop.probes.collect.ranks.counters import Children, CpuMeter, RankReader, children_every_s, copied
from mltop.probes.collect.ranks.details import Details, missing_details
from mltop.probes.collect.ranks.roles import interpreter
from mltop.probes.collect.ranks.roster import DeadRank, Rank, find_ranks
from mltop.probes.collect.ranks.table import ProcessTable
from mltop.probes.collect.redaction.process import shown_command
from mltop.probes.collect.redaction.shapes import without_tokens
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.collect.sysfile import OpenFiles
from mltop.probes.model import Gap, RankSample
from mltop.probes.system import paths

_MOST_CHILDREN = 2048  # of a rank: data loaders have tens
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

    ``root`` is another /proc, for copied trees and tests. ``only``: see ``ProcessTable``.
    """

    def __init__(self, root: str | None = None, only: Callable[[], Iterable[int]] | None = None) -> None:
        self._root = paths.proc() if root is None else root
        self._own_pid = os.getpid() if self._root == "/proc" else 0
        self._table = ProcessTable(self._root, only)
        self._open_files = OpenFiles(
            _MOST_OPEN if self._root == "/proc" else 0
        )  # of a copied tree they may be replaced
        self._meter = CpuMeter()
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
        self._find(set(gpus_of_pid))
        samples: list[RankSample] = []
        users_unreadable: list[str] = []
        for watched in self._watched.values():
            process = watched.rank.process
            try:
                counters = watched.reader.read(now)
            except (*procfs.GONE, PermissionError):
                counters = None
            if counters is None or counters.stat.start_ticks != process.start_ticks:
                process.due_at = now  # it has ended, or its pid was used again: examine it at the next tick
                continue
            cpu_fraction = self._meter.fraction(process.pid, counters.stat, now)
            sample = copied(watched.base, cpu_fraction=cpu_fraction, **counters.values)
            sample.gpus = _gpus(sample, gpus_of_pid)
            watched.details.add_to(sample, process, now)
            watched.children.add_to(sample, now, self._children_every_s)
            samples.append(sample)
            if counters.denied:
                users_unreadable.append(sample.user)
        self._meter.forget_older_than(now - 60)
        gaps = [*self._gaps, *missing_details(samples)]
        if users_unreadable:
            gaps.append(unreadable_counters_gap(users_unreadable))
        return samples + [copied(dead) for dead in self._dead], gaps

    def _find(self, gpu_pids: set[int]) -> None:
        basis = (self._table.version, gpu_pids, frozenset(self._table.ended_at))
        if basis == self._basis:
            return
        ranks, dead = find_ranks(self._table.processes, gpu_pids, self._own_pid)
        for rank in ranks:
            for pid in rank.descendants:
                self._table.processes[pid].was_child = True
        before = self._watched
        keys = [(rank.process.pid, rank.process.start_ticks) for rank in ranks]
        for key in before.keys() - set(keys):
            before.pop(key).reader.close()
        self._watched = {key: self._watch(rank, before.get(key)) for key, rank in zip(keys, ranks)}
        self._children_every_s = children_every_s(sum(len(rank.descendants) for rank in ranks))
        self._dead = [self._dead_sample(zombie) for zombie in dead]
        self._gaps = [*access_gaps(self._table, gpu_pids, self._own_pid), *doubtful_gaps(ranks)]
        self._basis = basis

    def _watch(self, rank: Rank, before: _Watched | None) -> _Watched:
        if before is not None:
            return replace(before, rank=rank, base=self._base(rank))
        reader = RankReader(self._root, rank.process.pid, self._open_files)
        return _Watched(rank, self._base(rank), reader, Details(self._root, rank.process.pid), Children(self._root))

    def _base(self, rank: Rank) -> RankSample:
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
            started_at=procfs.started_at(self._root, process.start_ticks),
            children=rank.descendants[:_MOST_CHILDREN],
        )

    def _dead_sample(self, dead: DeadRank) -> RankSample:
        """What its living sibling and the kernel tell of it."""
        return copied(
            self._base(dead.sibling),
            pid=dead.process.pid,
            rank=None,
            local_rank=None,
            command=f"[{shown_text(dead.process.comm)}]",
            python=None,
            state="Z",
            started_at=procfs.started_at(self._root, dead.process.start_ticks),
            children=[],
        )


def _gpus(sample: RankSample, gpus_of_pid: dict[int, list[int]]) -> list[int]:
    """Indexes of the GPUs that the rank or anything below it holds."""
    if not gpus_of_pid:
        return []
    return sorted({index for pid in (sample.pid, *sample.children) for index in gpus_of_pid.get(pid, ())})
