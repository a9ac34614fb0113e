"""The fake NVML's binary interface and values, through pynvml in a process of its own."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml.build import LIBRARY, SOURCES, build
from tests.fakes.nvml.child import Child
from tests.fakes.nvml.scenario import FakeNvml

GIB = 2**30


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fake", count=8)


@pytest.fixture
def child(fake: FakeNvml) -> Iterator[Child]:
    with Child(fake) as running:
        yield running


STRUCTURES = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": pynvml.c_nvmlBAR1Memory_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlMarginTemperature_v1_t": pynvml.c_nvmlMarginTemperature_v1_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlViolationTime_t": pynvml.c_nvmlViolationTime_t,
    "nvmlEccSramErrorStatus_v1_t": pynvml.c_nvmlEccSramErrorStatus_v1_t,
    "nvmlRowRemapperHistogramValues_t": pynvml.c_nvmlRowRemapperHistogramValues,
    "nvmlRepairStatus_v1_t": pynvml.c_nvmlRepairStatus_t,
}


def test_structures_are_laid_out_as_in_pynvml(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", f'#include "{SOURCES / "nvml_abi.h"}"']
    for name, structure in STRUCTURES.items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
        for member, _ in structure._fields_:
            at = getattr(structure, member)
            condition = f"offsetof({name}, {member}) == {at.offset} && sizeof((({name} *)0)->{member}) == {at.size}"
            lines.append(f'_Static_assert({condition}, "{name}.{member}");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    done = subprocess.run(
        ["cc", "-std=gnu11", "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_function_registers_under_its_own_name() -> None:
    for path in SOURCES.glob("group_*.c"):
        bodies = re.findall(r"^NVML \w+ (\w+)\([^{]*\{\s*(?:ENTER_\w+|DECLARE_CALL)\((\w+)", path.read_text(), re.M)
        assert [name for name, _ in bodies] == [registered for _, registered in bodies], path.name


def test_building_again_gives_the_same_library() -> None:
    first = (build() / LIBRARY).stat()
    second = (build() / LIBRARY).stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)


def test_count_alone_is_eight_healthy_idle_gpus(child: Child) -> None:
    assert child("nvmlDeviceGetCount()") == 8
    assert child("[nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion(), nvmlSystemGetCudaDriverVersion_v2()]") == [
        "580.95.05",
        "13.580.95.05",
        13000,
    ]
    for expression in ("nvmlDeviceGetUUID", "nvmlDeviceGetSerial", "nvmlDeviceGetMinorNumber"):
        assert len(set(child(f"[{expression}(handle(i)) for i in range(8)]"))) == 8
    assert len(set(child("[nvmlDeviceGetPciInfo(handle(i)).busId for i in range(8)]"))) == 8
    assert child("nvmlDeviceGetUtilizationRates(handle(0)).gpu") == 0
    assert child("nvmlDeviceGetCurrentClocksEventReasons(handle(0))") == 0x1
    assert child("processes(nvmlDeviceGetComputeRunningProcesses, 0)") == []
    assert child("nvmlDeviceGetTotalEccErrors(handle(0), 1, 1)") == 0


# key, value, expression over the handle h of GPU 3, what it must give
SERVED: list[tuple[str, str | int | bool, str, Any]] = [
    ("name", "NVIDIA B200", "nvmlDeviceGetName(h)", "NVIDIA B200"),
    ("uuid", "GPU-1234", "nvmlDeviceGetUUID(h)", "GPU-1234"),
    ("serial", "42", "nvmlDeviceGetSerial(h)", "42"),
    ("vbios", "97.0", "nvmlDeviceGetVbiosVersion(h)", "97.0"),
    ("minor", 9, "nvmlDeviceGetMinorNumber(h)", 9),
    ("pci_bus_id", "00000001:AB:02.0", "nvmlDeviceGetPciInfo(h).busId", "00000001:AB:02.0"),
    ("pci_bus_id", "0000:ab:02.0", "nvmlDeviceGetPciInfo(h).busIdLegacy", "0000:AB:02.0"),
    ("busy_percent", 97, "nvmlDeviceGetUtilizationRates(h).gpu", 97),
    ("memory_busy_percent", 31, "nvmlDeviceGetUtilizationRates(h).memory", 31),
    ("memory_used_bytes", 40 * GIB, "nvmlDeviceGetMemoryInfo(h, nvmlMemory_v2).used", 40 * GIB),
    ("memory_total_bytes", 80 * GIB, "nvmlDeviceGetMemoryInfo(h).total", 80 * GIB),
    ("memory_reserved_bytes", GIB, "nvmlDeviceGetMemoryInfo(h, nvmlMemory_v2).reserved", GIB),
    ("temperature_c", 71, "nvmlDeviceGetTemperatureV(h, 0)", 71),
    ("temperature_c", 71, "nvmlDeviceGetTemperature(h, 0)", 71),
    ("temperature_c", 71, "nvmlDeviceGetMarginTemperature(h)", 16),
    ("temperature_margin_c", -3, "nvmlDeviceGetMarginTemperature(h)", -3),
    ("temperature_slowdown_c", 88, "nvmlDeviceGetTemperatureThreshold(h, 1)", 88),
    ("memory_temperature_c", 95, "fields(3, 82)", [[0, 1, 95]]),
    ("tlimit_slowdown_c", -4, "nvmlDeviceGetFieldValues(h, [194])[0].value.siVal", -4),
    ("power_mw", 312000, "nvmlDeviceGetPowerUsage(h)", 312000),
    ("power_mw", 312000, "fields(3, 186)", [[0, 1, 312000]]),
    ("power_average_mw", 300000, "fields(3, 185, 186)", [[0, 1, 300000], [0, 1, 70000]]),
    ("power_limit_mw", 500000, "nvmlDeviceGetEnforcedPowerLimit(h)", 500000),
    ("power_limit_default_mw", 600000, "nvmlDeviceGetPowerManagementDefaultLimit(h)", 600000),
    ("power_max_mw", 650000, "nvmlDeviceGetPowerManagementLimitConstraints(h)", [200000, 650000]),
    ("energy_mj", 2**40, "nvmlDeviceGetTotalEnergyConsumption(h)", 2**40),
    ("energy_mj", 2**40, "fields(3, 83)", [[0, 3, 2**40]]),
    ("sm_clock_mhz", 1410, "nvmlDeviceGetClockInfo(h, 1)", 1410),
    ("sm_clock_mhz", 1410, "nvmlDeviceGetClock(h, 1, 0)", 1410),
    ("sm_clock_max_mhz", 1755, "nvmlDeviceGetMaxClockInfo(h, 1)", 1755),
    ("memory_clock_mhz", 1593, "nvmlDeviceGetClockInfo(h, 2)", 1593),
    ("memory_clock_max_mhz", 3201, "nvmlDeviceGetMaxClockInfo(h, 2)", 3201),
    ("throttle_mask", 0x44, "nvmlDeviceGetCurrentClocksEventReasons(h)", 0x44),
    ("throttle_mask", 0x44, "nvmlDeviceGetCurrentClocksThrottleReasons(h)", 0x44),
    ("throttle_ns.sw_power_cap", 2**41, "fields(3, 74)", [[0, 3, 2**41]]),
    ("throttle_ns.hw_thermal", 7, "fields(3, 269, 270, 271)", [[0, 3, 0], [0, 3, 7], [0, 3, 0]]),
    ("throttle_ns.sync_boost", 5, "nvmlDeviceGetViolationStatus(h, 2).violationTime", 5),
    ("persistence", False, "nvmlDeviceGetPersistenceMode(h)", 0),
    ("compute_mode", 2, "nvmlDeviceGetComputeMode(h)", 2),
    ("mig_enabled", True, "nvmlDeviceGetMigMode(h)", [1, 1]),
    ("ecc_enabled", False, "nvmlDeviceGetEccMode(h)", [0, 0]),
    ("ecc_corrected_volatile", 11, "nvmlDeviceGetTotalEccErrors(h, 0, 0)", 11),
    ("ecc_uncorrected_aggregate", 12, "nvmlDeviceGetTotalEccErrors(h, 1, 1)", 12),
    ("ecc_uncorrected_aggregate", 12, "nvmlDeviceGetMemoryErrorCounter(h, 1, 1, 2)", 12),
    ("remap_corrected", 2, "nvmlDeviceGetRemappedRows(h)", [2, 0, 0, 0]),
    ("remap_pending", True, "fields(3, 144)", [[0, 1, 1]]),
    ("remap_banks_low", 6, "members(nvmlDeviceGetRowRemapperHistogram(h))['low']", 6),
    ("retired_pages", 2, "nvmlDeviceGetRetiredPages(h, 1)", [0x1000, 0x2000]),
    ("pcie_gen", 3, "nvmlDeviceGetCurrPcieLinkGeneration(h)", 3),
    ("pcie_gen_max", 4, "nvmlDeviceGetMaxPcieLinkGeneration(h)", 4),
    ("pcie_width", 8, "nvmlDeviceGetCurrPcieLinkWidth(h)", 8),
    ("pcie_width_max", 8, "nvmlDeviceGetMaxPcieLinkWidth(h)", 8),
    ("pcie_replay_count", 77, "nvmlDeviceGetPcieReplayCounter(h)", 77),
    ("recovery_action", 2, "fields(3, 230)", [[0, 1, 2]]),
    ("performance_state", 2, "nvmlDeviceGetPerformanceState(h)", 2),
]


def test_every_key_is_served_for_its_gpu_only(fake: FakeNvml, child: Child) -> None:
    for key, value, expression, expected in SERVED:
        on_three = f"(lambda h: {expression})(handle(3))"
        default = child.outcome(on_three)
        fake.set(f"gpu.2.{key}", value)
        fake.write()
        assert child.outcome(on_three) == default, f"gpu.2.{key} changed GPU 3"
        fake.set(f"gpu.3.{key}", value)
        fake.write()
        assert child(on_three) == expected, (key, expression)
        fake.unset(f"gpu.2.{key}")
        fake.unset(f"gpu.3.{key}")
        fake.write()


def test_sram_errors_reach_the_versioned_structure(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.ecc_sram_uncorrected_aggregate", 4)
    fake.set("gpu.0.ecc_uncorrected_aggregate", 9)
    fake.set("gpu.0.ecc_sram_threshold_exceeded", True)
    fake.write()
    got = child("sram(0)")
    assert (got["aggregateUncSecDed"], got["bThresholdExceeded"]) == (4, 1)
    assert child("nvmlDeviceGetMemoryErrorCounter(handle(0), 1, 1, 7)") == 4
    assert child("nvmlDeviceGetMemoryErrorCounter(handle(0), 1, 1, 2)") == 5


def test_all_gpus_and_one_gpu(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.3.busy_percent", 5)
    fake.set("gpu.*.busy_percent", 90)  # after the particular one, and weaker all the same
    fake.write()
    busy = child("[nvmlDeviceGetUtilizationRates(handle(i)).gpu for i in range(8)]")
    assert busy == [90, 90, 90, 5, 90, 90, 90, 90]


def test_version_one_counts_reserved_memory_as_used(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.memory_total_bytes", 80 * GIB)
    fake.set("gpu.0.memory_used_bytes", 10 * GIB)
    fake.set("gpu.0.memory_reserved_bytes", GIB)
    fake.write()
    one = child("members(nvmlDeviceGetMemoryInfo(handle(0)))")
    two = child("members(nvmlDeviceGetMemoryInfo(handle(0), nvmlMemory_v2))")
    assert (one["used"], two["used"]) == (11 * GIB, 10 * GIB)
    assert one["free"] == two["free"] == 69 * GIB


def test_handles_by_uuid_and_address_are_the_same_gpu(fake: FakeNvml, child: Child) -> None:
    assert child("nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(handle(5))))") == 5
    assert child("nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(handle(6)).busIdLegacy))") == 6
    assert child.error("nvmlDeviceGetHandleByUUID('GPU-none')") == pynvml.NVML_ERROR_NOT_FOUND
    assert child.error("handle(8)") == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_process_lists_by_kind_and_unknown_memory(fake: FakeNvml, child: Child) -> None:
    many = [(1000 + i, i * GIB, "compute") for i in range(40)]
    fake.set("gpu.1.processes", [*many, (7, None, "graphics"), (8, 5, "mps")])
    fake.write()
    assert child("processes(nvmlDeviceGetComputeRunningProcesses, 1)") == [[pid, size] for pid, size, _ in many]
    assert child("processes(nvmlDeviceGetComputeRunningProcesses_v2, 1)") == [[pid, size] for pid, size, _ in many]
    assert child("processes(nvmlDeviceGetGraphicsRunningProcesses, 1)") == [[7, None]]
    assert child("processes(nvmlDeviceGetMPSComputeRunningProcesses, 1)") == [[8, 5]]
    assert child("processes(nvmlDeviceGetComputeRunningProcesses, 0)") == []


def test_sizing_call_says_insufficient_size_and_how_many(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.processes", [(1, 1, "compute"), (2, 2, "compute"), (3, 3, "compute")])
    fake.write()
    for room in (0, 2):
        assert child(f"compute_processes_with_room_for({room}, 0)") == [
            pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
            3,
        ]


def test_process_utilization_and_not_found_without_processes(fake: FakeNvml, child: Child) -> None:
    assert child.error("nvmlDeviceGetProcessUtilization(handle(0), 0)") == pynvml.NVML_ERROR_NOT_FOUND
    fake.set("gpu.0.busy_percent", 88)
    fake.set("gpu.0.processes", [(11, GIB, "compute"), (12, GIB, "compute")])
    fake.write()
    found = child("[[s.pid, s.smUtil] for s in nvmlDeviceGetProcessUtilization(handle(0), 0)]")
    assert found == [[11, 88], [12, 88]]
