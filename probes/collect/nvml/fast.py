"""What is read from every GPU at every poll: seven calls in the usual case. One NVML quirk per function."""

from __future__ import annotations

import time
from ctypes import byref, c_int
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes, nvlink, throttle
from mltop.probes.collect.nvml.calls import NvmlError
from mltop.probes.collect.nvml.device import (
    Device,
    Reading,
    UntoldError,
    first_supported,
    not_blank,
    structure,
    unsupported,
)
from mltop.probes.collect.nvml.fields import ALL_LINKS, FieldRequest, FieldValues, first_available
from mltop.probes.collect.nvml.rates import Meter
from mltop.probes.nvml_fields import throttle_ns_fields

CLOCK_SM = c_int(1)  # nvml.h NVML_CLOCK_SM
CLOCK_MEMORY = c_int(2)
SENSOR_GPU = c_int(0)  # nvml.h NVML_TEMPERATURE_GPU

MEMORY_TEMPERATURE = 82
NO_MEMORY_SENSOR = unsupported("the driver answered 0 °C, as of a board whose memory has no sensor (dcgm-exporter#460)")
ENERGY = 83  # mJ since the driver was loaded
POWER_AVERAGE = 185  # mW over one second
POWER_INSTANT = 186


class Batch:
    """The batch of one GPU and what is kept of its traffic. Whether it has NVLinks is known before the first read."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._request: FieldRequest | None = None

    def request(self, device: Device) -> FieldRequest:
        if self._request is None:
            fields = [POWER_AVERAGE, POWER_INSTANT, MEMORY_TEMPERATURE, ENERGY, *throttle_ns_fields(device.numbering)]
            scoped = [(field, 0) for field in fields]
            if device.state(nvlink.Links).count:
                scoped += [(field, ALL_LINKS) for field in nvlink.TRAFFIC_FIELDS]
            self._request = FieldRequest(scoped)
        return self._request


class FastReader:
    """Reads the fast tier of any device; holds the buffers that only this tier needs."""

    def __init__(self) -> None:
        self._temperature = structure("c_nvmlTemperature_v1_t")
        if self._temperature is not None:
            self._temperature.version = pynvml.nvmlTemperature_v1
            self._temperature.sensorType = 0
            self._temperature_ref = byref(self._temperature)

    def read(self, device: Device) -> Reading:
        """Raises NvmlError when the GPU or the library is gone."""
        reading = Reading()
        reading.attempt(("busy",), partial(read_busy, device))
        reading.attempt(("memory_used_bytes", "memory_total_bytes"), partial(read_memory, device))
        reading.attempt(("temperature_c",), partial(self._read_temperature, device))
        read_fields(device, reading)
        reading.attempt(("sm_clock_mhz",), partial(read_clock, device, "sm_clock_mhz", CLOCK_SM))
        reading.attempt(("memory_clock_mhz",), partial(read_clock, device, "memory_clock_mhz", CLOCK_MEMORY))
        reading.attempt(("throttle_reasons",), partial(throttle.read_reasons, device))
        return reading

    def _read_temperature(self, device: Device) -> dict[str, Any]:
        celsius = first_supported(
            partial(self._temperature_v, device),
            partial(device.uint, "nvmlDeviceGetTemperature", SENSOR_GPU),
        )
        return {"temperature_c": float(celsius)}

    def _temperature_v(self, device: Device) -> int:
        name = "nvmlDeviceGetTemperatureV"
        if self._temperature is None:
            raise NvmlError(name, codes.FUNCTION_NOT_FOUND)
        device.call(name, self._temperature_ref)
        return int(self._temperature.temperature)


def read_fields(device: Device, reading: Reading) -> None:
    """The batch: power, energy, memory temperature, throttle time, and NVLink's traffic."""
    kept, links = device.state(Batch), device.state(nvlink.Links)
    batch = kept.request(device).read(device)
    at_s = time.monotonic()
    reading.attempt(("power_w",), partial(read_power, device, batch))
    reading.attempt(("energy_j",), partial(read_energy, device, batch))
    reading.attempt(("memory_temperature_c",), partial(read_memory_temperature, batch))
    reading.attempt(("throttle_ns",), partial(throttle.read_ns, device, batch, reading))
    if links.count:
        links.counts_traffic = nvlink.read_traffic(kept.meter, batch, at_s, reading)


def read_busy(device: Device) -> dict[str, Any]:
    """Share of the last sample period in which a kernel was resident (nvmlUtilization_t)."""
    device.call("nvmlDeviceGetUtilizationRates", device.buffers.utilization_ref)
    return {"busy": device.buffers.utilization.gpu / 100}


def read_memory(device: Device) -> dict[str, Any]:
    """Version 2 leaves out what the driver reserves for itself; version 1 counts it as used."""
    used, total = first_supported(partial(memory_v2, device), partial(memory_v1, device))
    return {
        "memory_used_bytes": not_blank("used memory", used),
        "memory_total_bytes": not_blank("total memory", total),
    }


def memory_v2(device: Device) -> tuple[int, int]:
    memory = device.buffers.memory_v2
    memory.version = pynvml.nvmlMemory_v2
    device.call("nvmlDeviceGetMemoryInfo_v2", device.buffers.memory_v2_ref)
    return memory.used, memory.total


def memory_v1(device: Device) -> tuple[int, int]:
    device.call("nvmlDeviceGetMemoryInfo", device.buffers.memory_ref)
    return device.buffers.memory.used, device.buffers.memory.total


def read_clock(device: Device, field: str, clock: c_int) -> dict[str, Any]:
    return {field: device.uint("nvmlDeviceGetClockInfo", clock)}


def read_power(device: Device, batch: FieldValues) -> dict[str, Any]:
    """Averaged over a second where the driver has it, like nvmlDeviceGetPowerUsage on most GPUs."""
    milliwatts = first_available(
        partial(batch.value, POWER_AVERAGE, "POWER_AVERAGE"),
        partial(batch.value, POWER_INSTANT, "POWER_INSTANT"),
        partial(device.uint, "nvmlDeviceGetPowerUsage"),
    )
    return {"power_w": milliwatts / 1000}


def read_energy(device: Device, batch: FieldValues) -> dict[str, Any]:
    millijoules = first_available(
        partial(batch.value, ENERGY, "TOTAL_ENERGY_CONSUMPTION"),
        partial(device.ulonglong, "nvmlDeviceGetTotalEnergyConsumption"),
    )
    return {"energy_j": millijoules / 1000}


def read_memory_temperature(batch: FieldValues) -> dict[str, Any]:
    celsius = batch.value(MEMORY_TEMPERATURE, "MEMORY_TEMP")
    if celsius == 0:
        raise UntoldError(NO_MEMORY_SENSOR)
    return {"memory_temperature_c": float(celsius)}
