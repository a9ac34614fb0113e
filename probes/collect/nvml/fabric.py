"""NVLink fabric: whether Fabric Manager has registered the GPU, and what is wrong with it (Hopper and newer)."""

from __future__ import annotations

from ctypes import byref
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, first_supported, structure, unsupported
from mltop.probes.collect.nvml.fields import fallback_needed

STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
COMPLETED = 3
SUMMARIES = {1: "ok", 2: "unhealthy", 3: "limited"}  # 0: not supported
# nvml.h NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*: two bits each, 0 not supported, 1 true, 2 false.
_PROBLEMS = {0: "degraded_bandwidth", 2: "route_recovery", 4: "route_unhealthy", 6: "access_timeout"}
_TRUE = 1
_MISCONFIGURED_SHIFT = 8  # four bits: 0 not supported, 1 none, above: which
_UNHEALTHY = {"route_unhealthy", "misconfigured"}
_CALL_V = "nvmlDeviceGetGpuFabricInfoV"
_CALL = "nvmlDeviceGetGpuFabricInfo"


def problems_of(mask: int) -> list[str]:
    """What a health mask says is wrong."""
    found = [name for shift, name in _PROBLEMS.items() if mask >> shift & 3 == _TRUE]
    return found + (["misconfigured"] if mask >> _MISCONFIGURED_SHIFT & 15 > 1 else [])


def health_of(mask: int) -> str | None:
    """From the mask alone, for drivers before 580. None: nothing in it is supported."""
    found = set(problems_of(mask))
    if found:
        return "unhealthy" if found & _UNHEALTHY else "limited"
    return "ok" if mask & 0xFFF else None


class FabricReader:
    """``fabric.*``."""

    def __init__(self) -> None:
        self._v3 = structure("c_nvmlGpuFabricInfo_v3_t")
        self._v2 = structure("c_nvmlGpuFabricInfo_v2_t")
        self._v1 = structure("c_nvmlGpuFabricInfo_t")

    def read(self, device: Device) -> Reading:
        """Raises NvmlError when the GPU or the library is gone."""
        reading = Reading()
        reading.attempt(("fabric",), partial(self._read, device, reading))
        return reading

    def _read(self, device: Device, reading: Reading) -> dict[str, Any]:
        info = first_supported(
            partial(self._versioned, device, self._v3, "nvmlGpuFabricInfo_v3"),
            partial(self._versioned, device, self._v2, "nvmlGpuFabricInfo_v2"),
            partial(self._unversioned, device),
            moves_on=fallback_needed,
        )
        return describe(info, reading)

    def _versioned(self, device: Device, info: Any, version: str) -> Any:
        """A driver that does not know a version says so; it may still know the one before."""
        if info is None:
            raise NvmlError(_CALL_V, codes.FUNCTION_NOT_FOUND)
        info.version = getattr(pynvml, version)
        device.call(_CALL_V, byref(info), part=version)
        return info

    def _unversioned(self, device: Device) -> Any:
        if self._v1 is None:
            raise NvmlError(_CALL, codes.FUNCTION_NOT_FOUND)
        device.call(_CALL, byref(self._v1))
        return self._v1


def describe(info: Any, reading: Reading) -> dict[str, Any]:
    """The values of one answer of any version. The rest means something only once registration has completed."""
    if info.state not in STATES:
        raise GarbageError(f"{_CALL_V} answered state {info.state}, which mltop does not know")
    found: dict[str, Any] = {"fabric.state": STATES[info.state]}
    if info.state != COMPLETED:
        return found
    if info.status:
        reading.problems["fabric.status"] = (
            f"registration in the NVLink fabric ended with NVML error {info.status} ({codes.text(info.status)})"
        )
        return found
    found["fabric.clique_id"] = info.cliqueId
    cluster = bytes(info.clusterUuid)
    found["fabric.cluster_uuid"] = uuid_text(cluster) if any(cluster) else None  # zero: part of none
    mask = getattr(info, "healthMask", 0)
    found["fabric.problems"] = problems_of(mask)
    found["fabric.health"] = SUMMARIES.get(getattr(info, "healthSummary", 0)) or health_of(mask)
    if found["fabric.health"] is None:
        reading.problems["fabric.health"] = unsupported("this driver does not tell the health of the NVLink fabric")
    return found


def uuid_text(data: bytes) -> str:
    """RFC 9562's form. The module uuid would be a hundredth of the child's memory."""
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
