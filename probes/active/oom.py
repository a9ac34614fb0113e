"""How many processes the kernel has killed for want of memory where this process runs."""

from __future__ import annotations

from mltop.probes import paths


def oom_kills() -> int | None:
    """Of this process's cgroup and those below it (memory.events, cgroup v2), else of the machine (/proc/vmstat).

    None where the kernel counts neither.
    """
    for path, name in ((_cgroup_events(), "oom_kill"), (paths.proc("vmstat"), "oom_kill")):
        found = _number(path, name) if path else None
        if found is not None:
            return found
    return None


def _cgroup_events() -> str:
    for line in _lines(paths.proc("self/cgroup")):
        if line.startswith("0::"):
            return paths.sys("fs/cgroup" + line[3:].rstrip("/"), "memory.events")
    return ""


def _number(path: str, name: str) -> int | None:
    for line in _lines(path):
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
