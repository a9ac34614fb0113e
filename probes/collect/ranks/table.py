"""What is known of every process, kept from tick to tick so that a tick costs little; the tree of processes, and a
rank's place in it.

Each tick lists /proc and examines only pids it has not seen, the same ones again on the next two ticks (a
process may be first seen between fork and exec), and every process twice a minute. ``Stat.image`` tells of an
exec; without one a process's environment cannot have changed and is not read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Callable, Literal

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.counters import descendants
from mltop.probes.collect.ranks.identity import Identity, identify, parse_environ
from mltop.probes.collect.ranks.roles import PYTHON_ROLES, Role, role_of

RECHECK_S = 30.0
_EARLY_CHECKS = 3

# denied: no permission to read its environment; overwritten: the program wrote its title over it (setproctitle);
# hidden: not even its stat can be read (hidepid=1); silent: its memory does not answer.
Access = Literal["readable", "denied", "overwritten", "hidden", "silent"]


@dataclass
class Process:
    """One process. ``identity`` survives its death as a zombie. ``was_child``: it was seen below a rank.

    ``job`` is kept here for ranks whose environment names none, so that it stays when their launcher ends. Likewise
    ``order``, its place among its parent's children, and ``family``, how many of its children were ranks at most (or
    both as its own command line and those of its job told);
    ``layout``: what command lines say of its place, and of which rank that was said.

    ``variables``: those at its exec that tell of ranks. What a look into it told (``looks.py``): ``live``, those that
    it has now; ``live_denied``: they cannot be read; ``uses``: "torch", "jax", "nccl", "gpu" (``is_known``: that was
    told); ``in_group``: it talks with other ranks. ``looks``: how many there were, ``look_at``: when the next is due;
    ``began_at``: when it was first seen to run its program.
    """

    pid: int
    start_ticks: int
    ppid: int
    session: int
    comm: str
    state: str
    image: tuple[bytes, bytes, bytes]
    kernel_thread: bool = False
    uid: int | None = None
    argv: list[str] = field(default_factory=list)
    exe: str | None = None
    role: Role = "other"
    identity: Identity | None = None
    access: Access = "readable"
    was_child: bool = False
    job: str = ""
    layout: tuple[object, dict[str, int]] | None = None
    order: int | None = None
    family: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)
    live_denied: bool = False
    uses: frozenset[str] = frozenset()
    is_known: bool = False
    in_group: bool = False
    looks: int = 0
    look_at: float = 0.0
    began_at: float = 0.0
    checks: int = 0
    due_at: float = 0.0

    @property
    def dead(self) -> bool:
        return self.state in ("Z", "X")

    def has_inherited(self, parent: Process | None) -> bool:
        """Whether the identity that it has is its parent's."""
        if self.identity is None or parent is None or parent.identity is None:
            return False
        return self.identity.source == "environment" and parent.identity.key == self.identity.key

    def identify(self) -> None:
        """By what is known of its variables: those that it has now where they say something else."""
        given = identify(self.variables)
        self.identity = None if self.role == "spawned" and _is_alone(given) else given
        live = identify(self.live)
        live = None if _is_alone(live) else live
        if live is not None and (self.identity is None or live.key != self.identity.key):
            # Ray sets a variable of accelerate's, too.
            is_ray = live.launcher in ("env", "accelerate") and bool(self.argv) and self.argv[0].startswith("ray::")
            self.identity = replace(live, source="live environment", launcher="ray" if is_ray else live.launcher)


def _is_alone(identity: Identity | None) -> bool:
    """Rank 0 of 1, or of an unknown number, is what MPI calls a process that loads it without a launcher (mpi4py,
    which Lightning loads to ask for one): it says nothing of who sets that in itself, nor of what that starts.
    """
    if identity is None or identity.launcher != "mpirun":
        return False
    return identity.rank == 0 and identity.world_size in (None, 1)


class ProcessTable:
    """All processes below one /proc. ``version`` grows with every change that may change the ranks.

    ``only``: gives the pids of those that matter, which are looked at with what they started, and no other process.
    """

    def __init__(self, root: str, only: Callable[[], Iterable[int]] | None = None) -> None:
        self.root = root
        self._only = only
        self.processes: dict[int, Process] = {}
        self.version = 0
        self._last_now = float("-inf")

    def refresh(self, now: float) -> None:
        """One tick. ``now``: seconds of one clock; when it goes backwards everything is examined again."""
        listed = set(procfs.list_pids(self.root)) if self._only is None else below(self.root, self._only())
        self.forget(self.processes.keys() - listed, now)
        backwards = now < self._last_now
        due = [p.pid for p in self.processes.values() if p.due_at <= now or backwards]
        for pid in due:
            self.examine(pid, now)
        for pid in listed - self.processes.keys():
            self.examine(pid, now)
        self._last_now = now

    def forget(self, pids: Collection[int], now: float) -> None:
        """Processes that have ended. Their children's new parents are read at the next examination."""
        ended = {pid for pid in pids if self.processes.pop(pid, None) is not None}
        if not ended:
            return
        self.version += 1
        for process in self.processes.values():
            if process.ppid in ended:
                process.due_at = now

    def examine(self, pid: int, now: float) -> None:
        """Read what may have changed of a process, or that it is gone."""
        process = self.processes.get(pid)
        try:
            stat = procfs.read_stat(self.root, pid)
        except procfs.GONE:
            self.forget((pid,), now)
            return
        except PermissionError:
            if process is None:
                process = self.processes[pid] = Process(pid, 0, 0, 0, "", "", (b"", b"", b""), access="hidden")
                self.version += 1
            self._schedule(process, now)
            return
        if process is None or process.start_ticks != stat.start_ticks:
            if process is not None:
                self.forget((pid,), now)
            process = self._new(pid, stat, now)
        elif not process.dead and (stat.image != process.image or process.access != "readable"):
            self._read_image(process, stat, now)
        self._note(process, stat)
        self._schedule(process, now)

    def _new(self, pid: int, stat: procfs.Stat, now: float) -> Process:
        process = Process(
            pid=pid,
            start_ticks=stat.start_ticks,
            ppid=stat.ppid,
            session=stat.session,
            comm=stat.comm,
            state=stat.state,
            image=stat.image,
            kernel_thread=stat.kernel_thread,
            began_at=now,
        )
        self.processes[pid] = process
        self.version += 1
        if not process.kernel_thread:
            self._read_image(process, stat, now)
        return process

    def _note(self, process: Process, stat: procfs.Stat) -> None:
        if process.ppid != stat.ppid or process.dead != (stat.state in ("Z", "X")):
            self.version += 1
        process.ppid, process.session, process.state = stat.ppid, stat.session, stat.state
        if process.comm != stat.comm:
            process.comm = stat.comm
            if not process.dead:
                process.argv = procfs.read_argv(self.root, process.pid) or process.argv  # a title comes with a name
            role = role_of(process.argv, process.exe, process.comm)
            process.looks, process.look_at = 0, 0.0
            if role != process.role and not process.dead:
                process.role = role
                self.version += 1

    def _read_image(self, process: Process, stat: procfs.Stat, now: float) -> None:
        """Everything that an exec replaces. A zombie has lost it: what was known of it stays."""
        if stat.state in ("Z", "X"):
            if process.uid is None:
                process.uid = procfs.owner_of(self.root, process.pid)
            return
        before = (process.identity, process.role, process.access, process.image)
        try:
            if process.image != stat.image:
                process.layout = None
                process.was_child, process.job, process.order, process.family = False, "", None, 0
                process.live, process.live_denied, process.uses, process.in_group = {}, False, frozenset(), False
                process.is_known = False
                process.looks, process.look_at, process.began_at = 0, 0.0, now
            environ = procfs.read_environ(self.root, process.pid)
            process.variables = parse_environ(environ)
            process.access = "overwritten" if environ and not environ.strip(b"\0") else "readable"
            process.uid = procfs.read_status(self.root, process.pid).uid
        except (PermissionError, procfs.Silent) as error:
            process.access = "silent" if isinstance(error, procfs.Silent) else "denied"
            process.uid = procfs.owner_of(self.root, process.pid)
        except procfs.GONE:
            return
        process.argv = procfs.read_argv(self.root, process.pid)
        process.exe = procfs.read_exe(self.root, process.pid)
        process.role = role_of(process.argv, process.exe, stat.comm)
        process.image, process.comm = stat.image, stat.comm
        process.identify()
        if before != (process.identity, process.role, process.access, process.image):
            self.version += 1

    def _schedule(self, process: Process, now: float) -> None:
        process.checks += 1
        if process.checks < _EARLY_CHECKS:
            process.due_at = now
        elif process.checks == _EARLY_CHECKS:
            # At a different tick for each pid, so that no tick examines them all.
            process.due_at = now + RECHECK_S * (1 + process.pid % 30) / 30
        else:
            process.due_at = now + RECHECK_S


def below(root: str, pids: Iterable[int]) -> set[int]:
    """These processes and all that they started."""
    return {member for pid in pids for member in (pid, *descendants(root, pid))}


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
