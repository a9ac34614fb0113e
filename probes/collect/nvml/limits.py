"""Thermal limits: how many degrees are left, and the temperatures at which the GPU slows itself down.

Ada and newer tell their limits as T.Limit (fields 193 to 196): degrees relative to a temperature that NVML does not
give, and that may be of another sensor than the one it reports. Nothing absolute is derived from them.
"""

from __future__ import annotations

from ctypes import byref, c_int
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, structure

# By GpuSample's name: nvml.h NVML_TEMPERATURE_THRESHOLD_*.
THRESHOLDS = {"temperature_slowdown_c": 1, "memory_temperature_max_c": 2}
PLAUSIBLE_LIMIT_C = range(40, 151)
PLAUSIBLE_MARGIN_C = range(-100, 151)


def read_thresholds(device: Device, reading: Reading) -> None:
    """Absolute limits, from GPUs that have them."""
    for field, threshold in THRESHOLDS.items():
        reading.attempt((field,), partial(read_threshold, device, field, threshold))


def read_threshold(device: Device, field: str, threshold: int) -> dict[str, Any]:
    name = "nvmlDeviceGetTemperatureThreshold"
    celsius = device.uint(name, c_int(threshold), part=field)
    if celsius not in PLAUSIBLE_LIMIT_C:
        raise GarbageError(f"{name} answered {celsius} °C, which is not a limit")
    return {field: float(celsius)}


class MarginReader:
    """``temperature_margin_c``: to the nearest slowdown threshold (driver 570 and newer)."""

    def __init__(self) -> None:
        self._margin = structure("c_nvmlMarginTemperature_v1_t")
        if self._margin is not None:
            self._margin.version = pynvml.nvmlMarginTemperature_v1
            self._margin_ref = byref(self._margin)

    def read(self, device: Device) -> Reading:
        """Raises NvmlError when the GPU or the library is gone."""
        reading = Reading()
        reading.attempt(("temperature_margin_c",), partial(self._read, device))
        return reading

    def _read(self, device: Device) -> dict[str, Any]:
        name = "nvmlDeviceGetMarginTemperature"
        if self._margin is None:
            raise NvmlError(name, codes.FUNCTION_NOT_FOUND)
        device.call(name, self._margin_ref)
        celsius = self._margin.marginTemperature
        if celsius not in PLAUSIBLE_MARGIN_C:
            raise GarbageError(f"{name} answered {celsius} °C, which is not a margin")
        return {"temperature_margin_c": float(celsius)}
