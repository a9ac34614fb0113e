"""Name, kernel, processors, uptime and load. Source: /proc/sys/kernel, /proc/stat, /proc/loadavg,
clock_gettime(2)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mltop.probes.collect.host.files import MALFORMED, KeptFile, finite, read_text
from mltop.probes.collect.host.part import Reading
from mltop.probes.model import Gap, RankSample


class Facts:
    """``hostname``, ``kernel``, ``cpu_count``."""

    def __init__(self, root: str) -> None:
        self._proc = root + "/proc"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        stat = (read_text(f"{self._proc}/stat") or "").splitlines()
        count = sum(line.startswith("cpu") and line[3:4].isdigit() for line in stat)
        values = {
            "hostname": read_text(f"{self._proc}/sys/kernel/hostname") or "",
            "kernel": read_text(f"{self._proc}/sys/kernel/osrelease") or "",
            "cpu_count": count or None,
        }
        missing = [name for name, value in values.items() if not value]
        return Reading(values, [Gap(f"host.{name}", f"cannot be read from {self._proc}") for name in missing])


class Uptime:
    """``uptime_s``: this machine's own clock tells it without a file."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/uptime")
        self._is_here = not root

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        if self._is_here:
            return Reading({"uptime_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 2)})
        try:
            return Reading({"uptime_s": finite(self._file.read().split(None, 1)[0])})
        except (OSError, *MALFORMED):
            return Reading(gaps=[Gap("host.uptime", f"{self._file.path} cannot be read")])


class Load:
    """The three loads, which the kernel computes every five seconds."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/loadavg")

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            one, five, fifteen = (finite(word) for word in self._file.read().split()[:3])
        except (OSError, *MALFORMED):
            return Reading(gaps=[Gap("host.load", f"{self._file.path} cannot be read")])
        return Reading({"load_1m": one, "load_5m": five, "load_15m": fifteen})
