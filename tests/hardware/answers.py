"""NVML's own answers, call by call, as they become a scenario of the fake library (tests/fakes/nvml/recorded.py).

Asked with pynvml alone: what mltop makes of the same answers can be looked at again on a machine without a GPU.
"""

from __future__ import annotations

import json
from typing import Any

from tests.hardware import machine

# By the fake's key (tests/fakes/nvml/README.md): pynvml's function, its arguments behind the handle, and what of the
# answer it is (attributes, or places in a list).
CALLS: dict[str, tuple[str, list[int], list[str | int]]] = {
    "name": ("nvmlDeviceGetName", [], []),
    "uuid": ("nvmlDeviceGetUUID", [], []),
    "serial": ("nvmlDeviceGetSerial", [], []),
    "vbios": ("nvmlDeviceGetVbiosVersion", [], []),
    "pci_bus_id": ("nvmlDeviceGetPciInfo", [], ["busId"]),
    "gsp_firmware": ("nvmlDeviceGetGspFirmwareVersion", [], []),
    "minor": ("nvmlDeviceGetMinorNumber", [], []),
    "architecture": ("nvmlDeviceGetArchitecture", [], []),
    "cores": ("nvmlDeviceGetNumGpuCores", [], []),
    "compute_capability_major": ("nvmlDeviceGetCudaComputeCapability", [], [0]),
    "compute_capability_minor": ("nvmlDeviceGetCudaComputeCapability", [], [1]),
    "busy_percent": ("nvmlDeviceGetUtilizationRates", [], ["gpu"]),
    "memory_busy_percent": ("nvmlDeviceGetUtilizationRates", [], ["memory"]),
    "graphics_clock_mhz": ("nvmlDeviceGetClockInfo", [0], []),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", [1], []),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", [2], []),
    "graphics_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", [0], []),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", [1], []),
    "memory_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", [2], []),
    "performance_state": ("nvmlDeviceGetPerformanceState", [], []),
    "persistence": ("nvmlDeviceGetPersistenceMode", [], []),
    "compute_mode": ("nvmlDeviceGetComputeMode", [], []),
    "mig_enabled": ("nvmlDeviceGetMigMode", [], [0]),
    "mig_pending": ("nvmlDeviceGetMigMode", [], [1]),
    "ecc_enabled": ("nvmlDeviceGetEccMode", [], [0]),
    "ecc_pending": ("nvmlDeviceGetEccMode", [], [1]),
    "ecc_corrected_volatile": ("nvmlDeviceGetTotalEccErrors", [0, 0], []),
    "ecc_corrected_aggregate": ("nvmlDeviceGetTotalEccErrors", [0, 1], []),
    "ecc_uncorrected_volatile": ("nvmlDeviceGetTotalEccErrors", [1, 0], []),
    "ecc_uncorrected_aggregate": ("nvmlDeviceGetTotalEccErrors", [1, 1], []),
    "ecc_sram_uncorrected_aggregate": ("nvmlDeviceGetMemoryErrorCounter", [1, 1, 7], []),
    "remap_corrected": ("nvmlDeviceGetRemappedRows", [], [0]),
    "remap_uncorrected": ("nvmlDeviceGetRemappedRows", [], [1]),
    "remap_pending": ("nvmlDeviceGetRemappedRows", [], [2]),
    "remap_failed": ("nvmlDeviceGetRemappedRows", [], [3]),
    **{f"remap_banks_{name}": ("nvmlDeviceGetRowRemapperHistogram", [], [name])
       for name in ("max", "high", "partial", "low", "none")},
    "channel_repair_pending": ("nvmlDeviceGetRepairStatus", [], [0]),
    "tpc_repair_pending": ("nvmlDeviceGetRepairStatus", [], [1]),
    "temperature_c": ("nvmlDeviceGetTemperature", [0], []),
    "temperature_margin_c": ("nvmlDeviceGetMarginTemperature", [], []),
    "temperature_shutdown_c": ("nvmlDeviceGetTemperatureThreshold", [0], []),
    "temperature_slowdown_c": ("nvmlDeviceGetTemperatureThreshold", [1], []),
    "temperature_memory_max_c": ("nvmlDeviceGetTemperatureThreshold", [2], []),
    "temperature_gpu_max_c": ("nvmlDeviceGetTemperatureThreshold", [3], []),
    "power_mw": ("nvmlDeviceGetPowerUsage", [], []),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit", [], []),
    "power_limit_default_mw": ("nvmlDeviceGetPowerManagementDefaultLimit", [], []),
    "energy_mj": ("nvmlDeviceGetTotalEnergyConsumption", [], []),
    "throttle_mask": ("nvmlDeviceGetCurrentClocksThrottleReasons", [], []),
    **{f"throttle_ns.{name}": ("nvmlDeviceGetViolationStatus", [policy], ["violationTime"])
       for policy, name in enumerate(
           ("sw_power_cap", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"))},
    "pcie_gen": ("nvmlDeviceGetCurrPcieLinkGeneration", [], []),
    "pcie_gen_max": ("nvmlDeviceGetMaxPcieLinkGeneration", [], []),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", [], []),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth", [], []),
    "pcie_replay_count": ("nvmlDeviceGetPcieReplayCounter", [], []),
    "gpm_supported": ("nvmlGpmQueryDeviceSupport", [], ["isSupportedDevice"]),
}  # fmt: skip
# Fields of a GPU, and by the fake's key those that each of its links has.
FIELDS = (
    *range(1, 7), *range(29, 32), *range(74, 80), 82, 83, *range(84, 90), 91, 94, *range(132, 138), *range(142, 146),
    169, *range(173, 199), 230, *range(251, 274),
)  # fmt: skip
LINK_FIELDS = {
    "nvlink_tx_kib": 138, "nvlink_rx_kib": 139, "nvlink_replay": 161, "nvlink_recovery": 162, "nvlink_crc": 163,
    "nvlink_speed_mbps": 164, "nvlink_state": 165, "nvlink_version": 166, "nvlink_tx_bytes": 202,
    "nvlink_rx_bytes": 204, "nvlink_malformed_packet_errors": 206, "nvlink_buffer_overrun_errors": 207,
    "nvlink_rcv_errors": 208, "nvlink_rcv_remote_errors": 209, "nvlink_rcv_general_errors": 210,
    "nvlink_local_link_integrity_errors": 211, "nvlink_xmit_discards": 212, "nvlink_recovery_ok": 213,
    "nvlink_recovery_failed": 214, "nvlink_recovery_events": 215, "nvlink_effective": 219, "nvlink_symbol": 221,
}  # fmt: skip
# The calls that were there before these fields, with what comes behind the link.
LINK_CALLS: dict[str, tuple[str, list[int]]] = {
    "nvlink_state": ("nvmlDeviceGetNvLinkState", []),
    "nvlink_version": ("nvmlDeviceGetNvLinkVersion", []),
    "nvlink_replay": ("nvmlDeviceGetNvLinkErrorCounter", [0]),
    "nvlink_recovery": ("nvmlDeviceGetNvLinkErrorCounter", [1]),
    "nvlink_crc": ("nvmlDeviceGetNvLinkErrorCounter", [2]),
}
# An answer is {"value": …} or {"error": nvmlReturn_t}; {} where this pynvml has no such function.
CODE = """
import json, os, sys, uuid, pynvml
from ctypes import byref
calls, fields, link_fields, link_calls = json.loads(sys.argv[1])
pynvml.nvmlInit()
def text(value): return value.decode() if isinstance(value, bytes) else value
def answer(call, *args):
    try: return {"value": call(*args)}
    except pynvml.NVMLError as error: return {"error": error.value}
def one(handle, function, args, path):
    if not hasattr(pynvml, function): return {}
    found = answer(getattr(pynvml, function), handle, *args)
    if "value" in found:
        value = found["value"]
        for part in path: value = value[part] if isinstance(part, int) else getattr(value, part)
        found["value"] = text(value)
    return found
def members(call, *names):
    found = answer(call)
    return {"value": {name: getattr(found["value"], name) for name in names}} if "value" in found else found
def number(entry):
    kinds = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    if entry.nvmlReturn: return {"error": entry.nvmlReturn}
    return {"value": getattr(entry.value, kinds.get(entry.valueType, "ullVal"))}
def field(handle, id, scope=0):
    found = answer(pynvml.nvmlDeviceGetFieldValues, handle, [(id, scope)])
    return number(found["value"][0]) if "value" in found else found
def memory(handle):
    return members(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle), "total", "used")
def memory_v2(handle):
    names = ("total", "used", "reserved")
    return members(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2), *names)
def sram(handle):
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = pynvml.nvmlEccSramErrorStatus_v1
    names = ("aggregateUncParity", "aggregateUncSecDed", "volatileUncParity", "volatileUncSecDed", "bThresholdExceeded")
    return members(lambda: pynvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status)) or status, *names)
def fabric(handle):
    found = {}
    for version in (3, 2, 1):
        struct = "c_nvmlGpuFabricInfo_t" if version == 1 else f"c_nvmlGpuFabricInfo_v{version}_t"
        call = "nvmlDeviceGetGpuFabricInfo" + ("V" if version > 1 else "")
        if not hasattr(pynvml, struct) or not hasattr(pynvml, call): continue
        info = getattr(pynvml, struct)()
        found = answer(getattr(pynvml, call), handle, byref(info))
        if "error" in found: continue
        names = ("status", "cliqueId", "state", "healthMask", "healthSummary")
        told = {name: getattr(info, name) for name in names if hasattr(info, name)}
        cluster = str(uuid.UUID(bytes=bytes(byte % 256 for byte in info.clusterUuid)))
        return {"value": dict(told, version=version, clusterUuid=cluster)}
    return found
def processes(handle, kind):
    for version in ("_v3", "_v2"):
        found = answer(getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses{version}"), handle)
        if "value" in found: break
    return {"value": [[one.pid, one.usedGpuMemory] for one in found["value"]]} if "value" in found else found
def links(handle, count):
    found = {key: [field(handle, id, link) for link in range(count)] for key, id in link_fields.items()}
    kinds = [one(handle, "nvmlDeviceGetNvLinkRemoteDeviceType", [link], []) for link in range(count)]
    places = [one(handle, "nvmlDeviceGetNvLinkRemotePciInfo", [link], ["busId"]) for link in range(count)]
    by_call = {key: [one(handle, function, [link, *args], []) for link in range(count)]
               for key, (function, args) in link_calls.items()}
    return dict(found, by_call=by_call, remote_type=kinds, remote_bus_id=places)
def part(ask, *args):
    try: return ask(*args)
    except AttributeError: return {}
def gpu(handle):
    known = {key: one(handle, *call) for key, call in calls.items()}
    told = {id: field(handle, id) for id in fields}
    second, first = part(memory_v2, handle), memory(handle)
    count = told[91].get("value", 0)
    kinds = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}
    ran = {name: part(processes, handle, kind) for name, kind in kinds.items()}
    return dict(calls=known, fields=told, memory_v2=second, memory=first, sram=part(sram, handle),
                fabric=part(fabric, handle), links=links(handle, count), processes=ran)
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libnvidia-ml" in line}
print(json.dumps({
    "library": sorted({os.path.basename(os.path.realpath(path)) for path in mapped}),
    "driver": text(pynvml.nvmlSystemGetDriverVersion()),
    "nvml": text(pynvml.nvmlSystemGetNVMLVersion()),
    "cuda": pynvml.nvmlSystemGetCudaDriverVersion_v2(),
    "gpus": [gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())],
}))
"""


def ask(python: str) -> dict[str, Any] | str:
    """Of all GPUs, or in one line why there is nothing."""
    found: dict[str, Any] | str = machine.ask(python, CODE, json.dumps([CALLS, FIELDS, LINK_FIELDS, LINK_CALLS]))
    return found
