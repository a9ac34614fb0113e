"""What tells of a GPU's health: ECC, memory repair, PCIe errors, and what the driver says must be done.

Most is read in one batch. ECC and row remapping: nvml.h and NVIDIA's documents about them. Rows are remapped on Ampere
and newer, pages were retired before.
"""

from __future__ import annotations

from ctypes import byref, c_int, c_uint, c_ulonglong
from functools import partial
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, Structure, as_flag, first_supported, not_blank
from mltop.probes.collect.nvml.fields import FieldRequest, FieldValues, counters
from mltop.probes.collect.nvml.readers import configuration

# By GpuSample's name: field id, then error type and counter type of nvmlDeviceGetTotalEccErrors.
ECC_COUNTS = {
    "corrected_volatile": (3, 0, 0),
    "uncorrected_volatile": (4, 1, 0),
    "corrected_aggregate": (5, 0, 1),
    "uncorrected_aggregate": (6, 1, 1),
}
ECC_CURRENT, ECC_PENDING = 1, 2
_SRAM = 7  # nvml.h NVML_MEMORY_LOCATION_SRAM
REMAP = {142: "corrected", 143: "uncorrected", 144: "pending", 145: "failed"}
_REMAP_FLAGS = ("pending", "failed")
RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING = 29, 30, 31
_MAX_PAGES = 64  # as many as a GPU can retire
_BANKS = ("max", "high", "partial", "low", "none")
RECOVERY_ACTION = 230
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
PCIE_REPLAY = 94
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
FIELDS = (
    *(ECC_CURRENT, ECC_PENDING, *(field for field, _, _ in ECC_COUNTS.values())),
    *(*REMAP, RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING, RECOVERY_ACTION),
    *(PCIE_REPLAY, *PCIE_ERRORS, configuration.POWER_LIMIT),
)


class Health:
    """The batch of one GPU."""

    def __init__(self) -> None:
        self.request = FieldRequest((field, 0) for field in FIELDS)


def read_health(device: Device) -> Reading:
    """ECC, memory repair, PCIe errors, what the driver says must be done, and the power limit."""
    reading = Reading()
    batch = device.state(Health).request.read(device)
    read_ecc(device, batch, reading)
    read_remap(device, batch, reading)
    read_retired(device, batch, reading)
    reading.take("recovery_action", partial(read_recovery, batch))
    reading.take(
        "pcie.replay_count",
        partial(batch.count, PCIE_REPLAY, "PCIE_REPLAY_COUNTER"),
        partial(device.uint, "nvmlDeviceGetPcieReplayCounter"),
    )
    reading.values["pcie.errors"] = counters(batch, "pcie.errors", PCIE_ERRORS, reading)
    configuration.read_power_limit(device, batch, reading)
    return reading


def read_ecc(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``ecc.*`` but SRAM. Counters exist only while ECC is on; a mode that is pending comes with the next reset."""

    def mode(position: int) -> bool:
        return device.two_flags("nvmlDeviceGetEccMode")[position]

    reading.take("ecc.enabled", partial(batch.flag, ECC_CURRENT, "ECC_CURRENT"), partial(mode, 0))
    reading.take("ecc.enabled_pending", partial(batch.flag, ECC_PENDING, "ECC_PENDING"), partial(mode, 1))
    for name, (field, error, counter) in ECC_COUNTS.items():
        total = partial(device.ulonglong, "nvmlDeviceGetTotalEccErrors", c_int(error), c_int(counter))
        newer = partial(batch.count, field, f"ECC {name}")
        reading.take(f"ecc.{name}", newer, *batch.then_by_calls(field, total))


def read_remap(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``remap.corrected`` … ``remap.failed``."""
    for field, name in REMAP.items():  # one that is refused or cannot be says nothing of the others
        read = batch.flag if name in _REMAP_FLAGS else batch.count
        by_call = batch.then_by_calls(field, partial(remap_call, device, name))
        reading.take(f"remap.{name}", partial(read, field, f"REMAPPED {name}"), *by_call)


def remap_call(device: Device, name: str) -> int:
    numbers = {name: c_uint() for name in REMAP.values()}
    call = "nvmlDeviceGetRemappedRows"
    device.call(call, *(byref(number) for number in numbers.values()))
    number = numbers[name].value
    return as_flag(call, number) if name in _REMAP_FLAGS else number


def read_retired(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``retired_pages``, ``retired_pages_double_bit``, ``retired_pages_pending``."""

    def pages(field: int, name: str, cause: int) -> int:
        by_call = batch.then_by_calls(field, partial(count_retired, device, cause))
        count: int = first_supported(partial(batch.count, field, name), *by_call)
        return count

    double_bit = partial(pages, RETIRED_DOUBLE, "RETIRED_DBE", 1)
    reading.take("retired_pages_double_bit", double_bit)
    reading.take("retired_pages", lambda: pages(RETIRED_SINGLE, "RETIRED_SBE", 0) + double_bit())

    def pending_by_call() -> bool:
        name = "nvmlDeviceGetRetiredPagesPendingStatus"
        return as_flag(name, device.uint(name))

    pending = partial(batch.flag, RETIRED_PENDING, "RETIRED_PENDING")
    reading.take("retired_pages_pending", pending, *batch.then_by_calls(RETIRED_PENDING, pending_by_call))


def count_retired(device: Device, cause: int) -> int:
    """How many pages; the addresses are of no interest, but there is no count without room for them.

    ``cause``: nvml.h NVML_PAGE_RETIREMENT_CAUSE_*, 0 multiple single bit errors, 1 a double bit error.
    """
    count = c_uint(_MAX_PAGES)
    addresses = (c_ulonglong * _MAX_PAGES)()
    name = "nvmlDeviceGetRetiredPages"
    code = device.code(name, c_int(cause), byref(count), addresses)
    if code and code != codes.INSUFFICIENT_SIZE:
        raise NvmlError(name, code)
    return count.value


def read_recovery(batch: FieldValues) -> str:
    """The driver's own verdict."""
    number = batch.count(RECOVERY_ACTION, "GET_GPU_RECOVERY_ACTION")
    if number not in ACTIONS:
        raise GarbageError(
            f"field {RECOVERY_ACTION} GET_GPU_RECOVERY_ACTION answered {number}, which mltop does not know"
        )
    return ACTIONS[number]


_SRAM_CALL, _REPAIR_CALL = "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetRepairStatus"
_SRAM_STATUS = Structure(_SRAM_CALL, "c_nvmlEccSramErrorStatus_v1_t")
_HISTOGRAM = Structure("nvmlDeviceGetRowRemapperHistogram", "c_nvmlRowRemapperHistogramValues")
_REPAIR = Structure(_REPAIR_CALL, "c_nvmlRepairStatus_t")


def read_sram(device: Device) -> Reading:
    """``ecc.sram_uncorrected_aggregate`` and ``ecc.sram_threshold_exceeded`` (RMA policy of Ampere and newer).

    Only root may know the threshold; the count has an older call, for everybody.
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
