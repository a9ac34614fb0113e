"""The table of what values can be: every number that travels of a GPU has its range, and ranges hold what is real."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any

import pytest

from mltop.probes.model import GpuSample, LinkSample, PciDevice
from mltop.probes.model.plausible import GPU, LINKS, PCI, Range

# Ours, or the kernel's: no driver answers them.
NOT_OF_THE_DRIVER = {"index", "last_seen_at", "processes.*.ppid", "processes.*.started_at"}


def numbers_of(kind: Any, prefix: str = "") -> set[str]:
    """The paths of all numbers in a dataclass; ``*`` for keys and members."""
    found: set[str] = set()
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        found |= _numbers(hints[field.name], prefix + field.name)
    return found


def _numbers(hint: Any, path: str) -> set[str]:
    if dataclasses.is_dataclass(hint):
        return numbers_of(hint, f"{path}.")
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (list, dict):
        return _numbers(arguments[-1], f"{path}.*")
    if arguments:  # a union with None
        return set().union(*(_numbers(one, path) for one in arguments))
    return {path} if hint in (int, float) else set()


def test_every_number_of_a_gpu_has_a_range() -> None:
    assert numbers_of(GpuSample) - NOT_OF_THE_DRIVER == set(GPU)


def test_ranges_of_devices_and_ports_are_of_numbers_that_they_have() -> None:
    assert set(PCI) <= numbers_of(PciDevice)
    assert set(LINKS) <= numbers_of(LinkSample)


# What boards have been seen with, or what is announced.
FINE: list[tuple[str, float]] = [
    ("temperature_c", 21),
    ("temperature_c", 104),
    ("memory_temperature_c", 105),
    ("temperature_margin_c", -5),
    ("temperature_slowdown_c", 83),
    ("power_w", 1400.0),
    ("power_w", 0.0),
    ("memory_total_bytes", 288 * 2**30),
    ("sm_clock_mhz", 3105),
    ("memory_clock_mhz", 14001),
    ("energy_j", 3e10),  # a kilowatt for a year
    ("ecc.corrected_aggregate", 50_000_000),
    ("pcie.gen", 7),
    ("pcie.width", 1),
    ("nvlink.links.*.speed_bytes_per_s", 0.0),
    ("nvlink.rx_bytes_per_s", 9e11),
    ("processes.*.pid", 4_194_304),
    ("sm_active", 1.0),
    ("throttle_ns.*", 3 * 10**16),
]
NONSENSE: list[tuple[str, float]] = [
    ("temperature_c", 255),
    ("temperature_c", -1),
    ("temperature_c", 0),
    ("memory_temperature_c", 127),
    ("temperature_slowdown_c", 127),
    ("temperature_margin_c", 4294967291),
    ("power_w", -12.5),
    ("power_w", 10_000.0),
    ("power_w", 4294967.295),
    ("busy", 1.27),
    ("busy", -0.01),
    ("tensor_active", math.nan),
    ("dram_active", math.inf),
    ("sm_clock_mhz", 65_535),
    ("memory_used_bytes", 0xFFFFFFFFFFFFFFFF),
    ("memory_total_bytes", 0),
    ("ecc.uncorrected_volatile", 0xFFFFFFFF),
    ("ecc.uncorrected_volatile", -1),
    ("remap.uncorrected", 0xFFFFFFFF),
    ("remap.banks.none", 0xFFFFFFFF),
    ("retired_pages", 0xFFFFFFFF),
    ("pcie.gen", 0),
    ("pcie.gen", 99),
    ("pcie.width", 0),
    ("pcie.width", 255),
    ("pcie.width", 3),
    ("pcie.replay_count", 0xFFFFFFFF),
    ("pcie.errors.*", 0xFFFFFFFFFFFFFFFF),
    ("nvlink.links.*.speed_bytes_per_s", 4294967295e6),
    ("nvlink.links.*.errors.*", 0xFFFFFFFFFFFFFFFF),
    ("nvlink.links.*.version", 0),
    ("fabric.clique_id", 0xFFFFFFFF),
    ("performance_state", 32),
    ("energy_j", 0x7FFFFFFFFFFFFFF0 / 1000),
    ("processes.*.pid", 0),
    ("processes.*.memory_bytes", 0xFFFFFFFFFFFFFFFF),
    ("throttle_share.*", 2.0),
]


@pytest.mark.parametrize(("path", "value"), FINE)
def test_what_boards_have_is_plausible(path: str, value: float) -> None:
    assert GPU[path].holds(value)


@pytest.mark.parametrize(("path", "value"), NONSENSE)
def test_what_cannot_be_is_not(path: str, value: float) -> None:
    assert not GPU[path].holds(value)


@pytest.mark.parametrize("value", [True, "7", None, [7], math.nan])
def test_what_is_no_number_is_not_plausible(value: object) -> None:
    assert not Range(0, 10).holds(value)


@pytest.mark.parametrize("limits", [*GPU.values(), *PCI.values(), *LINKS.values()])
def test_ranges_are_ranges_and_name_their_source(limits: Range) -> None:
    assert limits.low < limits.high
    assert limits.source, "why these ends"
    assert limits.only is None or (min(limits.only), max(limits.only)) == (limits.low, limits.high)


@pytest.mark.parametrize(
    ("limits", "value", "shown", "between"),
    [
        (GPU["temperature_c"], 255, "255 °C", "1 to 125 °C"),
        (GPU["temperature_c"], -1.0, "-1 °C", "1 to 125 °C"),
        (GPU["busy"], 371.0, "37100 %", "0 to 100 %"),
        (GPU["power_w"], -12.5, "-12.5 W", "0 to 5000 W"),
        (GPU["power_w"], math.nan, "nan W", "0 to 5000 W"),
        (GPU["busy"], math.inf, "inf %", "0 to 100 %"),
        (GPU["pcie.gen"], 99, "99", "1 to 8"),
        (GPU["pcie.width"], 0, "0 lanes", "1, 2, 4, 8, 12, 16 or 32"),
        (GPU["ecc.corrected_volatile"], 0xFFFFFFFF, "4294967295", "0 to 4000000000"),
    ],
)
def test_a_reason_has_the_value_in_it(limits: Range, value: float, shown: str, between: str) -> None:
    assert (limits.shown(value), limits.between) == (shown, between)
