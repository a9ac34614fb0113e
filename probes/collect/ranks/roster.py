"""Which of all processes are the training ranks. Pure: from a process table to a list.

A rank's variables are inherited by everything it starts (data loader workers, compile workers, monitoring
scripts) and are set in what starts it (``sh -c`` wrappers), so most processes that carry them are no ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Optional

from mltop.probes.collect.ranks.identity import Identity
from mltop.probes.collect.ranks.roles import RANK_ROLES
from mltop.probes.collect.ranks.table import Process

MOST_RANKS_OF_A_USER = 1024  # of one node; anybody may start processes that say they are ranks
MOST_DEPTH = 64  # of a process below its first ancestor that is looked at

_Key = tuple[int, str, Optional[int]]


@dataclass
class Rank:
    """``process`` is the rank, ``top`` the topmost process with its variables: itself or a wrapper."""

    process: Process
    top: Process
    identity: Identity
    job: str
    descendants: list[int] = field(default_factory=list)


@dataclass
class DeadRank:
    """A zombie that was never seen alive, beside living ranks of the same launcher."""

    process: Process
    sibling: Rank


class Tree:
    """Parents and children of a process table. Survives loops, which a table read bit by bit may hold."""

    def __init__(self, processes: dict[int, Process]) -> None:
        self.processes = processes
        self._children: dict[int, list[int]] = {}
        for process in processes.values():
            self._children.setdefault(process.ppid, []).append(process.pid)

    def ancestors(self, pid: int) -> Iterator[Process]:
        """Parent first, at most MOST_DEPTH."""
        seen = {pid}
        process = self.processes.get(pid)
        while process is not None and process.ppid not in seen and len(seen) <= MOST_DEPTH:
            seen.add(process.ppid)
            process = self.processes.get(process.ppid)
            if process is not None:
                yield process

    def below(self, pid: int, passes: Callable[[Process], bool] = lambda _: True) -> dict[int, int]:
        """All descendants with their depth (children: 1); what is below one that does not pass is left out with it."""
        depths: dict[int, int] = {}
        level, depth = [pid], 0
        while level:
            depth += 1
            below = (child for parent in level for child in self._children.get(parent, ()))
            level = [c for c in below if c not in depths and c != pid and passes(self.processes[c])]
            depths.update(dict.fromkeys(level, depth))
        return depths

    def children(self, pid: int) -> list[Process]:
        return [self.processes[child] for child in self._children.get(pid, ())]


def find_ranks(
    processes: dict[int, Process], gpu_pids: set[int], own_pid: int = 0
) -> tuple[list[Rank], list[DeadRank]]:
    """The ranks, ordered by job and rank, and the dead ones whose rank is unknown.

    ``gpu_pids`` hold a GPU. ``own_pid`` and what it started are no ranks though srun gave them its variables.
    """
    tree = Tree(processes)
    excluded = _own_processes(tree, own_pid)
    tops = [p for p in processes.values() if p.identity is not None and p.pid not in excluded]
    candidates = []
    for top in tops:
        if not any(_key(above) == _key(top) for above in tree.ancestors(top.pid)):
            candidates += _rank_below(tree, top, excluded, gpu_pids)
    ranks = _without_repetitions(_without_nested(tree, _without_launchers(tree, candidates, gpu_pids)))
    ranks = most_of_each_user(ranks, gpu_pids)
    for rank in ranks:
        rank.job = rank.process.job = rank.identity.job or rank.process.job or _job_by_tree(rank.top)
        rank.descendants = sorted(tree.below(rank.process.pid))
    ranks.sort(key=lambda rank: (rank.job, rank.identity.rank is None, rank.identity.rank or 0, rank.process.pid))
    return ranks, _dead_ranks(tree, ranks)


def _key(process: Process) -> _Key | None:
    identity = process.identity
    return None if identity is None else (identity.level, identity.job, identity.rank)


def _own_processes(tree: Tree, own_pid: int) -> set[int]:
    own = tree.processes.get(own_pid)
    if own is None:
        return set()
    same = {pid for pid in tree.below(own_pid) if _key(tree.processes[pid]) == _key(own)}
    return same | {own_pid}


def _rank_below(tree: Tree, top: Process, excluded: set[int], gpu_pids: set[int]) -> list[Rank]:
    """The rank at or below ``top``: the topmost Python process, otherwise the topmost program.

    What has another identity is not gone through: it and all below it are another top's. So all tops together cost
    as much as there are processes, however these are nested.
    """
    assert top.identity is not None
    depths = {top.pid: 0, **tree.below(top.pid, lambda process: process.identity is None or _key(process) == _key(top))}
    best: tuple[tuple[int, int, bool, int, int], Process] | None = None
    for pid, depth in depths.items():
        process = tree.processes[pid]
        if process.role not in RANK_ROLES or process.was_child or pid in excluded or _key(process) != _key(top):
            continue
        order = (RANK_ROLES.index(process.role), depth, pid not in gpu_pids, process.start_ticks, pid)
        if best is None or order < best[0]:
            best = (order, process)
    return [] if best is None else [Rank(best[1], top, top.identity, "")]


def _without_launchers(tree: Tree, candidates: list[Rank], gpu_pids: set[int]) -> list[Rank]:
    """Drops what only started other ranks: more specific identities are below it (srun's task is a torchrun).

    A process that holds a GPU itself computes: it stays, and what it started are its children.
    """
    starts: set[int] = set()
    for rank in candidates:
        for above in tree.ancestors(rank.top.pid):
            if above.identity is not None and above.identity.level < rank.identity.level:
                starts.add(above.pid)
    return [r for r in candidates if r.top.pid not in starts or r.process.pid in gpu_pids]


def _without_nested(tree: Tree, candidates: list[Rank]) -> list[Rank]:
    """Drops what a rank started (an evaluation script with variables of its own): these are its children."""
    pids = {rank.process.pid for rank in candidates}
    return [r for r in candidates if not any(above.pid in pids for above in tree.ancestors(r.process.pid))]


def _without_repetitions(candidates: list[Rank]) -> list[Rank]:
    """Keeps the best of several claims to one rank: a detached helper still carries its rank's variables.

    Of one user's claims: what another one sets takes nobody's rank away.
    """
    best: dict[tuple[int | None, _Key | None], int] = {}
    for rank in candidates:
        claimed = (rank.process.uid, _key(rank.process))
        best[claimed] = max(best.get(claimed, 0), _claim(rank))
    return [rank for rank in candidates if _claim(rank) == best[rank.process.uid, _key(rank.process)]]


def most_of_each_user(ranks: list[Rank], gpu_pids: set[int]) -> list[Rank]:
    """Nobody's many take another's place: of each user those that hold a GPU, then the oldest."""
    by_user: dict[int | None, list[Rank]] = {}
    for rank in ranks:
        by_user.setdefault(rank.process.uid, []).append(rank)
    if all(len(own) <= MOST_RANKS_OF_A_USER for own in by_user.values()):
        return ranks

    def place(rank: Rank) -> tuple[bool, int, int]:
        return rank.process.pid not in gpu_pids, rank.process.start_ticks, rank.process.pid

    return [rank for own in by_user.values() for rank in sorted(own, key=place)[:MOST_RANKS_OF_A_USER]]


def _claim(rank: Rank) -> int:
    return 2 * (rank.process.role == "python") + (rank.top.ppid > 1)


def _job_by_tree(top: Process) -> str:
    """A name for a job whose environment has none: what started it on this node."""
    return f"ppid:{top.ppid}" if top.ppid > 1 else f"sid:{top.session}"


def _dead_ranks(tree: Tree, ranks: list[Rank]) -> list[DeadRank]:
    dead: dict[int, DeadRank] = {}
    for rank in ranks:
        if rank.top.ppid <= 1:
            continue
        for process in tree.children(rank.top.ppid):
            first_seen_dead = process.dead and process.identity is None and not process.argv
            same_user = process.uid == rank.process.uid
            if first_seen_dead and same_user and process.comm == rank.process.comm:
                dead.setdefault(process.pid, DeadRank(process, rank))
    return list(dead.values())
