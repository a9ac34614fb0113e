"""Which of NVML's fields count throttle time: their numbers changed with the driver's version, twice.

nvml.h of each driver; NVML's known issues: "#251 - #273 … have changed". 570 has power smoothing at 251 to 268 and
nothing beyond; 575.51 to 580.76 have the counters at 251 and power smoothing up to 273; from 580.82 on 570's numbers
hold again, with the counters behind them.
"""

from __future__ import annotations

import re

# "580.65.06", "R590", "vGPU 19.0 (580.65.05)", "535.161.05-grid": a branch has three digits, vGPU software has its own
# numbers of two, and what follows a dot is no branch.
_VERSION = re.compile(r"(?<![\d.])\d{3,4}(?:\.\d+)*")

OLDEST_DRIVER = 525  # older ones are not read
# Nanoseconds since the driver was loaded, by the model's names.
_ALWAYS = {74: "sw_power_cap", 76: "sync_boost", 77: "board_limit", 78: "low_utilization", 79: "reliability"}
NEWER = ("sw_thermal", "hw_thermal", "power_brake")
_MOVED_FROM, _MOVED_BACK = (575,), (580, 82)
_MOVED = dict(zip(range(251, 254), NEWER))
_NEW = dict(zip(range(269, 272), NEWER))

# What holds the clock down cannot do so for longer than time passes. The driver renews its counters at its own pace
# (within a second) and by its own clock; what gains more is no count of nanoseconds, as power smoothing's numbers.
GAIN_SLACK_S = 1.0
GAIN_FACTOR = 1.01


def as_numbers(version: str | None) -> tuple[int, ...]:
    """(570, 86, 15) of "570.86.15", (0,) when unknown."""
    version_found = _VERSION.search(version or "")
    return tuple(int(number) for number in version_found[0].split(".")) if version_found else (0,)


def throttle_ns_fields(driver: tuple[int, ...]) -> dict[int, str]:
    """Field ids of the time counters under a driver; without those that moved where its version does not tell."""
    if driver >= _MOVED_BACK:
        return {**_ALWAYS, **_NEW}
    if driver[0] == _MOVED_BACK[0] and len(driver) < 2:
        return dict(_ALWAYS)
    if driver >= _MOVED_FROM:
        return {**_ALWAYS, **_MOVED}
    # Drivers before 575 have nothing at the new numbers, unless they are told later what the newer ones know.
    return {**_ALWAYS, **_NEW} if driver[0] else dict(_ALWAYS)
