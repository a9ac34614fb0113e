"""What could not be seen of the processes, in words: never silence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.layout import title_of
from mltop.probes.collect.ranks.roles import looks_like_python
from mltop.probes.collect.ranks.roster import MOST_RANKS_OF_A_USER
from mltop.probes.collect.ranks.table import ProcessTable, Rank
from mltop.probes.collect.sysfile import read_link, read_long_known
from mltop.probes.model import Gap
from mltop.probes.model.units import counted
from mltop.probes.system.writable import name_of_user

_NOT_HIDING = ("0", "off")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h


@cache
def user_name(uid: int | None) -> str:
    """The user's name, the number when the system knows none, "" for unknown."""
    return "" if uid is None else name_of_user(uid) or str(uid)


def access_gaps(table: ProcessTable, gpu_pids: set[int], own_pid: int) -> list[Gap]:
    """Gaps about processes other than our own that cannot be read or are hidden."""
    gaps = [_denied_gap(table, gpu_pids, own_pid), _overwritten_gap(table), _hidden_gap(table)]
    return [gap for gap in gaps if gap is not None]


def doubtful_gaps(ranks: Sequence[Rank]) -> Iterator[Gap]:
    """What processes say of themselves that is not believed, and whose ranks are too many to be all shown."""
    doubtful = [rank for rank in ranks if rank.identity.unbelieved]
    if doubtful:
        first = doubtful[0]
        more = f", and {len(doubtful) - 1} more processes" if len(doubtful) > 1 else ""
        values = ", ".join(first.identity.unbelieved)
        who = f"pid {first.process.pid} of {user_name(first.process.uid) or 'an unknown user'}"
        why = f"{who} has {values}{more}: no job has such numbers, they count as unknown"
        yield Gap.about("ranks", why=why)
    counts = Counter(rank.process.uid for rank in ranks)
    for uid in sorted((uid for uid, count in counts.items() if count >= MOST_RANKS_OF_A_USER), key=str):
        why = f"{user_name(uid)} has {MOST_RANKS_OF_A_USER} ranks or more on this node: only so many are looked at"
        yield Gap.about("ranks", why=why, fix=f"see what they are: pgrep -c -u {uid} .")


def permission_gap(*fields: str, why: str) -> Gap:
    """Something of ranks that we may not read, with the command that makes other users' processes readable."""
    fix = "sudo mltop" if os.geteuid() != 0 else "start the container with --cap-add=SYS_PTRACE"
    return Gap.about("ranks", *fields, why=why, fix=fix, code="no_permission")


def unreadable_counters_gap(users: Sequence[str]) -> Gap:
    """One line for all ranks, of these users, whose /proc/PID/io is not readable."""
    why = f"system call counts of {counted(len(users), 'rank')}{named(users)}: permission denied"
    return permission_gap("syscalls", why=why)


def _hidden_gap(table: ProcessTable) -> Gap | None:
    """A /proc mounted with hidepid (proc(5)), when that takes effect on us: pid 1 is not readable."""
    root, first = table.root, table.processes.get(1)
    mounts = read_long_known(f"{root}/self/mounts", 1 << 20).decode("utf-8", "replace")
    of_proc = [fields for line in mounts.splitlines() if len(fields := line.split()) > 3 and fields[2] == "proc"]
    options = [option for fields in of_proc if fields[1] in (root, "/proc") for option in fields[3].split(",")]
    option = next((option[len("hidepid=") :] for option in options if option.startswith("hidepid=")), "0")
    if option in _NOT_HIDING or (first is not None and first.access != "hidden"):
        return None
    why = f"/proc is mounted with hidepid={option}: other users' processes and their ranks are not shown"
    return permission_gap(why=why)


def _denied_gap(table: ProcessTable, gpu_pids: set[int], own_pid: int) -> Gap | None:
    denied = [p for p in table.processes.values() if p.access == "denied" and not p.dead and p.pid != own_pid]
    python = [p for p in denied if looks_like_python(p.argv, p.exe, p.comm)]
    on_gpu = [p for p in denied if p.pid in gpu_pids and p not in python]
    count = len(python) + len(on_gpu)
    if count == 0:
        return None
    kind = "GPU" if not python else "Python or GPU" if on_gpu else "Python"
    noun, their = ("process", "its rank is") if count == 1 else ("processes", "their ranks are")
    who = named(user_name(p.uid) for p in python + on_gpu)
    return permission_gap(why=f"{count} {kind} {noun}{who} cannot be read (permission denied): {their} not shown")


def _overwritten_gap(table: ProcessTable) -> Gap | None:
    count = sum(
        p.access == "overwritten"
        and (p.identity is None and looks_like_python([], p.exe, p.comm))
        # What its environment is by now could not be read either, and it may be a rank.
        and (not p.live and title_of(p.argv) is None and (bool(p.uses) or not p.is_known))
        for p in table.processes.values()
    )
    if count == 0:
        return None
    noun, verb = ("process", "has") if count == 1 else ("processes", "have")
    why = f"{count} Python {noun} {verb} written a title over the environment (setproctitle): rank unknown"
    return Gap.about("ranks", why=why, fix="export SPT_NOENV=1 in the job")


def live_gaps(unassigned: Sequence[Rank]) -> Iterator[Gap]:
    """About processes of no job that may be ranks, but do not let us read what they have set since their start."""
    denied = [rank.process for rank in unassigned if rank.process.live_denied]
    if denied:
        who = "1 Python process" if len(denied) == 1 else f"{len(denied)} Python processes"
        who += named(user_name(process.uid) for process in denied)
        why = f"what {who} set after the start cannot be read (permission denied): whether they are ranks is unknown"
        yield permission_gap("environment", why=why)


def silent_gaps(root: str) -> list[Gap]:
    """For each user one of whose processes does not let its memory be read."""
    return [
        Gap.about(
            "ranks",
            "environment",
            why=f"the memory of pid {held.pid} of {user_name(uid) or 'an unknown user'} does not answer: "
            "new ranks of this user are not detected",
        )
        for (of, uid), held in list(procfs.silent.items())
        if of == root and not held.is_over
    ]


@cache
def in_first_namespace(root: str) -> bool:
    """Whether our PID namespace is the machine's first one, in which every process has a pid (pid_namespaces(7))."""
    return read_link(f"{root}/self/ns/pid") == _FIRST_PID_NAMESPACE


def named(users: Iterable[str]) -> str:
    """ " of alice, bob and 2 others", "" for nobody."""
    names = sorted({user for user in users if user})
    if not names:
        return ""
    return " of " + ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
