"""Which of all processes are the training ranks. Pure: from a process table to a list.

A rank's variables are inherited by everything it starts (data loader workers, compile workers, monitoring
scripts) and are set in what starts it (``sh -c`` wrappers), so most processes that carry them are no ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Optional

from mltop.probes.collect.ranks.families import (
    NodeRanks,
    first_of_lightning,
    ranks_by_arguments,
    ranks_by_order,
    ranks_of_jax,
    titled_ranks,
)
from mltop.probes.collect.ranks.layout import parallel_of
from mltop.probes.collect.ranks.roles import PYTHON_ROLES, RANK_ROLES, looks_like_python
from mltop.probes.collect.ranks.table import NOBODY, Process, Rank, Tree

MOST_RANKS_OF_A_USER = 1024  # of one node; anybody may start processes that say they are ranks
MOST_UNASSIGNED_OF_A_USER = 64  # of one node: of a pool that serves models a few are enough
_OWN_PROCESSES = 3  # the level of launchers that start each rank as a process of its own
_LAUNCHERS_READ = 4  # above a rank: for its options

_Key = tuple[int, str, Optional[int]]


@dataclass
class DeadRank:
    """A zombie that was never seen alive, beside living ranks of the same launcher."""

    process: Process
    sibling: Rank


def find_ranks(
    processes: dict[int, Process], gpu_pids: set[int], own_pid: int = 0
) -> tuple[list[Rank], list[DeadRank]]:
    """The ranks, ordered by job and rank, and the dead ones whose rank is unknown.

    ``gpu_pids`` hold a GPU. ``own_pid`` and what it started are no ranks though srun gave them its variables.
    """
    tree = Tree(processes)
    excluded = _own_processes(tree, own_pid)
    candidates = titled_ranks(tree, excluded)
    titled = {rank.process.pid for rank in candidates}
    passed_over = excluded | titled | {process.pid for process in processes.values() if _only_sets(tree, process)}
    for top in processes.values():
        if top.identity is None or top.pid in passed_over:
            continue
        if not any(_key(above) == _key(top) and above.pid not in passed_over for above in tree.ancestors(top.pid)):
            candidates += _rank_below(tree, top, passed_over, gpu_pids)
    candidates += first_of_lightning(tree, candidates)
    candidates += ranks_by_order(tree, excluded | titled, gpu_pids)
    candidates += ranks_by_arguments(tree, excluded | {rank.process.pid for rank in candidates})
    candidates += ranks_of_jax(tree, excluded | {rank.process.pid for rank in candidates})
    ranks = _without_repetitions(_without_nested(tree, _without_launchers(tree, candidates, gpu_pids)))
    ranks = most_of_each_user(ranks, gpu_pids, MOST_RANKS_OF_A_USER)
    node_ranks, pids = NodeRanks(tree, ranks), {rank.process.pid for rank in ranks}
    for rank in ranks:
        node_ranks.complete(rank)
        started_by = f"ppid:{rank.top.ppid}" if rank.top.ppid > 1 else f"sid:{rank.top.session}"
        rank.job = rank.process.job = rank.identity.job or rank.process.job or started_by
        rank.descendants = sorted(tree.below(rank.process.pid, lambda process: process.pid not in pids))
        rank.parallel = rank.parallel or _parallel(tree, rank)
    ranks.sort(key=lambda rank: (rank.job, rank.identity.rank is None, rank.identity.rank or 0, rank.process.pid))
    return ranks, _dead_ranks(tree, ranks)


def find_unassigned(
    processes: dict[int, Process], ranks: Sequence[Rank], gpu_pids: set[int], own_pid: int = 0
) -> list[Rank]:
    """Python processes that have torch or JAX loaded, or a GPU, and belong to no job; what they started is theirs.

    What started ranks belongs to their job; what it has started beside them too, if it computes itself (a driver, its
    server) or is a launcher: a notebook's server or a test's runner has started ranks and strangers alike.
    """
    tree = Tree(processes)
    taken = _own_processes(tree, own_pid)
    above = {process.pid: process for rank in ranks for process in tree.ancestors(rank.process.pid)}
    with_theirs = {
        process.pid
        for process in above.values()
        if process.role == "launcher" or (process.role in PYTHON_ROLES and process.uses)
    }
    covered: set[int] = set()
    for pid in with_theirs | {rank.process.pid for rank in ranks}:
        if pid not in covered:
            covered.add(pid)
            covered.update(tree.below(pid, lambda process: process.pid not in covered))
    taken |= above.keys() | covered
    found = {
        process.pid
        for process in processes.values()
        if process.pid not in taken
        and (not process.dead and process.role in PYTHON_ROLES and (process.uses or process.pid in gpu_pids))
        and looks_like_python(process.argv, process.exe, process.comm)
    }
    tops = [pid for pid in found if not any(above.pid in found for above in tree.ancestors(pid))]
    unassigned = [Rank(processes[pid], processes[pid], NOBODY, "", sorted(tree.below(pid))) for pid in sorted(tops)]
    return most_of_each_user(unassigned, gpu_pids, MOST_UNASSIGNED_OF_A_USER)


def is_doubtful(rank: Rank, tree: Tree, gpu_pids: Collection[int]) -> bool:
    """Whether its number may be that of a task (srun's, a pod's) that has started the ranks proper: it is in no process
    group and on no GPU, but there are other Python processes in the task.
    """
    process, identity = rank.process, rank.identity
    if identity.source != "environment" or identity.level >= _OWN_PROCESSES or process.in_group or process.dead:
        return False
    if process.pid in gpu_pids or "gpu" in process.uses:
        return False
    return any(tree.processes[pid].role in PYTHON_ROLES for pid in tree.below(rank.top.pid) if pid != process.pid)


def _parallel(tree: Tree, rank: Rank) -> dict[str, int]:
    """Worked out once: a command line may have thousands of words."""
    identity, process = rank.identity, rank.process
    place = (identity.rank, identity.world_size, identity.launcher)
    if process.layout is None or process.layout[0] != place:
        above = zip(range(_LAUNCHERS_READ), tree.ancestors(process.pid))
        process.layout = place, parallel_of([process.argv, *(launcher.argv for _, launcher in above)], *place)
    return process.layout[1]


def _key(process: Process) -> _Key | None:
    return None if process.identity is None else process.identity.key


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
        if process.role == "spawned" and not _is_its_own(tree, process):
            continue
        order = (RANK_ROLES.index(process.role), depth, pid not in gpu_pids, process.start_ticks, pid)
        if best is None or order < best[0]:
            best = (order, process)
    return [] if best is None else [Rank(best[1], top, top.identity, "")]


def _is_its_own(tree: Tree, process: Process) -> bool:
    """Whether what multiprocessing has started was given another rank than what started it. A worker that outlives its
    rank still has the rank's variables.
    """
    parent = tree.processes.get(process.ppid)
    if process.identity is not None and process.identity.source != "environment":
        return True
    if parent is None or parent.role not in PYTHON_ROLES:
        return False
    return _key(parent) != _key(process) or _only_sets(tree, parent)


def _only_sets(tree: Tree, top: Process) -> bool:
    """Whether it has set its own variables only for what it starts: one after the other its children got theirs."""
    identity = top.identity
    if identity is None or identity.source != "live environment":
        return False
    children = [child.identity for child in tree.children(top.pid) if child.identity is not None]
    keys = {child.key for child in children if child.source == "environment" and child.job == identity.job}
    return identity.key in keys and len(keys) > 1


def _without_launchers(tree: Tree, candidates: list[Rank], gpu_pids: set[int]) -> list[Rank]:
    """Drops what only started other ranks: more specific identities are below it (srun's task is a torchrun).

    A process that holds a GPU itself computes: it stays, and what it started are its children.
    """
    starts: set[int] = set()
    for rank in candidates:
        is_leaf = rank.process.in_group and rank.identity.source != "environment"
        for above in tree.ancestors(rank.top.pid):
            is_less = above.identity is not None and above.identity.level < rank.identity.level
            if is_less or (is_leaf and not above.in_group and rank.identity.launcher != "lightning"):
                starts.add(above.pid)
    return [r for r in candidates if r.top.pid not in starts or r.process.pid in gpu_pids]


def _without_nested(tree: Tree, candidates: list[Rank]) -> list[Rank]:
    """Drops what a rank started (an evaluation script with variables of its own): these are its children."""
    by_pid = {rank.process.pid: rank for rank in candidates}

    def is_started_by(rank: Rank, above: Process) -> bool:
        outer = by_pid.get(above.pid)
        if outer is None:
            return False
        one, other = outer.identity, rank.identity
        are_lightnings = one.launcher == other.launcher == "lightning"  # its first rank starts the others
        return not (are_lightnings and one.job == other.job and one.key != other.key)

    return [r for r in candidates if not any(is_started_by(r, above) for above in tree.ancestors(r.process.pid))]


def _without_repetitions(candidates: list[Rank]) -> list[Rank]:
    """Keeps the best of several claims to one rank: a detached helper still carries its rank's variables.

    Of one user's claims: what another one sets takes nobody's rank away.
    """
    best: dict[tuple[int | None, _Key], int] = {}
    claims: list[tuple[Rank, tuple[int | None, _Key], int]] = []
    for rank in candidates:
        level, job, number = rank.identity.key
        claimed = rank.process.uid, (level, job, -rank.process.pid if number is None else number)
        claim = 2 * (rank.process.role in PYTHON_ROLES) + (rank.top.ppid > 1)
        claims.append((rank, claimed, claim))
        best[claimed] = max(best.get(claimed, 0), claim)
    return [rank for rank, claimed, claim in claims if claim == best[claimed]]


def most_of_each_user(ranks: list[Rank], gpu_pids: set[int], most: int) -> list[Rank]:
    """Nobody's many take another's place: of each user those that hold a GPU, then the oldest."""
    by_user: dict[int | None, list[Rank]] = {}
    for rank in ranks:
        by_user.setdefault(rank.process.uid, []).append(rank)
    if all(len(own) <= most for own in by_user.values()):
        return ranks

    def place(rank: Rank) -> tuple[bool, int, int]:
        return rank.process.pid not in gpu_pids, rank.process.start_ticks, rank.process.pid

    return [rank for own in by_user.values() for rank in sorted(own, key=place)[:most]]


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
