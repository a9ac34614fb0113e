"""GPUs as they are on the market, under drivers of several generations: scenarios for the fake NVML.

    shape("a100", fake, count=8, driver="535")
    fake.write()

What a GPU has not is "unsupported"; what a driver has not is "missing" (functions), or a field id that is not
supported. Sources: NVML's change log (which driver brought what), nvml.h (which architecture has what), nvidia-smi
reports of such machines (values). Not all of it could be checked on hardware.
"""

from __future__ import annotations

from typing import Any

from tests.fakes.nvml.scenario import FakeNvml

MIB = 2**20
DRIVERS = {
    "535": "535.183.06",
    "550": "550.163.01",
    "570": "570.172.08",
    "575": "575.57.08",
    "580.65": "580.65.06",
    "580": "580.95.05",
}
CUDA = {"535": 12020, "550": 12040, "570": 12080, "575": 12090, "580.65": 13000, "580": 13000}
# The field ids that a driver knows (its nvml.h in NVIDIA/nvidia-settings, tag by tag). What 251 to 273 are under those
# that have them, the library knows (group_fields.c).
FIELDS = {
    "535": {*range(1, 197), 226, 227},
    "550": {*range(1, 197), 199, 226, 227},
    "570": {*range(1, 231), *range(235, 269)},
    "575": {*range(1, 274)},
    "580.65": {*range(1, 274)},
    "580": {*range(1, 274)},
}
# The newest structure of nvmlDeviceGetGpuFabricInfoV, 0: the function is missing.
FABRIC_VERSION = {"535": 0, "550": 2, "570": 2, "575": 2, "580.65": 3, "580": 3}
FIRST_DRIVER = {"a100": "535", "h100": "535", "b200": "570", "gb200": "570"}
# Functions by the branch that brought them.
BROUGHT = {
    535: ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSramEccErrorStatus"),
    550: ("nvmlDeviceGetGpuFabricInfoV",),
    565: ("nvmlDeviceGetTemperatureV",),
    570: ("nvmlDeviceGetMarginTemperature",),
    580: ("nvmlDeviceGetRepairStatus",),
}
# From Ada on "support for reading these temperature thresholds … would be removed from this API" (nvml.h since
# 525.125); taken for gone where there is T.Limit's reading instead.
FIRST_WITHOUT_ABSOLUTE_LIMITS = 570
# All ids that mltop or the fake know.
FIELD_IDS = (
    *range(1, 7), *range(29, 32), *range(74, 80), 82, 83, *range(84, 90), 91, 94, *range(132, 146), *range(161, 167),
    169, *range(173, 184), 185, 186, 190, *range(193, 199), 202, 204, *range(206, 216), 219, 221, 230,
    251, 252, 253, 264, 265, 266, 269, 270, 271,
)  # fmt: skip

BLACKWELL_LINK_ERRORS = (
    "malformed_packet_errors",
    "buffer_overrun_errors",
    "rcv_errors",
    "rcv_remote_errors",
    "rcv_general_errors",
    "local_link_integrity_errors",
    "xmit_discards",
    "recovery_ok",
    "recovery_failed",
    "recovery_events",
    "effective",
    "symbol",
)
POWER_SMOOTHING = {
    "power_smoothing.enabled": 1,
    "power_smoothing.privilege": 2,
    "power_smoothing.ramps_down_at_once": 1,
    "power_smoothing.profile": 3,
    "power_smoothing.floor_percent": 90,
    "power_smoothing.ramp_up_mw_per_s": 100_000,
}
HOPPER_LINK_ERRORS = ("replay", "recovery", "crc")
NO_ABSOLUTE_LIMITS = {
    "temperature_shutdown_c": "unsupported",
    "temperature_slowdown_c": "unsupported",
    "temperature_memory_max_c": "unsupported",
}
NO_T_LIMITS = {
    "temperature_margin_c": "unsupported",
    "tlimit_shutdown_c": "unsupported",
    "tlimit_slowdown_c": "unsupported",
    "tlimit_memory_max_c": "unsupported",
    "tlimit_gpu_max_c": "unsupported",
}
NVLINK_5: dict[str, Any] = {
    "nvlink_version": 7,
    "nvlink_speed_mbps": 53125,
    "nvlink_tx_bytes": "1000, 0",
    "nvlink_rx_bytes": "2000, 0",
    **{f"nvlink_{name}": "unsupported" for name in HOPPER_LINK_ERRORS},
    **{f"nvlink_{name}": 0 for name in BLACKWELL_LINK_ERRORS},
}
SHAPES: dict[str, dict[str, Any]] = {
    "a100": {
        "name": "NVIDIA A100-SXM4-80GB",
        "vbios": "92.00.45.00.03",
        "memory_total_bytes": 81920 * MIB,
        "sm_clock_max_mhz": 1410,
        "memory_clock_mhz": 1593,
        "memory_clock_max_mhz": 1593,
        "power_limit_mw": 400_000,
        "power_limit_default_mw": 400_000,
        "power_average_mw": "unsupported",  # GA100 has none
        "temperature_slowdown_c": 92,
        "temperature_memory_max_c": 95,
        **NO_T_LIMITS,
        "pcie_gen": 4,
        "pcie_gen_max": 4,
        "nvlink_links": 12,
        "nvlink_version": 4,
        "nvlink_speed_mbps": 25000,
        "fabric_state": "unsupported",
        "gpm_supported": False,
        "gsp_firmware": "unsupported",
    },
    "h100": {
        "name": "NVIDIA H100 80GB HBM3",
        "temperature_margin_c": 55,
        **NO_ABSOLUTE_LIMITS,
    },
    "b200": {
        "name": "NVIDIA B200",
        "vbios": "97.00.82.00.1F",
        "memory_total_bytes": 183359 * MIB,
        "sm_clock_max_mhz": 1965,
        "memory_clock_mhz": 3996,
        "memory_clock_max_mhz": 3996,
        "power_limit_mw": 1_000_000,
        "power_limit_default_mw": 1_000_000,
        "temperature_margin_c": 60,
        **NO_ABSOLUTE_LIMITS,
        "nvlink_tx_kib": "unsupported",
        "nvlink_rx_kib": "unsupported",
        **NVLINK_5,
        **POWER_SMOOTHING,
    },
    "gb200": {
        "name": "NVIDIA GB200",
        "vbios": "97.00.88.00.0D",
        "memory_total_bytes": 189471 * MIB,
        "sm_clock_max_mhz": 2062,
        "memory_clock_mhz": 3996,
        "memory_clock_max_mhz": 3996,
        "power_limit_mw": 1_200_000,
        "power_limit_default_mw": 1_200_000,
        "temperature_margin_c": 62,
        **NO_ABSOLUTE_LIMITS,
        **NVLINK_5,
        **POWER_SMOOTHING,
        "fabric_clique": 32766,
        "fabric_cluster_uuid": "4a2c9e60-1d5b-4f08-9b1e-7f8d3c5a6b01",
    },
}

_NONE = "unsupported"
NO_MEMORY_ERRORS: dict[str, Any] = {
    **{f"ecc_{name}": _NONE for name in ("enabled", "pending")},
    **{f"ecc_{kind}_{life}": _NONE for kind in ("corrected", "uncorrected") for life in ("volatile", "aggregate")},
    **{f"remap_{name}": _NONE for name in ("corrected", "uncorrected", "pending", "failed")},
    "ecc_sram_threshold_exceeded": _NONE,
    "ecc_sram_uncorrected_aggregate": _NONE,
    "remap_banks_max": _NONE,
    "recovery_action": _NONE,
    "mig_enabled": _NONE,
    "pcie_replay_count": _NONE,
}
NO_POWER = {f"power_{name}": _NONE for name in ("mw", "average_mw", "limit_mw", "limit_default_mw")}
NO_MEMORY = {f"memory_{name}": _NONE for name in ("total_bytes", "used_bytes", "reserved_bytes")}
NO_MEMORY_CLOCK = {f"memory_{name}": _NONE for name in ("clock_mhz", "clock_max_mhz", "temperature_c")}
NO_LINKS = {"nvlink_links": 0, "fabric_state": _NONE, "gpm_supported": False, "serial": _NONE}
# Machines that are no node of a cluster, as users of monitors reported what NVML answers there.
OTHERS: dict[str, dict[str, Any]] = {
    # NVIDIA/nvtop#411 and #426, lablup/all-smi#80, NVIDIA/dgx-spark's known issues: PCIe is a placeholder.
    "gb10": {
        "name": "NVIDIA GB10",
        **NO_LINKS,
        **NO_MEMORY,
        **NO_MEMORY_CLOCK,
        **NO_MEMORY_ERRORS,
        **NO_ABSOLUTE_LIMITS,
        "power_limit_mw": _NONE,
        "power_limit_default_mw": _NONE,
        "power_average_mw": _NONE,
        "power_mw": 41_000,
        "sm_clock_max_mhz": 3003,
        "pcie_gen": 1,
        "pcie_width": 1,
    },
    # rbonghi/jetson_stats#698 and #849: GPU-Util and processes, no more.
    "thor": {
        "name": "NVIDIA Thor",
        **NO_LINKS,
        **NO_MEMORY,
        **NO_MEMORY_CLOCK,
        **NO_MEMORY_ERRORS,
        **NO_POWER,
        **NO_ABSOLUTE_LIMITS,
        **NO_T_LIMITS,
        "temperature_c": _NONE,
        "energy_mj": _NONE,
        "throttle_mask": _NONE,
        "sm_clock_mhz": _NONE,
        "sm_clock_max_mhz": _NONE,
        "vbios": _NONE,
        "pcie_gen": _NONE,
        "pcie_width": _NONE,
    },
    # hebais in XuehaiPan/nvitop#168, Chen-zexi/vllm-cli#11.
    "orin": {"name": "Orin (nvgpu)", "busy_percent": _NONE},
    "geforce": {
        "name": "NVIDIA GeForce RTX 3050 Laptop GPU",
        "memory_total_bytes": 4096 * MIB,
        "memory_temperature_c": _NONE,
        **NO_LINKS,
        **NO_MEMORY_ERRORS,
        **NO_POWER,
        "energy_mj": _NONE,
    },
    # Syllo/nvtop#432, NVIDIA/nvidia-container-toolkit#271: no minor number, no memory of processes.
    "wsl2": {
        "name": "NVIDIA RTX A5000 Laptop GPU",
        "memory_total_bytes": 16_384 * MIB,
        "memory_temperature_c": _NONE,
        **NO_LINKS,
        **NO_MEMORY_ERRORS,
        "minor": _NONE,
        "processes": [(79, None, "compute")],
    },
    "vgpu": {
        "name": "GRID A100-40C",
        "memory_total_bytes": 40_960 * MIB,
        "temperature_c": _NONE,
        "energy_mj": _NONE,
        **NO_LINKS,
        **NO_POWER,
        **NO_MEMORY_CLOCK,
        **NO_ABSOLUTE_LIMITS,
        **NO_T_LIMITS,
    },
    "gb300": {
        **SHAPES["gb200"],
        "name": "NVIDIA GB300",
        "memory_total_bytes": 284_208 * MIB,
        "power_limit_mw": 1_400_000,
    },
}
OTHERS["orin"] = {**OTHERS["thor"], **OTHERS["orin"]}


def other(kind: str, fake: FakeNvml, count: int = 1) -> None:
    """Sets the scenario of one of OTHERS; nothing is written yet."""
    fake.set("count", count)
    for prefix in ("memory_total", "memory_used", "memory_reserved", "memory_temperature", "power_", "temperature_"):
        for index in range(count):
            fake.unset_all(f"gpu.{index}.{prefix}")
    for key, value in OTHERS[kind].items():
        fake.set(f"gpu.*.{key}", value)


def branch_of(driver: str) -> int:
    """570 of "570", 580 of "580.65"."""
    return int(driver.partition(".")[0])


def shape(kind: str, fake: FakeNvml, count: int = 8, driver: str = "580") -> None:
    """Sets the scenario of ``count`` GPUs; nothing is written yet. ValueError for a driver older than the GPU."""
    if driver not in DRIVERS or branch_of(driver) < branch_of(FIRST_DRIVER[kind]):
        raise ValueError(f"no {kind} under driver {driver}")
    fake.set("count", count)
    fake.set("driver", DRIVERS[driver])
    fake.set("cuda", CUDA[driver])
    fake.set("gpu.*.gsp_firmware", DRIVERS[driver])
    for key, value in SHAPES[kind].items():
        if key not in NO_ABSOLUTE_LIMITS or branch_of(driver) >= FIRST_WITHOUT_ABSOLUTE_LIMITS or kind == "a100":
            fake.set(f"gpu.*.{key}", value)
    age(fake, driver)


def age(fake: FakeNvml, driver: str) -> None:
    """Takes away what came with newer drivers than this one."""
    for branch, functions in BROUGHT.items():
        if branch > branch_of(driver):
            for function in functions:
                fake.set(f"call.{function}", "missing")
    for field in FIELD_IDS:
        if field not in FIELDS[driver]:
            fake.set(f"gpu.*.field.{field}", "unsupported")
    fake.set("gpu.*.fabric_version", FABRIC_VERSION[driver])
