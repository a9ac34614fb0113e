"""ECC: mode, error counts, and whether SRAM has had too many errors (nvml.h, docs of row remapping and ECC)."""

from __future__ import annotations

from ctypes import byref, c_int
from functools import partial
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, as_flag, not_blank, structure
from mltop.probes.collect.nvml.fields import FieldValues, first_available

# By GpuSample's name: field id, then error type and counter type of nvmlDeviceGetTotalEccErrors.
COUNTS = {
    "corrected_volatile": (3, 0, 0),
    "uncorrected_volatile": (4, 1, 0),
    "corrected_aggregate": (5, 0, 1),
    "uncorrected_aggregate": (6, 1, 1),
}
CURRENT, PENDING = 1, 2
FIELDS = (CURRENT, PENDING, *(field for field, _, _ in COUNTS.values()))
_SRAM = 7  # nvml.h NVML_MEMORY_LOCATION_SRAM


def read_ecc(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``ecc.*`` but SRAM. Counters exist only while ECC is on."""
    reading.attempt(("ecc.enabled", "ecc.enabled_pending"), partial(read_mode, device, batch))
    for name, (field, error, counter) in COUNTS.items():
        newer = partial(batch.count, field, f"ECC {name}")
        older = partial(total_errors, device, error, counter)
        is_known = not batch.whole_code and batch.code(field) == codes.NOT_SUPPORTED
        readers = (newer,) if is_known else (newer, older)  # every driver knows these fields
        reading.attempt((f"ecc.{name}",), partial(_named, f"ecc.{name}", *readers))


def _named(name: str, *readers: Any) -> dict[str, Any]:
    return {name: first_available(*readers)}


def read_mode(device: Device, batch: FieldValues) -> dict[str, Any]:
    """The pending mode takes effect with the next reset."""
    current, pending = first_available(
        lambda: (batch.flag(CURRENT, "ECC_CURRENT"), batch.flag(PENDING, "ECC_PENDING")),
        lambda: mode_call(device),
    )
    return {"ecc.enabled": current, "ecc.enabled_pending": pending}


def mode_call(device: Device) -> tuple[bool, bool]:
    name = "nvmlDeviceGetEccMode"
    device.call(name, device.buffers.uint_ref, device.buffers.other_uint_ref)
    return as_flag(name, device.buffers.uint.value), as_flag(name, device.buffers.other_uint.value)


def total_errors(device: Device, error: int, counter: int) -> int:
    return device.ulonglong("nvmlDeviceGetTotalEccErrors", c_int(error), c_int(counter))


class SramReader:
    """``ecc.sram_uncorrected_aggregate`` and ``ecc.sram_threshold_exceeded`` (RMA policy of Ampere and newer)."""

    def __init__(self) -> None:
        self._status = structure("c_nvmlEccSramErrorStatus_v1_t")
        if self._status is not None:
            self._version = self._status.version
            self._status_ref = byref(self._status)

    def read(self, device: Device) -> Reading:
        """Only root may know the threshold; the count has an older call, for everybody."""
        reading = Reading()
        reading.attempt(("ecc.sram_threshold_exceeded",), partial(self._read_status, device))
        if "ecc.sram_uncorrected_aggregate" not in reading.values:
            reading.attempt(("ecc.sram_uncorrected_aggregate",), partial(sram_count, device))
        return reading

    def _read_status(self, device: Device) -> dict[str, Any]:
        name = "nvmlDeviceGetSramEccErrorStatus"
        if self._status is None:
            raise NvmlError(name, codes.FUNCTION_NOT_FOUND)
        self._status.version = self._version
        device.call(name, self._status_ref)
        count = self._status.aggregateUncParity + self._status.aggregateUncSecDed
        return {
            "ecc.sram_uncorrected_aggregate": not_blank(name, count),
            "ecc.sram_threshold_exceeded": as_flag(name, self._status.bThresholdExceeded),
        }


def sram_count(device: Device) -> dict[str, Any]:
    name = "nvmlDeviceGetMemoryErrorCounter"
    return {"ecc.sram_uncorrected_aggregate": device.ulonglong(name, c_int(1), c_int(1), c_int(_SRAM))}
