"""What does not change while the library is initialised: identity, maxima, defaults."""

from __future__ import annotations

from ctypes import byref
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml.device import Device, Reading, first_supported
from mltop.probes.collect.nvml.fast import CLOCK_MEMORY, CLOCK_SM


def read_static(device: Device, driver: Reading) -> Reading:
    """``driver``: what was read once for all GPUs. Raises NvmlError when the GPU or the library is gone."""
    reading = Reading()
    reading.values.update(driver.values)
    reading.problems.update(driver.problems)
    for field, call in (
        ("name", "nvmlDeviceGetName"),
        ("serial", "nvmlDeviceGetSerial"),
        ("vbios", "nvmlDeviceGetVbiosVersion"),
    ):
        reading.attempt((field,), partial(read_text, device, field, call))
    reading.attempt(("pci_bus_id",), partial(read_pci, device))
    for field, clock in (("sm_clock_max_mhz", CLOCK_SM), ("memory_clock_max_mhz", CLOCK_MEMORY)):
        reading.attempt((field,), partial(read_max_clock, device, field, clock))
    reading.attempt(("power_limit_default_w",), partial(read_default_limit, device))
    return reading


def read_text(device: Device, field: str, call: str) -> dict[str, Any]:
    return {field: device.text(call)}


def read_pci(device: Device) -> dict[str, Any]:
    """As NVML prints it, with an eight-digit domain ("00000000:18:00.0")."""
    info = pynvml.nvmlPciInfo_t()
    first_supported(
        partial(device.call, "nvmlDeviceGetPciInfo_v3", byref(info)),
        partial(device.call, "nvmlDeviceGetPciInfo_v2", byref(info)),
    )
    bus_id = info.busId
    return {"pci_bus_id": bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id}


def read_max_clock(device: Device, field: str, clock: Any) -> dict[str, Any]:
    return {field: device.uint("nvmlDeviceGetMaxClockInfo", clock)}


def read_default_limit(device: Device) -> dict[str, Any]:
    return {"power_limit_default_w": device.uint("nvmlDeviceGetPowerManagementDefaultLimit") / 1000}
