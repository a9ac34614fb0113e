"""CPU time and memory of processes, by /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Seconds on a CPU of all live threads of a process, to the nanosecond (schedstat), 0 when it has ended."""
    total_ns = 0
    for task in _tasks(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended while we looked
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []


def children_of(pid: int) -> list[int]:
    """All descendants."""
    found: list[int] = []
    for task in _tasks(pid):
        try:
            direct = [int(word) for word in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in direct:
            found += [child, *children_of(child)]
    return found


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def pss_mib(pid: int) -> float:
    """Pages that processes share count as a part each. OSError when it has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def family_cpu_s(pid: int) -> float:
    """Seconds on a CPU of a process and its descendants, those included that have ended and been waited for.

    By the kernel's ticks (10 ms). OSError when it has ended.
    """
    return _ticks(pid) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime
    total = sum(map(int, own))
    for child in children_of(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total
