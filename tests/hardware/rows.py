"""Which field of a GpuSample is compared with what: one row for each pair (the slice `values`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mltop.probes.model import GpuSample
from tests.hardware.asked import Asked, Reader, links, proc, query, sysfs, torch, violation, xml
from tests.hardware.checks import Told
from tests.hardware.ours import value_at
from tests.hardware.sources import kernel_module_version

MIB = 2**20
# same: it does not move. moves: lies between what was told before and after. set: has what was told both times, and
# nothing that was told neither time.
Kind = Literal["same", "moves", "set"]


@dataclass(frozen=True)
class Row:
    """``path``: of the GpuSample. ``slack``: in ``unit``, beyond equality or both ends. ``ours``: makes of a sample's
    value what the source tells; without it it is compared as it is.
    """

    path: str
    source: str
    read: Reader
    kind: Kind = "same"
    unit: str = ""
    slack: float = 0.0
    ours: Callable[[Any], Any] = lambda value: value
    suffix: str = ""  # of the check's name, where a path has several rows

    @property
    def name(self) -> str:
        return self.path + (f" ({self.suffix})" if self.suffix else "")

    def of(self, gpu: GpuSample) -> Any:
        value = value_at(gpu, self.path)
        return None if value is None else self.ours(value)


def number(text: str) -> float:
    """ "45 C" → 45.0, "2623863050 us", "2560 bank(s)", "16x"."""
    found = re.match(r"-?\d+(?:\.\d+)?", text)
    if found is None:
        raise ValueError(text)
    return float(found[0])


def flag(text: str) -> bool:
    return {"enabled": True, "disabled": False, "yes": True, "no": False}[text.lower()]


def nanoseconds(text: str) -> float:
    return 1000 * number(text)


def mebi(value: float) -> float:
    return value / MIB


def generation(text: str) -> int:
    """Of PCIe, by the transfer rate in sysfs: "16.0 GT/s PCIe"."""
    return {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}[number(text)]


def bus_id(text: str) -> str:
    """With as many digits of the domain as NVML writes."""
    domain, _, rest = text.upper().partition(":")
    return f"{int(domain, 16):08X}:{rest}"


def kernel_module(asked: Asked, index: int) -> Told:
    version = kernel_module_version()
    return Told(version) if version else Told(why="/proc/driver/nvidia/version does not tell it")


def system(path: str) -> Reader:
    return lambda asked, index: asked.xml.system(path)


STATIC = (
    Row("name", "nvidia-smi name", query("name")),
    Row("name", "/proc/driver/nvidia Model", proc("Model"), suffix="proc"),
    Row("name", "torch", torch("name"), suffix="torch"),
    Row("uuid", "nvidia-smi uuid", query("uuid")),
    Row("uuid", "/proc/driver/nvidia GPU UUID", proc("GPU UUID"), suffix="proc"),
    Row("pci_bus_id", "nvidia-smi pci.bus_id", query("pci.bus_id", convert=bus_id), ours=bus_id),
    Row("serial", "nvidia-smi serial", query("serial")),
    Row("vbios", "nvidia-smi vbios_version", query("vbios_version"), ours=str.upper),
    Row("driver", "nvidia-smi driver_version", query("driver_version")),
    Row("driver", "/proc/driver/nvidia/version", kernel_module, suffix="proc"),
    Row("cuda", "nvidia-smi -q cuda_version", system("cuda_version")),
    Row("gsp_firmware", "nvidia-smi -q gsp_firmware_version", xml("gsp_firmware_version")),
    Row("gsp_firmware", "/proc/driver/nvidia GPU Firmware", proc("GPU Firmware"), suffix="proc"),
)
MEMORY = (
    Row("memory_total_bytes", "nvidia-smi memory.total", query("memory.total", convert=number), "same", "MiB", 1, mebi),
    Row(
        "memory_total_bytes",
        "torch total_memory, which leaves out what the driver reserves",
        torch("total_memory", convert=lambda text: mebi(float(text))),
        "same",
        "MiB",
        2048,
        mebi,
        "torch",
    ),
    Row("memory_used_bytes", "nvidia-smi memory.used", query("memory.used", convert=number), "moves", "MiB", 2, mebi),
)
CLOCKS = (
    Row("sm_clock_mhz", "nvidia-smi clocks.sm", query("clocks.sm", convert=number), "moves", "MHz", 30),
    Row("sm_clock_max_mhz", "nvidia-smi clocks.max.sm", query("clocks.max.sm", convert=number), "same", "MHz"),
    Row("memory_clock_mhz", "nvidia-smi clocks.mem", query("clocks.mem", convert=number), "moves", "MHz", 5),
    Row("memory_clock_max_mhz", "nvidia-smi clocks.max.mem", query("clocks.max.mem", convert=number), "same", "MHz"),
    Row("performance_state", "nvidia-smi pstate", query("pstate", convert=lambda text: int(text[1:])), "moves"),
    Row(
        "busy",
        "nvidia-smi utilization.gpu",
        query("utilization.gpu", convert=number),
        "moves",
        "%",
        5,
        lambda busy: round(100 * busy, 6),
    ),
)
POWER = (
    Row(
        "power_w",
        "nvidia-smi power.draw",
        query("power.draw.average", "power.draw", "power.draw.instant", convert=number),
        "moves",
        "W",
        3,
    ),
    Row(
        "power_limit_w",
        "nvidia-smi enforced.power.limit",
        query("enforced.power.limit", convert=number),
        "same",
        "W",
        0.01,
    ),
    Row(
        "power_limit_default_w",
        "nvidia-smi power.default_limit",
        query("power.default_limit", convert=number),
        "same",
        "W",
        0.01,
    ),
)


def only_relative(absolute: str, relative: str) -> Reader:
    """A temperature threshold; boards that tell only how far T.Limit is from it have no absolute one."""

    def read(asked: Asked, index: int) -> Told:
        found = xml(f"temperature/{absolute}", convert=number)(asked, index)
        offset = xml(f"temperature/{relative}")(asked, index)
        if found.value is None and not found.unsupported and (offset.value is not None or offset.unsupported):
            return Told(why=f"nvidia-smi -q tells only {relative}", unsupported=True)
        return found

    return read


def margin(limit: str, temperature: str, offset: str) -> Reader:
    """Degrees left: to an absolute limit where there is one, else T.Limit less its offset ("" for none)."""

    def read(asked: Asked, index: int) -> Told:
        def value(name: str) -> Told:
            return xml(f"temperature/{name}", convert=number)(asked, index)

        absolute, now, left = value(limit), value(temperature), value("gpu_temp_tlimit")
        if absolute.value is not None and now.value is not None and (offset or left.value is None):
            return Told(absolute.value - now.value)
        if left.value is None:
            return left
        if not offset:
            return left
        less = value(offset)
        return less if less.value is None else Told(left.value - less.value)

    return read


TEMPERATURES = (
    Row("temperature_c", "nvidia-smi temperature.gpu", query("temperature.gpu", convert=number), "moves", "°C", 1),
    Row(
        "memory_temperature_c",
        "nvidia-smi temperature.memory",
        query("temperature.memory", convert=number),
        "moves",
        "°C",
        1,
    ),
    Row(
        "temperature_slowdown_c",
        "nvidia-smi -q gpu_temp_slow_threshold",
        only_relative("gpu_temp_slow_threshold", "gpu_temp_slow_tlimit_threshold"),
        "same",
        "°C",
    ),
    Row(
        "memory_temperature_max_c",
        "nvidia-smi -q gpu_temp_max_mem_threshold",
        only_relative("gpu_temp_max_mem_threshold", "gpu_temp_max_mem_tlimit_threshold"),
        "same",
        "°C",
    ),
    Row(
        "temperature_margin_c",
        "nvidia-smi -q gpu_temp_tlimit",
        margin("gpu_temp_slow_threshold", "gpu_temp", ""),
        "moves",
        "°C",
        1,
    ),
    Row(
        "memory_temperature_margin_c",
        "nvidia-smi -q, from its limits",
        margin("gpu_temp_max_mem_threshold", "memory_temp", "gpu_temp_max_mem_tlimit_threshold"),
        "moves",
        "°C",
        2,
    ),
)

_COMPUTE_MODES = {
    "default": "default",
    "exclusive_thread": "exclusive_thread",
    "prohibited": "prohibited",
    "exclusive_process": "exclusive_process",
}
MODES = (
    Row("persistence", "nvidia-smi persistence_mode", query("persistence_mode", convert=flag)),
    Row(
        "compute_mode",
        "nvidia-smi compute_mode",
        query("compute_mode", convert=lambda text: _COMPUTE_MODES[text.lower()]),
    ),
    Row("mig_enabled", "nvidia-smi mig.mode.current", query("mig.mode.current", convert=flag)),
    Row("mig_pending", "nvidia-smi mig.mode.pending", query("mig.mode.pending", convert=flag)),
    Row(
        "recovery_action",
        "nvidia-smi -q gpu_recovery_action",
        xml("gpu_recovery_action", convert=lambda text: _RECOVERY[text.lower()]),
    ),
)
_RECOVERY = {
    "none": "none",
    "reset": "gpu_reset",
    "reboot": "node_reboot",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_and_reset",
}

# By mltop's name, nvidia-smi's: of reasons, then of the counters' elements.
_REASONS = {
    "gpu_idle": "gpu_idle",
    "applications_clocks": "applications_clocks_setting",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal": "sw_thermal_slowdown",
    "hw_thermal": "hw_thermal_slowdown",
    "power_brake": "hw_power_brake_slowdown",
    "display_clocks": "display_clocks_setting",
}
COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sync_boost": "sync_boost",
    "sw_thermal": "sw_therm_slowdown",
    "hw_thermal": "hw_therm_slowdown",
    "power_brake": "hw_power_brake",
}
POLICIES = {"sw_power_cap": 0, "sync_boost": 2, "board_limit": 3, "low_utilization": 4, "reliability": 5}


def reasons(asked: Asked, index: int) -> Told:
    """Of the elements by name; drivers before 535 call them throttle reasons."""
    found, told = [], Told(why="nvidia-smi -q tells no reasons")
    for ours, theirs in _REASONS.items():
        told = xml(
            f"clocks_event_reasons/clocks_event_reason_{theirs}",
            f"clocks_throttle_reasons/clocks_throttle_reason_{theirs}",
        )(asked, index)
        if told.value is None:
            return told
        found += [ours] if told.value.lower() == "active" else []
    return Told(sorted(found))


def throttle_counter(name: str) -> Reader:
    """Nanoseconds; ``name`` is mltop's."""
    return xml(f"clocks_event_reasons_counters/clocks_event_reasons_counters_{COUNTERS[name]}", convert=nanoseconds)


THROTTLING = (
    Row("throttle_reasons", "nvidia-smi -q clocks_event_reasons", reasons, "set", ours=sorted),
    *(
        Row(
            f"throttle_ns.{ours}",
            f"nvidia-smi -q clocks_event_reasons_counters {theirs}",
            throttle_counter(ours),
            "moves",
            "ns",
            1e6,
        )
        for ours, theirs in COUNTERS.items()
    ),
    *(
        Row(
            f"throttle_ns.{ours}",
            "nvmlDeviceGetViolationStatus",
            violation(policy),
            "moves",
            "ns",
            1e6,
            suffix="violation status",
        )
        for ours, policy in POLICIES.items()
    ),
)
ECC = (
    Row("ecc.enabled", "nvidia-smi ecc.mode.current", query("ecc.mode.current", convert=flag)),
    Row("ecc.enabled_pending", "nvidia-smi ecc.mode.pending", query("ecc.mode.pending", convert=flag)),
    *(
        Row(
            f"ecc.{kind}_{since}",
            f"nvidia-smi ecc.errors.{kind}.{since}.total",
            query(f"ecc.errors.{kind}.{since}.total", convert=number),
            "moves",
        )
        for kind in ("corrected", "uncorrected")
        for since in ("volatile", "aggregate")
    ),
    Row(
        "ecc.sram_uncorrected_aggregate",
        "nvidia-smi ecc.errors.uncorrected.aggregate.sram",
        query("ecc.errors.uncorrected.aggregate.sram", convert=number),
        "moves",
    ),
    Row(
        "ecc.sram_threshold_exceeded",
        "nvidia-smi -q sram_threshold_exceeded",
        xml("ecc_errors/aggregate/sram_threshold_exceeded", convert=flag),
    ),
)


def either_pending(asked: Asked, index: int) -> Told:
    found = [xml(f"ecc_errors/{what}_repair_pending", convert=flag)(asked, index) for what in ("channel", "tpc")]
    missing = next((one for one in found if one.value is None), None)
    return missing or Told(any(one.value for one in found))


_RETIRED = [query(f"retired_pages.{kind}.count", convert=number) for kind in ("single_bit_ecc", "double_bit")]


def both_retired(asked: Asked, index: int) -> Told:
    found = [read(asked, index) for read in _RETIRED]
    missing = next((one for one in found if one.value is None), None)
    return missing or Told(sum(one.value for one in found))


REPAIR = (
    Row("remap.corrected", "nvidia-smi -q remapped_row_corr", xml("remapped_rows/remapped_row_corr", convert=number)),
    Row("remap.uncorrected", "nvidia-smi -q remapped_row_unc", xml("remapped_rows/remapped_row_unc", convert=number)),
    Row("remap.pending", "nvidia-smi -q remapped_row_pending", xml("remapped_rows/remapped_row_pending", convert=flag)),
    Row("remap.failed", "nvidia-smi -q remapped_row_failure", xml("remapped_rows/remapped_row_failure", convert=flag)),
    Row("remap.repair_pending", "nvidia-smi -q channel and tpc_repair_pending", either_pending),
    *(
        Row(
            f"remap.banks.{name}",
            f"nvidia-smi -q row_remapper_histogram_{name}",
            xml(f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}", convert=number),
            unit="banks",
        )
        for name in ("max", "high", "partial", "low", "none")
    ),
    Row(
        "retired_pages_double_bit",
        "nvidia-smi retired_pages.double_bit.count",
        query("retired_pages.double_bit.count", convert=number),
    ),
    Row(
        "retired_pages",
        "nvidia-smi retired_pages.single_bit_ecc.count and .double_bit.count",
        both_retired,
    ),
    Row("retired_pages_pending", "nvidia-smi retired_pages.pending", query("retired_pages.pending", convert=flag)),
)


PCIE = (
    Row(
        "pcie.gen",
        "nvidia-smi pcie.link.gen.gpucurrent",
        query("pcie.link.gen.gpucurrent", "pcie.link.gen.current", convert=number),
        "moves",
    ),
    Row("pcie.gen", "sysfs current_link_speed", sysfs("current_link_speed", generation), "moves", suffix="sysfs"),
    Row("pcie.gen_max", "nvidia-smi pcie.link.gen.max", query("pcie.link.gen.max", convert=number)),
    Row(
        "pcie.width",
        "nvidia-smi pcie.link.width.current",
        query("pcie.link.width.current", convert=number),
        "moves",
        "lanes",
    ),
    Row("pcie.width", "sysfs current_link_width", sysfs("current_link_width", int), "moves", "lanes", suffix="sysfs"),
    Row("pcie.width_max", "nvidia-smi pcie.link.width.max", query("pcie.link.width.max", convert=number), unit="lanes"),
    Row("pcie.replay_count", "nvidia-smi -q replay_counter", xml("pci/replay_counter", convert=number), "moves"),
)


def link_speeds(lines: list[str]) -> list[float]:
    return [float(text.partition(": ")[2].split()[0]) for text in lines if text.endswith("GB/s")]


def link_errors(lines: list[str]) -> dict[str, int]:
    found = dict.fromkeys(("replay", "recovery", "crc"), 0)
    for line in lines:
        told = re.match(r"\d+: (\w+) (?:\w+ )?Errors: (\d+)", line)
        if told and told[1].lower() in found:
            found[told[1].lower()] += int(told[2])
    return found


NVLINK = (
    Row(
        "nvlink.links",
        "nvidia-smi nvlink --status, GB/s of each active link",
        links("status", link_speeds),
        unit="GB/s",
        ours=lambda all_links: [round((one.speed_bytes_per_s or 0) / 1e9, 3) for one in all_links if one.active],
        suffix="speeds",
    ),
    Row(
        "nvlink.links",
        "nvidia-smi nvlink --errorcounters, all links together",
        links("errorcounters", link_errors),
        ours=lambda all_links: {
            kind: sum(one.errors.get(kind, 0) for one in all_links) for kind in ("replay", "recovery", "crc")
        },
        suffix="errors",
    ),
)
_FABRIC_STATES = {"not supported": "not_supported", "not started": "not_started", "in progress": "in_progress"}
_FABRIC_HEALTH = {"healthy": "ok", "unhealthy": "unhealthy", "limited capacity": "limited"}


def cluster_uuid(asked: Asked, index: int) -> Told:
    told = xml("fabric/clusterUuid", convert=str.lower)(asked, index)
    if told.value and not told.value.strip("0-"):
        return Told(why="nvidia-smi -q says fabric clusterUuid is all zeros: there is none", unsupported=True)
    return told


FABRIC = (
    Row(
        "fabric.state",
        "nvidia-smi -q fabric state",
        xml("fabric/state", convert=lambda text: {**_FABRIC_STATES, "completed": "completed"}[text.lower()]),
    ),
    Row(
        "fabric.health",
        "nvidia-smi -q fabric health summary",
        xml("fabric/health/summary", convert=lambda text: _FABRIC_HEALTH[text.lower()]),
    ),
    Row("fabric.clique_id", "nvidia-smi -q fabric cliqueId", xml("fabric/cliqueId", convert=number)),
    Row("fabric.cluster_uuid", "nvidia-smi -q fabric clusterUuid", cluster_uuid),
)


def mig_devices(asked: Asked, index: int) -> Told:
    found = asked.xml.children(asked.bus_id(index), "mig_devices")
    if found is None:
        return Told(why="nvidia-smi -q has no mig_devices")
    return Told(sorted(f"{one['gpu_instance_id']}/{one['compute_instance_id']}" for one in found))


def process_infos(asked: Asked, index: int) -> list[dict[str, str]] | None:
    return asked.xml.children(asked.bus_id(index), "processes")


def pids(asked: Asked, index: int) -> Told:
    found = process_infos(asked, index)
    if found is None:
        return Told(why="nvidia-smi -q has no processes")
    return Told(sorted({int(one["pid"]) for one in found}))


def compute_apps(asked: Asked, index: int) -> Told:
    """MiB by pid, of processes that compute."""
    if isinstance(asked.apps, str):
        return Told(why=f"nvidia-smi --query-compute-apps: {asked.apps}")
    uuid = asked.rows.get(str(index), {}).get("uuid")
    rows = [row for row in asked.apps if len(row) == 3 and row[0] == uuid]
    return Told({row[1]: int(row[2]) if row[2].isdigit() else None for row in rows})


PROCESSES = (
    Row(
        "processes",
        "nvidia-smi -q processes",
        pids,
        "set",
        ours=lambda processes: sorted({one.pid for one in processes}),
        suffix="pids",
    ),
    Row(
        "processes",
        "nvidia-smi --query-compute-apps, MiB by pid",
        compute_apps,
        "moves",
        ours=lambda processes: {
            str(one.pid): None if one.memory_bytes is None else one.memory_bytes // MIB
            for one in processes
            if one.kind != "graphics"
        },
        suffix="memory",
    ),
    Row(
        "mig_instances",
        "nvidia-smi -q mig_devices, GPU instance and compute instance",
        mig_devices,
        ours=lambda instances: sorted(f"{one.gpu_instance}/{one.compute_instance}" for one in instances),
    ),
)
ROWS = (
    *STATIC,
    *MEMORY,
    *CLOCKS,
    *POWER,
    *TEMPERATURES,
    *MODES,
    *THROTTLING,
    *ECC,
    *REPAIR,
    *PCIE,
    *NVLINK,
    *FABRIC,
    *PROCESSES,
)
# What nobody else tells, or another slice looks at.
NOT_HERE = {
    "index": "it is how GPUs are told apart here",
    "state": "of mltop's own",
    "error": "of mltop's own",
    "error_code": "of mltop's own",
    "last_seen_at": "of mltop's own",
    "activity_source": "the slice activity looks at it",
    **dict.fromkeys(
        ("sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active", "fp32_active", "fp16_active"),
        "nvidia-smi tells no activity but GPU-Util; the slice activity compares it with known loads",
    ),
    "throttle_share": "the slice throttling makes it from nvidia-smi's counters",
    "pcie.rx_bytes_per_s": "the slice probes copies known amounts",
    "pcie.tx_bytes_per_s": "the slice probes copies known amounts",
    "pcie.errors": "no second source tells these counters",
    "nvlink.rx_bytes_per_s": "the slice probes copies known amounts between GPUs",
    "nvlink.tx_bytes_per_s": "the slice probes copies known amounts between GPUs",
    "fabric.problems": "nvidia-smi sums them up: see fabric.health",
}
