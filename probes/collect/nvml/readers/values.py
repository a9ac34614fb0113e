"""What a GPU is, how it is set up and how healthy it is: the rows of the table, and code for what is a structure.

Identity and maxima do not change while the library is initialised, modes when somebody changes them. ECC and row
remapping: nvml.h and NVIDIA's documents about them.
"""

from __future__ import annotations

from ctypes import c_int
from functools import partial
from typing import Any

from mltop.probes.collect.nvml.codes import unsupported
from mltop.probes.collect.nvml.device import Device, Reading, Structure, as_flag, not_blank
from mltop.probes.collect.nvml.fields import FieldRequest, counters
from mltop.probes.collect.nvml.readers import limits, nvlink
from mltop.probes.collect.nvml.readers.fast import UNIFIED_MEMORY, read_memory
from mltop.probes.collect.nvml.readers.table import (
    HEALTH,
    PCIE,
    PCIE_ERRORS,
    PCIE_MAX,
    RETIRED_DOUBLE,
    RETIRED_SINGLE,
    STATIC,
    Rows,
    fields_of,
    read_rows,
)

INTEGRATED = unsupported("an integrated GPU is not behind a PCIe link")


class Modes:
    """What other readers want to know of one GPU."""

    def __init__(self) -> None:
        self.mig_enabled = False
        self.unified_memory = False


def read_static(device: Device, system: Reading) -> Reading:
    """What a GPU is, and its maxima; ``system``: what was read once for all GPUs."""
    reading, memory, offset = Reading(), Reading(), Reading()
    reading.values.update(system.values)
    reading.problems.update(system.problems)
    read_rows(STATIC, device, into=reading)
    memory.attempt(("memory",), partial(read_memory, device))
    unified = device.state(Modes).unified_memory = memory.problems.get("memory") == UNIFIED_MEMORY
    if unified or not memory.problems:
        reading.values["unified_memory"] = unified
    read_pcie(PCIE_MAX, device, reading)
    batch = FieldRequest((field, 0) for field in (nvlink.LINK_COUNT, limits.MEMORY_OFFSET)).read(device)
    offset.take("memory", partial(batch.value, limits.MEMORY_OFFSET, "TEMPERATURE_MEM_MAX_TLIMIT"))
    device.state(limits.Limits).memory_offset_c = offset.values.get("memory")
    nvlink.read_static(device, batch, reading)
    return reading


def read_pcie_link(device: Device) -> Reading:
    """``pcie.gen`` and ``pcie.width``."""
    return read_pcie(PCIE, device, Reading())


def read_pcie(rows: Rows, device: Device, reading: Reading) -> Reading:
    """Generation and width. An integrated GPU reports a placeholder (GB10: generation 1, one lane)."""
    if device.state(Modes).unified_memory:
        reading.problems.update(dict.fromkeys([row.field for row in rows], INTEGRATED))
        return reading
    return read_rows(rows, device, into=reading)


def read_mig_mode(device: Device) -> Reading:
    """``mig_enabled`` and ``mig_pending``: the pending mode takes effect with the next reset."""
    reading, fields = Reading(), ("mig_enabled", "mig_pending")
    reading.attempt(fields, lambda: dict(zip(fields, device.two_flags("nvmlDeviceGetMigMode"))))
    device.state(Modes).mig_enabled = bool(reading.values.get("mig_enabled"))
    return reading


class Health:
    """The batch of one GPU."""

    def __init__(self) -> None:
        fields = (*fields_of(HEALTH), RETIRED_SINGLE.id, *PCIE_ERRORS)
        self.request = FieldRequest((field, 0) for field in fields)


def read_health(device: Device) -> Reading:
    """The rows of HEALTH, all retired pages, and PCIe's counters of errors."""
    batch = device.state(Health).request.read(device)
    reading = read_rows(HEALTH, device, batch)
    reading.take("retired_pages", lambda: RETIRED_SINGLE.read(device, batch) + RETIRED_DOUBLE.read(device, batch))
    reading.values["pcie.errors"] = counters(batch, "pcie.errors", PCIE_ERRORS, reading)
    return reading


_SRAM = 7  # nvml.h NVML_MEMORY_LOCATION_SRAM
_SRAM_CALL, _REPAIR_CALL = "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetRepairStatus"
_SRAM_STATUS = Structure(_SRAM_CALL, "c_nvmlEccSramErrorStatus_v1_t")
_HISTOGRAM = Structure("nvmlDeviceGetRowRemapperHistogram", "c_nvmlRowRemapperHistogramValues")
_REPAIR = Structure(_REPAIR_CALL, "c_nvmlRepairStatus_t")
_BANKS = ("max", "high", "partial", "low", "none")  # members of the histogram, and fields of RemapBanks


def read_sram(device: Device) -> Reading:
    """``ecc.sram_uncorrected_aggregate`` and ``ecc.sram_threshold_exceeded`` (RMA policy of Ampere and newer).

    Only root may know the threshold; the count has another call, for everybody.
    """
    reading, count = Reading(), "ecc.sram_uncorrected_aggregate"

    def status() -> dict[str, Any]:
        status = _SRAM_STATUS.read(device)
        return {
            count: not_blank(_SRAM_CALL, status.aggregateUncParity + status.aggregateUncSecDed),
            "ecc.sram_threshold_exceeded": as_flag(_SRAM_CALL, status.bThresholdExceeded),
        }

    reading.attempt(("ecc.sram_threshold_exceeded",), status)
    if count not in reading.values:
        counter = partial(device.ulonglong, "nvmlDeviceGetMemoryErrorCounter", c_int(1), c_int(1), c_int(_SRAM))
        reading.take(count, counter)
    return reading


def read_repair(device: Device) -> Reading:
    """``remap.banks.*`` and ``remap.repair_pending``."""

    def histogram() -> dict[str, Any]:
        banks = _HISTOGRAM.read(device)
        return {f"remap.banks.{bank}": getattr(banks, bank) for bank in _BANKS}

    def is_pending() -> bool:
        status = _REPAIR.read(device)
        flags = [as_flag(_REPAIR_CALL, flag) for flag in (status.bChannelRepairPending, status.bTpcRepairPending)]
        return any(flags)

    reading = Reading()
    reading.attempt(("remap.banks",), histogram)
    reading.take("remap.repair_pending", is_pending)
    return reading
