"""ECC: mode, error counts, and whether SRAM has had too many errors (nvml.h, docs of row remapping and ECC).

Memory repair: remapped rows (Ampere and newer), retired pages (before), and what the driver says must be done.

What tells of a GPU's health, in one batch: ECC, memory repair, PCIe errors, the verdict, the power limit.
"""

from __future__ import annotations

from ctypes import byref, c_int, c_uint, c_ulonglong
from functools import partial
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, as_flag, not_blank, structure
from mltop.probes.collect.nvml.fields import FieldRequest, FieldValues, first_available
from mltop.probes.collect.nvml.readers import configuration

# By GpuSample's name: field id, then error type and counter type of nvmlDeviceGetTotalEccErrors.
COUNTS = {
    "corrected_volatile": (3, 0, 0),
    "uncorrected_volatile": (4, 1, 0),
    "corrected_aggregate": (5, 0, 1),
    "uncorrected_aggregate": (6, 1, 1),
}
CURRENT, PENDING = 1, 2
ECC_FIELDS = (CURRENT, PENDING, *(field for field, _, _ in COUNTS.values()))
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


REMAP = {142: "corrected", 143: "uncorrected", 144: "pending", 145: "failed"}
RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING = 29, 30, 31
RECOVERY_ACTION = 230
REMAP_FIELDS = (*REMAP, RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING, RECOVERY_ACTION)
ACTIONS = {  # nvml.h nvmlDeviceGpuRecoveryAction_t
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "imex_restart",
    6: "bus_reset",
    7: "system_reboot",
}
_CAUSES = (0, 1)  # nvml.h NVML_PAGE_RETIREMENT_CAUSE_*: multiple single bit errors, double bit error
_MAX_PAGES = 64  # as many as a GPU can retire
_BANKS = ("max", "high", "partial", "low", "none")


def read_remap(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``remap.corrected`` … ``remap.failed``."""
    names = tuple(f"remap.{name}" for name in REMAP.values())
    if batch.code(142):
        older = [] if is_refused_by_the_gpu(batch, 142) else [partial(remap_call, device)]
        reading.attempt(names, lambda: first_available(partial(remap_field, batch, 142), *older))
        return
    for field, name in REMAP.items():  # one that cannot be says nothing of the others
        reading.attempt((f"remap.{name}",), partial(remap_field, batch, field))


def is_refused_by_the_gpu(batch: FieldValues, field: int) -> bool:
    """NOT_SUPPORTED for a field as old as these is the GPU's answer: the older call would say the same."""
    return not batch.whole_code and batch.code(field) == codes.NOT_SUPPORTED


def remap_field(batch: FieldValues, field: int) -> dict[str, Any]:
    name = REMAP[field]
    read = batch.flag if name in ("pending", "failed") else batch.count
    return {f"remap.{name}": read(field, f"REMAPPED {name}")}


def remap_call(device: Device) -> dict[str, Any]:
    found = [c_uint() for _ in REMAP]
    name = "nvmlDeviceGetRemappedRows"
    device.call(name, *(byref(number) for number in found))
    corrected, uncorrected, pending, failed = (number.value for number in found)
    return {
        "remap.corrected": corrected,
        "remap.uncorrected": uncorrected,
        "remap.pending": as_flag(name, pending),
        "remap.failed": as_flag(name, failed),
    }


def read_retired(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``retired_pages``, ``retired_pages_double_bit``, ``retired_pages_pending``."""
    by_call = [] if is_refused_by_the_gpu(batch, RETIRED_DOUBLE) else [partial(retired_calls, device)]
    pages = ("retired_pages", "retired_pages_double_bit")
    reading.attempt(pages, lambda: first_available(partial(retired_fields, batch), *by_call))
    pending_by_call = [] if is_refused_by_the_gpu(batch, RETIRED_PENDING) else [partial(pending_call, device)]
    field = partial(batch.flag, RETIRED_PENDING, "RETIRED_PENDING")
    reading.attempt(
        ("retired_pages_pending",), lambda: {"retired_pages_pending": first_available(field, *pending_by_call)}
    )


def retired_fields(batch: FieldValues) -> dict[str, Any]:
    double_bit = batch.count(RETIRED_DOUBLE, "RETIRED_DBE")
    total = batch.count(RETIRED_SINGLE, "RETIRED_SBE") + double_bit
    return {"retired_pages": total, "retired_pages_double_bit": double_bit}


def retired_calls(device: Device) -> dict[str, Any]:
    single, double = (retired_call(device, cause) for cause in _CAUSES)
    return {"retired_pages": single + double, "retired_pages_double_bit": double}


def retired_call(device: Device, cause: int) -> int:
    """How many pages; the addresses are of no interest, but there is no count without room for them."""
    count = c_uint(_MAX_PAGES)
    addresses = (c_ulonglong * _MAX_PAGES)()
    name = "nvmlDeviceGetRetiredPages"
    code = device.code(name, c_int(cause), byref(count), addresses)
    if code and code != codes.INSUFFICIENT_SIZE:
        raise NvmlError(name, code)
    return count.value


def pending_call(device: Device) -> bool:
    name = "nvmlDeviceGetRetiredPagesPendingStatus"
    return as_flag(name, device.uint(name))


def read_recovery(batch: FieldValues) -> dict[str, Any]:
    """The driver's own verdict."""
    number = batch.count(RECOVERY_ACTION, "GET_GPU_RECOVERY_ACTION")
    if number not in ACTIONS:
        raise GarbageError(
            f"field {RECOVERY_ACTION} GET_GPU_RECOVERY_ACTION answered {number}, which mltop does not know"
        )
    return {"recovery_action": ACTIONS[number]}


class RepairReader:
    """``remap.banks.*`` and ``remap.repair_pending``."""

    def __init__(self) -> None:
        self._histogram = structure("c_nvmlRowRemapperHistogramValues")
        self._repair = structure("c_nvmlRepairStatus_t")
        if self._histogram is not None:
            self._histogram_ref = byref(self._histogram)
        if self._repair is not None:
            self._repair_version = self._repair.version
            self._repair_ref = byref(self._repair)

    def read(self, device: Device) -> Reading:
        """Raises NvmlError when the GPU or the library is gone."""
        reading = Reading()
        reading.attempt(("remap.banks",), partial(self._read_histogram, device))
        reading.attempt(("remap.repair_pending",), partial(self._read_repair, device))
        return reading

    def _read_histogram(self, device: Device) -> dict[str, Any]:
        name = "nvmlDeviceGetRowRemapperHistogram"
        if self._histogram is None:
            raise NvmlError(name, codes.FUNCTION_NOT_FOUND)
        device.call(name, self._histogram_ref)
        return {f"remap.banks.{bank}": getattr(self._histogram, bank) for bank in _BANKS}

    def _read_repair(self, device: Device) -> dict[str, Any]:
        name = "nvmlDeviceGetRepairStatus"
        if self._repair is None:
            raise NvmlError(name, codes.FUNCTION_NOT_FOUND)
        self._repair.version = self._repair_version
        device.call(name, self._repair_ref)
        pending = [as_flag(name, self._repair.bChannelRepairPending), as_flag(name, self._repair.bTpcRepairPending)]
        return {"remap.repair_pending": any(pending)}


FIELDS = (*ECC_FIELDS, *REMAP_FIELDS, *configuration.PCIE_FIELDS, configuration.POWER_LIMIT)


class Health:
    """The batch of one GPU."""

    def __init__(self) -> None:
        self.request = FieldRequest((field, 0) for field in FIELDS)


def read_health(device: Device) -> Reading:
    """Raises NvmlError when the GPU or the library is gone."""
    reading = Reading()
    batch = device.state(Health).request.read(device)
    read_ecc(device, batch, reading)
    read_remap(device, batch, reading)
    read_retired(device, batch, reading)
    reading.attempt(("recovery_action",), partial(read_recovery, batch))
    configuration.read_errors(device, batch, reading)
    reading.attempt(("power_limit_w",), partial(configuration.read_power_limit, device, batch))
    return reading
