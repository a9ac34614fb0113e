"""Why clocks are low: the reasons that hold now, and the time that each has held."""

from __future__ import annotations

import time
from ctypes import byref, c_int
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, UntoldError, first_supported, not_blank
from mltop.probes.collect.nvml.fields import CALL, FieldValues
from mltop.probes.collect.nvml.rates import Meter

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
_NS_ALWAYS = {74: "sw_power_cap", 76: "sync_boost", 77: "board_limit", 78: "low_utilization", 79: "reliability"}
_NS_NEW = {269: "sw_thermal", 270: "hw_thermal", 271: "power_brake"}
# Only what has no field in older drivers is asked one by one (nvml.h NVML_PERF_POLICY_*).
VIOLATIONS = {0: "sw_power_cap", 2: "sync_boost", 3: "board_limit", 4: "low_utilization", 5: "reliability"}
_VIOLATION_CALL = "nvmlDeviceGetViolationStatus"


class Throttle:
    """What is kept about one GPU."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.needs_violation_status = False


def ns_fields(driver: tuple[int, ...]) -> dict[int, str]:
    """Field ids of the time counters. Driver 575 gave other fields these new numbers (NVML's change log of 580)."""
    return _NS_ALWAYS if 575 <= driver[0] < 580 else {**_NS_ALWAYS, **_NS_NEW}


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
    found: dict[str, int] = {}
    problems: dict[str, int] = {}
    for field, reason in ns_fields(device.driver).items():
        code = batch.code(field)
        if code:
            problems[reason] = code
        else:
            found[reason] = batch.count(field, reason)
    if found:
        reading.problems.update({f"throttle_ns.{reason}": (CALL, code) for reason, code in problems.items()})
    else:
        reading.problems["throttle_ns"] = (CALL, next(iter(problems.values())))
    return {"throttle_ns": found, **shares(state.meter, found, time.monotonic(), reading)}


def shares(meter: Meter, found: dict[str, int], at_s: float, reading: Reading) -> dict[str, Any]:
    """``throttle_share``: of the time since the read before, by reason, 0..1."""
    share = {}
    for reason, nanoseconds in found.items():
        try:
            share[reason] = min(1.0, meter.per_s(reason, nanoseconds, at_s) / 1e9)
        except UntoldError as untold:
            reading.problems[f"throttle_share.{reason}"] = untold.problem
    if found and not share:  # one problem instead of one for each
        reading.problems["throttle_share"] = reading.problems[f"throttle_share.{reason}"]
        for reason in found:
            del reading.problems[f"throttle_share.{reason}"]
    return {"throttle_share": share}


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
        reading.values["throttle_ns"] = found
        reading.values.update(shares(device.state(Throttle).meter, found, time.monotonic(), reading))
        return reading
