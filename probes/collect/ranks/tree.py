"""The tree of processes, and a rank's place in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mltop.probes.collect.ranks.identity import Identity
from mltop.probes.collect.ranks.roles import PYTHON_ROLES
from mltop.probes.collect.ranks.table import Process

MOST_DEPTH = 64  # of a process below its first ancestor that is looked at


NOBODY = Identity("", None, -1, source="")


@dataclass
class Rank:
    """``process`` is the rank, ``top`` the topmost process with its variables: itself or a wrapper.

    ``parallel``: as in RankSample. A process of no job has the identity ``NOBODY``.
    """

    process: Process
    top: Process
    identity: Identity
    job: str
    descendants: list[int] = field(default_factory=list)
    parallel: dict[str, int] = field(default_factory=dict)


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

    def python_above(self, pid: int) -> list[Process]:
        """The Python processes directly above one, parent first: what started it without a shell between them."""
        found = []
        for above in self.ancestors(pid):
            if above.role not in PYTHON_ROLES:
                break
            found.append(above)
        return found
