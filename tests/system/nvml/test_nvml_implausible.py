"""Drivers and devices that answer nonsense: such a value is unknown with what was answered, all else is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.model import GpuSample, Sample
from tests.builders.evaluated import evaluate
from tests.fakes.nvml.machine import Machine, paths_of, value_at
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import fake_here

ALL_ONES = 0xFFFFFFFF


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 2)


@pytest.fixture
def machine(fake: FakeNvml) -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


# scenario key, what the driver answers, the field that is unknown, and how its reason has the value
NONSENSE: list[tuple[str, Any, str, str]] = [
    ("temperature_c", 255, "temperature_c", "255 °C"),
    ("temperature_c", -1, "temperature_c", "-1 °C"),
    ("memory_temperature_c", 255, "memory_temperature_c", "255 °C"),
    ("temperature_slowdown_c", 127, "temperature_slowdown_c", "127 °C"),
    ("temperature_memory_max_c", 0, "memory_temperature_max_c", "0 °C"),
    ("temperature_margin_c", 500, "temperature_margin_c", "500 °C"),
    ("busy_percent", 255, "busy", "255 %"),
    ("power_average_mw", 10_000_000, "power_w", "10000 W"),
    ("power_average_mw", ALL_ONES, "power_w", "4294967"),
    ("power_limit_mw", ALL_ONES, "power_limit_w", "4294967"),
    ("power_limit_default_mw", 0, "power_limit_default_w", "0 W"),
    ("energy_mj", 9 * 10**15, "energy_j", "9000000000000 J"),
    ("sm_clock_mhz", 2500, "sm_clock_mhz", "2500 MHz"),
    ("memory_clock_mhz", 65_535, "memory_clock_mhz", "65535 MHz"),
    ("sm_clock_max_mhz", 0, "sm_clock_max_mhz", "0 MHz"),
    ("memory_used_bytes", 90 * 10**9, "memory_used_bytes", "90000000000 bytes"),
    ("memory_total_bytes", 0, "memory_total_bytes", "0 bytes"),
    ("ecc_corrected_volatile", ALL_ONES, "ecc.corrected_volatile", "4294967295"),
    ("ecc_uncorrected_aggregate", ALL_ONES, "ecc.uncorrected_aggregate", "4294967295"),
    ("ecc_enabled", 7, "ecc.enabled", "7"),
    ("remap_uncorrected", ALL_ONES, "remap.uncorrected", "4294967295"),
    ("remap_banks_none", ALL_ONES, "remap.banks.none", "4294967295"),
    ("pcie_gen", 99, "pcie.gen", "99"),
    ("pcie_gen", 0, "pcie.gen", "0"),
    ("pcie_gen_max", 99, "pcie.gen_max", "99"),
    ("pcie_width", 0, "pcie.width", "0 lanes"),
    ("pcie_width", 255, "pcie.width", "255 lanes"),
    ("pcie_replay_count", ALL_ONES, "pcie.replay_count", "4294967295"),
    ("performance_state", 17, "performance_state", "17"),
    ("recovery_action", ALL_ONES, "recovery_action", "4294967295"),
]


@pytest.mark.parametrize(("key", "value", "field", "shown"), NONSENSE)
def test_what_cannot_be_is_unknown_with_its_value(
    fake: FakeNvml, machine: Machine, key: str, value: Any, field: str, shown: str
) -> None:
    if key.startswith("ecc_enabled"):
        fake.set("gpu.1.field.1", value)
    else:
        fake.set(f"gpu.1.{key}", value)
    fake.write()
    machine.poll(0.0)
    healthy, odd = machine.poll(1.0)
    assert value_at(odd, field) is None
    assert value_at(healthy, field) is not None
    gap = machine.gaps()[f"gpu.1.{field}"]
    assert (gap.kind, gap.code) == ("unknown", "implausible")
    assert shown in gap.why and "answered" in gap.why


@pytest.mark.parametrize("field", [144, 145, 31, 2])
def test_all_ones_are_no_yes(fake: FakeNvml, machine: Machine, field: int) -> None:
    """Pending and failed repairs, retired pages, ECC's pending mode."""
    fake.set(f"gpu.1.field.{field}", ALL_ONES)
    fake.write()
    odd = machine.poll()[1]
    found = {144: odd.remap.pending, 145: odd.remap.failed, 31: odd.retired_pages_pending, 2: odd.ecc.enabled_pending}
    assert found[field] is None
    assert odd.remap.corrected == 0, "what is beside it is read"
    whys = [gap.why for what, gap in machine.gaps().items() if what.startswith("gpu.1.") and gap.code == "implausible"]
    assert whys and all("4294967295" in why for why in whys)


def test_a_state_that_no_link_has_is_no_link_that_is_down(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.1.nvlink_state", "1, 7, 0, 1")
    fake.write()
    links = machine.poll()[1].nvlink.links
    assert [link.active for link in links[:4]] == [True, None, False, True]
    gap = machine.gaps()["gpu.1.nvlink.active"]
    assert (gap.kind, gap.code) == ("unknown", "implausible")
    assert "state 7 of link 1" in gap.why


def test_a_board_without_a_memory_sensor_lacks_nothing(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.1.memory_temperature_c", 0)
    fake.write()
    assert machine.poll()[1].memory_temperature_c is None
    assert machine.gaps()["gpu.1.memory_temperature_c"].kind == "unsupported"


def test_a_maximum_that_was_nonsense_is_asked_again(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.1.sm_clock_max_mhz", 0)
    fake.write()
    assert machine.poll(0.0)[1].sm_clock_max_mhz is None
    fake.unset("gpu.1.sm_clock_max_mhz")
    fake.write()
    assert machine.poll(90.0)[1].sm_clock_max_mhz == 1980


def test_energy_does_not_go_back(fake: FakeNvml, machine: Machine) -> None:
    for second, millijoules in enumerate((500_000, 12_000, 501_000)):
        fake.set("gpu.1.energy_mj", millijoules)
        fake.write()
        found = machine.poll(float(second))[1].energy_j
        assert found == (None if millijoules == 12_000 else millijoules / 1000)
    assert "gpu.1.energy_j" not in machine.gaps()


def test_a_device_that_reads_all_ones_makes_no_finding_about_any_value(fake: FakeNvml, machine: Machine) -> None:
    """Nothing of it is told as heat, errors, links that are down or repairs that failed; that it is mute is."""
    for key in (
        "temperature_c", "memory_temperature_c", "power_average_mw", "power_mw", "sm_clock_mhz", "memory_clock_mhz",
        "ecc_corrected_volatile", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remap_corrected",
        "remap_uncorrected", "pcie_gen", "pcie_width", "pcie_replay_count", "busy_percent", "recovery_action",
        "power_limit_mw", "remap_banks_none", "remap_banks_low", "ecc_sram_uncorrected_aggregate",
    ):  # fmt: skip
        fake.set(f"gpu.1.{key}", ALL_ONES)
    for field in (1, 2, 31, 144, 145):
        fake.set(f"gpu.1.field.{field}", ALL_ONES)
    fake.set("gpu.1.nvlink_state", str(ALL_ONES))
    fake.set("gpu.1.nvlink_crc", str(2**63 - 1))
    fake.write()
    samples = [
        Sample("n1", float(at), gpus=machine.poll(float(at)), gaps=list(machine.gaps().values())) for at in range(4)
    ]
    odd: GpuSample = samples[-1].gpus[1]
    numbers = {path: value for path, value in paths_of(odd).items() if isinstance(value, (int, float))}
    assert not [path for path, value in numbers.items() if value >= 2**31 and not path.endswith("_bytes")], numbers
    about = {finding.id for finding in evaluate(samples) if finding.subject == "GPU 1"}
    assert about <= {"gpu.lost"}, about
