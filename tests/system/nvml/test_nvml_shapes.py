"""A100, H100, B200 and GB200 under old and new drivers: each field is as in the scenario, or known to be none."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.nvml.readers.gpm import SHORTEST_S
from mltop.probes.model import Gap, GpuProcess, GpuSample, NvlinkLink
from tests.fakes.nvml.machine import Machine, paths_of
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import BLACKWELL_LINK_ERRORS, DRIVERS, FIRST_DRIVER, HOPPER_LINK_ERRORS, branch_of, shape

MIB = 2**20
COUNT = 3
PAIRS = [
    (kind, driver) for kind in FIRST_DRIVER for driver in DRIVERS if branch_of(driver) >= branch_of(FIRST_DRIVER[kind])
]
# Not of the scenario, or compared by other tests: activity.
NOT_COMPARED = {
    "last_seen_at", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active", "fp32_active",
    "fp16_active", "activity_source", "mig_instances",
}  # fmt: skip
# An absent value of these is no gap: there is nothing that could be missing.
NO_GAP = {"error", "error_code", "fabric.problems", "fabric.cluster_uuid"}

# What every shape has, by path of GpuSample; {i} is the GPU's number.
COMMON: dict[str, Any] = {
    "uuid": "GPU-5a4e0001-0000-4000-8000-{i:012}",
    "serial": "165{i:010}",
    "state": "ok",
    "error": None,
    "error_code": "",
    "busy": 0.5,
    "temperature_c": 41.0,
    "memory_temperature_c": 47.0,
    "energy_j": 1_000_000.5,
    "sm_clock_mhz": 1200,
    "throttle_reasons": ["sw_power_cap"],
    "ecc.enabled": True,
    "ecc.enabled_pending": False,
    "ecc.corrected_volatile": 11,
    "ecc.uncorrected_volatile": 2,
    "ecc.corrected_aggregate": 33,
    "ecc.uncorrected_aggregate": 7,
    "ecc.sram_uncorrected_aggregate": 4,
    "remap.corrected": 5,
    "remap.uncorrected": 1,
    "remap.pending": True,
    "remap.failed": False,
    "remap.banks.max": 2555,
    "remap.banks.high": 4,
    "remap.banks.partial": 0,
    "remap.banks.low": 1,
    "remap.banks.none": 0,
    "retired_pages": None,
    "retired_pages_double_bit": None,
    "retired_pages_pending": None,
    "pcie.width": 8,
    "pcie.width_max": 16,
    "pcie.replay_count": 21,
    "nvlink.rx_bytes_per_s": 0.0,
    "nvlink.tx_bytes_per_s": 0.0,
    "unified_memory": False,
    "mig_enabled": False,
    "mig_pending": True,
    "persistence": True,
    "compute_mode": "default",
    "performance_state": 2,
    "processes": [GpuProcess(4000, 2**30, "compute")],
}
SET: dict[str, Any] = {
    "busy_percent": 50, "temperature_c": 41, "memory_temperature_c": 47, "energy_mj": 1_000_000_500,
    "sm_clock_mhz": 1200, "throttle_mask": 0x4, "ecc_pending": False, "ecc_corrected_volatile": 11,
    "ecc_uncorrected_volatile": 2, "ecc_corrected_aggregate": 33, "ecc_uncorrected_aggregate": 7,
    "ecc_sram_uncorrected_aggregate": 4, "ecc_sram_threshold_exceeded": True, "remap_corrected": 5,
    "remap_uncorrected": 1, "remap_pending": True, "remap_banks_max": 2555, "remap_banks_high": 4,
    "remap_banks_low": 1, "tpc_repair_pending": True, "recovery_action": 4, "pcie_gen": 2, "pcie_width": 8,
    "pcie_replay_count": 21, "pcie_bad_tlp": 9, "mig_pending": True, "performance_state": 2,
    "memory_used_bytes": 30 * MIB, "memory_reserved_bytes": 500 * MIB, "throttle_ns.sw_power_cap": 4_000_000_000,
}  # fmt: skip

OF_KIND: dict[str, dict[str, Any]] = {
    "a100": {
        "name": "NVIDIA A100-SXM4-80GB",
        "vbios": "92.00.45.00.03",
        "memory_total_bytes": 81920 * MIB,
        "sm_clock_max_mhz": 1410,
        "memory_clock_mhz": 1593,
        "memory_clock_max_mhz": 1593,
        "power_limit_w": 400.0,
        "power_limit_default_w": 400.0,
        "temperature_margin_c": 51.0,
        "temperature_slowdown_c": 92.0,
        "memory_temperature_max_c": 95.0,
        "memory_temperature_margin_c": 48.0,
        "pcie.gen_max": 4,
        "pcie.rx_bytes_per_s": None,  # there is no GPM
        "pcie.tx_bytes_per_s": None,
        "fabric.state": None,
        "fabric.health": None,
        "fabric.problems": [],
        "fabric.clique_id": None,
        "fabric.cluster_uuid": None,
        "gsp_firmware": None,
    },
    "h100": {
        "name": "NVIDIA H100 80GB HBM3",
        "vbios": "96.00.A5.00.01",
        "memory_total_bytes": 81559 * MIB,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 2619,
        "memory_clock_max_mhz": 2619,
        "power_limit_w": 700.0,
        "power_limit_default_w": 700.0,
        "temperature_margin_c": 55.0,
        "memory_temperature_margin_c": 55.0,
    },
    "b200": {
        "name": "NVIDIA B200",
        "vbios": "97.00.82.00.1F",
        "memory_total_bytes": 183359 * MIB,
        "sm_clock_max_mhz": 1965,
        "memory_clock_mhz": 3996,
        "memory_clock_max_mhz": 3996,
        "power_limit_w": 1000.0,
        "power_limit_default_w": 1000.0,
        "temperature_margin_c": 60.0,
        "memory_temperature_margin_c": 60.0,
    },
    "gb200": {
        "name": "NVIDIA GB200",
        "vbios": "97.00.88.00.0D",
        "memory_total_bytes": 189471 * MIB,
        "sm_clock_max_mhz": 2062,
        "memory_clock_mhz": 3996,
        "memory_clock_max_mhz": 3996,
        "power_limit_w": 1200.0,
        "power_limit_default_w": 1200.0,
        "temperature_margin_c": 62.0,
        "memory_temperature_margin_c": 62.0,
        "fabric.clique_id": 32766,
        "fabric.cluster_uuid": "4a2c9e60-1d5b-4f08-9b1e-7f8d3c5a6b01",
    },
}
HOPPER_AND_NEWER: dict[str, Any] = {
    "temperature_slowdown_c": None,
    "memory_temperature_max_c": None,
    "pcie.gen_max": 5,
    "pcie.rx_bytes_per_s": 0.0,
    "pcie.tx_bytes_per_s": 0.0,
    "fabric.state": "completed",
    "fabric.health": "ok",
    "fabric.problems": [],
    "fabric.clique_id": 0,
    "fabric.cluster_uuid": None,
}
# Links: how many, generation, bytes per second, names of error counters.
LINKS = {
    "a100": (12, 3, 25e9, HOPPER_LINK_ERRORS),
    "h100": (18, 4, 26.562e9, HOPPER_LINK_ERRORS),
    "b200": (18, 5, 53.125e9, BLACKWELL_LINK_ERRORS),
    "gb200": (18, 5, 53.125e9, BLACKWELL_LINK_ERRORS),
}
NS_ALWAYS = dict.fromkeys(("sync_boost", "board_limit", "low_utilization", "reliability"), 0)
PCIE_ERRORS = (
    "l0_to_recovery", "correctable_errors", "naks_received", "receiver_error", "bad_tlp", "naks_sent", "bad_dllp",
    "non_fatal_error", "fatal_error", "unsupported_req", "lcrc_error", "lane_error",
)  # fmt: skip


def of_driver(kind: str, driver: str) -> dict[str, Any]:
    """What depends on the driver: its versions, and what it does not have yet."""
    branch = branch_of(driver)
    found: dict[str, Any] = {
        "driver": DRIVERS[driver],
        "cuda": {470: "11.4", 535: "12.2", 550: "12.4", 570: "12.8", 575: "12.9", 580: "13.0"}[branch],
        # Version 1 of the memory information counts what the driver reserves as used.
        "memory_used_bytes": (530 if branch == 470 else 30) * MIB,
        "throttle_ns": {"sw_power_cap": 4_000_000_000, **NS_ALWAYS},
        "throttle_share": dict.fromkeys(("sw_power_cap", *NS_ALWAYS), 0.0),
        "pcie.gen": 2,
        "pcie.errors": {**dict.fromkeys(PCIE_ERRORS, 0), "bad_tlp": 9} if branch > 470 else {},
        "recovery_action": "drain_and_reset" if branch >= 570 else None,
        "ecc.sram_threshold_exceeded": True if branch >= 535 else None,
        "remap.repair_pending": True if branch >= 580 else None,
    }
    if branch >= 575:
        new = dict.fromkeys(("sw_thermal", "hw_thermal", "power_brake"), 0)
        found["throttle_ns"] = {**found["throttle_ns"], **new}
        found["throttle_share"] = dict.fromkeys(found["throttle_ns"], 0.0)
    if kind != "a100":
        found["gsp_firmware"] = DRIVERS[driver]
    if kind == "h100" and branch < 570:  # absolute limits, and no T.Limit
        found |= {"temperature_slowdown_c": 89.0, "temperature_margin_c": 48.0}
        found |= {"memory_temperature_max_c": 95.0, "memory_temperature_margin_c": 48.0}
    if kind == "h100" and branch < 550:
        found["fabric.health"] = None  # version 1 does not tell
    return found


def links_of(kind: str, index: int) -> list[NvlinkLink]:
    """Link 2 is down and has errors; which, the GPU's number says."""
    count, version, speed, names = LINKS[kind]
    found = []
    for link in range(count):
        errors = dict.fromkeys(names, 0)
        if link == 2:
            errors[names[0]] = 100 + index
        found.append(NvlinkLink(link, link != 2, version, speed, "switch", errors))
    return found


def expected(kind: str, driver: str, index: int) -> dict[str, Any]:
    values = {**COMMON, **({} if kind == "a100" else HOPPER_AND_NEWER), **OF_KIND[kind], **of_driver(kind, driver)}
    values = {path: value.format(i=index) if isinstance(value, str) else value for path, value in values.items()}
    values["index"] = values["minor"] = index
    values["pci_bus_id"] = f"00000000:{0x1B + index:02X}:00.0"
    values["power_w"] = 300.0 + index
    values["nvlink.links"] = links_of(kind, index)
    return values


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(tmp_path, count=COUNT)
    for name, value in made.env().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def machine(fake: FakeNvml) -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def set_scenario(fake: FakeNvml, kind: str, driver: str) -> None:
    shape(kind, fake, COUNT, driver)
    for key, value in SET.items():
        fake.set(f"gpu.*.{key}", value)
    fake.set("gpu.*.nvlink_state", "1, 1, 0, 1")
    fake.set("gpu.*.processes", [(4000, 2**30, "compute")])
    for index in range(COUNT):
        fake.set(f"gpu.{index}.power_mw", 300_000 + index * 1000)
        fake.set(f"gpu.{index}.nvlink_{LINKS[kind][3][0]}", f"0, 0, {100 + index}, 0")
    fake.write()


@pytest.mark.parametrize(("kind", "driver"), PAIRS)
def test_every_field_is_what_the_scenario_says(fake: FakeNvml, machine: Machine, kind: str, driver: str) -> None:
    set_scenario(fake, kind, driver)
    machine.poll(0.0)
    time.sleep(1.1 * SHORTEST_S)
    samples = machine.poll(1.0)
    assert [sample.index for sample in samples] == list(range(COUNT))
    for sample in samples:
        wanted = expected(kind, driver, sample.index)
        found = paths_of(sample)
        assert set(found) - NOT_COMPARED == set(wanted), "a field of GpuSample that this test does not know"
        assert {path: found[path] for path in wanted} == wanted
    assert_gaps(machine.gaps(), samples[0], wanted)


def assert_gaps(gaps: dict[str, Gap], sample: GpuSample, wanted: dict[str, Any]) -> None:
    """What is None has a gap that says "unsupported"; nothing else has one."""
    wrong = {gap.what for gap in gaps.values() if gap.kind != "unsupported" and not is_activity(gap.what)}
    assert not wrong
    missing = [path for path, value in wanted.items() if (value is None or value == {}) and path not in NO_GAP]
    for path in missing:
        assert any(covers(what, path) for what in gaps), f"{path} is unknown without a word in {list(gaps)}"
    for what in gaps:
        is_partial = what.startswith("gpu.*.throttle_ns.")
        assert is_partial or is_activity(what) or any(covers(what, path) for path in missing), f"{what} is known"


def is_activity(what: str) -> bool:
    """What GPM tells: not before its second sample."""
    return "active" in what or "sm_occupancy" in what or bool(re.search(r"\.pcie\.[rt]x_bytes_per_s$", what))


def covers(what: str, path: str) -> bool:
    """Whether a gap is about a value or about the part that it belongs to."""
    about = re.sub(r"^gpu\.(\*|\d+)\.", "", what)
    return path == about or path.startswith(about + ".")


def test_all_of_the_fabric_that_an_a100_has_not_is_one_gap(fake: FakeNvml, machine: Machine) -> None:
    set_scenario(fake, "a100", "580")
    machine.poll(0.0)
    assert [what for what in machine.gaps() if "fabric" in what] == ["gpu.*.fabric"]


def test_a_gpu_without_nvlink(fake: FakeNvml, machine: Machine) -> None:
    set_scenario(fake, "h100", "580")
    fake.set("gpu.*.name", "NVIDIA H100 PCIe")
    fake.set("gpu.*.nvlink_links", 0)
    fake.write()
    (sample, *_) = machine.poll(0.0)
    assert (sample.nvlink.links, sample.nvlink.rx_bytes_per_s) == ([], None)
    gap = machine.gaps()["gpu.*.nvlink"]
    assert (gap.kind, gap.why) == ("unsupported", "this GPU has no NVLink")


def test_no_gpu_has_a_driver_older_than_itself(fake: FakeNvml) -> None:
    with pytest.raises(ValueError, match="no b200 under driver 535"):
        shape("b200", fake, driver="535")
