"""What /proc says of one process just before it is dumped, and lines of its source files as it sees them.

Source: proc(5), status, wchan, task/TID.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.sysfile import read_text
from mltop.probes.system import paths
from mltop.probes.system.files import BadFile, read_regular
from mltop.probes.system.writable import in_time

STOPPED = ("T", "t")  # by a signal, by a debugger
_MAX_SOURCE_BYTES = 4 * 1024 * 1024
# A process that changes its own memory map may make us wait for it; its user's other ranks have theirs read.
_MEMORY_S = 0.3
# From pthread_self() to the thread's id: glibc on x86_64 and aarch64, then musl on both (struct pthread).
_TID_AT = (720, 208, 48, 32)


@dataclass
class ProcessFacts:
    """``state`` is one letter (R S D T t Z …), "" when the process is gone. ``inner_pid`` is its pid in its
    own (container's) namespace. ``wchan`` is the kernel function it sleeps in, None when none is told.
    """

    pid: int
    state: str = ""
    tracer_pid: int = 0
    parent_pid: int = 0
    inner_pid: int = 0
    uid: int = -1
    wchan: str | None = None

    @property
    def must_not_block(self) -> bool:
        """A blocking dump would hang (D) or fail (stopped, traced by another process)."""
        return self.state in ("D", *STOPPED) or self.tracer_pid != 0


@dataclass
class TaskFacts:
    """One thread: its kernel name (comm), state and kernel function it sleeps in; its voluntary switches, seconds on a
    CPU, and reads and writes so far.
    """

    name: str = ""
    state: str = ""
    wchan: str | None = None
    switches: int | None = None
    cpu_s: float | None = None
    syscalls: int | None = None


def read_facts(pid: int) -> ProcessFacts:
    """What /proc says of a process. Never raises: one that is gone has state ""."""
    fields = _status(pid)
    if not fields:
        return ProcessFacts(pid)
    return ProcessFacts(
        pid=pid,
        state=fields.get("State", "")[:1],
        tracer_pid=int(fields.get("TracerPid", "0")),
        parent_pid=int(fields.get("PPid", "0")),
        inner_pid=int(fields.get("NSpid", str(pid)).split()[-1]),
        uid=int(fields.get("Uid", "-1").split()[0]),
        wchan=procfs.read_wchan(paths.proc(pid)),
    )


def _status(process: object) -> dict[str, str]:
    """{} when it is gone. ``process``: a pid, or PID/task/TID."""
    lines = (line.partition(":") for line in (read_text(paths.proc(process, "status")) or "").splitlines())
    return {name: value.strip() for name, _, value in lines}


def name_of(pid: int) -> str:
    """The process's name as the kernel keeps it (comm), "" when it is gone."""
    return read_text(paths.proc(pid, "comm")) or ""


def _threads_of(pid: int) -> list[str]:
    """ "PID/task/TID" of each."""
    try:
        return [f"{pid}/task/{tid}" for tid in sorted(os.listdir(paths.proc(pid, "task")))]
    except OSError:
        return []


def has_other_threads(pid: int) -> bool:
    """True for a "zombie" whose main thread has exited while others run."""
    return len(_threads_of(pid)) > 1


def read_tasks(pid: int) -> dict[int, TaskFacts]:
    """The threads by their ids as seen inside the process's own namespace, which is how py-spy names threads."""
    tasks = {}
    for thread in _threads_of(pid):
        fields = _status(thread)
        if "NSpid" in fields:
            inner_tid = int(fields["NSpid"].split()[-1])
            switches = fields.get("voluntary_ctxt_switches", "")
            tasks[inner_tid] = TaskFacts(
                fields.get("Name", ""),
                fields.get("State", "")[:1],
                procfs.read_wchan(paths.proc(thread)),
                int(switches) if switches.isdigit() else None,
                procfs.parse_main_cpu_s((read_text(paths.proc(thread, "schedstat")) or "").encode()),
                procfs.parse_calls((read_text(paths.proc(thread, "io")) or "").encode()),
            )
    return tasks


def kernel_ids(pid: int, handles: Iterable[int], among: Collection[int]) -> dict[int, int]:
    """Ids of threads by their pthread_self(), as far as the process's memory shows them; ``among``: those it has.

    Source: proc_pid_mem(5). Needs the same permission as py-spy.
    """

    def look() -> dict[int, int]:
        found: dict[int, int] = {}
        with suppress(OSError), open(paths.proc(pid, "mem"), "rb", buffering=0) as memory:
            for handle, at in ((handle, at) for handle in handles for at in _TID_AT):
                with suppress(OSError, OverflowError):  # not mapped, no address
                    tid = int.from_bytes(os.pread(memory.fileno(), 4, handle + at), sys.byteorder)
                    if tid in among:
                        found.setdefault(handle, tid)
        return found

    return in_time(look, _MEMORY_S) or {}


def activity(pid: int) -> str:
    """A text that changes when any thread of the process has run; "" when it is gone.

    CPU ticks alone miss what sleeps most of the time, so every thread's switches count too. Source: proc(5).
    """
    switches = [
        fields.get(f"{kind}_ctxt_switches", "")
        for fields in map(_status, _threads_of(pid))
        for kind in ("voluntary", "nonvoluntary")
    ]
    ticks = (read_text(paths.proc(pid, "stat")) or "").rpartition(")")[2].split()[11:13]  # utime, stime
    return " ".join([*switches, *ticks])


class SourceLines:
    """Reads source lines through /proc/PID/root (containers) or /proc/PID/cwd (relative names), once each.

    The read has a deadline, because a training hang is often a file system that hangs: a file that did not answer once
    is not asked again.
    """

    def __init__(self, deadline_s: float = 0.3) -> None:
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._files: dict[tuple[str, int], list[str]] = {}

    def line(self, pid: int, filename: str, number: int) -> str | None:
        """The text of line ``number`` (from 1), None when it cannot be read (soon enough)."""
        if filename.startswith("<"):
            return None
        below = "root" if filename.startswith("/") else "cwd"
        path = paths.proc(pid, below, filename.lstrip("/"))
        # Ranks of one job share their root; the pid in the path differs, the file does not.
        key = (path.split(f"/{pid}/", 1)[-1], _mount_namespace(pid))
        with self._lock:
            if key not in self._files:
                self._files[key] = in_time(lambda: _source(path), self._deadline_s) or []
            lines = self._files[key]
        return lines[number - 1] if 0 < number <= len(lines) else None


def _mount_namespace(pid: int) -> int:
    try:
        return os.stat(paths.proc(pid, "ns/mnt")).st_ino
    except OSError:
        return pid


def _source(path: str) -> list[str]:
    try:
        return read_regular(path, _MAX_SOURCE_BYTES).decode("utf-8", "replace").splitlines()
    except (BadFile, OSError):
        return []
