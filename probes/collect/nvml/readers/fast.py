"""Why clocks are low: the reasons that hold now, and the time that each has held.

What is read from every GPU at every poll: seven calls in the usual case. One NVML quirk per function.
"""

from __future__ import annotations

import time
from ctypes import byref, c_int
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import (
    ASK_AGAIN_S,
    Device,
    Problem,
    Reading,
    UntoldError,
    first_supported,
    implausible,
    not_blank,
    structure,
    unsupported,
)
from mltop.probes.collect.nvml.fields import ALL_LINKS, CALL, FieldRequest, FieldValues, Meter, first_available
from mltop.probes.collect.nvml.readers import nvlink
from mltop.probes.model.nvml_fields import GAIN_FACTOR, GAIN_SLACK_S, NEWER, throttle_ns_fields

# nvml.h nvmlClocksEventReason*. Applications clocks are no longer reported by new drivers.
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
UNKNOWN_NUMBERS = "which fields of NVML are these counters depends on the driver's version, which is not known"
# Only what has no field in older drivers is asked one by one (nvml.h NVML_PERF_POLICY_*).
VIOLATIONS = {0: "sw_power_cap", 2: "sync_boost", 3: "board_limit", 4: "low_utilization", 5: "reliability"}
_VIOLATION_CALL = "nvmlDeviceGetViolationStatus"


class Throttle:
    """What is kept about one GPU."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.needs_violation_status = False
        # By reason, monotonic s: what it counted when it was first trusted; until when it is not trusted, and why.
        self.since: dict[str, tuple[int, float]] = {}
        self.doubted: dict[str, tuple[float, str]] = {}

    def doubt(self, reason: str, nanoseconds: int, at_s: float) -> None:
        """Stop trusting a counter that has gained more than time has passed since it was first trusted."""
        value, since_s = self.since.setdefault(reason, (nanoseconds, at_s))
        if nanoseconds < value:
            self.since[reason] = (nanoseconds, at_s)  # it started anew
            return
        gain_s, passed_s = (nanoseconds - value) / 1e9, at_s - since_s
        if gain_s > GAIN_FACTOR * passed_s + GAIN_SLACK_S:
            why = f"the driver answered {nanoseconds} ns, {gain_s:.1f} s more than {passed_s:.1f} s before"
            self.doubted[reason] = (at_s + ASK_AGAIN_S, f"{why}, which is not a time")
            del self.since[reason]


def read_reasons(device: Device) -> dict[str, Any]:
    """The same bits under a new name since driver 535; the old name goes away with CUDA 14 (pynvml)."""
    bits = first_supported(
        partial(device.ulonglong, "nvmlDeviceGetCurrentClocksEventReasons"),
        partial(device.ulonglong, "nvmlDeviceGetCurrentClocksThrottleReasons"),
    )
    return {"throttle_reasons": [reason for bit, reason in REASONS.items() if bits & bit]}


def read_ns(device: Device, batch: FieldValues, reading: Reading) -> dict[str, Any]:
    """``throttle_ns``: nanoseconds since the driver was loaded; a problem for each reason that is unknown."""
    state = device.state(Throttle)
    state.needs_violation_status = bool(batch.whole_code)
    if batch.whole_code:
        return {}
    fields = throttle_ns_fields(device.numbering)
    found: dict[str, int] = {}
    problems: dict[str, Problem] = {}
    for field, reason in fields.items():
        code = batch.code(field)
        if code:
            problems[reason] = (CALL, code)
            continue
        try:
            found[reason] = batch.count(field, reason)
        except GarbageError as garbage:
            problems[reason] = implausible(str(garbage))
    if found:
        problems.update(dict.fromkeys(set(NEWER) - set(fields.values()), UNKNOWN_NUMBERS))
        reading.problems.update({f"throttle_ns.{reason}": problem for reason, problem in problems.items()})
    else:
        reading.problems["throttle_ns"] = next(iter(problems.values()))
    return timed(state, found, time.monotonic(), reading)


def timed(state: Throttle, found: dict[str, int], at_s: float, reading: Reading) -> dict[str, Any]:
    """``throttle_ns`` and ``throttle_share``, of the time since the read before, by reason, 0..1."""
    share: dict[str, float] = {}
    pending: dict[str, Problem] = {}
    for reason, nanoseconds in list(found.items()):
        state.doubt(reason, nanoseconds, at_s)
        until_s, why = state.doubted.get(reason, (0.0, ""))
        if at_s < until_s:
            del found[reason]
            reading.problems[f"throttle_ns.{reason}"] = implausible(why)
            continue
        try:
            share[reason] = min(1.0, state.meter.per_s(reason, nanoseconds, at_s) / 1e9)
        except UntoldError as untold:
            pending[reason] = untold.problem
    if found and not share:  # one problem instead of one for each
        reading.problems["throttle_share"] = next(iter(pending.values()))
    else:
        reading.problems.update({f"throttle_share.{reason}": problem for reason, problem in pending.items()})
    return {"throttle_ns": found, "throttle_share": share}


class ViolationReader:
    """Throttle time from drivers without the batched fields (deprecated, gone with CUDA 14)."""

    def __init__(self) -> None:
        self._violation = pynvml.c_nvmlViolationTime_t()
        self._violation_ref = byref(self._violation)

    def read(self, device: Device) -> Reading:
        """``throttle_ns`` and ``throttle_share``. Raises NvmlError when the GPU or the library is gone."""
        reading = Reading()
        if not device.state(Throttle).needs_violation_status:
            return reading
        found: dict[str, int] = {}
        for policy, reason in VIOLATIONS.items():
            try:
                device.call(_VIOLATION_CALL, c_int(policy), self._violation_ref, part=reason)
            except NvmlError as failure:
                if failure.code in codes.GONE or failure.code in codes.LIBRARY_DOWN:
                    raise
                reading.problems[f"throttle_ns.{reason}"] = (failure.call, failure.code)
                continue
            found[reason] = not_blank(_VIOLATION_CALL, self._violation.violationTime)
        reading.values.update(timed(device.state(Throttle), found, time.monotonic(), reading))
        return reading


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
        reading.attempt(("throttle_reasons",), partial(read_reasons, device))
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
    reading.attempt(("throttle_ns",), partial(read_ns, device, batch, reading))
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
