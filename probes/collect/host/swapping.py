"""Pages swapped in and out, and processes that the kernel killed for memory. Source: /proc/vmstat."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mltop.probes.collect.host.files import KeptFile, number_after
from mltop.probes.collect.host.part import Reading, starting, unreadable, unsupported
from mltop.probes.model import RankSample

_RATES = "host.{swap_in_bytes_per_s,swap_out_bytes_per_s}"
_ALL = "host.{swap_in_bytes_per_s,swap_out_bytes_per_s,oom_kills}"
_MIN_INTERVAL_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Swapping:
    """``swap_in_bytes_per_s``, ``swap_out_bytes_per_s`` since the read before, and the counter ``oom_kills``."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/vmstat", in_pieces=True)
        self._last: tuple[float, int, int] | None = None

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            data = b"\n" + self._file.read()
        except OSError as error:
            return Reading(gaps=[unreadable(_ALL, error)])
        reading = Reading({"oom_kills": number_after(data, b"\noom_kill ")})
        if reading.values["oom_kills"] is None:
            reading.gaps.append(unsupported("host.oom_kills", "this kernel does not count them (before Linux 4.13)"))
        pages_in, pages_out = number_after(data, b"\npswpin "), number_after(data, b"\npswpout ")
        if pages_in is None or pages_out is None:
            reading.gaps.append(unsupported(_RATES, "this kernel was built without swap space"))
            return reading
        last, self._last = self._last, (now, pages_in, pages_out)
        if last is None or now - last[0] < _MIN_INTERVAL_S:
            reading.gaps.append(starting(_RATES, "first look: rates need two"))
            return reading
        pages_to_rate = _PAGE_BYTES / (now - last[0])
        reading.values["swap_in_bytes_per_s"] = max(0, pages_in - last[1]) * pages_to_rate
        reading.values["swap_out_bytes_per_s"] = max(0, pages_out - last[2]) * pages_to_rate
        return reading
