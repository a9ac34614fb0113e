"""The ranks of this machine once a second."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Callable

from mltop.probes.collect.ranks import counters, procfs
from mltop.probes.collect.ranks.access import access_gaps, doubtful_gaps, unreadable_counters_gap, user_name
from mltop.probes.collect.ranks.counters import RankReader, Workers
from mltop.probes.collect.ranks.details import Details, missing_details
from mltop.probes.collect.ranks.roles import interpreter
from mltop.probes.collect.ranks.roster import DeadRank, Rank, find_ranks
from mltop.probes.collect.ranks.table import Process, ProcessTable
from mltop.probes.collect.redaction.process import shown_command
from mltop.probes.collect.redaction.shapes import without_tokens
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.model import Gap, RankSample
from mltop.probes.system import paths

_MOST_CHILDREN = 2048  # of a rank: data loaders have tens
_MOST_KEPT = 24  # ranks whose files stay open, five of each: a process may usually have 1,024


class RankSource:
    """The training ranks of this machine. Keep one object: it remembers processes between reads.

    ``root`` is another /proc, for copied trees and tests. ``only``: see ``ProcessTable``.
    """

    def __init__(self, root: str | None = None, only: Callable[[], Iterable[int]] | None = None) -> None:
        self._root = paths.proc() if root is None else root
        self._own_pid = os.getpid() if self._root == "/proc" else 0
        self._table = ProcessTable(self._root, only)
        self._readers: dict[tuple[int, int], RankReader] = {}
        self._meter = counters.CpuMeter()
        self._details = Details(self._root)
        self._workers = Workers(self._root)
        self._basis: object = None
        self._ranks: list[tuple[Rank, RankSample]] = []
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
        self._find(gpu_pids)
        samples: list[RankSample] = []
        unreadable: list[RankSample] = []
        for rank, base in self._ranks:
            try:
                read = self._reader(rank.process).read(now)
            except (*procfs.GONE, PermissionError):
                rank.process.due_at = now  # it has ended, or its pid was used again: examine it at the next tick
                continue
            if read.stat.start_ticks != rank.process.start_ticks:
                rank.process.due_at = now  # its pid was used again: examine it at the next tick
                continue
            cpu_fraction = self._meter.fraction(rank.process.pid, read.stat, now)
            sample = counters.with_counters(base, read, cpu_fraction)
            sample.gpus = _gpus(sample, gpus_of_pid)
            self._details.add_to(sample, rank.process, now)
            self._workers.add_to(sample, now)
            samples.append(sample)
            if read.denied:
                unreadable.append(sample)
        self._meter.forget_older_than(now - 60)
        gaps = [*self._gaps, *missing_details(samples)]
        if unreadable:
            gaps.append(unreadable_counters_gap([sample.user for sample in unreadable], len(unreadable)))
        return samples + [counters.copied(dead) for dead in self._dead], gaps

    def _reader(self, process: Process) -> RankReader:
        key = (process.pid, process.start_ticks)
        reader = self._readers.get(key)
        if reader is None:
            # Files of a copied tree may be replaced.
            keep = self._root == "/proc" and len(self._readers) < _MOST_KEPT
            reader = self._readers[key] = RankReader(self._root, process.pid, keep)
        return reader

    def _find(self, gpu_pids: set[int]) -> None:
        basis = (self._table.version, gpu_pids, frozenset(self._table.ended_at))
        if basis == self._basis:
            return
        ranks, dead = find_ranks(self._table.processes, gpu_pids, self._own_pid)
        for rank in ranks:
            for pid in rank.descendants:
                self._table.processes[pid].was_child = True
        self._ranks = [(rank, self._base(rank)) for rank in ranks]
        self._dead = [self._dead_sample(one) for one in dead]
        keys = {(rank.process.pid, rank.process.start_ticks) for rank in ranks}
        for key in self._readers.keys() - keys:
            self._readers.pop(key).close()
        self._details.keep([rank.process for rank in ranks])
        self._workers.keep({rank.process.pid: rank.descendants for rank in ranks})
        self._gaps = [*access_gaps(self._table, gpu_pids, self._own_pid), *doubtful_gaps(ranks)]
        self._basis = basis

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
            started_at=self._started_at(process),
            children=rank.descendants[:_MOST_CHILDREN],
        )

    def _dead_sample(self, dead: DeadRank) -> RankSample:
        identity = dead.sibling.identity
        return RankSample(
            pid=dead.process.pid,
            job=without_tokens(dead.sibling.job),
            launcher=identity.launcher,
            world_size=identity.world_size,
            local_world_size=identity.local_world_size,
            master_address=without_tokens(identity.master_address or "") or None,
            command=f"[{shown_text(dead.process.comm)}]",
            uid=dead.process.uid,
            user=user_name(dead.process.uid),
            state="Z",
            started_at=self._started_at(dead.process),
        )

    def _started_at(self, process: Process) -> float | None:
        boot_time = procfs.boot_time(self._root)
        return None if boot_time is None else boot_time + process.start_ticks / procfs.CLOCK_TICKS_PER_S


def _gpus(sample: RankSample, gpus_of_pid: dict[int, list[int]]) -> list[int]:
    """Indexes of the GPUs that the rank or anything below it holds."""
    found: set[int] = set()
    if gpus_of_pid:
        for pid in (sample.pid, *sample.children):
            found.update(gpus_of_pid.get(pid, ()))
    return sorted(found)
