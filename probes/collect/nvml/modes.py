"""Modes and limits that change when somebody changes them."""

from __future__ import annotations

from functools import partial
from typing import Any

from mltop.probes.collect.nvml.calls import GarbageError
from mltop.probes.collect.nvml.device import Device, Reading, as_flag
from mltop.probes.collect.nvml.fields import FieldValues, first_available

POWER_LIMIT = 190  # mW: the limit in force, including those set elsewhere (out of band)
UNKNOWN_STATE = 32  # nvml.h NVML_PSTATE_UNKNOWN
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")  # nvml.h nvmlComputeMode_t


class Modes:
    """What other readers want to know of one GPU."""

    def __init__(self) -> None:
        self.mig_enabled = False


def read_power_limit(device: Device, batch: FieldValues) -> dict[str, Any]:
    """The limit in force: the lowest of what the user, the board and the platform allow."""
    milliwatts = first_available(
        partial(batch.count, POWER_LIMIT, "POWER_CURRENT_LIMIT"),
        partial(device.uint, "nvmlDeviceGetEnforcedPowerLimit"),
        partial(device.uint, "nvmlDeviceGetPowerManagementLimit"),
    )
    return {"power_limit_w": milliwatts / 1000}


def read_modes(device: Device) -> Reading:
    """``persistence``, ``compute_mode`` and ``performance_state``."""
    reading = Reading()
    reading.attempt(("persistence",), partial(read_persistence, device))
    reading.attempt(("compute_mode",), partial(read_compute_mode, device))
    reading.attempt(("performance_state",), partial(read_performance_state, device))
    return reading


def read_persistence(device: Device) -> dict[str, Any]:
    name = "nvmlDeviceGetPersistenceMode"
    return {"persistence": as_flag(name, device.uint(name))}


def read_compute_mode(device: Device) -> dict[str, Any]:
    """Who may start to compute: anybody, one process, nobody."""
    mode = device.uint("nvmlDeviceGetComputeMode")
    if mode >= len(COMPUTE_MODES):
        raise GarbageError(f"nvmlDeviceGetComputeMode answered {mode}")
    return {"compute_mode": COMPUTE_MODES[mode]}


def read_performance_state(device: Device) -> dict[str, Any]:
    """0 is the fastest."""
    name = "nvmlDeviceGetPerformanceState"
    state = device.uint(name)
    if state == UNKNOWN_STATE:
        raise GarbageError(f"{name} does not know the state")
    return {"performance_state": state}


def read_mig_mode(device: Device) -> Reading:
    """``mig_enabled`` and ``mig_pending``: the pending mode takes effect with the next reset."""
    reading = Reading()
    reading.attempt(("mig_enabled", "mig_pending"), partial(mig_mode, device))
    device.state(Modes).mig_enabled = bool(reading.values.get("mig_enabled"))
    return reading


def mig_mode(device: Device) -> dict[str, Any]:
    name = "nvmlDeviceGetMigMode"
    device.call(name, device.buffers.uint_ref, device.buffers.other_uint_ref)
    enabled, pending = device.buffers.uint.value, device.buffers.other_uint.value
    return {"mig_enabled": as_flag(name, enabled), "mig_pending": as_flag(name, pending)}
