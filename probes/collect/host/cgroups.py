"""The cgroups that ranks and mltop itself run in: what they may use, what they use, how often they had to pause.

Where the files of a process's cgroup are differs between version 1, version 2 and where both are in use. Source:
/proc/PID/cgroup and /proc/self/mountinfo (cgroups(7), proc_pid_mountinfo(5)); cgroup-v2.rst, cgroup-v1/memory.rst,
sched-bwc.rst of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.collect.host.part import Reading
from mltop.probes.collect.ranks.details import cgroup_of, cgroup_paths
from mltop.probes.collect.sysfile import number_after, read_known, read_long_known, read_number, read_text
from mltop.probes.collect.timing import Pace
from mltop.probes.model import UNLIMITED, CgroupSample, RankSample
from mltop.probes.system.limits import cpu_quota

CONTROLLERS = ("memory", "cpu")
UNIFIED = ""  # the name of version 2's only hierarchy
_V1_UNLIMITED = 1 << 62  # version 1 prints the largest number of whole pages
_MEMORY_FILES = {
    1: {"limit": "memory.limit_in_bytes", "used": "memory.usage_in_bytes", "killed": "memory.oom_control"},
    2: {"limit": "memory.max", "used": "memory.current", "killed": "memory.events"},
}
_IDLE_CACHE = {1: b"total_inactive_file ", 2: b"inactive_file "}
_LIMITS_KEPT_S = 30.0
_MAX_CGROUPS = 40


@dataclass(frozen=True)
class CgroupFolder:
    """A cgroup's folder is ``base + path``; its ancestors are between them. ``version``: 1 or 2."""

    version: int
    base: str
    path: str

    def and_above(self) -> list[str]:
        """The cgroup's own folder first, then all above up to the hierarchy's root as it is seen here."""
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


def parse_mounts(mountinfo: str) -> list[Hierarchy]:
    """Returns all mounted hierarchies; of several mounts of one the first."""
    hierarchies: list[Hierarchy] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        controllers = frozenset(kind[2].split(",")) & frozenset(CONTROLLERS) if version == 1 else frozenset[str]()
        if version == 2 or controllers:
            hierarchies.append(Hierarchy(version, controllers, fields[4], fields[3]))
    return hierarchies


def folder_of(controller: str, paths: dict[str, str], hierarchies: list[Hierarchy]) -> CgroupFolder | None:
    """Returns where the controller's files of a process with these paths are; None where they are not visible here."""
    version = 1 if controller in paths else 2
    path = paths.get(controller, paths.get(UNIFIED))
    if path is None or "/.." in path:  # outside of our own cgroup namespace
        return None
    for hierarchy in hierarchies:
        if hierarchy.version != version or (version == 1 and controller not in hierarchy.controllers):
            continue
        inside = hierarchy.inside.rstrip("/")
        if path == inside or path.startswith(inside + "/"):
            return CgroupFolder(version, hierarchy.mount, path[len(inside) :])
        if "/.." in inside:  # mounted from above our namespace's root: its files are not ours
            continue
        return None
    return None


def oom_kills_file(root: str, pid: int) -> str | None:
    """Where the kernel counts the processes of this one's cgroup that it has killed for memory."""
    paths = cgroup_paths(read_text(f"{root}/proc/{pid}/cgroup") or "")
    mounts = read_long_known(f"{root}/proc/self/mountinfo").decode("utf-8", "replace")
    folder = folder_of("memory", paths, parse_mounts(mounts) or list(USUAL))
    if folder is None:
        return None
    files = [f"{root}{above}/{_MEMORY_FILES[folder.version]['killed']}" for above in folder.and_above()]
    return next((file for file in files if os.path.exists(file)), None)


def oom_kills_in(file: str) -> int | None:
    """Of such a file."""
    events = read_known(file)
    return None if events is None else number_after(events, b"oom_kill ")


class _Memory:
    """The memory controller's files of one cgroup. ``limit_folder``: whose limit is the lowest, of it and all above;
    ``limit_bytes`` None: there is none.
    """

    def __init__(self, root: str, folder: CgroupFolder) -> None:
        self._root = root
        self._version = folder.version
        self._files = _MEMORY_FILES[folder.version]
        self._own, *_ = folders = folder.and_above()
        limits = {above: limit for above in folders if (limit := self._limit(above)) is not None}
        self.is_at_work = bool(limits)
        self.limit_folder = min(limits, key=limits.__getitem__, default=self._own)
        lowest = limits.get(self.limit_folder, _V1_UNLIMITED)
        self.limit_bytes = lowest if lowest < _V1_UNLIMITED else None

    def _limit(self, folder: str) -> int | None:
        text = read_text(f"{self._root}{folder}/{self._files['limit']}")
        if text == "max":
            return _V1_UNLIMITED
        return min(int(text), _V1_UNLIMITED) if text is not None and text.isdigit() else None

    def used_bytes(self) -> int | None:
        """What the kernel cannot simply drop: without page cache that is not in use (as kubelet counts)."""
        folder = self._root + (self._own if self.limit_bytes is None else self.limit_folder)
        used = read_number(f"{folder}/{self._files['used']}")
        stat = read_known(f"{folder}/memory.stat")
        if used is None or stat is None:
            return used
        return max(0, used - (number_after(stat, _IDLE_CACHE[self._version]) or 0))

    def oom_kills(self) -> int | None:
        """Processes of this cgroup that the kernel has killed for memory."""
        return oom_kills_in(f"{self._root}{self._own}/{self._files['killed']}")


class _Cpu:
    """The quotas of one cgroup and all above it. ``cores``: the lowest, None: there is none."""

    def __init__(self, root: str, folder: CgroupFolder) -> None:
        self._root = root
        above = folder.and_above()
        quotas = {name: quota for name in above if (quota := cpu_quota(folder.version, root + name))}
        self.cores = min(quotas.values(), default=None)
        self._folders = tuple(quotas)

    def throttled(self, periods: dict[str, tuple[int, int]]) -> float | None:
        """The largest share among those that have a quota; 0 where none has. ``periods``: passed and throttled by
        folder, as of the look before; they become this look's.
        """
        if not self._folders:
            return 0.0
        shares = []
        before = dict(periods)
        periods.clear()
        for folder in self._folders:
            stat = read_known(f"{self._root}{folder}/cpu.stat") or b""
            passed, throttled = number_after(stat, b"nr_periods "), number_after(stat, b"nr_throttled ")
            if passed is None or throttled is None:
                continue
            periods[folder] = (passed, throttled)
            passed_before, throttled_before = before.get(folder, (passed + 1, 0))
            if passed >= passed_before:
                gain = passed - passed_before  # none pass while nothing wants to run
                shares.append(min(1.0, max(0, throttled - throttled_before) / gain) if gain else 0.0)
        return max(shares, default=None)


@dataclass
class _Cgroup:
    """One cgroup between reads. ``periods``: those passed and those throttled, by folder."""

    path: str
    memory_folder: CgroupFolder | None
    cpu_folder: CgroupFolder | None
    limits_pace: Pace = field(default_factory=lambda: Pace(_LIMITS_KEPT_S))
    memory: _Memory | None = None
    cpu: _Cpu | None = None
    periods: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_hidden(self) -> bool:
        return self.memory_folder is None and self.cpu_folder is None


class Cgroups:
    """``cgroups``: first our own. What limits a cgroup may be one above it: its limit and use are then shown.

    ``memory_limit_bytes`` is UNLIMITED, and ``cpu_limit_cores`` None, where there is no limit.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._cgroups: dict[str, _Cgroup] = {}

    def read(self, now: float, ranks: Sequence[RankSample]) -> Reading:
        own = read_text(f"{self._root}/proc/self/cgroup")
        if own is None:
            return Reading().lack("cgroups", why="this kernel has no cgroups", kind="unsupported")
        process_of = {cgroup_of(own): "self"}
        for rank in ranks:
            if rank.cgroup is not None:
                process_of.setdefault(rank.cgroup, str(rank.pid))
        self._keep(process_of)
        shown = [self._sample(cgroup, now) for cgroup in list(self._cgroups.values())[:_MAX_CGROUPS]]
        reading = Reading({"cgroups": shown})
        hidden = [cgroup.path for cgroup in self._cgroups.values() if cgroup.is_hidden]
        if hidden:
            why = f"limits of {_named(hidden)} are not visible here (another cgroup namespace, or no /sys/fs/cgroup)"
            reading.lack("cgroups", why=why, fix="run mltop on the host")
        if len(process_of) > _MAX_CGROUPS:
            why = f"{len(process_of)} cgroups are in use: {_MAX_CGROUPS} are shown"
            reading.lack("cgroups.more", why=why)
        without = [cgroup.path for cgroup in shown if cgroup.memory_limit_bytes is None and cgroup.path not in hidden]
        if without:
            why = f"no memory controller is at work on {_named(without)}"
            reading.lack("cgroups.memory", why=why, kind="unsupported")
        self._lack_throttling(shown, hidden, reading)
        return reading

    def _lack_throttling(self, shown: list[CgroupSample], hidden: list[str], reading: Reading) -> None:
        unknown = [
            self._cgroups[cgroup.path]
            for cgroup in shown
            if cgroup.cpu_throttled_fraction is None and cgroup.path not in hidden
        ]
        without = [cgroup.path for cgroup in unknown if cgroup.cpu is None]
        unread = [cgroup.path for cgroup in unknown if cgroup.cpu is not None and not cgroup.periods]
        if any(cgroup.periods for cgroup in unknown):
            reading.lack("cgroups.cpu", why="first look: shares need two", kind="starting")
        if without:
            reading.lack("cgroups.cpu", why=f"no CPU controller is at work on {_named(without)}", kind="unsupported")
        if unread:
            reading.lack("cgroups.cpu", why=f"cpu.stat of {_named(unread)} cannot be read")

    def _keep(self, process_of: dict[str, str]) -> None:
        for path in self._cgroups.keys() - process_of.keys():
            del self._cgroups[path]
        new = process_of.keys() - self._cgroups.keys()
        if not new:
            return
        mounts = read_long_known(f"{self._root}/proc/self/mountinfo").decode("utf-8", "replace")
        hierarchies = parse_mounts(mounts) or list(USUAL)
        for path, process in process_of.items():
            if path in new:
                paths = cgroup_paths(read_text(f"{self._root}/proc/{process}/cgroup") or "")
                memory, cpu = (folder_of(name, paths, hierarchies) for name in CONTROLLERS)
                self._cgroups[path] = _Cgroup(path, memory, cpu)

    def _sample(self, cgroup: _Cgroup, now: float) -> CgroupSample:
        if cgroup.limits_pace.is_due(now):
            cgroup.limits_pace.done(now)
            cgroup.memory = None if cgroup.memory_folder is None else _Memory(self._root, cgroup.memory_folder)
            cgroup.cpu = None if cgroup.cpu_folder is None else _Cpu(self._root, cgroup.cpu_folder)
        sample = CgroupSample(cgroup.path)
        memory = cgroup.memory
        if memory is not None and memory.is_at_work:
            sample.memory_limit_bytes = UNLIMITED if memory.limit_bytes is None else memory.limit_bytes
            sample.memory_used_bytes = memory.used_bytes()
            sample.oom_kills = memory.oom_kills()
        elif memory is not None and cgroup.path == "/":
            sample.memory_limit_bytes = UNLIMITED  # version 2's root has no files for it
        if cgroup.cpu is not None:
            sample.cpu_limit_cores = cgroup.cpu.cores
            sample.cpu_throttled_fraction = cgroup.cpu.throttled(cgroup.periods)
        return sample


def _named(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} cgroups ({paths[0]}, …)"
