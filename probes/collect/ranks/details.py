"""What changes seldom about a rank: its limits, open files, cgroup, settings and versions. Read every half minute.

Source: /proc/PID/{limits,fd,cgroup,environ} (proc_pid_limits(5) and its neighbours).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import named, permission_gap
from mltop.probes.collect.ranks.table import Process
from mltop.probes.collect.ranks.versions import Versions
from mltop.probes.collect.redaction.process import settings_of
from mltop.probes.collect.redaction.values import without_tokens
from mltop.probes.collect.sysfile import read_known, read_text
from mltop.probes.collect.timing import Pace
from mltop.probes.model import UNLIMITED, Gap, RankSample
from mltop.probes.model.units import counted

RECHECK_S = 30.0
# Version 1 of cgroups has one hierarchy per controller: jobs are told apart best by memory's, then by the processors'.
_FIRST_CHOICES = ("memory", "cpu", "")
_FIELDS = {
    "memlock_limit_bytes": "the limit of locked memory",
    "open_files_limit": "the limit of open files",
    "open_files": "the number of open files",
    "cgroup": "the cgroup",
}


class Details:
    """The details of one rank. ``root``: the /proc to read."""

    def __init__(self, root: str, pid: int) -> None:
        self._root = root
        self._values: dict[str, Any] = {**dict.fromkeys(_FIELDS), "settings": {}}  # of fields of RankSample
        self._image: tuple[bytes, bytes, bytes] | None = None  # at the last look
        self._settings_of: tuple[bytes, bytes, bytes] | None = None  # the image that they were read of
        self._versions = Versions(root, pid)
        # The second time at another moment for each, so that no tick reads them all.
        self._pace = Pace(RECHECK_S * (1 + pid % 30) / 30, RECHECK_S)

    def add_to(self, sample: RankSample, process: Process, now: float) -> None:
        """Fill in the newest known. ``now``: seconds of one clock."""
        if self._pace.is_due(now) or self._image != process.image:
            self._image = process.image
            self._pace.done(now)
            if not process.dead:
                self._read(process.pid)
                self._versions.look(process.image)
        vars(sample).update(self._values, versions=self._versions.newest)

    def _read(self, pid: int) -> None:
        folder = f"{self._root}/{pid}"
        limits, cgroup = read_known(f"{folder}/limits") or b"", read_text(f"{folder}/cgroup")
        self._values["memlock_limit_bytes"] = soft_limit(limits, b"\nMax locked memory")
        self._values["open_files_limit"] = soft_limit(limits, b"\nMax open files")
        self._values["open_files"] = None
        with suppress(OSError):
            counts = _size_counts(self._root)
            self._values["open_files"] = os.stat(f"{folder}/fd").st_size if counts else len(os.listdir(f"{folder}/fd"))
        self._values["cgroup"] = None if cgroup is None else without_tokens(cgroup_of(cgroup))
        if self._settings_of != self._image:
            # Once after each exec: nothing else changes them, but a title may be written over them later.
            with suppress(OSError):
                self._values["settings"] = settings_of(procfs.read_environ(self._root, pid))
                self._settings_of = self._image


@cache
def _size_counts(root: str) -> bool:
    """Since Linux 6.2 the size of the folder is the number of open files: no need to list ten thousand of them."""
    return root == "/proc" and os.stat("/proc/self/fd").st_size > 0


def cgroup_paths(text: str) -> dict[str, str]:
    """/proc/PID/cgroup (cgroups(7)): path by controller, version 2's only hierarchy under ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and path.startswith("/"):
            for name in controllers.split(","):
                paths.setdefault(name, path)
    return paths


def cgroup_of(text: str) -> str:
    """Its path below /sys/fs/cgroup or, in version 1, below /sys/fs/cgroup/memory; "/" when the text names none."""
    paths = cgroup_paths(text)
    return next((paths[name] for name in _FIRST_CHOICES if name in paths), "/")


def soft_limit(data: bytes, label: bytes) -> int | None:
    """A limit in /proc/PID/limits: a number, UNLIMITED, or None when the line is missing or not as expected."""
    at = (b"\n" + data).find(label)
    if at < 0:
        return None
    words = data[at + len(label) - 1 : at + len(label) + 80].split(None, 1)
    if words and words[0] == b"unlimited":
        return UNLIMITED
    return int(words[0]) if words and words[0].isdigit() else None


def missing_details(samples: Sequence[RankSample]) -> list[Gap]:
    """One gap for each of these details that some living rank lacks."""
    gaps = []
    for name, words in _FIELDS.items():
        without = [sample for sample in samples if getattr(sample, name) is None and sample.state not in ("Z", "X")]
        if without:
            who = f"{counted(len(without), 'rank')}{named(sample.user for sample in without)}"
            gaps.append(permission_gap(name, why=f"{words} of {who} cannot be read"))
    return gaps
