"""What does not change while the library is initialised: identity, maxima, defaults, where NVLinks lead to."""

from __future__ import annotations

from ctypes import byref, c_uint
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import limits, nvlink, nvlink_calls, pcie, versions
from mltop.probes.collect.nvml.device import Device, Reading, first_supported
from mltop.probes.collect.nvml.fast import CLOCK_MEMORY, CLOCK_SM
from mltop.probes.collect.nvml.fields import FieldRequest, FieldValues


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
    pcie.read_maxima(device, reading)
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
    nvlink_calls.read_remotes(device, reading)


def keep_count(links: nvlink.Links, count: Any) -> dict[str, Any]:
    links.count = count()
    return {}
