"""What is one number or one text of a GPU: a row for each value, by tier, and the one loop that reads rows.

A row names the field of GpuSample ("ecc.enabled" of a part), where NVML has it, the newest source first, and how it
becomes ours. What no source supports is that source's problem; any other failure is the value's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import c_int
from functools import partial
from typing import Any, Callable, NamedTuple, Union

from mltop.probes.collect.nvml.calls import GarbageError, UnreadError
from mltop.probes.collect.nvml.codes import unsupported
from mltop.probes.collect.nvml.device import TEXT_SIZE, Device, Reading, Structure, bus_id_of, first_supported
from mltop.probes.collect.nvml.fields import FieldValues


class Field(NamedTuple):
    """A field of the tier's batch: nvml.h's NVML_FI_DEV_*, and what messages call it."""

    id: int
    name: str
    how: Callable[[FieldValues, int, str], Any] = FieldValues.count

    def read(self, _device: Device, batch: FieldValues) -> Any:
        return self.how(batch, self.id, self.name)


class Call(NamedTuple):
    """A function of its own. ``args``: between the device and the result."""

    name: str
    how: Callable[..., Any] = Device.uint
    args: tuple[Any, ...] = ()

    def read(self, device: Device, _batch: FieldValues) -> Any:
        return self.how(device, self.name, *self.args)


class Member(NamedTuple):
    """What a call writes into a structure; ``name`` is the member, "" for the structure itself."""

    structure: Structure
    name: str = ""

    def read(self, device: Device, _batch: FieldValues) -> Any:
        content = self.structure.read(device)
        return getattr(content, self.name) if self.name else content


Source = Union[Field, Call, Member]


class Value:
    """One row. ``units``: how many of NVML's make one of ours. ``convert``: raises UnreadError for what is no value."""

    def __init__(
        self, field: str, *sources: Source, units: int = 1, convert: Callable[[Any], Any] | None = None
    ) -> None:
        self.field = field
        self.sources = sources
        self._units = units
        self._convert = convert

    def read(self, device: Device, batch: FieldValues) -> dict[str, Any]:
        """Raises UnreadError."""
        value = first_supported(*[partial(source.read, device, batch) for source in self.sources])
        if self._convert is not None:
            value = self._convert(value)
        return {self.field: value if self._units == 1 else value / self._units}


Rows = tuple[Value, ...]


def read_rows(rows: Rows, device: Device, batch: FieldValues | None = None, into: Reading | None = None) -> Reading:
    """The values of these rows. ``batch``: with their fields, where they have any."""
    reading, batch = into or Reading(), batch or FieldValues({})
    for row in rows:
        reading.attempt((row.field,), partial(row.read, device, batch))
    return reading


def fields_of(rows: Iterable[Value]) -> list[int]:
    """The ids of the fields that these rows need in their batch."""
    return [source.id for row in rows for source in row.sources if isinstance(source, Field)]


def named(names: Mapping[int, str], of: str) -> Callable[[int], str]:
    """From NVML's enumeration to our words. Raises GarbageError for a number that is not in ``names``."""

    def name(number: int) -> str:
        if number not in names:
            raise GarbageError(f"{of} answered {number}, which mltop does not know")
        return names[number]

    return name


CLOCK_SM, CLOCK_MEMORY = c_int(1), c_int(2)  # nvml.h NVML_CLOCK_SM, NVML_CLOCK_MEM
_SENSOR_GPU = c_int(0)  # nvml.h NVML_TEMPERATURE_GPU
_SLOWDOWN, _MEMORY_MAX = c_int(1), c_int(2)  # nvml.h NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, _MEM_MAX

# What a GPU is, and its maxima: read once.
STATIC: Rows = (
    Value("name", Call("nvmlDeviceGetName", Device.text, (TEXT_SIZE,))),
    Value("serial", Call("nvmlDeviceGetSerial", Device.text, (TEXT_SIZE,))),
    Value("vbios", Call("nvmlDeviceGetVbiosVersion", Device.text, (TEXT_SIZE,))),
    # Of the GPU's system processor; NOT_SUPPORTED where the driver runs without it.
    Value("gsp_firmware", Call("nvmlDeviceGetGspFirmwareVersion", Device.text)),
    Value("pci_bus_id", Member(Structure("nvmlDeviceGetPciInfo_v3", "nvmlPciInfo_t")), convert=bus_id_of),
    Value("minor", Call("nvmlDeviceGetMinorNumber")),
    Value("sm_clock_max_mhz", Call("nvmlDeviceGetMaxClockInfo", args=(CLOCK_SM,))),
    Value("memory_clock_max_mhz", Call("nvmlDeviceGetMaxClockInfo", args=(CLOCK_MEMORY,))),
    Value("power_limit_default_w", Call("nvmlDeviceGetPowerManagementDefaultLimit"), units=1000),
    # Absolute limits, of GPUs that have them (see limits.py).
    Value("temperature_slowdown_c", Call("nvmlDeviceGetTemperatureThreshold", args=(_SLOWDOWN,))),
    Value("memory_temperature_max_c", Call("nvmlDeviceGetTemperatureThreshold", args=(_MEMORY_MAX,))),
)
PCIE_MAX: Rows = (  # what GPU and slot could do together
    Value("pcie.gen_max", Call("nvmlDeviceGetMaxPcieLinkGeneration")),
    Value("pcie.width_max", Call("nvmlDeviceGetMaxPcieLinkWidth")),
)
PCIE: Rows = (  # as it is now: an idle link trains down to save power
    Value("pcie.gen", Call("nvmlDeviceGetCurrPcieLinkGeneration")),
    Value("pcie.width", Call("nvmlDeviceGetCurrPcieLinkWidth")),
)

NO_MEMORY_SENSOR = unsupported("the driver answered 0 °C, as of a board whose memory has no sensor (dcgm-exporter#460)")
# nvml.h nvmlClocksEventReason*. Applications clocks are no longer reported by new drivers.
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}


def _memory_celsius(celsius: float) -> float:
    if celsius == 0:
        raise UnreadError(NO_MEMORY_SENSOR)
    return float(celsius)


# At every poll, beside memory, throttle time and NVLink's traffic (fast.py).
FAST: Rows = (
    # The share of the last sample period in which a kernel was resident (nvmlUtilization_t).
    Value("busy", Member(Structure("nvmlDeviceGetUtilizationRates", "c_nvmlUtilization_t"), "gpu"), units=100),
    Value(
        "temperature_c",
        # The structure's sensor stays 0: NVML_TEMPERATURE_GPU. Driver 565 brought it.
        Member(Structure("nvmlDeviceGetTemperatureV", "c_nvmlTemperature_v1_t", "nvmlTemperature_v1"), "temperature"),
        Call("nvmlDeviceGetTemperature", args=(_SENSOR_GPU,)),
        convert=float,
    ),
    Value(  # averaged over a second where the driver has it, like nvmlDeviceGetPowerUsage on most GPUs
        "power_w",
        Field(185, "POWER_AVERAGE", FieldValues.value),
        Field(186, "POWER_INSTANT", FieldValues.value),
        Call("nvmlDeviceGetPowerUsage"),
        units=1000,
    ),
    Value("energy_j", Field(83, "TOTAL_ENERGY_CONSUMPTION", FieldValues.value), units=1000),  # since the driver loaded
    Value("memory_temperature_c", Field(82, "MEMORY_TEMP", FieldValues.value), convert=_memory_celsius),
    Value("sm_clock_mhz", Call("nvmlDeviceGetClockInfo", args=(CLOCK_SM,))),
    Value("memory_clock_mhz", Call("nvmlDeviceGetClockInfo", args=(CLOCK_MEMORY,))),
    Value(  # the call's name since driver 535, and the one before, which goes away with CUDA 14 (pynvml)
        "throttle_reasons",
        Call("nvmlDeviceGetCurrentClocksEventReasons", Device.ulonglong),
        Call("nvmlDeviceGetCurrentClocksThrottleReasons", Device.ulonglong),
        convert=lambda mask: [reason for bit, reason in REASONS.items() if mask & bit],
    ),
)

RECOVERY_ACTIONS = {  # nvml.h nvmlDeviceGpuRecoveryAction_t
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "imex_restart",
    6: "bus_reset",
    7: "system_reboot",
}
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
RETIRED_SINGLE, RETIRED_DOUBLE = Field(29, "RETIRED_SBE"), Field(30, "RETIRED_DBE")
# ECC but SRAM, memory repair, PCIe errors, what the driver says must be done, and the power limit. Rows are remapped on
# Ampere and newer, pages were retired before.
HEALTH: Rows = (
    # Counters exist only while ECC is on; a mode that is pending comes with the next reset.
    Value("ecc.enabled", Field(1, "ECC_CURRENT", FieldValues.flag)),
    Value("ecc.enabled_pending", Field(2, "ECC_PENDING", FieldValues.flag)),
    Value("ecc.corrected_volatile", Field(3, "ECC corrected_volatile")),
    Value("ecc.uncorrected_volatile", Field(4, "ECC uncorrected_volatile")),
    Value("ecc.corrected_aggregate", Field(5, "ECC corrected_aggregate")),
    Value("ecc.uncorrected_aggregate", Field(6, "ECC uncorrected_aggregate")),
    Value("remap.corrected", Field(142, "REMAPPED corrected")),
    Value("remap.uncorrected", Field(143, "REMAPPED uncorrected")),
    Value("remap.pending", Field(144, "REMAPPED pending", FieldValues.flag)),
    Value("remap.failed", Field(145, "REMAPPED failed", FieldValues.flag)),
    Value("retired_pages_double_bit", RETIRED_DOUBLE),
    Value("retired_pages_pending", Field(31, "RETIRED_PENDING", FieldValues.flag)),
    Value(
        "recovery_action",
        Field(230, "GET_GPU_RECOVERY_ACTION"),
        convert=named(RECOVERY_ACTIONS, "field 230 GET_GPU_RECOVERY_ACTION"),
    ),
    Value("pcie.replay_count", Field(94, "PCIE_REPLAY_COUNTER")),
    Value(  # the lowest of what the user, the board and the platform allow, including what was set out of band
        "power_limit_w", Field(190, "POWER_CURRENT_LIMIT"), Call("nvmlDeviceGetEnforcedPowerLimit"), units=1000
    ),
)

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}  # nvmlComputeMode_t
_COMPUTE_MODE = "nvmlDeviceGetComputeMode"
MODES: Rows = (
    Value("persistence", Call("nvmlDeviceGetPersistenceMode", Device.flag)),
    Value("compute_mode", Call(_COMPUTE_MODE), convert=named(COMPUTE_MODES, _COMPUTE_MODE)),  # who may start to compute
    Value("performance_state", Call("nvmlDeviceGetPerformanceState")),  # 0 is the fastest
)
