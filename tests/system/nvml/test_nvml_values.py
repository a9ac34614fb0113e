"""NVML against the fake library: every value arrives, and what is missing is None with a reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.nvml.faults import permission_fix
from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.model import Gap, GpuProcess, GpuSample
from tests.fakes.nvml.counts import calls_on_gpu, read_counts
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import fake_here
from tests.waiting import wait_until

Start = Callable[..., NvmlSource]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 3)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    sources: list[NvmlSource] = []

    def make() -> NvmlSource:
        fake.write()
        sources.append(NvmlSource())
        return sources[-1]

    yield make
    for source in sources:
        source.close()


def poll(source: NvmlSource) -> tuple[list[GpuSample], list[Gap]]:
    """One answered poll."""

    def answered() -> tuple[list[GpuSample], list[Gap]] | None:
        source.request(now)
        gpus, gaps = source.collect(now, 0.2)
        fresh = gpus and any(gpu.last_seen_at == now for gpu in gpus)
        return (gpus, gaps) if fresh else None

    now = time.time()
    return wait_until(answered, what="an answer from NVML")


def gap_of(gaps: list[Gap], what: str) -> Gap:
    found = [gap for gap in gaps if gap.what == what]
    assert len(found) == 1, f"{what} in {gaps}"
    return found[0]


def test_every_value_of_the_scenario_arrives(fake: FakeNvml, start: Start) -> None:
    values = {
        "name": "NVIDIA H200",
        "uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef",
        "serial": "1650001234567",
        "vbios": "96.00.B9.00.05",
        "pci_bus_id": "00000000:4D:00.0",
        "busy_percent": 87,
        "memory_used_bytes": 60_000_000_000,
        "memory_total_bytes": 150_754_820_096,
        "temperature_c": 61,
        "memory_temperature_c": 72,
        "power_mw": 612_500,
        "power_limit_mw": 650_000,
        "power_limit_default_mw": 700_000,
        "energy_mj": 123_456_789,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201,
        "memory_clock_max_mhz": 3202,
        "throttle_mask": 0x1FF,
        "persistence": False,
        "compute_mode": 3,
        "mig_enabled": True,
        "processes": [(4242, 5_000_000_000, "compute"), (4243, None, "graphics"), (4244, 7, "mps")],
    }
    for key, value in values.items():
        fake.set(f"gpu.1.{key}", value)
    for number, reason in enumerate(THROTTLE_REASONS_NS):
        fake.set(f"gpu.1.throttle_ns.{reason}", 1000 + number)
    fake.set("driver", "580.65.06")
    before = time.time()
    gpus, gaps = poll(start())
    gpu = gpus[1]
    assert before <= (gpu.last_seen_at or 0) <= time.time()
    expected = replace(
        gpu,
        index=1,
        uuid="GPU-01234567-89ab-cdef-0123-456789abcdef",
        name="NVIDIA H200",
        pci_bus_id="00000000:4D:00.0",
        busy=0.87,
        memory_used_bytes=60_000_000_000,
        memory_total_bytes=150_754_820_096,
        temperature_c=61,
        memory_temperature_c=72,
        power_w=612.5,
        power_limit_w=650,
        power_limit_default_w=700,
        energy_j=123_456.789,
        sm_clock_mhz=1755,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=3201,
        memory_clock_max_mhz=3202,
        throttle_ns={reason: 1000 + number for number, reason in enumerate(THROTTLE_REASONS_NS)},
        mig_enabled=True,
        persistence=False,
        compute_mode="exclusive_process",
        driver="580.65.06",
        vbios="96.00.B9.00.05",
        serial="1650001234567",
        processes=[
            GpuProcess(4242, 5_000_000_000, "compute"),
            GpuProcess(4243, None, "graphics"),
            GpuProcess(4244, 7, "mps"),
        ],
    )
    assert gpu == expected
    assert set(gpu.throttle_reasons or ()) == {
        "gpu_idle",
        "applications_clocks",
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal",
        "hw_thermal",
        "power_brake",
        "display_clocks",
    }
    assert [gap for gap in gaps if gap.kind == "unknown"] == []
    assert [gpu.index for gpu in gpus] == [0, 1, 2]


THROTTLE_REASONS_NS = (
    "sw_power_cap",
    "sync_boost",
    "board_limit",
    "low_utilization",
    "reliability",
    "sw_thermal",
    "hw_thermal",
    "power_brake",
)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [(0x1, "gpu_idle"), (0x4, "sw_power_cap"), (0x40, "hw_thermal"), (0x80, "power_brake")],
)
def test_each_throttle_bit_has_its_name(fake: FakeNvml, start: Start, mask: int, reason: str) -> None:
    fake.set("gpu.0.throttle_mask", mask)
    fake.set("gpu.1.throttle_mask", 0)
    gpus, _ = poll(start())
    assert gpus[0].throttle_reasons == [reason]
    assert gpus[1].throttle_reasons == []


def test_slow_values_stay_on_fast_polls_and_are_renewed(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.0.processes", [(77, 1024, "compute")])
    source = start()
    poll(source)
    gpus, _ = poll(source)
    assert gpus[0].processes == [GpuProcess(77, 1024, "compute")]
    assert gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert gpus[0].power_limit_w == 700
    asked = calls_on_gpu(fake.counts_path, 0)
    assert asked["nvmlDeviceGetComputeRunningProcesses_v3"] == 1
    assert asked["nvmlDeviceGetUtilizationRates"] >= 2
    fake.set("gpu.0.processes", [(78, 2048, "compute")])
    fake.write()

    def renewed() -> bool:
        return poll(source)[0][0].processes == [GpuProcess(78, 2048, "compute")]

    wait_until(renewed, what="the new process list")


def test_hundreds_of_processes_fit(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.2.processes", [(1000 + number, number, "compute") for number in range(700)])
    gpus, _ = poll(start())
    assert [process.pid for process in gpus[2].processes or ()] == list(range(1000, 1700))


FIELDS = {
    "busy_percent": "busy",
    "memory_used_bytes": "memory_used_bytes",
    "temperature_c": "temperature_c",
    "memory_temperature_c": "memory_temperature_c",
    "power_mw": "power_w",
    "power_limit_mw": "power_limit_w",
    "power_limit_default_mw": "power_limit_default_w",
    "energy_mj": "energy_j",
    "sm_clock_mhz": "sm_clock_mhz",
    "sm_clock_max_mhz": "sm_clock_max_mhz",
    "memory_clock_mhz": "memory_clock_mhz",
    "throttle_mask": "throttle_reasons",
    "persistence": "persistence",
    "compute_mode": "compute_mode",
    "mig_enabled": "mig_enabled",
    "processes": "processes",
    "serial": "serial",
    "vbios": "vbios",
}


def test_unsupported_values_are_none_with_a_gap(fake: FakeNvml, start: Start) -> None:
    for key in FIELDS:
        fake.set(f"gpu.2.{key}", "unsupported")
    gpus, gaps = poll(start())
    for field in FIELDS.values():
        assert getattr(gpus[2], field) is None, field
        assert getattr(gpus[1], field) is not None, field
        gap = gap_of(gaps, f"gpu.2.{field}")
        why = gap.why
        assert gap.kind == "unsupported"
        if field == "memory_used_bytes":  # only GPUs without memory of their own refuse this
            assert "unified memory" in why
            continue
        assert why.startswith("not supported by this GPU or driver (nvmlDeviceGet"), why
        assert why.endswith(": Not Supported)"), why
    assert gpus[2].state == "ok"


def test_a_value_that_no_gpu_has_is_one_gap(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.*.energy_mj", "unsupported")
    gpus, gaps = poll(start())
    assert [gpu.energy_j for gpu in gpus] == [None, None, None]
    assert gap_of(gaps, "gpu.*.energy_j").fix == ""
    assert [gap.what for gap in gaps if "energy" in gap.what] == ["gpu.*.energy_j"]


def test_unsupported_calls_are_not_repeated_every_second(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.*.temperature_c", "unsupported")
    source = start()
    for _ in range(4):
        poll(source)
    counts = read_counts(fake.counts_path)
    assert counts["nvmlDeviceGetTemperatureV"] == counts["nvmlDeviceGetTemperature"] == 3


# (newest call, older call): scenario key, its value, the field, what it must be
FALLBACKS: dict[tuple[str, str], tuple[str, Any, str, Any]] = {
    ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"): ("temperature_c", 55, "temperature_c", 55.0),
    ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"): (
        "throttle_mask", 0x8, "throttle_reasons", ["hw_slowdown"],
    ),
    ("nvmlDeviceGetFieldValues", "nvmlDeviceGetEnforcedPowerLimit"): (
        "power_limit_mw", 350_000, "power_limit_w", 350.0,
    ),
    ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"): ("power_mw", 99_000, "power_w", 99.0),
}  # fmt: skip


@pytest.mark.parametrize("how", ["missing", "error 3", "error 25", "error 26"])
@pytest.mark.parametrize("calls", FALLBACKS, ids="-".join)
def test_an_older_call_answers_where_the_new_one_is_missing(
    fake: FakeNvml, start: Start, how: str, calls: tuple[str, str]
) -> None:
    key, value, field, expected = FALLBACKS[calls]
    fake.set(f"gpu.*.{key}", value)
    fake.set(f"call.{calls[0]}", how)
    gpus, gaps = poll(start())
    assert [getattr(gpu, field) for gpu in gpus] == [expected] * 3
    assert read_counts(fake.counts_path)[calls[1]] >= 3
    assert not [gap for gap in gaps if gap.what.endswith(field)]


def test_a_rejected_batch_is_no_answer(fake: FakeNvml, start: Start) -> None:
    """What has a call has its value; the rest is unknown, and missed."""
    fake.set("call.nvmlDeviceGetFieldValues", "error 2")
    fake.set("gpu.*.power_mw", 123_000)
    gpus, gaps = poll(start())
    assert [gpu.power_w for gpu in gpus] == [123.0] * 3
    for field in ("memory_temperature_c", "ecc.uncorrected_volatile", "throttle_ns"):
        gap = gap_of(gaps, f"gpu.*.{field}")
        assert gap.kind == "unknown" and "Invalid Argument" in gap.why


def test_one_missing_throttle_counter(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.*.throttle_ns.power_brake", "unsupported")
    gpus, gaps = poll(start())
    assert "power_brake" not in gpus[0].throttle_ns
    assert gpus[0].throttle_ns["hw_thermal"] == 0
    assert "Not Supported" in gap_of(gaps, "gpu.*.throttle_ns.power_brake").why


def test_no_permission_names_the_call_and_the_fix(fake: FakeNvml, start: Start) -> None:
    fake.set("call.nvmlDeviceGetComputeRunningProcesses", "error 4")
    gpus, gaps = poll(start())
    assert gpus[0].processes is None
    gap = gap_of(gaps, "gpu.*.processes")
    assert "nvmlDeviceGetComputeRunningProcesses_v3" in gap.why
    assert "no permission" in gap.why
    assert gap.fix == permission_fix("nvmlInit")


def test_impossible_values_are_unknown(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.0.busy_percent", 37_100)
    fake.set("gpu.0.energy_mj", 0x7FFFFFFFFFFFFFF0)
    fake.set("gpu.0.memory_temperature_c", 4_000_000)
    fake.set("gpu.0.sm_clock_mhz", 4_294_967_295)
    fake.set("gpu.0.memory_used_bytes", 0x7FFFFFFFFFFFFFF0)
    gpus, gaps = poll(start())
    for field in ("busy", "energy_j", "memory_temperature_c", "sm_clock_mhz", "memory_used_bytes"):
        assert getattr(gpus[0], field) is None, field
        assert "not a value" in gap_of(gaps, f"gpu.0.{field}").why
    assert "37100" in gap_of(gaps, "gpu.0.busy").why
    assert gpus[0].power_w == 70


def test_an_unreadable_driver_version_is_a_gap(fake: FakeNvml, start: Start) -> None:
    fake.set("call.nvmlSystemGetDriverVersion", "error 3")
    gpus, gaps = poll(start())
    assert gpus[0].driver is None
    assert "nvmlSystemGetDriverVersion: Not Supported" in gap_of(gaps, "gpu.*.driver").why
