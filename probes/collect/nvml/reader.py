"""One poll of all GPUs with an initialised library, as the entries of the child's answer."""

from __future__ import annotations

from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.breadcrumb import NO_GPU
from mltop.probes.collect.nvml.calls import Calls, NvmlError
from mltop.probes.collect.nvml.device import Device, Reading
from mltop.probes.collect.nvml.devices import Devices, Lost
from mltop.probes.collect.nvml.fast import FastReader
from mltop.probes.collect.nvml.slow import SlowReader
from mltop.probes.collect.nvml.static import read_static


class Reader:
    """Reads all GPUs of one initialised library."""

    def __init__(self, calls: Calls) -> None:
        self.devices = Devices(calls)
        self._calls = calls
        self._fast = FastReader()
        self._slow = SlowReader()

    def read(self, slow: bool, skip: frozenset[int]) -> list[dict[str, Any]]:
        """One entry per GPU that is not skipped. Raises NvmlError when the library as a whole is down."""
        return [self._entry(device, slow) for device in self.devices.update(skip, retry_lost=slow)]

    def shut_down(self) -> None:
        """The code does not matter: what follows is an initialisation, which says what is wrong."""
        self._calls("nvmlShutdown", NO_GPU)

    def _entry(self, device: Device | Lost, slow: bool) -> dict[str, Any]:
        if isinstance(device, Lost):
            return lost_entry(device)
        try:
            return {"index": device.index, "uuid": device.uuid, "read": self._read(device, slow)}
        except NvmlError as failure:
            if failure.code in codes.LIBRARY_DOWN:
                raise
            return lost_entry(self.devices.lose(device, failure))

    def _read(self, device: Device, slow: bool) -> dict[str, Any]:
        tiers = {}
        if not device.static_is_read:
            tiers["static"] = vars(read_static(device, self.devices.driver))
            device.static_is_read = True
        fast = self._fast.read(device)
        raise_if_nothing_answers(fast)
        tiers["fast"] = vars(fast)
        if slow or "static" in tiers:
            tiers["slow"] = vars(self._slow.read(device))  # after fast, which finds out what it must replace
        return tiers


def raise_if_nothing_answers(fast: Reading) -> None:
    """A GPU whose calls all fail, other than for lack of support, is in trouble: raise the first failure."""
    if fast.values.keys() - {"throttle_ns"}:
        return
    for problem in fast.problems.values():
        if isinstance(problem, tuple) and problem[1] not in codes.REMEMBERED:
            raise NvmlError(*problem)


def lost_entry(lost: Lost) -> dict[str, Any]:
    return {
        "index": lost.index,
        "uuid": lost.uuid,
        "lost": [lost.failure.call, lost.failure.code],
        "gone": lost.gone,
    }
