"""CPU time of processes, to the nanosecond (/proc/PID/task/*/schedstat, first field)."""

from __future__ import annotations

from pathlib import Path


def cpu_s(pid: int) -> float:
    """Seconds on a CPU of all live threads of a process."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def children_of(pid: int) -> list[int]:
    """All descendants."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            direct = [int(word) for word in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in direct:
            found += [child, *children_of(child)]
    return found


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20
