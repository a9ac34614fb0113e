"""From counters to rates: per second between two reads. Times are CLOCK_MONOTONIC."""

from __future__ import annotations

from mltop.probes.collect.nvml.device import UntoldError, starting

FIRST_SAMPLE = starting("first sample: a rate needs two")
STARTED_ANEW = starting("the counter started anew: a rate needs two samples")


class Meter:
    """The newest value of every counter of one GPU."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def per_s(self, name: str, value: int, at_s: float) -> float:
        """Increase per second since the call before. Raises UntoldError the first time, and after a reset."""
        last = self._last.get(name)
        self._last[name] = (value, at_s)
        if last is None or at_s <= last[1]:
            raise UntoldError(FIRST_SAMPLE)
        gain = value - last[0]
        if gain < 0:
            raise UntoldError(STARTED_ANEW)
        return gain / (at_s - last[1])
