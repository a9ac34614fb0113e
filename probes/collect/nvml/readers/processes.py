"""Which processes hold a context on a GPU. One quirk: the buffer is kept large enough, so there is no sizing call."""

from __future__ import annotations

from ctypes import byref, c_uint
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NvmlError
from mltop.probes.collect.nvml.codes import Reason
from mltop.probes.collect.nvml.device import Device, Reading

NO_MEMORY_VALUE = (1 << 64) - 1  # usedGpuMemory when the driver cannot tell (MIG without root, WSL)
NO_INSTANCE = 0xFFFFFFFF
# pynvml's nvmlProcessInfo_v2_t is the structure of version 3, too (with instance ids, 24 bytes).
CALLS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}
OTHERS = ("graphics", "mps")


class OtherLists:
    """What is kept about one GPU: the lists that are asked less often."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.problems: dict[str, Reason] = {}


class ProcessReader:
    """Reads the lists of any device; holds the buffer, which grows as needed."""

    def __init__(self) -> None:
        self._count = c_uint()
        self._count_ref = byref(self._count)
        self._grow(128)

    def read_others(self, device: Device) -> Reading:
        """Graphics and MPS, for ``read`` to list. Not every GPU has them: their absence is no problem."""
        others = device.state(OtherLists)
        others.problems.clear()
        for kind in OTHERS:
            try:
                others.lists[kind] = self._list(device, kind)
            except NvmlError as failure:
                if failure.is_loss:
                    raise
                others.lists.pop(kind, None)
                if failure.code not in codes.UNSUPPORTED:
                    others.problems[f"processes.{kind}"] = failure.reason
        return Reading()

    def read(self, device: Device) -> Reading:
        """``processes``. Known as soon as the compute list is."""
        reading = Reading()
        others = device.state(OtherLists)
        if any(others.lists.values()):
            self.read_others(device)  # in use here: as fresh as the rest
        reading.take("processes", partial(self._list, device, "compute"))
        if "processes" in reading.values:
            for kind in OTHERS:
                reading.values["processes"] += others.lists.get(kind, [])
            reading.problems.update(others.problems)
        return reading

    def _list(self, device: Device, kind: str) -> list[dict[str, Any]]:
        self._count.value = self._capacity
        try:
            device.call(CALLS[kind], self._count_ref, self._array)
        except NvmlError as failure:
            if failure.code != codes.INSUFFICIENT_SIZE:
                raise
            self._grow(2 * max(self._count.value, self._capacity))
            self._count.value = self._capacity
            device.call(CALLS[kind], self._count_ref, self._array)
        return [describe(entry, kind) for entry in self._array[: min(self._count.value, self._capacity)]]

    def _grow(self, capacity: int) -> None:
        self._capacity = capacity
        self._array = (pynvml.c_nvmlProcessInfo_v2_t * capacity)()


def describe(entry: Any, kind: str) -> dict[str, Any]:
    """One entry with the names of GpuProcess."""
    return {
        "pid": entry.pid,
        "memory_bytes": None if entry.usedGpuMemory == NO_MEMORY_VALUE else entry.usedGpuMemory,
        "kind": kind,
        "gpu_instance": None if entry.gpuInstanceId == NO_INSTANCE else entry.gpuInstanceId,
    }
