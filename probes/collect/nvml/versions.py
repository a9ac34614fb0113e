"""Versions: of the driver, of the CUDA that it supports, of the GPU's firmware."""

from __future__ import annotations

from ctypes import byref, c_int, c_uint, create_string_buffer
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import Calls, GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device
from mltop.probes.nvml_fields import as_numbers


def read_driver(calls: Calls) -> dict[str, Any]:
    """The driver's version, the same for all GPUs."""
    buffer: Any = create_string_buffer(96)
    calls.system("nvmlSystemGetDriverVersion", buffer, c_uint(96))
    return {"driver": buffer.value.decode("utf-8", "replace") or None}


def read_cuda(calls: Calls) -> dict[str, Any]:
    """The newest CUDA that the driver supports: NVML says 13000 for 13.0."""
    version = c_int()
    try:
        calls.system("nvmlSystemGetCudaDriverVersion_v2", byref(version))
    except NvmlError as failure:
        if failure.code not in codes.UNSUPPORTED:
            raise
        calls.system("nvmlSystemGetCudaDriverVersion", byref(version))
    if not 1000 <= version.value < 1_000_000:
        raise GarbageError(f"the driver answered {version.value}, which is not a CUDA version")
    return {"cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def read_gsp(device: Device) -> dict[str, Any]:
    """The firmware of the GPU's system processor. NOT_SUPPORTED where the driver runs without it."""
    return {"gsp_firmware": device.text("nvmlDeviceGetGspFirmwareVersion")}


def numbering(calls: Calls, driver: str | None) -> tuple[int, ...]:
    """The version whose field ids hold: the driver's, else that of NVML, which is CUDA's version and the driver's."""
    numbers = as_numbers(driver)
    if len(numbers) > 1:
        return numbers
    buffer: Any = create_string_buffer(96)
    try:
        calls.system("nvmlSystemGetNVMLVersion", buffer, c_uint(96))
    except NvmlError as failure:
        if failure.code in codes.LIBRARY_DOWN:
            raise
        return numbers
    _, _, of_driver = buffer.value.decode("utf-8", "replace").partition(".")
    return max(numbers, as_numbers(of_driver))
