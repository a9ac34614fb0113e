"""The cgroups that ranks and mltop itself run in: what they may use, what they use, how often they had to pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.collect.host import cgroup_files, cgroup_places
from mltop.probes.collect.host.cgroup_files import CpuLimit, MemoryLimit
from mltop.probes.collect.host.cgroup_places import Hierarchy, Place
from mltop.probes.collect.host.files import read_long, read_text
from mltop.probes.collect.host.part import Reading, starting, unsupported
from mltop.probes.collect.ranks.cgroup import cgroup_of
from mltop.probes.model import UNLIMITED, CgroupSample, Gap, RankSample

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
                paths = cgroup_places.parse_paths(read_text(f"{self._root}/proc/{process}/cgroup") or "")
                memory, cpu = (cgroup_places.place(name, paths, hierarchies) for name in cgroup_places.CONTROLLERS)
                self._known[path] = _Cgroup(path, memory, cpu)

    def _hierarchies(self) -> list[Hierarchy]:
        try:
            mounts = read_long(f"{self._root}/proc/self/mountinfo").decode("utf-8", "replace")
        except OSError:
            mounts = ""
        return cgroup_places.parse_mounts(mounts) or list(cgroup_places.USUAL)

    def _sample(self, one: _Cgroup, now: float) -> CgroupSample:
        if not 0 <= now - one.limits_at < _LIMITS_KEPT_S:
            one.limits_at = now
            one.memory_limit = cgroup_files.memory_limit(self._root, one.memory) if one.memory else None
            one.cpu_limit = cgroup_files.cpu_limit(self._root, one.cpu) if one.cpu else None
        sample = CgroupSample(one.path)
        if one.memory is not None and one.memory_limit is not None:
            limit = one.memory_limit
            folder = limit.folder if limit.bytes is not None else one.memory.folders()[0]
            sample.memory_limit_bytes = UNLIMITED if limit.bytes is None else limit.bytes
            sample.memory_used_bytes = cgroup_files.memory_used(self._root, one.memory, folder)
            sample.oom_kills = cgroup_files.oom_kills(self._root, one.memory)
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
            counted = cgroup_files.throttling(self._root, folder)
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
