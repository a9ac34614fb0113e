"""Errors of the machine's own memory modules. Source: EDAC, /sys/devices/system/edac/mc/mc*/{ce,ue}_count."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mltop.probes.collect.host.files import read_number
from mltop.probes.collect.host.part import Reading, unsupported
from mltop.probes.model import Gap, RankSample

_WHAT = "host.{memory_errors_corrected,memory_errors_uncorrected}"
_FIELDS = {"memory_errors_corrected": "ce_count", "memory_errors_uncorrected": "ue_count"}


class MemoryErrors:
    """Sums over all memory controllers; one that cannot be read leaves the sum unknown."""

    def __init__(self, root: str) -> None:
        self._folder = root + "/sys/devices/system/edac/mc"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            names = [name for name in os.listdir(self._folder) if name[:2] == "mc" and name[2:].isdigit()]
        except OSError:
            names = []
        if not names:
            return Reading(gaps=[unsupported(_WHAT, "no memory controller reports errors here (no EDAC driver)")])
        reading = Reading()
        for field, file in _FIELDS.items():
            counts = [read_number(f"{self._folder}/{name}/{file}") for name in names]
            if None in counts:
                unread = sum(count is None for count in counts)
                why = f"{file} of {unread} of {len(names)} memory controllers cannot be read"
                reading.gaps.append(Gap(f"host.{field}", why))
            else:
                reading.values[field] = sum(count for count in counts if count is not None)
        return reading
