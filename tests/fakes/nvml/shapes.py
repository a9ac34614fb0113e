"""GPUs as they are on the market, under drivers of several generations: scenarios for the fake NVML.

    shape("a100", fake, count=8, driver="470")
    fake.write()

What a GPU has not is "unsupported"; what a driver has not is "missing" (functions), or a field id that it calls an
invalid argument (470) or not supported. Sources: NVML's change log (which driver brought what), nvml.h (which
architecture has what), nvidia-smi reports of such machines (values). Not all of it could be checked on hardware.
"""

from __future__ import annotations

from typing import Any

from tests.fakes.nvml.scenario import FakeNvml

MIB = 2**20
DRIVERS = {"470": "470.256.02", "535": "535.183.06", "570": "570.172.08", "580": "580.95.05"}
CUDA = {"470": 11040, "535": 12020, "570": 12080, "580": 13000}
# The newest field id that the branch knows (nvml.h NVML_FI_MAX).
NEWEST_FIELD = {"470": 160, "535": 192, "570": 268, "580": 302}
# The newest structure of nvmlDeviceGetGpuFabricInfoV, 0: the function is missing.
FABRIC_VERSION = {"470": 0, "535": 0, "570": 2, "580": 3}
FIRST_DRIVER = {"a100": "470", "h100": "535", "b200": "570", "gb200": "570"}
# Functions by the branch that brought them.
NEWER_THAN = {
    "470": (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetGspFirmwareVersion",
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleGet",
        "nvmlGpmMetricsGet",
    ),
    "535": (
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetSramEccErrorStatus",
    ),
    "570": ("nvmlDeviceGetRepairStatus",),
    "580": (),
}
# All ids that mltop or the fake know.
FIELD_IDS = (
    *range(1, 7), *range(29, 32), *range(74, 80), 82, 83, *range(84, 90), 91, 94, *range(132, 146), *range(161, 167),
    169, *range(173, 184), 185, 186, 190, *range(193, 199), 202, 204, *range(206, 216), 219, 221, 230, 269, 270, 271,
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
        "fabric_clique": 32766,
        "fabric_cluster_uuid": "4a2c9e60-1d5b-4f08-9b1e-7f8d3c5a6b01",
    },
}


def shape(kind: str, fake: FakeNvml, count: int = 8, driver: str = "580") -> None:
    """Sets the scenario of ``count`` GPUs; nothing is written yet. ValueError for a driver older than the GPU."""
    if driver not in DRIVERS or int(driver) < int(FIRST_DRIVER[kind]):
        raise ValueError(f"no {kind} under driver {driver}")
    fake.set("count", count)
    fake.set("driver", DRIVERS[driver])
    fake.set("cuda", CUDA[driver])
    fake.set("gpu.*.gsp_firmware", DRIVERS[driver])
    for key, value in SHAPES[kind].items():
        fake.set(f"gpu.*.{key}", value)
    age(fake, driver)


def age(fake: FakeNvml, driver: str) -> None:
    """Takes away what came with newer drivers than this one."""
    for branch, functions in NEWER_THAN.items():
        if int(branch) >= int(driver):
            for function in functions:
                fake.set(f"call.{function}", "missing")
    refusal = "error 2" if driver == "470" else "unsupported"
    for field in FIELD_IDS:
        if field > NEWEST_FIELD[driver]:
            fake.set(f"gpu.*.field.{field}", refusal)
    fake.set("gpu.*.fabric_version", FABRIC_VERSION[driver])
