"""Where the files of a process's cgroup are, in version 1, version 2 and where both are in use.

Pure parsing of /proc/PID/cgroup and /proc/self/mountinfo (cgroups(7), proc_pid_mountinfo(5)).
"""

from __future__ import annotations

from dataclasses import dataclass

CONTROLLERS = ("memory", "cpu")
UNIFIED = ""  # the name of version 2's only hierarchy


@dataclass(frozen=True)
class Place:
    """A cgroup's folder is ``base + path``; its ancestors are between them. ``version``: 1 or 2."""

    version: int
    base: str
    path: str

    def folders(self) -> list[str]:
        """Its own folder first, then all above up to the hierarchy's root as it is seen here."""
        parts = [part for part in self.path.split("/") if part]
        return [self.base + "".join(f"/{part}" for part in parts[:depth]) for depth in range(len(parts), -1, -1)]


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup file system. ``inside``: the cgroup that its mount point shows (a container's own)."""

    version: int
    controllers: frozenset[str]
    mount: str
    inside: str = "/"


# Where they are on every distribution, for when mountinfo is not at hand.
USUAL = (
    Hierarchy(1, frozenset(("memory",)), "/sys/fs/cgroup/memory"),
    Hierarchy(1, frozenset(("cpu",)), "/sys/fs/cgroup/cpu"),
    Hierarchy(2, frozenset(), "/sys/fs/cgroup"),
)


def parse_paths(text: str) -> dict[str, str]:
    """/proc/PID/cgroup: path by controller, version 2's under UNIFIED."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, separator, path = rest.partition(":")
        if separator and path.startswith("/"):
            for name in names.split(","):
                paths.setdefault(name, path)
    return paths


def parse_mounts(mountinfo: str) -> list[Hierarchy]:
    """All mounted hierarchies; of several mounts of one the first."""
    found: list[Hierarchy] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        controllers = frozenset(kind[2].split(",")) & frozenset(CONTROLLERS) if version == 1 else frozenset[str]()
        if version == 2 or controllers:
            found.append(Hierarchy(version, controllers, fields[4], fields[3]))
    return found


def place(controller: str, paths: dict[str, str], hierarchies: list[Hierarchy]) -> Place | None:
    """Where the controller's files of a process with these paths are; None where they are not visible here."""
    version = 1 if controller in paths else 2
    path = paths.get(controller, paths.get(UNIFIED))
    if path is None or "/.." in path:  # outside of our own cgroup namespace
        return None
    for one in hierarchies:
        if one.version != version or (version == 1 and controller not in one.controllers):
            continue
        inside = one.inside.rstrip("/")
        if path == inside or path.startswith(inside + "/"):
            return Place(version, one.mount, path[len(inside) :])
        if "/.." in inside:  # mounted from above our namespace's root: its files are not ours
            continue
        return None
    return None
