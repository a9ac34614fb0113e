"""What is read every few seconds: processes, limits, modes (six calls), throttle time from old drivers."""

from __future__ import annotations

from ctypes import byref, c_int, c_uint
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes, fields
from mltop.probes.collect.nvml.calls import NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, first_supported, not_blank

NO_MEMORY_VALUE = (1 << 64) - 1  # usedGpuMemory when the driver cannot tell (MIG without root, WSL)
# Version 2 has the same structure as version 3 (nvmlProcessInfo_t with instance ids, 24 bytes).
PROCESS_CALLS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    "mps": ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"),
}


class SlowReader:
    """Reads the slow tier of any device; holds the process buffer, which grows as needed."""

    def __init__(self) -> None:
        self._count = c_uint()
        self._count_ref = byref(self._count)
        self._violation = pynvml.c_nvmlViolationTime_t()
        self._violation_ref = byref(self._violation)
        self._grow(128)

    def read(self, device: Device) -> Reading:
        """Raises NvmlError when the GPU or the library is gone."""
        reading = Reading()
        self._read_processes(device, reading)
        reading.attempt(("power_limit_w",), partial(read_power_limit, device))
        reading.attempt(("persistence",), partial(read_persistence, device))
        reading.attempt(("mig_enabled",), partial(read_mig, device))
        if device.needs_violation_status:
            reading.attempt(("throttle_ns",), partial(self._read_violations, device))
        return reading

    def _read_processes(self, device: Device, reading: Reading) -> None:
        """Known as soon as the compute list is; not every GPU has graphics or MPS lists."""
        found: list[dict[str, Any]] = []
        for kind, calls in PROCESS_CALLS.items():
            try:
                found += first_supported(*(partial(self._processes, device, kind, call) for call in calls))
            except NvmlError as failure:
                if failure.code in codes.GONE or failure.code in codes.LIBRARY_DOWN:
                    raise
                if kind == "compute":
                    reading.problems["processes"] = (failure.call, failure.code)
                    return
                if failure.code not in codes.UNSUPPORTED:
                    reading.problems[f"processes.{kind}"] = (failure.call, failure.code)
        reading.values["processes"] = found

    def _processes(self, device: Device, kind: str, call: str) -> list[dict[str, Any]]:
        """One list with one call: the buffer is kept large enough, so there is no sizing call."""
        code = self._list(device, call)
        if code == codes.INSUFFICIENT_SIZE:
            self._grow(2 * max(self._count.value, self._capacity))
            code = self._list(device, call)
        if code:
            raise NvmlError(call, code)
        return [
            {
                "pid": entry.pid,
                "memory_bytes": None if entry.usedGpuMemory == NO_MEMORY_VALUE else entry.usedGpuMemory,
                "kind": kind,
            }
            for entry in self._array[: min(self._count.value, self._capacity)]
        ]

    def _list(self, device: Device, call: str) -> int:
        self._count.value = self._capacity
        return device.code(call, self._count_ref, self._array)

    def _grow(self, capacity: int) -> None:
        self._capacity = capacity
        self._array = (pynvml.c_nvmlProcessInfo_v2_t * capacity)()

    def _read_violations(self, device: Device) -> dict[str, Any]:
        """Throttle time from drivers without the batched fields (deprecated, gone with CUDA 14)."""
        name = "nvmlDeviceGetViolationStatus"
        counters: dict[str, int] = {}
        for policy, reason in fields.VIOLATIONS.items():
            device.call(name, c_int(policy), self._violation_ref)
            counters[reason] = not_blank(name, self._violation.violationTime)
        return {"throttle_ns": counters}


def read_power_limit(device: Device) -> dict[str, Any]:
    """The limit in force: the lowest of what the user, the board and the platform allow."""
    milliwatts = first_supported(
        partial(device.uint, "nvmlDeviceGetEnforcedPowerLimit"),
        partial(device.uint, "nvmlDeviceGetPowerManagementLimit"),
    )
    return {"power_limit_w": milliwatts / 1000}


def read_persistence(device: Device) -> dict[str, Any]:
    return {"persistence": bool(device.uint("nvmlDeviceGetPersistenceMode"))}


def read_mig(device: Device) -> dict[str, Any]:
    """The current mode; a pending one takes effect with the next reset."""
    current, pending = device.buffers.uint, device.buffers.other_uint_ref
    device.call("nvmlDeviceGetMigMode", device.buffers.uint_ref, pending)
    return {"mig_enabled": bool(current.value)}
