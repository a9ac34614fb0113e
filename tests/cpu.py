"""CPU time of processes, to the nanosecond (/proc/PID/task/*/schedstat, first field)."""

from __future__ import annotations

import contextlib
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Seconds on a CPU of all live threads of a process, 0 when it has ended."""
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
