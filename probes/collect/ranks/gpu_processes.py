"""Who the processes on the GPUs are: NVML gives pids, /proc the rest. Every five seconds, and at once for a new pid.

NVML goes on listing a pid whose process has ended as long as the driver holds its memory, and in a container it may
list pids of other namespaces. In the machine's first PID namespace a pid that cannot be found has ended; elsewhere
only one that was seen before has, and of others it cannot be told.
Source: /proc/PID/{stat,status,environ,cmdline}, /proc/self/ns/pid (proc(5), pid_namespaces(7)), kill(2) with signal 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import in_first_namespace, user_name
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.model import Gap, GpuSample
from mltop.probes.system import paths
from mltop.probes.system.spawn import probe_of

EVERY_S = 5.0
_JITTER_S = 0.25
_MOST_PIDS = 4096  # of all GPUs together: NVML's lists are this machine's, but not ours
_LARGEST_PID = 1 << 22  # PID_MAX_LIMIT of the kernel


@dataclass
class _Look:
    """One look at a process. ``start_ticks`` None: it was never seen here. ``fields``: of GpuProcess."""

    at: float
    start_ticks: int | None
    fields: dict[str, Any]


class GpuProcesses:
    """Keep one object. ``root``: another /proc, for copied trees and tests."""

    def __init__(self, root: str | None = None) -> None:
        self._root = paths.proc() if root is None else root
        self._looks: dict[int, _Look] = {}

    def fill(self, gpus: Sequence[GpuSample], now: float) -> list[Gap]:
        """Replace the processes of ``gpus`` by ones with what is known of them. ``now``: seconds of any one clock."""
        listed = {process.pid for gpu in gpus for process in gpu.processes or ()}
        if not listed:
            self._looks.clear()
            return []
        looks = {}
        for pid in sorted(listed)[:_MOST_PIDS]:
            look = self._looks.get(pid)
            if look is None or not 0 <= now - look.at < EVERY_S - _JITTER_S:
                look = self._look(pid, look, now)
            looks[pid] = look
        self._looks = looks
        for gpu in gpus:
            if gpu.processes:
                gpu.processes = [
                    replace(process, **looks[process.pid].fields) if process.pid in looks else process
                    for process in gpu.processes
                ]
        left = len(listed) - len(looks)
        why = f"{left} of {len(listed)} processes on GPUs were not looked at"
        return [Gap.about("gpu processes", why=why)] if left else []

    def _look(self, pid: int, before: _Look | None, now: float) -> _Look:
        try:
            stat = procfs.read_stat(self._root, pid)
        except procfs.GONE:
            return self._absent(pid, before, now)
        except PermissionError:
            return _Look(now, None, {"user": self._owner(pid), "absent": "hidden"})
        lasting = before.fields if before is not None and before.start_ticks == stat.start_ticks else None
        lasting = lasting or {
            "user": user_name(procfs.owner_of(self._root, pid)),
            "started_at": procfs.started_at(self._root, stat.start_ticks),
            "probe": (probe_of(procfs.read_argv(self._root, pid)) or ("",))[0],
        }
        absent = "" if stat.state in ("Z", "X") else self._closed(pid)
        moving = {"name": shown_text(stat.comm), "state": stat.state, "ppid": stat.ppid, "absent": absent}
        return _Look(now, stat.start_ticks, {**lasting, **moving})

    def _absent(self, pid: int, before: _Look | None, now: float) -> _Look:
        """There is nothing below /proc."""
        if before is not None and before.start_ticks is not None:
            return _Look(now, before.start_ticks, {**before.fields, "state": "", "absent": "ended"})
        if self._root == "/proc" and _exists(pid):
            return _Look(now, None, {"absent": "hidden"})
        return _Look(now, None, {"absent": "ended" if in_first_namespace(self._root) else "elsewhere"})

    def _closed(self, pid: int) -> str:
        """Opening is enough: the permission is checked then."""
        try:
            os.close(os.open(f"{self._root}/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError:
            return "closed"
        except OSError:
            return ""
        return ""

    def _owner(self, pid: int) -> str:
        try:
            return user_name(os.stat(f"{self._root}/{pid}").st_uid)
        except OSError:
            return ""


def _exists(pid: int) -> bool:
    """Whether a process exists, also where hidepid hides it: signal 0 reaches nobody, but its permission is checked."""
    if not 0 < pid <= _LARGEST_PID:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
