"""The one name of a process's cgroup, whatever version the machine uses. Source: /proc/PID/cgroup (cgroups(7))."""

from __future__ import annotations

# Version 1 has one hierarchy per controller: jobs are told apart best by memory's, then by the processors'.
_FIRST_CHOICES = ("memory", "cpu")


def cgroup_of(text: str) -> str:
    """Its path, below /sys/fs/cgroup or, in version 1, below /sys/fs/cgroup/memory; "/" when the text names none."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and path.startswith("/"):
            for name in controllers.split(","):
                paths.setdefault(name, path)
    for name in (*_FIRST_CHOICES, ""):
        if name in paths:
            return paths[name]
    return "/"
