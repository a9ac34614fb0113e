"""What a GPU is and does: static values, memory, clocks, power, temperatures, modes, processes."""

from __future__ import annotations

from tests.hardware.asked import Asked, Reader, proc, query, torch, xml
from tests.hardware.checks import Told
from tests.hardware.rows.row import MIB, Row, flag, mebi, number
from tests.hardware.sources import kernel_module_version


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
    Row("minor", "nvidia-smi -q minor_number", xml("minor_number"), ours=str),
    Row("minor", "/proc/driver/nvidia Device Minor", proc("Device Minor"), ours=str, suffix="proc"),
    Row("serial", "nvidia-smi serial", query("serial")),
    Row("vbios", "nvidia-smi vbios_version", query("vbios_version", convert=str.upper), ours=str.upper),
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
    """Degrees left: to an absolute limit where there is one, else T.Limit less its offset ("" for none). T.Limit is
    what is left to the nearer of the GPU's and the memory's limit: to the memory's alone it is at least so much (an
    H100 with 45 °C left to the GPU's 87 °C had 50 °C left to the memory's 95 °C).
    """

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
        return less if less.value is None else Told(left.value - less.value, least=True)

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
        "MiB",
        1,  # it may round up
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
