"""A program `nvidia-smi` that answers from the fake NVML's scenario, in the words and elements of the real one.

smi = FakeSmi(folder)                            # folder/bin/nvidia-smi; put it first on PATH
smi.lie("query", "power.draw.average", "999.00") # one answer is another from now on; by GPU index: gpu=1
smi.lie("xml", "temperature/gpu_temp", "99 C")   # "system/cuda_version"; "nvlink", "apps": all of it; "gpus"
smi.lie("dmon", "5", "12")                       # a metric of GPM, by its id
smi.lie("does", "at once", "hang")               # or "kill": who asked
smi.lie("fails", "with", "text")                 # all that it says
smi.asked()                                      # the words of every call so far

It reads NVML by pynvml, by other calls than mltop where there are any. The names of elements are those of drivers 570
to 580 (reports of such machines).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

REASONS = {  # nvml.h nvmlClocksEventReason*, as nvidia-smi names them
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "display_clocks_setting": 0x100,
}
COUNTERS = {
    "sw_power_cap": 74,
    "sync_boost": 76,
    "sw_therm_slowdown": 269,
    "hw_therm_slowdown": 270,
    "hw_power_brake": 271,
}
EVENT_COUNTERS = "clocks_event_reasons_counters"
SPEED_FIELDS = (*range(84, 90), *range(132, 138), *[0] * 24)  # nvml.h NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 and following
MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
ACTIONS = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
FABRIC_STATES = ("Not Supported", "Not Started", "In Progress", "Completed")


class FakeSmi:
    def __init__(self, folder: Path) -> None:
        from tests.fakes.scripts import shell_script

        self.bin = folder / "bin"
        self._lies = folder / "smi.lies"
        self._log = folder / "smi.log"
        self._told: dict[str, dict[str, str]] = {}
        root = Path(__file__).resolve().parents[2]
        shell_script(
            self.bin / "nvidia-smi",
            'MLTOP_FAKE_SMI={folder} PYTHONPATH={root} exec {python} {program} "$@"',
            folder=folder,
            root=root,
            python=sys.executable,
            program=Path(__file__).resolve(),
        )

    def lie(self, kind: str, name: str, text: str, gpu: int | None = None) -> None:
        self._told.setdefault(kind, {})[name if gpu is None else f"{gpu} {name}"] = text
        self._lies.write_text(json.dumps(self._told))

    def tell_the_truth(self) -> None:
        self._told = {}
        self._lies.unlink(missing_ok=True)

    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []


class Gpu:
    """What the scenario says of one GPU, as text."""

    def __init__(self, nvml: Any, index: int, lies: dict[str, dict[str, str]]) -> None:
        self.nvml, self.index = nvml, index
        self._lies = lies
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(self, call: str, *args: Any) -> Any:
        """None where NVML has nothing."""
        try:
            found = getattr(self.nvml, call)(self._handle, *args)
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError):
            return None
        return found.decode() if isinstance(found, bytes) else found

    def field(self, number: int) -> Any:
        values = self.ask("nvmlDeviceGetFieldValues", [number])
        if not values or values[0].nvmlReturn != 0:
            return None
        value = values[0].value
        return {1: value.uiVal, 3: value.ullVal, 4: value.sllVal, 5: value.siVal}[values[0].valueType]

    def lie(self, kind: str, name: str) -> str | None:
        own = self._lies.get(kind, {})
        return own.get(f"{self.index} {name}", own.get(name))

    def counter_us(self, name: str) -> str:
        """The driver's numbers of these fields moved (nvml.h of 575)."""
        number = COUNTERS[name]
        version = tuple(int(part) for part in text_of(self.nvml.nvmlSystemGetDriverVersion()).split(".")[:2])
        if number > 200 and (575,) <= version < (580, 82):
            number -= 18
        value = self.field(number)
        return "N/A" if value is None else f"{value // 1000} us"


def text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def shown(value: Any, unit: str = "", scale: float = 1, digits: int = 0) -> str:
    if value is None:
        return "N/A"
    number = f"{value / scale:.{digits}f}" if scale != 1 or digits else str(value)
    return f"{number} {unit}".strip()


def switch(value: Any, yes: str = "Enabled", no: str = "Disabled") -> str:
    return "N/A" if value is None else yes if value else no


def query_value(gpu: Gpu, name: str) -> str | None:
    """None: this nvidia-smi does not know the field."""
    ask, field, mib = gpu.ask, gpu.field, 2**20

    def memory(part: str) -> Any:
        newer = ask("nvmlDeviceGetMemoryInfo", gpu.nvml.nvmlMemory_v2)
        return getattr(ask("nvmlDeviceGetMemoryInfo") if newer is None else newer, part, None)

    def ecc(kind: int, counter: int) -> str:
        return shown(ask("nvmlDeviceGetTotalEccErrors", kind, counter))

    def pages(field_id: int) -> str:
        return shown(field(field_id))

    readers: dict[str, Any] = {
        "index": lambda: str(gpu.index),
        "uuid": lambda: ask("nvmlDeviceGetUUID"),
        "name": lambda: ask("nvmlDeviceGetName"),
        "serial": lambda: ask("nvmlDeviceGetSerial"),
        "vbios_version": lambda: ask("nvmlDeviceGetVbiosVersion"),
        "pci.bus_id": lambda: text_of(ask("nvmlDeviceGetPciInfo").busId),
        "driver_version": lambda: text_of(gpu.nvml.nvmlSystemGetDriverVersion()),
        "memory.total": lambda: shown(memory("total"), scale=mib),
        "memory.used": lambda: shown(memory("used"), scale=mib),
        "utilization.gpu": lambda: shown(getattr(ask("nvmlDeviceGetUtilizationRates"), "gpu", None)),
        "clocks.sm": lambda: shown(ask("nvmlDeviceGetClock", 1, 0)),
        "clocks.mem": lambda: shown(ask("nvmlDeviceGetClock", 2, 0)),
        "clocks.max.sm": lambda: shown(ask("nvmlDeviceGetMaxClockInfo", 1)),
        "clocks.max.mem": lambda: shown(ask("nvmlDeviceGetMaxClockInfo", 2)),
        "temperature.gpu": lambda: shown(ask("nvmlDeviceGetTemperature", 0)),
        "temperature.memory": lambda: shown(field(82)),
        "power.draw": lambda: shown(ask("nvmlDeviceGetPowerUsage"), scale=1000, digits=2),
        "power.draw.average": lambda: shown(field(185), scale=1000, digits=2),
        "power.draw.instant": lambda: shown(field(186), scale=1000, digits=2),
        "enforced.power.limit": lambda: shown(ask("nvmlDeviceGetEnforcedPowerLimit"), scale=1000, digits=2),
        "power.default_limit": lambda: shown(
            ask("nvmlDeviceGetPowerManagementDefaultLimit"), scale=1000, digits=2
        ),
        "pstate": lambda: shown(ask("nvmlDeviceGetPerformanceState")).replace("", "P", 1).replace("PN/A", "N/A"),
        "persistence_mode": lambda: switch(ask("nvmlDeviceGetPersistenceMode")),
        "compute_mode": lambda: MODES[ask("nvmlDeviceGetComputeMode")],
        "mig.mode.current": lambda: switch((ask("nvmlDeviceGetMigMode") or [None])[0]),
        "mig.mode.pending": lambda: switch((ask("nvmlDeviceGetMigMode") or [None, None])[1]),
        "ecc.mode.current": lambda: switch((ask("nvmlDeviceGetEccMode") or [None])[0]),
        "ecc.mode.pending": lambda: switch((ask("nvmlDeviceGetEccMode") or [None, None])[1]),
        "ecc.errors.corrected.volatile.total": lambda: ecc(0, 0),
        "ecc.errors.uncorrected.volatile.total": lambda: ecc(1, 0),
        "ecc.errors.corrected.aggregate.total": lambda: ecc(0, 1),
        "ecc.errors.uncorrected.aggregate.total": lambda: ecc(1, 1),
        "ecc.errors.uncorrected.aggregate.sram": lambda: shown(ask("nvmlDeviceGetMemoryErrorCounter", 1, 1, 7)),
        "retired_pages.single_bit_ecc.count": lambda: pages(29),
        "retired_pages.double_bit.count": lambda: pages(30),
        "retired_pages.pending": lambda: switch(field(31), "Yes", "No"),
        "pcie.link.gen.gpucurrent": lambda: shown(ask("nvmlDeviceGetCurrPcieLinkGeneration")),
        "pcie.link.gen.current": lambda: shown(ask("nvmlDeviceGetCurrPcieLinkGeneration")),
        "pcie.link.gen.max": lambda: shown(ask("nvmlDeviceGetMaxPcieLinkGeneration")),
        "pcie.link.width.current": lambda: shown(ask("nvmlDeviceGetCurrPcieLinkWidth")),
        "pcie.link.width.max": lambda: shown(ask("nvmlDeviceGetMaxPcieLinkWidth")),
        "clocks_event_reasons.active": lambda: f"0x{reasons(gpu) or 0:016X}",
    }  # fmt: skip
    if name not in readers or gpu.lie("unknown", name) is not None:
        return None
    lie = gpu.lie("query", name)
    if lie is not None:
        return lie
    found = readers[name]()
    return "[N/A]" if found in (None, "N/A") else str(found)


def reasons(gpu: Gpu) -> Any:
    """Drivers before 535 have the older call."""
    found = gpu.ask("nvmlDeviceGetCurrentClocksEventReasons")
    return gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons") if found is None else found


def xml_values(gpu: Gpu) -> dict[str, str]:
    """By path below <gpu>."""
    ask, field = gpu.ask, gpu.field
    mask = reasons(gpu)
    threshold = {
        "gpu_temp_max_threshold": ask("nvmlDeviceGetTemperatureThreshold", 0),
        "gpu_temp_slow_threshold": ask("nvmlDeviceGetTemperatureThreshold", 1),
        "gpu_temp_max_mem_threshold": ask("nvmlDeviceGetTemperatureThreshold", 2),
    }
    limits = {"gpu_temp_slow_tlimit_threshold": field(194), "gpu_temp_max_mem_tlimit_threshold": field(195)}
    margin = ask("nvmlDeviceGetMarginTemperature")
    remapped = ask("nvmlDeviceGetRemappedRows")
    banks = ask("nvmlDeviceGetRowRemapperHistogram")
    action = field(230)
    found = {
        "uuid": ask("nvmlDeviceGetUUID") or "N/A",
        "minor_number": shown(ask("nvmlDeviceGetMinorNumber")),
        "gsp_firmware_version": ask("nvmlDeviceGetGspFirmwareVersion") or "N/A",
        "gpu_recovery_action": "N/A" if action is None else ACTIONS[action],
        "pci/replay_counter": shown(ask("nvmlDeviceGetPcieReplayCounter")),
        **{
            f"clocks_event_reasons/clocks_event_reason_{name}": switch(mask and mask & bit, "Active", "Not Active")
            for name, bit in REASONS.items()
        },
        **{f"{EVENT_COUNTERS}/{EVENT_COUNTERS}_{name}": gpu.counter_us(name) for name in COUNTERS},
        "temperature/gpu_temp": shown(ask("nvmlDeviceGetTemperature", 0), "C"),
        "temperature/gpu_temp_tlimit": shown(margin, "C"),
        **{f"temperature/{name}": shown(value, "C") for name, value in threshold.items() if value is not None},
        **{f"temperature/{name}": shown(value, "C") for name, value in limits.items() if value is not None},
        "temperature/memory_temp": shown(field(82), "C"),
        "ecc_errors/aggregate/sram_threshold_exceeded": switch(sram_flag(gpu), "Yes", "No"),
        "remapped_rows/remapped_row_corr": shown(remapped and remapped[0]),
        "remapped_rows/remapped_row_unc": shown(remapped and remapped[1]),
        "remapped_rows/remapped_row_pending": switch(remapped and remapped[2], "Yes", "No"),
        "remapped_rows/remapped_row_failure": switch(remapped and remapped[3], "Yes", "No"),
        **repairs(gpu),
        **fabric(gpu),
    }  # fmt: skip
    for name in ("max", "high", "partial", "low", "none"):
        value = getattr(banks, name, None)
        found[f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}"] = shown(value, "bank(s)")
    return found


def sram_flag(gpu: Gpu) -> Any:
    status = gpu.nvml.c_nvmlEccSramErrorStatus_v1_t()
    done = gpu.ask("nvmlDeviceGetSramEccErrorStatus", gpu.nvml.byref(status))
    return None if done is None else status.bThresholdExceeded


def repairs(gpu: Gpu) -> dict[str, str]:
    """Drivers before 580 have no such lines."""
    found = gpu.ask("nvmlDeviceGetRepairStatus")
    names = ("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending")
    return {} if found is None else {name: switch(flag, "Yes", "No") for name, flag in zip(names, found, strict=True)}


def fabric(gpu: Gpu) -> dict[str, str]:
    nvml = gpu.nvml
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu._handle, nvml.byref(info))
    except nvml.NVMLError:
        return {
            "fabric/state": "N/A",
            "fabric/cliqueId": "N/A",
            "fabric/clusterUuid": "N/A",
            "fabric/health/summary": "N/A",
        }
    uuid = bytes(byte & 0xFF for byte in info.clusterUuid).hex()
    dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    completed = info.state == 3
    return {
        "fabric/state": FABRIC_STATES[info.state],
        "fabric/cliqueId": str(info.cliqueId) if completed else "N/A",
        "fabric/clusterUuid": dashed if completed else "N/A",
        "fabric/health/summary": ("Not Supported", "Healthy", "Unhealthy", "Limited Capacity")[info.healthSummary],
    }


GPM_NAMES = {1: "gract", 2: "smutil", 3: "smocc", 5: "mmaact", 10: "dram", 12: "fp32"}


def dmon(gpus: list[Gpu], options: dict[str, str]) -> None:
    """`nvidia-smi dmon --id=0 --select=p --count=4 --delay=1 --gpm-metrics=2,5`, but at once."""
    gpu = gpus[int(options["--id"])]
    numbers = [int(word) for word in options["--gpm-metrics"].split(",")]
    print("# gpu    pwr  gtemp  mtemp " + " ".join(f"{GPM_NAMES[number]:>7}" for number in numbers))
    print("# Idx      W      C      C " + " ".join(f"{'GPM:%':>7}" for _ in numbers))
    found = gpm_now(gpu, numbers)
    for row in range(int(options["--count"])):
        cells = ["-" if row < 2 else found[number] for number in numbers]
        power = shown(gpu.ask("nvmlDeviceGetPowerUsage"), scale=1000, digits=0)
        print(f"{gpu.index:>5} {power:>6} {gpu.ask('nvmlDeviceGetTemperature', 0):>6} {'-':>6} ", end="")
        print(" ".join(f"{cell:>7}" for cell in cells))


def gpm_now(gpu: Gpu, numbers: list[int]) -> dict[int, str]:
    nvml, samples = gpu.nvml, []
    for wait_s in (0.12, 0.0):
        samples.append(nvml.nvmlGpmSampleAlloc())
        if gpu.ask("nvmlGpmSampleGet", samples[-1]) is None:
            return dict.fromkeys(numbers, "-")
        time.sleep(wait_s)
    get = nvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(numbers), sample1=samples[0], sample2=samples[1])
    for place, number in enumerate(numbers):
        get.metrics[place].metricId = number
    nvml.nvmlGpmMetricsGet(get)
    told = {one.metricId: "-" if one.nvmlReturn else f"{one.value:.0f}" for one in get.metrics[: len(numbers)]}
    return {number: gpu.lie("dmon", str(number)) or told[number] for number in numbers}


def mig(gpu: Gpu) -> str:
    """What is in <mig_devices>: "None", or the devices."""
    lie = gpu.lie("xml", "mig_devices")
    if lie is not None:
        return lie
    nvml, found = gpu.nvml, ""
    for place in range(gpu.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        device = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
        if device is None:
            continue
        ids = (nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device))
        found += (
            f"<mig_device><index>{place}</index><gpu_instance_id>{ids[0]}</gpu_instance_id>"
            f"<compute_instance_id>{ids[1]}</compute_instance_id></mig_device>\n"
        )
    return found or "None"


def processes(gpu: Gpu) -> list[tuple[int, str, int | None]]:
    found = []
    for call, kind in (("Compute", "C"), ("Graphics", "G"), ("MPSCompute", "M+C")):
        name = f"nvmlDeviceGet{call}RunningProcesses"
        listed = gpu.ask(f"{name}_v3")
        listed = gpu.ask(f"{name}_v2") if listed is None else listed  # drivers before 510
        found += [(one.pid, kind, one.usedGpuMemory) for one in listed or []]
    return found


def element(path: str, text: str) -> str:
    first, _, rest = path.partition("/")
    return f"<{first}>{element(rest, text) if rest else text}</{first}>"


def tree(values: dict[str, str]) -> str:
    """Paths as nested elements, in their order."""
    out, at = "", 0
    names = list(dict.fromkeys(path.partition("/")[0] for path in values))
    for at in range(len(names)):
        own = {path.partition("/")[2]: text for path, text in values.items() if path.partition("/")[0] == names[at]}
        inner = own[""] if "" in own else tree(own)
        out += f"<{names[at]}>{inner}</{names[at]}>\n"
    return out


def xml(gpus: list[Gpu], nvml: Any, lies: dict[str, Any]) -> str:
    cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    system = {
        "driver_version": text_of(nvml.nvmlSystemGetDriverVersion()),
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "attached_gpus": str(len(gpus)),
    }
    told = lies.get("xml", {})
    system = {name: told.get(f"system/{name}", text) for name, text in system.items()}
    out = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n' + tree(
        system
    )
    for gpu in gpus:
        values = xml_values(gpu)
        for path in values:
            lie = gpu.lie("xml", path)
            values[path] = values[path] if lie is None else lie
        listed = "".join(
            f"<process_info><gpu_instance_id>N/A</gpu_instance_id><pid>{pid}</pid><type>{kind}</type>"
            "<process_name>python --key=secret</process_name>"
            f"<used_memory>{shown(used and used // 2**20, 'MiB')}</used_memory></process_info>\n"
            for pid, kind, used in processes(gpu)
        )
        listed = gpu.lie("xml", "processes") or listed
        values.update({path: text for path, text in told.items() if path.startswith("temperature/")})
        bus_id = text_of(gpu.ask("nvmlDeviceGetPciInfo").busId)
        out += f'<gpu id="{bus_id}">\n{tree(values)}<mig_devices>\n{mig(gpu)}</mig_devices>\n'
        out += f"<processes>\n{listed}</processes>\n</gpu>\n"
    return out + "</nvidia_smi_log>\n"


def nvlink(gpus: list[Gpu], errors: bool) -> str:
    out = ""
    for gpu in gpus:
        lie = gpu.lie("nvlink", "errors" if errors else "status")
        head = f"GPU {gpu.index}: {gpu.ask('nvmlDeviceGetName')} (UUID: {gpu.ask('nvmlDeviceGetUUID')})\n"
        out += head + (lie if lie is not None else "".join(link_lines(gpu, errors)))
    return out


def link_lines(gpu: Gpu, errors: bool) -> list[str]:
    lines = []
    for link in range(gpu.field(91) or 0):
        state = gpu.ask("nvmlDeviceGetNvLinkState", link)
        if errors:
            for kind, number in (("Replay", 0), ("Recovery", 1), ("CRC", 2)):
                value = gpu.ask("nvmlDeviceGetNvLinkErrorCounter", link, number)
                lines += [] if value is None else [f"\t Link {link}: {kind} Errors: {value}\n"]
            continue
        values = gpu.ask("nvmlDeviceGetFieldValues", [(164, link), SPEED_FIELDS[link]])  # the second: before 520
        speed = next((one.value.uiVal / 1000 for one in values or [] if one.nvmlReturn == 0), 0)
        lines.append(f"\t Link {link}: {speed:.3f} GB/s\n" if state else f"\t Link {link}: <inactive>\n")
    return lines


def main(words: list[str]) -> int:
    import pynvml

    folder = Path(os.environ["MLTOP_FAKE_SMI"])
    with open(folder / "smi.log", "a") as log:
        log.write(json.dumps(words) + "\n")
    lies = json.loads((folder / "smi.lies").read_text()) if (folder / "smi.lies").exists() else {}
    if "does" in lies:  # to who asked: this is a child of the script that stands on PATH, which has become us
        act(lies["does"]["at once"])
    if "fails" in lies:
        print(lies["fails"]["with"])
        return 9
    pynvml.nvmlInit()
    gpus = [Gpu(pynvml, index, lies) for index in range(pynvml.nvmlDeviceGetCount())]
    one = next((int(word[5:]) for word in words if word.startswith("--id=")), None)
    if words[:2] == ["-q", "-x"]:
        print(xml(gpus if one is None else [gpus[one]], pynvml, lies), end="")
    elif words[:1] == ["nvlink"]:
        print(nvlink(gpus, words[1] == "--errorcounters"), end="")
    elif words[:1] == ["dmon"]:
        dmon(gpus, dict(word.split("=", 1) for word in words[1:]))
    elif words[0].startswith("--query-gpu=") and words[1] == "--format=csv,noheader,nounits":
        return query(gpus if one is None else [gpus[one]], words[0].partition("=")[2].split(","))
    elif words[0].startswith("--query-compute-apps="):
        apps(gpus, lies)
    else:
        print(f"Invalid combination of input arguments: {' '.join(words)}")
        return 2
    return 0


def act(what: str) -> None:
    if what == "hang":
        time.sleep(3600)
    elif what == "kill":
        os.kill(os.getppid(), signal.SIGKILL)


def query(gpus: list[Gpu], names: list[str]) -> int:
    for gpu in gpus:
        row = [query_value(gpu, name) for name in names]
        if None in row:
            print(f'Field "{names[row.index(None)]}" is not a valid field to query.')
            return 2
        print(", ".join(text or "" for text in row))
    for more in range(int(gpus[0].lie("gpus", "more") or 0) if gpus else 0):
        print(", ".join(str(len(gpus) + more) if name == "index" else "[N/A]" for name in names))
    return 0


def apps(gpus: list[Gpu], lies: dict[str, Any]) -> None:
    """--query-compute-apps=gpu_uuid,pid,used_memory"""
    if "apps" in lies:
        print(lies["apps"]["all"])
        return
    for gpu in gpus:
        for pid, kind, used in processes(gpu):
            if kind != "G":
                print(f"{gpu.ask('nvmlDeviceGetUUID')}, {pid}, {'[N/A]' if used is None else used // 2**20}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
