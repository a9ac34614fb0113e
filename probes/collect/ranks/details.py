"""The one name of a process's cgroup, whatever version the machine uses. Source: /proc/PID/cgroup (cgroups(7)).

What changes seldom about a rank: its limits, open files, cgroup and settings. Read every half minute.

Source: /proc/PID/{limits,fd,cgroup,environ} (proc_pid_limits(5) and its neighbours).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import named, permission_fix
from mltop.probes.collect.ranks.table import Process
from mltop.probes.collect.redaction.process import settings_of
from mltop.probes.collect.redaction.shapes import without_tokens
from mltop.probes.model import UNLIMITED, Gap, RankSample

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


RECHECK_S = 30.0
_FIELDS = {
    "memlock_limit_bytes": "the limit of locked memory",
    "open_files_limit": "the limit of open files",
    "open_files": "the number of open files",
    "cgroup": "the cgroup",
}


@dataclass
class _Detail:
    image: tuple[bytes, bytes, bytes] | None = None  # at the last look
    settings_of: tuple[bytes, bytes, bytes] | None = None  # the image that they were read of
    due_at: float = float("-inf")
    looks: int = 0
    memlock_limit_bytes: int | None = None
    open_files_limit: int | None = None
    open_files: int | None = None
    cgroup: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


class Details:
    """The details of all ranks. ``root``: the /proc to read."""

    def __init__(self, root: str) -> None:
        self._root = root
        # Since Linux 6.2 the folder's size is the number of open files: no need to list ten thousand of them.
        self._size_counts = root == "/proc" and os.stat("/proc/self/fd").st_size > 0
        self._known: dict[tuple[int, int], _Detail] = {}

    def add_to(self, sample: RankSample, process: Process, now: float) -> None:
        """Fill in the newest known. ``now``: seconds of one clock."""
        key = (process.pid, process.start_ticks)
        detail = self._known.get(key)
        if detail is None:
            detail = self._known[key] = _Detail()
        if detail.due_at <= now or now < detail.due_at - RECHECK_S or detail.image != process.image:
            self._read(detail, process, now)
        sample.memlock_limit_bytes = detail.memlock_limit_bytes
        sample.open_files_limit = detail.open_files_limit
        sample.open_files = detail.open_files
        sample.cgroup = detail.cgroup
        sample.settings = detail.settings

    def keep(self, processes: Sequence[Process]) -> None:
        """Forget all other ranks."""
        keys = {(process.pid, process.start_ticks) for process in processes}
        self._known = {key: detail for key, detail in self._known.items() if key in keys}

    def _read(self, detail: _Detail, process: Process, now: float) -> None:
        pid = process.pid
        detail.image = process.image
        detail.looks += 1
        # The second time at another moment for each, so that no tick reads them all.
        detail.due_at = now + (RECHECK_S if detail.looks > 1 else RECHECK_S * (1 + pid % 30) / 30)
        if process.dead:
            return
        detail.memlock_limit_bytes, detail.open_files_limit = self._limits(pid)
        detail.open_files = self._open_files(pid)
        try:
            text = procfs.read_all(f"{self._root}/{pid}/cgroup", 65536).decode("utf-8", "replace")
            detail.cgroup = without_tokens(cgroup_of(text) or "") or None
        except OSError:
            detail.cgroup = None
        if detail.settings_of != process.image:
            self._read_settings(detail, process)

    def _limits(self, pid: int) -> tuple[int | None, int | None]:
        try:
            data = procfs.read_bytes(f"{self._root}/{pid}/limits")
        except OSError:
            return None, None
        return soft_limit(data, b"\nMax locked memory"), soft_limit(data, b"\nMax open files")

    def _open_files(self, pid: int) -> int | None:
        path = f"{self._root}/{pid}/fd"
        try:
            return os.stat(path).st_size if self._size_counts else len(os.listdir(path))
        except OSError:
            return None

    def _read_settings(self, detail: _Detail, process: Process) -> None:
        """Once after each exec: nothing else changes them, but a title may be written over them later."""
        try:
            detail.settings = settings_of(procfs.read_environ(self._root, process.pid))
        except OSError:
            return
        detail.settings_of = process.image


def soft_limit(data: bytes, label: bytes) -> int | None:
    """Out of /proc/PID/limits: a number, UNLIMITED, or None when the line is missing or not as expected."""
    at = (b"\n" + data).find(label)
    if at < 0:
        return None
    words = data[at + len(label) - 1 : at + len(label) + 80].split(None, 1)
    if not words:
        return None
    if words[0] == b"unlimited":
        return UNLIMITED
    return int(words[0]) if words[0].isdigit() else None


def missing_details(samples: Sequence[RankSample]) -> list[Gap]:
    """One line for each of these that some living rank lacks."""
    gaps = []
    for name, words in _FIELDS.items():
        without = [sample for sample in samples if getattr(sample, name) is None and sample.state not in ("Z", "X")]
        if without:
            noun = "rank" if len(without) == 1 else "ranks"
            who = named(sample.user for sample in without)
            gaps.append(Gap(f"ranks.{name}", f"{words} of {len(without)} {noun}{who} cannot be read", permission_fix()))
    return gaps
