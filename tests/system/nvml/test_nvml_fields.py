"""ECC, memory repair, PCIe, limits, throttle time, versions: what NVML knows, new calls first and old ones after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.nvml.faults import permission_fix
from mltop.probes.model import GpuProcess
from tests.fakes.nvml.counts import calls_on_gpu
from tests.fakes.nvml.machine import Machine, value_at
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape
from tests.nvml_sources import fake_here


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 2)


@pytest.fixture
def machine(fake: FakeNvml) -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


# scenario key, its value, the field, what it must be
VALUES: list[tuple[str, Any, str, Any]] = [
    ("ecc_pending", False, "ecc.enabled_pending", False),
    ("ecc_sram_threshold_exceeded", True, "ecc.sram_threshold_exceeded", True),
    ("remap_failed", True, "remap.failed", True),
    ("channel_repair_pending", True, "remap.repair_pending", True),
    ("remap_banks_none", 3, "remap.banks.none", 3),
    ("recovery_action", 0, "recovery_action", "none"),
    ("recovery_action", 1, "recovery_action", "gpu_reset"),
    ("recovery_action", 5, "recovery_action", "imex_restart"),
    ("recovery_action", 7, "recovery_action", "system_reboot"),
    ("pcie_gen", 1, "pcie.gen", 1),
    ("pcie_gen_max", 6, "pcie.gen_max", 6),
    ("pcie_width_max", 8, "pcie.width_max", 8),
    ("pcie_fatal_error", 2, "pcie.errors.fatal_error", 2),
    ("pcie_l0_to_recovery", 3, "pcie.errors.l0_to_recovery", 3),
    ("temperature_margin_c", -4, "temperature_margin_c", -4.0),
    ("temperature_slowdown_c", 90, "temperature_slowdown_c", 90.0),
    ("temperature_memory_max_c", 105, "memory_temperature_max_c", 105.0),
    ("performance_state", 8, "performance_state", 8),
    ("mig_pending", True, "mig_pending", True),
    ("gsp_firmware", "575.57.08", "gsp_firmware", "575.57.08"),
    ("processes", [(7, 5, "compute", 3)], "processes", [GpuProcess(7, 5, "compute", 3)]),
]


@pytest.mark.parametrize(("key", "value", "field", "expected"), VALUES)
def test_a_value_arrives_at_its_gpu(
    fake: FakeNvml, machine: Machine, key: str, value: Any, field: str, expected: Any
) -> None:
    fake.set(f"gpu.1.{key}", value)
    fake.write()
    samples = machine.poll()
    assert value_at(samples[1], field) == expected
    assert not [gap for gap in machine.gaps().values() if gap.kind == "unknown"]


UNSUPPORTED: list[tuple[str, str, str]] = [
    ("ecc_enabled", "ecc.corrected_volatile", "ecc"),
    ("remap_pending", "remap.pending", "remap.pending"),
    ("remap_banks_low", "remap.banks.low", "remap.banks"),
    ("channel_repair_pending", "remap.repair_pending", "remap.repair_pending"),
    ("recovery_action", "recovery_action", "recovery_action"),
    ("pcie_replay_count", "pcie.replay_count", "pcie.replay_count"),
    ("pcie_gen_max", "pcie.gen_max", "pcie.gen_max"),
    ("pcie_width", "pcie.width", "pcie.width"),
    ("temperature_memory_max_c", "memory_temperature_max_c", "memory_temperature_max_c"),
    ("performance_state", "performance_state", "performance_state"),
    ("gsp_firmware", "gsp_firmware", "gsp_firmware"),
    ("fabric_state", "fabric.state", "fabric"),
]


@pytest.mark.parametrize(("key", "field", "what"), UNSUPPORTED)
def test_what_a_gpu_has_not_is_none_and_nothing_is_missed(
    fake: FakeNvml, machine: Machine, key: str, field: str, what: str
) -> None:
    fake.set(f"gpu.1.{key}", "unsupported")
    fake.write()
    samples = machine.poll()
    assert value_at(samples[1], field) is None
    assert machine.gaps()[f"gpu.1.{what}"].kind == "unsupported"
    assert value_at(samples[0], field) is not None
    assert f"gpu.0.{what}" not in machine.gaps()


def test_a_counter_that_is_refused_is_not_among_the_pcie_errors(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.pcie_lane_error", "unsupported")
    fake.write()
    sample = machine.poll()[0]
    assert "lane_error" not in sample.pcie.errors
    assert sample.pcie.errors["lcrc_error"] == 0
    assert machine.gaps()["gpu.*.pcie.errors.lane_error"].kind == "unsupported"


def test_ecc_that_is_off_has_no_counts(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.ecc_enabled", False)
    fake.write()
    ecc = machine.poll()[0].ecc
    assert (ecc.enabled, ecc.corrected_volatile, ecc.sram_uncorrected_aggregate) == (False, None, None)
    assert machine.gaps()["gpu.*.ecc.uncorrected_aggregate"].kind == "unsupported"


def test_only_root_may_know_the_sram_threshold(fake: FakeNvml, machine: Machine) -> None:
    fake.set("call.nvmlDeviceGetSramEccErrorStatus", "error 4")
    fake.set("gpu.*.ecc_uncorrected_aggregate", 9)
    fake.set("gpu.*.ecc_sram_uncorrected_aggregate", 6)
    fake.write()
    ecc = machine.poll()[0].ecc
    assert (ecc.sram_threshold_exceeded, ecc.sram_uncorrected_aggregate) == (None, 6)
    assert [what for what in machine.gaps() if "ecc" in what] == ["gpu.*.ecc.sram_threshold_exceeded"]
    gap = machine.gaps()["gpu.*.ecc.sram_threshold_exceeded"]
    assert (gap.kind, gap.fix) == ("unknown", permission_fix("nvmlInit"))


def test_retired_pages_of_gpus_before_ampere(fake: FakeNvml, machine: Machine) -> None:
    for key, value in {"retired_pages": 3, "retired_pages_single_bit": 2, "retired_pages_pending": True}.items():
        fake.set(f"gpu.1.{key}", value)
    for name in ("corrected", "uncorrected", "pending", "failed", "banks_max"):
        fake.set(f"gpu.1.remap_{name}", "unsupported")
    fake.set("gpu.1.channel_repair_pending", "unsupported")
    fake.write()
    sample = machine.poll()[1]
    assert (sample.retired_pages, sample.retired_pages_double_bit, sample.retired_pages_pending) == (5, 3, True)
    assert [what for what in machine.gaps() if what.startswith("gpu.1.remap")] == ["gpu.1.remap"]
    assert machine.gaps()["gpu.1.remap"].kind == "unsupported"


def test_a_refused_field_is_not_asked_again_every_time(fake: FakeNvml, machine: Machine) -> None:
    """Of the batch the others are still asked."""
    fake.set("gpu.*.recovery_action", "unsupported")
    fake.write()
    machine.poll(0.0)
    fake.set("gpu.*.recovery_action", 2)
    fake.set("gpu.*.pcie_replay_count", 77)
    fake.write()
    sample = machine.poll(30.0)[0]
    assert (sample.pcie.replay_count, sample.recovery_action) == (77, None)


def test_a_rejected_batch_is_not_sent_again_every_time(fake: FakeNvml, machine: Machine) -> None:
    fake.set("call.nvmlDeviceGetFieldValues", "error 2")
    fake.write()
    machine.poll(0.0)
    before = calls_on_gpu(fake.counts_path, 0)["nvmlDeviceGetFieldValues"]
    for second in range(1, 10):
        machine.poll(float(second))
    assert calls_on_gpu(fake.counts_path, 0)["nvmlDeviceGetFieldValues"] == before


def test_a_recovery_action_that_mltop_does_not_know_is_said_to_be_so(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.recovery_action", 42)
    fake.write()
    assert machine.poll()[0].recovery_action is None
    gap = machine.gaps()["gpu.*.recovery_action"]
    assert gap.kind == "unknown"
    assert "42" in gap.why


def test_impossible_limits_are_unknown(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.temperature_slowdown_c", 0)
    fake.set("gpu.*.temperature_margin_c", 2**30)
    fake.write()
    sample = machine.poll()[0]
    assert (sample.temperature_slowdown_c, sample.temperature_margin_c) == (None, None)
    assert "not a limit" in machine.gaps()["gpu.*.temperature_slowdown_c"].why
    assert "not a margin" in machine.gaps()["gpu.*.temperature_margin_c"].why


def test_throttle_share_is_of_the_time_between_two_polls(fake: FakeNvml, machine: Machine) -> None:
    assert machine.poll(0.0)[0].throttle_share == {}
    assert machine.gaps()["gpu.*.throttle_share"].kind == "starting"
    fake.set("gpu.0.throttle_ns.sw_power_cap", 1000)
    fake.set("gpu.0.throttle_ns.hw_thermal", 10**9)  # more than has passed here, and no more than a second of it
    fake.write()
    share = machine.poll(1.0)[0].throttle_share
    assert machine.is_rate(share["sw_power_cap"], 1e-6)
    assert (share["hw_thermal"], share["power_brake"]) == (1.0, 0.0)
    assert not [what for what in machine.gaps() if "throttle" in what]


def test_throttle_share_after_a_counter_started_anew(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.throttle_ns.sw_thermal", 5000)
    fake.write()
    machine.poll(0.0)
    fake.set("gpu.*.throttle_ns.sw_thermal", 10)
    fake.write()
    assert "sw_thermal" not in machine.poll(1.0)[0].throttle_share
    assert machine.gaps()["gpu.*.throttle_share.sw_thermal"].kind == "starting"
    assert machine.poll(2.0)[0].throttle_share["sw_thermal"] == 0.0


# What the driver and NVML say of their versions, and whether that tells which fields the moved counters are.
VERSIONS: list[tuple[str, str, bool]] = [
    ("570.211.01", "", False),  # has none of them
    ("575.51.02", "", True),
    ("575.64.05", "", True),
    ("580.65.06", "", True),
    ("580.76.05", "", True),
    ("580.82.07", "", True),
    ("580.119.02", "", True),
    ("590.48.01", "", True),
    ("610.43.03", "", True),
    ("vGPU 19.0 (580.65.05)", "13.580.65.05", True),
    ("R590", "13.590.48.01", True),
    ("R580", "13.580.65.06", True),
    ("R580", "13.580.82.07", True),
    ("R580", "R580", False),
    ("GRID 19.1", "GRID", False),
]


@pytest.mark.parametrize(("driver", "nvml", "is_known"), VERSIONS)
def test_throttle_time_is_what_the_driver_s_version_has_where(
    fake: FakeNvml, machine: Machine, driver: str, nvml: str, is_known: bool
) -> None:
    """Power smoothing's numbers, which other versions have there, are never shown as throttle time."""
    shape("gb200", fake, 2)
    fake.set("driver", driver)
    if nvml:
        fake.set("nvml", nvml)
    counted = {"sw_thermal": 11_000_000_000, "hw_thermal": 22_000_000_000, "power_brake": 33_000_000_000}
    for reason, nanoseconds in counted.items():
        fake.set(f"gpu.*.throttle_ns.{reason}", nanoseconds)
    fake.write()
    found = machine.poll()[0].throttle_ns
    assert {reason: found[reason] for reason in found if reason in counted} == (counted if is_known else {})
    assert found["sw_power_cap"] == 0
    for reason in counted if not is_known else ():
        assert machine.gaps()[f"gpu.*.throttle_ns.{reason}"].kind == (
            "unsupported" if driver.startswith("570") else "unknown"
        )


def test_a_version_that_cannot_be_read_shows_no_moved_counters(fake: FakeNvml, machine: Machine) -> None:
    shape("b200", fake, 2, driver="580.65")
    for call in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"):
        fake.set(f"call.{call}", "error 999")
    fake.write()
    assert machine.poll()[0].throttle_ns.keys() == {
        "sw_power_cap",
        "sync_boost",
        "board_limit",
        "low_utilization",
        "reliability",
    }
    assert "version" in machine.gaps()["gpu.*.throttle_ns.hw_thermal"].why


@pytest.mark.parametrize("gain", [10**15, 90 * 10**9])
def test_a_counter_that_runs_ahead_of_time_is_not_shown(fake: FakeNvml, machine: Machine, gain: int) -> None:
    """Whatever the driver's version says: its own time, and the share of it, are unknown with the number."""
    fake.set("gpu.0.throttle_ns.hw_thermal", 1000)
    fake.write()
    machine.poll(0.0)
    fake.set("gpu.0.throttle_ns.hw_thermal", 1000 + gain)
    fake.write()
    for second in (1.0, 2.0):
        sample = machine.poll(second)[0]
        assert "hw_thermal" not in sample.throttle_ns and "hw_thermal" not in sample.throttle_share
        assert sample.throttle_share["power_brake"] == 0.0
        gap = machine.gaps()["gpu.0.throttle_ns.hw_thermal"]
        assert (gap.kind, gap.code) == ("unknown", "implausible")
        assert f"the driver answered {1000 + gain} ns" in gap.why
    assert machine.poll(3.0)[1].throttle_share["hw_thermal"] == 0.0


def test_the_cuda_version(fake: FakeNvml, machine: Machine) -> None:
    fake.set("cuda", 13010)
    fake.write()
    assert machine.poll()[0].cuda == "13.1"


def test_utilisation_of_a_gpu_in_mig_mode_is_not_missed(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.1.mig_enabled", True)
    fake.set("gpu.1.busy_percent", "unsupported")
    fake.set("gpu.1.remap_corrected", "unsupported")
    fake.write()
    sample = machine.poll()[1]
    assert (sample.mig_enabled, sample.busy, sample.state) == (True, None, "ok")
    assert machine.gaps()["gpu.1.busy"].kind == "unsupported"


def test_pcie_traffic_is_not_told_by_counters_that_wrap(fake: FakeNvml, machine: Machine) -> None:
    """Without GPM nothing tells it."""
    fake.set("gpu.*.gpm_supported", False)
    fake.write()
    machine.poll(0.0)
    fake.set("gpu.*.pcie_rx_bytes", 3_000_000)
    fake.write()
    pcie = machine.poll(1.0)[0].pcie
    assert (pcie.rx_bytes_per_s, pcie.tx_bytes_per_s) == (None, None)
    for way in ("rx", "tx"):
        gap = machine.gaps()[f"gpu.*.pcie.{way}_bytes_per_s"]
        assert (gap.kind, gap.fix) == ("unsupported", "")
        assert "32 bits" in gap.why and gap.why.endswith("needs GPM (Hopper)")
    assert "nvmlDeviceGetPcieThroughput" not in calls_on_gpu(fake.counts_path, 0)


def test_what_has_not_changed_is_not_told_again_unless_asked(fake: FakeNvml, machine: Machine) -> None:
    first = machine.poll(0.0)
    later = machine.poll(100.0)
    assert machine.answer["gpus"][0]["read"].keys() == {"fast", "activity"}
    assert later[0].nvlink.links == first[0].nvlink.links
    again = machine.poll(101.0, again=True)
    assert {"static", "nvlink", "health", "repair", "modes"} <= machine.answer["gpus"][0]["read"].keys()
    assert again[0].nvlink.links == first[0].nvlink.links
