"""Files of /proc/PID, parsed by hand: this runs for every rank every second.

A process may disappear between any two reads: then these raise one of ``GONE``. Without permission they raise
PermissionError. Source: proc_pid_stat(5), proc_pid_status(5), proc_pid_io(5) and their neighbours.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Callable, NamedTuple, TypeVar, cast

from mltop.probes.collect.sysfile import number_after, read_file, read_known, read_link, read_long, read_long_known
from mltop.probes.system.writable import in_time

# ESRCH comes from reading a file that was opened before the process ended.
GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_CHILDREN_BYTES = 1 << 20
_ENVIRON_BYTES, MAPS_BYTES = 1 << 20, 4 << 20
_ARGV_BYTES = _VALUE_BYTES = 8192
SILENT_S, ALONE_S = 1.0, 30.0
Result = TypeVar("Result")


class Silent(OSError):
    """The memory of ``pid`` does not answer. Also raised of its user's other processes, which are left alone then."""

    def __init__(self, pid: int) -> None:
        super().__init__(errno.ETIMEDOUT, f"the memory of pid {pid} does not answer")
        self.pid = pid


class Held(NamedTuple):
    """The process that does not answer, the thread that waits for it, and until when its user is left alone."""

    pid: int
    thread: threading.Thread
    until_s: float

    @property
    def is_over(self) -> bool:
        return not self.thread.is_alive() and time.monotonic() >= self.until_s


silent: dict[tuple[str, int | None], Held] = {}  # by /proc and user


def from_memory(root: str, pid: int, read: Callable[[], Result]) -> Result:
    """``read()``, which needs the memory of a process (its environ, cmdline, maps, mem). Raises Silent after SILENT_S.

    The owner can make that wait forever, and not even SIGKILL ends it: a page that a FUSE server of theirs does not
    give is waited for with the lock of the memory held. So a thread reads, and each user holds up one at most.
    """
    key = root, read_status(root, pid).uid  # not the owner of the folder, which is root where a process is not dumpable
    for other, held in list(silent.items()):
        if held.is_over:
            silent.pop(other, None)
        elif other == key:
            raise Silent(held.pid)

    def late(thread: threading.Thread) -> None:
        silent[key] = Held(pid, thread, time.monotonic() + ALONE_S)
        raise Silent(pid)

    limit_s = SILENT_S / (1 + len(silent))  # of many users together not much longer than of one
    return cast(Result, in_time(read, limit_s, late))


@dataclass
class Stat:
    """The fields of /proc/PID/stat in use. ``image`` changes with every exec, never otherwise.

    ``cpu_ticks`` is user and system time of all threads, ``start_ticks`` counts from boot. ``threads``: 1 of a zombie;
    of a process whose first thread has ended before the others (it looks as a zombie) more. ``exit_status``: of a
    zombie as of wait(2); 0 also where we may not know it.
    """

    comm: str
    state: str
    ppid: int
    session: int
    kernel_thread: bool
    cpu_ticks: int
    start_ticks: int
    image: tuple[bytes, bytes, bytes]
    threads: int = 1
    exit_status: int = 0

    @property
    def has_ended(self) -> bool:
        return self.state in ("Z", "X") and self.threads <= 1


@dataclass
class Status:
    """The fields of /proc/PID/status in use. The switches are those of the main thread only."""

    uid: int | None
    rss_bytes: int | None
    cpus_allowed: str | None
    numa_nodes: str | None
    voluntary_switches: int | None


def list_pids(root: str) -> list[int]:
    """All process ids below the given /proc, in no order."""
    return [int(name) for name in os.listdir(root) if name.isdigit()]


def read_stat(root: str, pid: int) -> Stat:
    return parse_stat(read_file(f"{root}/{pid}/stat"))


def parse_stat(data: bytes) -> Stat:
    """The command name may hold spaces and brackets, so fields are counted after its last closing bracket."""
    opened, closed = data.find(b"("), data.rfind(b")")
    fields = data[closed + 2 :].split()
    if opened < 0 or closed < 0 or len(fields) < 26:
        raise ProcessLookupError("cut off /proc/PID/stat")
    return Stat(
        comm=data[opened + 1 : closed].decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        session=int(fields[3]),
        kernel_thread=bool(int(fields[6]) & _PF_KTHREAD),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        # startcode, endcode, startstack: laid out anew by each exec; 0 or 1 without permission
        image=(fields[23], fields[24], fields[25]),
        threads=int(fields[17]),
        exit_status=int(fields[49]) if len(fields) > 49 else 0,
    )


def read_status(root: str, pid: int) -> Status:
    return parse_status(read_file(f"{root}/{pid}/status"))


def parse_status(data: bytes) -> Status:
    rss_kib = number_after(data, b"VmRSS:")
    return Status(
        uid=number_after(data, b"Uid:"),
        rss_bytes=None if rss_kib is None else rss_kib * 1024,
        cpus_allowed=_text_after(data, b"\nCpus_allowed_list:"),
        numa_nodes=_text_after(data, b"\nMems_allowed_list:"),
        voluntary_switches=number_after(data, b"voluntary_ctxt_switches:"),
    )


def owner_of(root: str, pid: int) -> int | None:
    """The user that a process runs as; None where that cannot be read."""
    try:
        return read_status(root, pid).uid
    except OSError:
        return None


def parse_io(data: bytes) -> tuple[int | None, int | None]:
    """Counts of read-like and write-like system calls (syscr, syscw) of all threads of the process."""
    return number_after(data, b"syscr:"), number_after(data, b"syscw:")


def parse_calls(data: bytes) -> int | None:
    """Reads and writes together, of a thread's io."""
    reads, writes = parse_io(data)
    return None if reads is None or writes is None else reads + writes


def parse_main_cpu_s(data: bytes) -> float | None:
    """Seconds that a thread, or a process's main one, was on a CPU (schedstat's first number, ns); None in a kernel
    without it.
    """
    try:
        return int(data.split(None, 1)[0]) / 1e9
    except (IndexError, ValueError):
        return None


def read_wchan(folder: str) -> str | None:
    """As ``parse_wchan``, of a process or a thread by its folder below /proc; None also where it is gone."""
    return parse_wchan(read_known(f"{folder}/wchan") or b"")


def parse_wchan(data: bytes) -> str | None:
    """The kernel function in which a thread sleeps.

    None when it runs, when only root may know (the kernel then prints "0") or the kernel does not tell.
    """
    text = data.decode("ascii", "replace").strip()
    return None if text in ("", "0") else text


def read_exe(root: str, pid: int) -> str | None:
    """Path of the executable, None when it cannot be read (no permission, kernel thread, zombie)."""
    return read_link(f"{root}/{pid}/exe")


def read_argv(root: str, pid: int) -> list[str]:
    """The first 8 KiB of the command line; [] for kernel threads, zombies and unreadable ones.

    What is cut off ends in "…", so that nobody takes the head of a token for a word.
    """
    try:
        data = from_memory(root, pid, lambda: read_long(f"{root}/{pid}/cmdline", _ARGV_BYTES))
    except OSError:
        return []
    if len(data) == _ARGV_BYTES and data[-1:] != b"\0":
        data += "…".encode()
    return data.rstrip(b"\0").decode("utf-8", "replace").split("\0") if data.strip(b"\0") else []


def read_children(root: str, pid: int) -> list[int] | None:
    """Direct children, those of every thread; None where the kernel has no /proc/PID/task/TID/children."""
    children: list[int] = []
    for thread in os.listdir(f"{root}/{pid}/task"):
        try:
            children += map(int, read_long(f"{root}/{pid}/task/{thread}/children", _CHILDREN_BYTES).split())
        except GONE:
            if thread == str(pid):
                return None
    return children


def read_environ(root: str, pid: int) -> bytes:
    """The environment at the last exec (at most 1 MiB); b"" for kernel threads and zombies."""
    return from_memory(root, pid, lambda: read_long(f"{root}/{pid}/environ", _ENVIRON_BYTES))


def variables(environ: bytes, names: Collection[str]) -> dict[str, str]:
    """These of an environment; of one that is there twice the first, as getenv(3) has it, and of each 8 KiB."""
    found: dict[str, str] = {}
    for item in environ.split(b"\0"):
        name, separator, value = item.partition(b"=")
        if separator and (text := os.fsdecode(name)) in names:
            found.setdefault(text, os.fsdecode(value[:_VALUE_BYTES]))
    return found


def read_variables(root: str, pid: int, names: Collection[str]) -> dict[str, str]:
    """These of a process's environment at its last exec; none where that cannot be read."""
    try:
        return variables(read_environ(root, pid), names)
    except OSError:
        return {}


@cache
def boot_time(root: str) -> float | None:
    """When the machine started, unix s. Read once: with many CPUs /proc/stat takes milliseconds."""
    value = number_after(read_long_known(f"{root}/stat", 1 << 20), b"btime")
    return None if value is None else float(value)


def started_at(root: str, start_ticks: int) -> float | None:
    """When a process started, unix s, of its ``Stat.start_ticks``."""
    booted_at = boot_time(root)
    return None if booted_at is None else booted_at + start_ticks / CLOCK_TICKS_PER_S


def _text_after(data: bytes, label: bytes) -> str | None:
    at = data.find(label)
    if at < 0:
        return None
    end = data.find(b"\n", at + 1)
    return data[at + len(label) : end if end >= 0 else len(data)].decode("ascii", "replace").strip()


def read_maps(root: str, pid: int) -> bytes:
    """What it has mapped (at most 4 MiB)."""
    return from_memory(root, pid, lambda: read_long(f"{root}/{pid}/maps", MAPS_BYTES))
