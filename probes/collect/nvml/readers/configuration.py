"""The PCIe link: what it is, what it could be, its errors. Its traffic is among GPM's counters (activity).

Modes and limits that change when somebody changes them.

What does not change while the library is initialised: identity, maxima, defaults, where NVLinks lead to.
"""

from __future__ import annotations

from ctypes import byref, c_uint
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import device as versions
from mltop.probes.collect.nvml.calls import GarbageError
from mltop.probes.collect.nvml.device import Device, Reading, as_flag, first_supported, unsupported
from mltop.probes.collect.nvml.fields import FieldRequest, FieldValues, counters, first_available
from mltop.probes.collect.nvml.readers import limits, nvlink
from mltop.probes.collect.nvml.readers.fast import CLOCK_MEMORY, CLOCK_SM

REPLAY = 94
PCIE_ERRORS = {  # nvml.h NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER and NVML_FI_DEV_PCIE_COUNT_*
    169: "l0_to_recovery",
    173: "correctable_errors",
    174: "naks_received",
    175: "receiver_error",
    176: "bad_tlp",
    177: "naks_sent",
    178: "bad_dllp",
    179: "non_fatal_error",
    180: "fatal_error",
    181: "unsupported_req",
    182: "lcrc_error",
    183: "lane_error",
}
PCIE_FIELDS = (REPLAY, *PCIE_ERRORS)
# Fields 197 and 198 count bytes to 2^32 (nvml.h: "Value can be wrapped"): of a rate above 4.3 GB/s one would see only
# what remains beyond the wraps. nvmlDeviceGetPcieThroughput blocks for 20 ms.
TRAFFIC_NEEDS_GPM = unsupported(
    "NVML's PCIe byte counters have 32 bits and wrap within a second at full speed; needs GPM (Hopper)"
)


def read_errors(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``pcie.replay_count`` and ``pcie.errors``."""
    reading.attempt(("pcie.replay_count",), partial(read_replay, device, batch))
    reading.values["pcie.errors"] = counters(batch, "pcie.errors", PCIE_ERRORS, reading)


def read_replay(device: Device, batch: FieldValues) -> dict[str, Any]:
    count = first_available(
        partial(batch.count, REPLAY, "PCIE_REPLAY_COUNTER"),
        partial(device.uint, "nvmlDeviceGetPcieReplayCounter"),
    )
    return {"pcie.replay_count": count}


def read_link(device: Device) -> Reading:
    """``pcie.gen`` and ``pcie.width`` as they are now: an idle link trains down to save power."""
    reading = Reading()
    reading.attempt(("pcie.gen",), partial(_uint, device, "pcie.gen", "nvmlDeviceGetCurrPcieLinkGeneration"))
    reading.attempt(("pcie.width",), partial(_uint, device, "pcie.width", "nvmlDeviceGetCurrPcieLinkWidth"))
    return reading


def read_maxima(device: Device, reading: Reading) -> None:
    """What GPU and slot could do together."""
    for name, call in (
        ("pcie.gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("pcie.width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    ):
        reading.attempt((name,), partial(_uint, device, name, call))


def _uint(device: Device, name: str, call: str) -> dict[str, Any]:
    return {name: device.uint(call)}


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


def read_static(device: Device, system: Reading) -> Reading:
    """``system``: what was read once for all GPUs. Raises NvmlError when the GPU or the library is gone."""
    reading = Reading()
    reading.values.update(system.values)
    reading.problems.update(system.problems)
    for field, call in (
        ("name", "nvmlDeviceGetName"),
        ("serial", "nvmlDeviceGetSerial"),
        ("vbios", "nvmlDeviceGetVbiosVersion"),
    ):
        reading.attempt((field,), partial(read_text, device, field, call))
    reading.attempt(("gsp_firmware",), partial(versions.read_gsp, device))
    reading.attempt(("pci_bus_id",), partial(read_pci, device))
    for field, clock in (("sm_clock_max_mhz", CLOCK_SM), ("memory_clock_max_mhz", CLOCK_MEMORY)):
        reading.attempt((field,), partial(read_max_clock, device, field, clock))
    reading.attempt(("power_limit_default_w",), partial(read_default_limit, device))
    limits.read_thresholds(device, reading)
    read_maxima(device, reading)
    fields = [nvlink.LINK_COUNT]
    if device.numbering >= limits.OFFSETS_SINCE:
        fields.append(limits.MEMORY_OFFSET)
    batch = FieldRequest((field, 0) for field in fields).read(device)
    if limits.MEMORY_OFFSET in fields:
        limits.read_offsets(device, batch)
    read_nvlink(device, batch, reading)
    return reading


def read_text(device: Device, field: str, call: str) -> dict[str, Any]:
    return {field: device.text(call, c_uint(96))}


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


def read_nvlink(device: Device, batch: FieldValues, reading: Reading) -> None:
    """How many links there are, for the readers of this GPU, and what is at their other ends."""
    links = device.state(nvlink.Links)
    reading.attempt(("nvlink",), partial(keep_count, links, partial(nvlink.count_links, device, batch)))
    if links.count == 0:
        reading.problems["nvlink"] = nvlink.NO_NVLINK
    nvlink.read_remotes(device, reading)


def keep_count(links: nvlink.Links, count: Any) -> dict[str, Any]:
    links.count = count()
    return {}
