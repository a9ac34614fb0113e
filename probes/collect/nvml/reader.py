"""One poll of all GPUs with an initialised library, as the entries of the child's answer; and what of which GPU is read
at it: the slow tiers of a machine are spread over the polls.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NO_GPU, Calls, NvmlError
from mltop.probes.collect.nvml.codes import Failure, Problem
from mltop.probes.collect.nvml.device import Device, Devices, Lost, Reading
from mltop.probes.collect.nvml.readers.events import EventReader
from mltop.probes.collect.nvml.readers.fast import read_fast
from mltop.probes.collect.nvml.readers.gpm import SHORTEST_S, ActivityReader, left_out
from mltop.probes.collect.nvml.readers.limits import Limits, read_margins
from mltop.probes.collect.nvml.readers.mig import Instances, MigReader
from mltop.probes.collect.nvml.readers.nvlink import read_fabric, read_links
from mltop.probes.collect.nvml.readers.processes import ProcessReader
from mltop.probes.collect.nvml.readers.sieve import Sieve
from mltop.probes.collect.nvml.readers.table import MODES, read_rows
from mltop.probes.collect.nvml.readers.values import (
    Modes,
    read_health,
    read_mig_mode,
    read_pcie_link,
    read_repair,
    read_sram,
    read_static,
)

SLACK_S = 0.5  # polls come once a second, and never exactly
_STEPS = 5


class Schedule:
    """When which tier of one GPU is read, and what was said of it. Times are the requests' clock."""

    def __init__(self) -> None:
        self.due_s: dict[str, float] = {}
        self._newest: dict[str, Reading] = {}

    def forget(self) -> None:
        """Everything is due again, and news."""
        self.due_s.clear()
        self._newest.clear()

    def is_due(self, tier: str, every_s: float, offset: int, at_s: float) -> bool:
        """Whether to read a tier now; also plans the next time. ``offset``: a number of its own for each GPU and tier.

        Everything is due at the first poll. The second time comes early, by the offset, so that from then on GPUs and
        tiers take turns.
        """
        due_s = self.due_s.get(tier)
        if due_s is None:
            self.due_s[tier] = at_s + every_s * (offset % _STEPS + 1) / _STEPS
            return True
        if at_s < due_s - SLACK_S:
            return False
        self.due_s[tier] = max(due_s, at_s - SLACK_S) + every_s
        return True

    def is_news(self, tier: str, reading: Reading) -> bool:
        """Whether it differs from what was told before: the agent keeps what it is not told again."""
        before = self._newest.get(tier)
        self._newest[tier] = reading
        if before is None or before is reading:
            return before is None
        return before.values != reading.values or before.problems != reading.problems


RETRY_LOST_S = 4.5
SLOW_S, CALM_S, RARE_S, SELDOM_S = 5.0, 10.0, 30.0, 60.0

Tier = tuple[str, float, Callable[[Device], Reading]]


class Reader:
    """Reads all GPUs of one initialised library."""

    def __init__(self, calls: Calls) -> None:
        self.devices = Devices(calls)
        self._calls = calls
        self._activity = ActivityReader(calls)
        self._events = EventReader(calls)
        self._mig = MigReader(calls)
        self._processes = ProcessReader()
        self._retry_lost_at_s = float("-inf")
        # In the order in which a poll reads them: what others build on comes first.
        self._tiers: tuple[Tier, ...] = (
            ("other_processes", RARE_S, self._processes.read_others),
            ("processes", SLOW_S, self._processes.read),
            ("health", SLOW_S, read_health),
            ("nvlink", SLOW_S, read_links),
            ("margin", CALM_S, read_margins),
            ("pcie", RARE_S, read_pcie_link),
            ("fabric", RARE_S, read_fabric),
            ("mig_mode", RARE_S, read_mig_mode),
            ("mig", SLOW_S, self._read_mig),
            ("modes", SELDOM_S, partial(read_rows, MODES)),
            ("sram", SELDOM_S, read_sram),
            ("repair", SELDOM_S, read_repair),
        )

    def read(
        self, at_s: float, skip: frozenset[int], again: bool = False, with_activity: bool = True, twice: bool = False
    ) -> list[dict[str, Any]]:
        """Returns one entry for each GPU that is not skipped. ``at_s``: the time of the request, of any one clock.

        ``again``: everything, whether or not it is due or has changed. ``with_activity``: call GPM, too. ``twice``:
        look at what rates are made of a second time, a tenth of a second later, so that this first poll has rates.
        Raises NvmlError when the library as a whole is down.
        """
        retry_lost = at_s >= self._retry_lost_at_s
        if retry_lost:
            self._retry_lost_at_s = at_s + RETRY_LOST_S
        devices = self.devices.update(skip, retry_lost)
        if again:
            for device in self.devices.readable():
                device.state(Schedule).forget()
        read = partial(self._read, at_s=at_s, with_activity=with_activity)
        entries = [self._entry(device, read) for device in devices]
        if twice:
            time.sleep(SHORTEST_S)
            for position, entry in enumerate(entries):
                if "read" in entry:
                    look_again = partial(self._read_rates, entry["read"], with_activity)
                    entries[position] = self._entry(devices[position], look_again)
        return entries

    def read_events(self) -> list[dict[str, int | None]]:
        """Xids that NVML reported since the call before."""
        for device in self.devices.readable():
            self._events.listen(device)
        return self._events.read()

    def shut_down(self) -> None:
        """The code does not matter: what follows is an initialisation, which says what is wrong."""
        self._events.shut_down()
        self.devices.release()
        self._calls("nvmlShutdown", NO_GPU)

    def _entry(self, device: Device | Lost, read: Callable[[Device], dict[str, Any]]) -> dict[str, Any]:
        if isinstance(device, Lost):
            return lost_entry(device)
        try:
            return {"index": device.index, "uuid": device.uuid, "read": read(device)}
        except NvmlError as failure:
            if failure.code in codes.LIBRARY_DOWN:
                raise
            return lost_entry(self.devices.lose(device, failure))

    def _read(self, device: Device, at_s: float, with_activity: bool) -> dict[str, Any]:
        tiers: dict[str, Any] = {}
        schedule, sieve = device.state(Schedule), device.state(Sieve)
        if schedule.is_due("static", float("inf"), 0, at_s):
            static = sieve.sift(read_static(device, self.devices.system))
            tiers["static"] = vars(static)
            device.state(Limits).learn(static)
            # A failure that may be over the next time, unlike what is not supported or not permitted.
            problems = static.problems.values()
            if any(
                p.code not in codes.REMEMBERED if isinstance(p, Failure) else p.code == "implausible" for p in problems
            ):
                schedule.due_s["static"] = at_s + SELDOM_S
        fast = self._read_fast(device)
        raise_if_nothing_answers(fast)
        tiers["fast"] = vars(fast)
        # Which traffic it tells depends on the counters, so it comes after them.
        tiers["activity"] = vars(sieve.sift(self._activity.read(device) if with_activity else left_out()))
        for number, (name, every_s, read) in enumerate(self._tiers):
            if schedule.is_due(name, every_s, device.index + 2 * number, at_s):
                reading = sieve.sift(read(device))
                if schedule.is_news(name, reading):
                    tiers[name] = vars(reading)
        return tiers

    def _read_fast(self, device: Device) -> Reading:
        fast = read_fast(device)
        device.state(Limits).add_to(device.state(Sieve).sift(fast))
        return fast

    def _read_rates(self, tiers: dict[str, Any], with_activity: bool, device: Device) -> dict[str, Any]:
        """What was just read, with the values that need two looks."""
        sieve = device.state(Sieve)
        again = {**tiers, "fast": vars(self._read_fast(device))}
        if with_activity:
            again["activity"] = vars(sieve.sift(self._activity.read(device)))
            if device.state(Modes).mig_enabled:
                self._mig.catch_up(device)
        for name, _, read in self._tiers:
            problems = tiers[name]["problems"].values() if name in tiers else ()
            if any(isinstance(problem, Problem) and problem.kind == "starting" for problem in problems):
                reading = sieve.sift(read(device))
                device.state(Schedule).is_news(name, reading)
                again[name] = vars(reading)
        return again

    def _read_mig(self, device: Device) -> Reading:
        """The instances of a GPU in MIG mode."""
        if device.state(Modes).mig_enabled:
            return self._mig.read(device)
        device.forget(Instances)
        return Reading()


def raise_if_nothing_answers(fast: Reading) -> None:
    """A GPU whose calls all fail, but for lack of support, is in trouble or not ours: raise the first failure."""
    if fast.values.keys() - {"throttle_ns", "throttle_share"}:
        return
    failures = [
        problem
        for problem in fast.problems.values()
        if isinstance(problem, Failure) and problem.code not in codes.UNSUPPORTED
    ]
    for failure in sorted(failures, key=lambda failure: failure.code in codes.REMEMBERED):
        raise NvmlError(*failure)


def lost_entry(lost: Lost) -> dict[str, Any]:
    return {"index": lost.index, "uuid": lost.uuid, "lost": [lost.failure.call, lost.failure.code], "gone": lost.gone}
