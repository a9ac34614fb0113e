"""What a GPU is and how it is set up: its identity and maxima, its PCIe link, its modes.

Identity and maxima do not change while the library is initialised, modes when somebody changes them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mltop.probes.collect.nvml.calls import GarbageError
from mltop.probes.collect.nvml.codes import unsupported
from mltop.probes.collect.nvml.device import TEXT_SIZE, Device, Reading, Structure, as_flag, bus_id_of, first_supported
from mltop.probes.collect.nvml.fields import FieldRequest, FieldValues
from mltop.probes.collect.nvml.readers import limits, nvlink
from mltop.probes.collect.nvml.readers.fast import CLOCK_MEMORY, CLOCK_SM, UNIFIED_MEMORY, read_memory

POWER_LIMIT = 190  # mW: the limit in force, including those set elsewhere (out of band)
INTEGRATED = unsupported("an integrated GPU is not behind a PCIe link")
UNKNOWN_STATE = 32  # nvml.h NVML_PSTATE_UNKNOWN
PCI_INFO = [Structure(f"nvmlDeviceGetPciInfo_v{version}", "nvmlPciInfo_t") for version in (3, 2)]
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")  # nvml.h nvmlComputeMode_t


class Modes:
    """What other readers want to know of one GPU."""

    def __init__(self) -> None:
        self.mig_enabled = False
        self.unified_memory = False


def read_static(device: Device, system: Reading) -> Reading:
    """What a GPU is, and its maxima; ``system``: what was read once for all GPUs."""
    reading = Reading()
    reading.values.update(system.values)
    reading.problems.update(system.problems)
    reading.take("name", partial(device.text, "nvmlDeviceGetName", TEXT_SIZE))
    reading.take("serial", partial(device.text, "nvmlDeviceGetSerial", TEXT_SIZE))
    reading.take("vbios", partial(device.text, "nvmlDeviceGetVbiosVersion", TEXT_SIZE))
    # Of the GPU's system processor; NOT_SUPPORTED where the driver runs without it.
    reading.take("gsp_firmware", partial(device.text, "nvmlDeviceGetGspFirmwareVersion"))
    reading.take("pci_bus_id", lambda: bus_id_of(first_supported(*(partial(info.read, device) for info in PCI_INFO))))
    reading.take("minor", partial(device.uint, "nvmlDeviceGetMinorNumber"))
    reading.take("sm_clock_max_mhz", partial(device.uint, "nvmlDeviceGetMaxClockInfo", CLOCK_SM))
    reading.take("memory_clock_max_mhz", partial(device.uint, "nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY))
    default_limit = partial(device.uint, "nvmlDeviceGetPowerManagementDefaultLimit")
    reading.take("power_limit_default_w", default_limit, divisor=1000)
    limits.read_thresholds(device, reading)
    read_integration(device, reading)
    # What GPU and slot could do together.
    read_pcie(device, reading, ("pcie.gen_max", "pcie.width_max"), "nvmlDeviceGetMaxPcieLink")
    has_offsets = device.numbering >= limits.OFFSETS_SINCE
    fields = [nvlink.LINK_COUNT, limits.MEMORY_OFFSET] if has_offsets else [nvlink.LINK_COUNT]
    batch = FieldRequest((field, 0) for field in fields).read(device)
    if has_offsets:
        limits.read_offsets(device, batch)
    nvlink.read_static(device, batch, reading)
    return reading


def read_power_limit(device: Device, batch: FieldValues, reading: Reading) -> None:
    """The limit in force: the lowest of what the user, the board and the platform allow."""
    reading.take(
        "power_limit_w",
        partial(batch.count, POWER_LIMIT, "POWER_CURRENT_LIMIT"),
        partial(device.uint, "nvmlDeviceGetEnforcedPowerLimit"),
        partial(device.uint, "nvmlDeviceGetPowerManagementLimit"),
        divisor=1000,
    )


def read_integration(device: Device, reading: Reading) -> None:
    """``unified_memory``: whether the GPU is part of the processor and shares its memory."""
    memory = Reading()
    memory.attempt(("memory",), partial(read_memory, device))
    unified = device.state(Modes).unified_memory = memory.problems.get("memory") == UNIFIED_MEMORY
    if unified or not memory.problems:
        reading.values["unified_memory"] = unified


def read_pcie_link(device: Device) -> Reading:
    """``pcie.gen`` and ``pcie.width`` as they are now: an idle link trains down to save power."""
    reading = Reading()
    read_pcie(device, reading, ("pcie.gen", "pcie.width"), "nvmlDeviceGetCurrPcieLink")
    return reading


def read_pcie(device: Device, reading: Reading, fields: tuple[str, str], call: str) -> None:
    """Generation and width. An integrated GPU reports a placeholder (GB10: generation 1, one lane)."""
    if device.state(Modes).unified_memory:
        reading.problems.update(dict.fromkeys(fields, INTEGRATED))
        return
    for field, part in zip(fields, ("Generation", "Width")):
        reading.take(field, partial(device.uint, call + part))


def read_modes(device: Device) -> Reading:
    """``persistence``, ``compute_mode`` and ``performance_state``."""
    reading = Reading()
    persistence = "nvmlDeviceGetPersistenceMode"
    reading.take("persistence", lambda: as_flag(persistence, device.uint(persistence)))
    reading.take("compute_mode", partial(read_compute_mode, device))
    reading.take("performance_state", partial(read_performance_state, device))
    return reading


def read_compute_mode(device: Device) -> str:
    """Who may start to compute on the GPU: anybody, one process, nobody."""
    mode = device.uint("nvmlDeviceGetComputeMode")
    if mode >= len(COMPUTE_MODES):
        raise GarbageError(f"nvmlDeviceGetComputeMode answered {mode}")
    return COMPUTE_MODES[mode]


def read_performance_state(device: Device) -> int:
    """0 is the fastest."""
    name = "nvmlDeviceGetPerformanceState"
    state = device.uint(name)
    if state == UNKNOWN_STATE:
        raise GarbageError(f"{name} does not know the state")
    return state


def read_mig_mode(device: Device) -> Reading:
    """``mig_enabled`` and ``mig_pending``: the pending mode takes effect with the next reset."""
    reading = Reading()

    def read() -> dict[str, Any]:
        enabled, pending = device.two_flags("nvmlDeviceGetMigMode")
        return {"mig_enabled": enabled, "mig_pending": pending}

    reading.attempt(("mig_enabled", "mig_pending"), read)
    device.state(Modes).mig_enabled = bool(reading.values.get("mig_enabled"))
    return reading
