"""Why clocks are low: the reasons that hold now, and the time that each has held."""

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
)
from mltop.probes.collect.nvml.fields import CALL, FieldValues
from mltop.probes.collect.nvml.rates import Meter
from mltop.probes.nvml_fields import GAIN_FACTOR, GAIN_SLACK_S, NEWER, throttle_ns_fields

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
