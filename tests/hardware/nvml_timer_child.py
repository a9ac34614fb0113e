"""mltop's NVML reader with a clock around every call: `nvml_timer_child.py POLLS PACE_S`.

The polls are told to be a second apart, as the agent's are, so each tier has its turn as it has there; they are PACE_S
apart. One line of JSON at the end: {"event": "calls", "gpus", "polls", "per_gpu": [calls on each GPU after the first
poll], "seconds": {tier: [of each call]}, "polls_s": [in NVML, of each poll], "slower": the tiers that have
their turn less often than with every poll}; the first poll reads everything and stands only in "seconds".
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gpu  # type: ignore[import-not-found]

gpu.own_checkout_first()
from mltop.probes.collect.nvml.calls import (  # noqa: E402
    NO_GPU,
    Breadcrumb,
    Calls,
    load,
)
from mltop.probes.collect.nvml.device import Device  # noqa: E402
from mltop.probes.collect.nvml.reader import Reader  # noqa: E402


class TimedCalls(Calls):
    """Those of a loaded library. ``tier``: on whose account a call is."""

    def __init__(self, calls: Calls) -> None:
        vars(self).update(vars(calls))
        self.tier = "devices"
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.on_gpu: Counter[int] = Counter()
        self.total_s = 0.0

    def __call__(self, name: str, gpu: int, *args: Any) -> int:
        began_s = time.perf_counter()
        code = super().__call__(name, gpu, *args)
        took_s = time.perf_counter() - began_s
        self.seconds[self.tier].append(took_s)
        self.total_s += took_s
        if gpu != NO_GPU:
            self.on_gpu[gpu] += 1
        return code


class TimedReader(Reader):
    def __init__(self, calls: TimedCalls) -> None:
        super().__init__(calls)
        self._timed = calls
        self.names = [name for name, _, _ in self._tiers]
        self._tiers = tuple((name, every_s, self._of(name, read)) for name, every_s, read in self._tiers)
        self._read_fast = self._of("fast", self._read_fast)  # type: ignore[method-assign]
        self._activity.read = self._of("activity", self._activity.read)  # type: ignore[assignment, method-assign]

    def read_events(self) -> list[dict[str, int | None]]:
        found: list[dict[str, int | None]] = self._of("events", lambda _: super(TimedReader, self).read_events())(None)
        return found

    def _read(self, device: Device, at_s: float, with_activity: bool) -> dict[str, Any]:
        """What of it is no tier's with a name is read once."""
        found: dict[str, Any] = self._of(
            "static", lambda one: super(TimedReader, self)._read(one, at_s, with_activity)
        )(device)
        return found

    def _of(self, tier: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed(device: Any) -> Any:
            before, self._timed.tier = self._timed.tier, tier
            try:
                return read(device)
            finally:
                self._timed.tier = before

        return timed


def main(polls: int, pace_s: float) -> None:
    calls = TimedCalls(load(Breadcrumb.create()))
    reader = TimedReader(calls)
    polls_s = []
    for number in range(1 + polls):
        if number == 1:
            calls.on_gpu.clear()
        began_s, calls.total_s = time.monotonic(), 0.0
        gpus = reader.read(float(number), frozenset())
        reader.read_events()
        polls_s.append(calls.total_s)
        time.sleep(max(0.0, began_s + pace_s - time.monotonic()))
    told = {
        "event": "calls",
        "gpus": len(gpus),
        "polls": polls,
        "slower": reader.names,
        "per_gpu": [calls.on_gpu[index] for index in sorted(calls.on_gpu)],
        "seconds": {tier: [round(one, 7) for one in seconds] for tier, seconds in calls.seconds.items()},
        "polls_s": [round(one, 6) for one in polls_s[1:]],
    }
    reader.shut_down()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
