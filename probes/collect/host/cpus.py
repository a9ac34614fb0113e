"""Frequency governors. Source: /sys/devices/system/cpu/cpufreq/policy*/scaling_governor."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mltop.probes.collect.host.files import read_text
from mltop.probes.collect.host.part import Reading, unsupported
from mltop.probes.model import Gap, RankSample

# From the one that saves most power to the one that saves none; what is not in it stands before "performance".
_ORDER = ("powersave", "conservative", "ondemand", "schedutil", "userspace")


class Governor:
    """``governor``: of all cores' governors the one that saves most: "performance" only where all are set so."""

    def __init__(self, root: str) -> None:
        self._folder = root + "/sys/devices/system/cpu/cpufreq"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            policies = [name for name in os.listdir(self._folder) if name.startswith("policy")]
        except OSError:
            policies = []
        if not policies:
            return Reading(gaps=[unsupported("host.governor", "no control of the processors' frequency here")])
        # The policy of processors that are switched off cannot be read.
        found = {read_text(f"{self._folder}/{policy}/scaling_governor") for policy in policies} - {None, ""}
        if not found:
            return Reading(gaps=[Gap("host.governor", f"no scaling_governor below {self._folder} can be read")])
        return Reading({"governor": min((name for name in found if name), key=_thrift)})


def _thrift(governor: str) -> tuple[int, str]:
    if governor == "performance":
        return len(_ORDER) + 1, governor
    return _ORDER.index(governor) if governor in _ORDER else len(_ORDER), governor
