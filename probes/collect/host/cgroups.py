"""Where the files of a process's cgroup are, in version 1, version 2 and where both are in use.

Pure parsing of /proc/PID/cgroup and /proc/self/mountinfo (cgroups(7), proc_pid_mountinfo(5)).

Limits and use of one cgroup. Source: cgroup-v2.rst, cgroup-v1/memory.rst, sched-bwc.rst of the kernel.

The cgroups that ranks and mltop itself run in: what they may use, what they use, how often they had to pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.collect.host.part import Reading, starting, unsupported
from mltop.probes.collect.ranks.details import cgroup_of
from mltop.probes.collect.sysfile import number_after, read_file, read_long, read_number, read_text
from mltop.probes.model import UNLIMITED, CgroupSample, Gap, RankSample

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


_V1_UNLIMITED = 1 << 62  # version 1 prints the largest number of whole pages

_MEMORY = {
    1: {"limit": "memory.limit_in_bytes", "used": "memory.usage_in_bytes", "killed": "memory.oom_control"},
    2: {"limit": "memory.max", "used": "memory.current", "killed": "memory.events"},
}
_IDLE_CACHE = {1: b"\ntotal_inactive_file ", 2: b"\ninactive_file "}


@dataclass(frozen=True)
class MemoryLimit:
    """The lowest limit of a cgroup and its ancestors, and whose it is; ``bytes`` None: there is none."""

    folder: str
    bytes: int | None


@dataclass(frozen=True)
class CpuLimit:
    """``cores``: the lowest quota, None: there is none. ``folders``: all that have a quota."""

    cores: float | None
    folders: tuple[str, ...]


def lowest_memory_limit(root: str, place: Place) -> MemoryLimit | None:
    """None where no memory controller is at work on this cgroup."""
    limits = [
        MemoryLimit(folder, limit if limit < _V1_UNLIMITED else None)
        for folder in place.folders()
        if (limit := _limit_bytes(f"{root}{folder}/{_MEMORY[place.version]['limit']}")) is not None
    ]
    if not limits:
        return None
    return min(limits, key=lambda one: _V1_UNLIMITED if one.bytes is None else one.bytes)


def _limit_bytes(path: str) -> int | None:
    text = read_text(path)
    if text == "max":
        return _V1_UNLIMITED
    return int(text) if text is not None and text.isdigit() else None


def memory_used(root: str, place: Place, folder: str) -> int | None:
    """Bytes in use that the kernel cannot simply drop: without page cache that is not in use (as kubelet counts)."""
    used = read_number(f"{root}{folder}/{_MEMORY[place.version]['used']}")
    if used is None:
        return None
    try:
        stat = b"\n" + read_file(f"{root}{folder}/memory.stat")
    except OSError:
        return used
    return max(0, used - (number_after(stat, _IDLE_CACHE[place.version]) or 0))


def oom_kills(root: str, place: Place) -> int | None:
    """Processes of this cgroup that the kernel has killed for memory."""
    try:
        data = read_file(f"{root}{place.folders()[0]}/{_MEMORY[place.version]['killed']}")
    except OSError:
        return None
    return number_after(b"\n" + data, b"\noom_kill ")


def lowest_cpu_limit(root: str, place: Place) -> CpuLimit:
    """Of this cgroup and all above it."""
    quotas = {folder: quota for folder in place.folders() if (quota := _quota(root + folder, place.version))}
    return CpuLimit(min(quotas.values(), default=None), tuple(quotas))


def _quota(folder: str, version: int) -> float | None:
    """Cores; None without a quota."""
    if version == 2:
        words = (read_text(f"{folder}/cpu.max") or "").split()
    else:
        words = [read_text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def throttling(root: str, folder: str) -> tuple[int, int] | None:
    """Periods that have passed, and those in which the cgroup had to pause."""
    try:
        data = b"\n" + read_file(f"{root}{folder}/cpu.stat")
    except OSError:
        return None
    periods, throttled = number_after(data, b"\nnr_periods "), number_after(data, b"\nnr_throttled ")
    return None if periods is None or throttled is None else (periods, throttled)


_WHAT = "host.cgroups"
_THROTTLING = "host.cgroups.cpu"
_LIMITS_KEPT_S = 30.0
_MAX_CGROUPS = 40


@dataclass
class _Cgroup:
    """One cgroup between reads. ``periods``: those passed and those throttled, by folder."""

    path: str
    memory: Place | None
    cpu: Place | None
    limits_at: float = float("-inf")
    memory_limit: MemoryLimit | None = None
    cpu_limit: CpuLimit | None = None
    periods: dict[str, tuple[int, int]] = field(default_factory=dict)


class Cgroups:
    """``cgroups``: first our own. What limits a cgroup may be one above it: its limit and use are then told.

    ``memory_limit_bytes`` is UNLIMITED, and ``cpu_limit_cores`` None, where there is no limit.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, _Cgroup] = {}

    def read(self, now: float, ranks: Sequence[RankSample]) -> Reading:
        own = read_text(f"{self._root}/proc/self/cgroup")
        if own is None:
            return Reading(gaps=[unsupported(_WHAT, "this kernel has no cgroups")])
        wanted = {cgroup_of(own): "self"}
        for rank in ranks:
            if rank.cgroup is not None:
                wanted.setdefault(rank.cgroup, str(rank.pid))
        self._keep(wanted)
        shown = [self._sample(self._known[path], now) for path in list(self._known)[:_MAX_CGROUPS]]
        hidden = [one.path for one in self._known.values() if one.memory is None and one.cpu is None]
        gaps = self._gaps(hidden, len(wanted))
        without = [one.path for one in shown if one.memory_limit_bytes is None and one.path not in hidden]
        if without:
            gaps.append(unsupported("host.cgroups.memory", f"no memory controller is at work on {_named(without)}"))
        return Reading({"cgroups": shown}, gaps + self._throttling_gaps(shown, hidden))

    def _throttling_gaps(self, shown: list[CgroupSample], hidden: list[str]) -> list[Gap]:
        gaps = []
        untold = [one.path for one in shown if one.cpu_throttled_fraction is None and one.path not in hidden]
        first = [path for path in untold if self._known[path].periods]
        without = [path for path in untold if self._known[path].cpu_limit is None]
        unread = [path for path in untold if path not in first and path not in without]
        if first:
            gaps.append(starting(_THROTTLING, "first look: shares need two"))
        if without:
            gaps.append(unsupported(_THROTTLING, f"no CPU controller is at work on {_named(without)}"))
        if unread:
            gaps.append(Gap(_THROTTLING, f"cpu.stat of {_named(unread)} cannot be read"))
        return gaps

    def _keep(self, wanted: dict[str, str]) -> None:
        for path in self._known.keys() - wanted.keys():
            del self._known[path]
        new = wanted.keys() - self._known.keys()
        if not new:
            return
        hierarchies = self._hierarchies()
        for path, process in wanted.items():
            if path in new:
                paths = parse_paths(read_text(f"{self._root}/proc/{process}/cgroup") or "")
                memory, cpu = (place(name, paths, hierarchies) for name in CONTROLLERS)
                self._known[path] = _Cgroup(path, memory, cpu)

    def _hierarchies(self) -> list[Hierarchy]:
        try:
            mounts = read_long(f"{self._root}/proc/self/mountinfo").decode("utf-8", "replace")
        except OSError:
            mounts = ""
        return parse_mounts(mounts) or list(USUAL)

    def _sample(self, one: _Cgroup, now: float) -> CgroupSample:
        if not 0 <= now - one.limits_at < _LIMITS_KEPT_S:
            one.limits_at = now
            one.memory_limit = lowest_memory_limit(self._root, one.memory) if one.memory else None
            one.cpu_limit = lowest_cpu_limit(self._root, one.cpu) if one.cpu else None
        sample = CgroupSample(one.path)
        if one.memory is not None and one.memory_limit is not None:
            limit = one.memory_limit
            folder = limit.folder if limit.bytes is not None else one.memory.folders()[0]
            sample.memory_limit_bytes = UNLIMITED if limit.bytes is None else limit.bytes
            sample.memory_used_bytes = memory_used(self._root, one.memory, folder)
            sample.oom_kills = oom_kills(self._root, one.memory)
        elif one.memory is not None and one.path == "/":
            sample.memory_limit_bytes = UNLIMITED  # version 2's root has no files for it
        if one.cpu_limit is not None:
            sample.cpu_limit_cores = one.cpu_limit.cores
            sample.cpu_throttled_fraction = self._throttled(one, one.cpu_limit)
        return sample

    def _throttled(self, one: _Cgroup, limit: CpuLimit) -> float | None:
        """The largest share among those that have a quota; 0 where none has."""
        if not limit.folders:
            return 0.0
        shares = []
        before, one.periods = one.periods, {}
        for folder in limit.folders:
            counted = throttling(self._root, folder)
            if counted is None:
                continue
            one.periods[folder] = counted
            if folder in before and counted[0] >= before[folder][0]:
                passed = counted[0] - before[folder][0]  # none pass while nothing wants to run
                shares.append(min(1.0, max(0, counted[1] - before[folder][1]) / passed) if passed else 0.0)
        return max(shares, default=None)

    def _gaps(self, hidden: list[str], count: int) -> list[Gap]:
        gaps = []
        if hidden:
            why = f"limits of {_named(hidden)} are not visible here (another cgroup namespace, or no /sys/fs/cgroup)"
            gaps.append(Gap(_WHAT, why, "run mltop on the host"))
        if count > _MAX_CGROUPS:
            gaps.append(Gap("host.cgroups.more", f"{count} cgroups are in use: {_MAX_CGROUPS} are shown"))
        return gaps


def _named(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} cgroups ({paths[0]}, …)"
