"""What a GPU is, how it is set up and how healthy it is: a line for each value, code for what is a structure.

Identity and maxima do not change while the library is initialised, modes when somebody changes them. ECC and row
remapping: nvml.h and NVIDIA's documents about them. Rows are remapped on Ampere and newer, pages were retired before.
"""

from __future__ import annotations

from ctypes import c_int
from functools import partial
from typing import Any

from mltop.probes.collect.nvml.calls import GarbageError
from mltop.probes.collect.nvml.codes import unsupported
from mltop.probes.collect.nvml.device import (
    TEXT_SIZE,
    Device,
    Reading,
    Structure,
    as_flag,
    bus_id_of,
    not_blank,
)
from mltop.probes.collect.nvml.fields import FieldRequest, FieldValues, counters
from mltop.probes.collect.nvml.readers import limits, nvlink
from mltop.probes.collect.nvml.readers.fast import CLOCK_MEMORY, CLOCK_SM, UNIFIED_MEMORY, read_memory

INTEGRATED = unsupported("an integrated GPU is not behind a PCIe link")
UNKNOWN_STATE = 32  # nvml.h NVML_PSTATE_UNKNOWN
PCI_INFO = Structure("nvmlDeviceGetPciInfo_v3", "nvmlPciInfo_t")
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")  # nvml.h nvmlComputeMode_t


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
    reading.take("name", partial(device.text, "nvmlDeviceGetName", TEXT_SIZE))
    reading.take("serial", partial(device.text, "nvmlDeviceGetSerial", TEXT_SIZE))
    reading.take("vbios", partial(device.text, "nvmlDeviceGetVbiosVersion", TEXT_SIZE))
    # Of the GPU's system processor; NOT_SUPPORTED where the driver runs without it.
    reading.take("gsp_firmware", partial(device.text, "nvmlDeviceGetGspFirmwareVersion"))
    reading.take("pci_bus_id", lambda: bus_id_of(PCI_INFO.read(device)))
    reading.take("minor", partial(device.uint, "nvmlDeviceGetMinorNumber"))
    reading.take("sm_clock_max_mhz", partial(device.uint, "nvmlDeviceGetMaxClockInfo", CLOCK_SM))
    reading.take("memory_clock_max_mhz", partial(device.uint, "nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY))
    default_limit = partial(device.uint, "nvmlDeviceGetPowerManagementDefaultLimit")
    reading.take("power_limit_default_w", default_limit, divisor=1000)
    for field, threshold in limits.THRESHOLDS.items():
        reading.take(field, partial(device.uint, "nvmlDeviceGetTemperatureThreshold", c_int(threshold)))
    memory.attempt(("memory",), partial(read_memory, device))
    unified = device.state(Modes).unified_memory = memory.problems.get("memory") == UNIFIED_MEMORY
    if unified or not memory.problems:
        reading.values["unified_memory"] = unified
    # What GPU and slot could do together.
    read_pcie(device, reading, ("pcie.gen_max", "pcie.width_max"), "nvmlDeviceGetMaxPcieLink")
    batch = FieldRequest((field, 0) for field in (nvlink.LINK_COUNT, limits.MEMORY_OFFSET)).read(device)
    offset.take("memory", partial(batch.value, limits.MEMORY_OFFSET, "TEMPERATURE_MEM_MAX_TLIMIT"))
    device.state(limits.Limits).memory_offset_c = offset.values.get("memory")
    nvlink.read_static(device, batch, reading)
    return reading


def read_pcie_link(device: Device) -> Reading:
    """``pcie.gen`` and ``pcie.width`` as they are now: an idle link trains down to save power."""
    return read_pcie(device, Reading(), ("pcie.gen", "pcie.width"), "nvmlDeviceGetCurrPcieLink")


def read_pcie(device: Device, reading: Reading, fields: tuple[str, str], call: str) -> Reading:
    """Generation and width. An integrated GPU reports a placeholder (GB10: generation 1, one lane)."""
    if device.state(Modes).unified_memory:
        reading.problems.update(dict.fromkeys(fields, INTEGRATED))
        return reading
    for field, part in zip(fields, ("Generation", "Width")):
        reading.take(field, partial(device.uint, call + part))
    return reading


def read_modes(device: Device) -> Reading:
    """``persistence``, ``compute_mode`` (who may start to compute), ``performance_state`` (0 is the fastest)."""

    def compute_mode() -> str:
        mode = device.uint("nvmlDeviceGetComputeMode")
        if mode >= len(COMPUTE_MODES):
            raise GarbageError(f"nvmlDeviceGetComputeMode answered {mode}")
        return COMPUTE_MODES[mode]

    def performance_state() -> int:
        state = device.uint("nvmlDeviceGetPerformanceState")
        if state == UNKNOWN_STATE:
            raise GarbageError("nvmlDeviceGetPerformanceState does not know the state")
        return state

    reading = Reading()
    reading.take("persistence", partial(device.flag, "nvmlDeviceGetPersistenceMode"))
    reading.take("compute_mode", compute_mode)
    reading.take("performance_state", performance_state)
    return reading


def read_mig_mode(device: Device) -> Reading:
    """``mig_enabled`` and ``mig_pending``: the pending mode takes effect with the next reset."""
    reading, fields = Reading(), ("mig_enabled", "mig_pending")
    reading.attempt(fields, lambda: dict(zip(fields, device.two_flags("nvmlDeviceGetMigMode"))))
    device.state(Modes).mig_enabled = bool(reading.values.get("mig_enabled"))
    return reading


ECC_COUNTS = {3: "corrected_volatile", 4: "uncorrected_volatile", 5: "corrected_aggregate", 6: "uncorrected_aggregate"}
ECC_CURRENT, ECC_PENDING = 1, 2
_SRAM = 7  # nvml.h NVML_MEMORY_LOCATION_SRAM
REMAP = {142: "corrected", 143: "uncorrected", 144: "pending", 145: "failed"}
_REMAP_FLAGS = ("pending", "failed")
RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING = 29, 30, 31
_BANKS = ("max", "high", "partial", "low", "none")
RECOVERY_ACTION = 230
ACTIONS = (  # nvml.h nvmlDeviceGpuRecoveryAction_t
    *("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "imex_restart", "bus_reset", "system_reboot"),
)
PCIE_REPLAY = 94
_ERRORS_FROM_173 = (
    *("correctable_errors", "naks_received", "receiver_error", "bad_tlp", "naks_sent", "bad_dllp", "non_fatal_error"),
    *("fatal_error", "unsupported_req", "lcrc_error", "lane_error"),
)
# nvml.h NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER and NVML_FI_DEV_PCIE_COUNT_*
PCIE_ERRORS = {169: "l0_to_recovery", **dict(enumerate(_ERRORS_FROM_173, 173))}
POWER_LIMIT = 190  # mW: the limit in force, including those set elsewhere (out of band)
FIELDS = (
    *(ECC_CURRENT, ECC_PENDING, *ECC_COUNTS),
    *(*REMAP, RETIRED_SINGLE, RETIRED_DOUBLE, RETIRED_PENDING, RECOVERY_ACTION),
    *(PCIE_REPLAY, *PCIE_ERRORS, POWER_LIMIT),
)


class Health:
    """The batch of one GPU."""

    def __init__(self) -> None:
        self.request = FieldRequest((field, 0) for field in FIELDS)


def read_health(device: Device) -> Reading:
    """ECC but SRAM, memory repair, PCIe errors, what the driver says must be done, and the power limit."""
    reading = Reading()
    batch = device.state(Health).request.read(device)

    # Counters exist only while ECC is on; a mode that is pending comes with the next reset.
    reading.take("ecc.enabled", partial(batch.flag, ECC_CURRENT, "ECC_CURRENT"))
    reading.take("ecc.enabled_pending", partial(batch.flag, ECC_PENDING, "ECC_PENDING"))
    for field, name in ECC_COUNTS.items():
        reading.take(f"ecc.{name}", partial(batch.count, field, f"ECC {name}"))
    for field, name in REMAP.items():  # one that is refused or cannot be says nothing of the others
        read = batch.flag if name in _REMAP_FLAGS else batch.count
        reading.take(f"remap.{name}", partial(read, field, f"REMAPPED {name}"))
    double_bit = partial(batch.count, RETIRED_DOUBLE, "RETIRED_DBE")
    reading.take("retired_pages_double_bit", double_bit)
    reading.take("retired_pages", lambda: batch.count(RETIRED_SINGLE, "RETIRED_SBE") + double_bit())
    reading.take("retired_pages_pending", partial(batch.flag, RETIRED_PENDING, "RETIRED_PENDING"))
    reading.take("recovery_action", partial(read_recovery, batch))
    reading.take("pcie.replay_count", partial(batch.count, PCIE_REPLAY, "PCIE_REPLAY_COUNTER"))
    reading.values["pcie.errors"] = counters(batch, "pcie.errors", PCIE_ERRORS, reading)
    reading.take(  # the lowest of what the user, the board and the platform allow
        "power_limit_w",
        partial(batch.count, POWER_LIMIT, "POWER_CURRENT_LIMIT"),
        partial(device.uint, "nvmlDeviceGetEnforcedPowerLimit"),
        divisor=1000,
    )
    return reading


def read_recovery(batch: FieldValues) -> str:
    """The driver's own verdict."""
    number = batch.count(RECOVERY_ACTION, "GET_GPU_RECOVERY_ACTION")
    if number >= len(ACTIONS):
        field = f"field {RECOVERY_ACTION} GET_GPU_RECOVERY_ACTION"
        raise GarbageError(f"{field} answered {number}, which mltop does not know")
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
