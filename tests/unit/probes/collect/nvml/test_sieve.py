"""What cannot be becomes unknown with its value as the reason: readings of one GPU, one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.collect.nvml.codes import Problem
from mltop.probes.collect.nvml.device import Reading
from mltop.probes.collect.nvml.readers.sieve import Sieve
from mltop.probes.model.plausible import GPU


def sifted(sieve: Sieve, **values: Any) -> Reading:
    reading = Reading()
    reading.values.update({name.replace("__", "."): value for name, value in values.items()})
    return sieve.sift(reading)


def why(reading: Reading, field: str) -> str:
    """The reason of a field that is implausible, and of no other kind."""
    problem = reading.problems[field]
    assert isinstance(problem, Problem), problem
    assert problem.code == "implausible", problem
    assert field not in reading.values
    return problem.why


SINGLE = sorted(path for path in GPU if "*" not in path)


@pytest.mark.parametrize("path", SINGLE)
@pytest.mark.parametrize("how", ["below", "above", "nan"])
def test_a_single_number_outside_of_its_range_is_unknown(path: str, how: str) -> None:
    limits = GPU[path]
    value = {"below": limits.low - 1, "above": limits.high * 2 + 1, "nan": float("nan")}[how]
    reading = Sieve().sift(with_values({path: value, "busy" if path != "busy" else "power_w": 0.5}))
    assert f"the driver answered {limits.shown(value)}, which is not a {limits.noun}" in why(reading, path)
    assert len(reading.values) == 1, "what is plausible beside it stays"


@pytest.mark.parametrize("path", SINGLE)
def test_the_ends_of_a_range_and_what_is_unknown_pass(path: str) -> None:
    for value in (GPU[path].low, GPU[path].high, None):
        reading = Sieve().sift(with_values({path: value}))
        assert (reading.values, reading.problems) == ({path: value}, {})


def with_values(values: dict[str, Any]) -> Reading:
    reading = Reading()
    reading.values.update(values)
    return reading


def test_more_memory_used_than_there_is() -> None:
    reading = sifted(Sieve(), memory_used_bytes=81, memory_total_bytes=80)
    assert "81 bytes" in why(reading, "memory_used_bytes") and reading.values == {"memory_total_bytes": 80}
    assert sifted(Sieve(), memory_used_bytes=80, memory_total_bytes=80).problems == {}


def test_a_clock_above_its_maximum() -> None:
    """A few MHz more are what nvml.h allows for; the maximum is read once, the clock at every poll."""
    sieve = Sieve()
    assert sifted(sieve, sm_clock_mhz=9_000).values == {"sm_clock_mhz": 9_000}, "no maximum is known yet"
    sifted(sieve, sm_clock_max_mhz=1980, memory_clock_max_mhz=2619)
    assert sifted(sieve, sm_clock_mhz=1995, memory_clock_mhz=2620).problems == {}
    found = sifted(sieve, sm_clock_mhz=2500, memory_clock_mhz=9001)
    assert why(found, "sm_clock_mhz") == (
        "the driver answered 2500 MHz, which is not a value: it names 1980 MHz as the maximum"
    )
    assert "9001 MHz" in why(found, "memory_clock_mhz")


def test_energy_that_goes_back_is_unknown_until_it_goes_on() -> None:
    sieve = Sieve()
    for joules, is_known in [(500.0, True), (500.0, True), (12.0, False), (501.0, True), (3.0, False), (4.0, True)]:
        found = sifted(sieve, energy_j=joules)
        assert ("energy_j" in found.values) is is_known, joules
        if not is_known:
            assert f"{joules:.0f} J" in why(found, "energy_j")


def test_dicts_lose_only_what_cannot_be() -> None:
    found = sifted(
        Sieve(),
        throttle_ns={"hw_thermal": 5, "sw_thermal": -1},
        throttle_share={"hw_thermal": 0.5, "sw_thermal": 1.5},
        pcie__errors={"bad_tlp": 0xFFFFFFFF, "lane_error": 0},
    )
    assert found.values == {
        "throttle_ns": {"hw_thermal": 5},
        "throttle_share": {"hw_thermal": 0.5},
        "pcie.errors": {"lane_error": 0},
    }
    assert set(found.problems) == {"throttle_ns.sw_thermal", "throttle_share.sw_thermal", "pcie.errors.bad_tlp"}
    assert "4294967295" in why(found, "pcie.errors.bad_tlp")


def test_links_lose_only_what_cannot_be_and_the_reason_names_the_link() -> None:
    fine = {"index": 2, "active": True, "version": 4, "speed_bytes_per_s": 26.5e9, "errors": {"crc": 7}}
    bad = {**fine, "index": 3, "speed_bytes_per_s": 4294967295e6, "errors": {"crc": 0xFFFFFFFFFFFFFFFF, "replay": 1}}
    reading = with_values({"nvlink.links": [fine, bad]})
    for _ in range(2):  # what has not changed is the same reading at the next poll
        found = Sieve().sift(reading)
        first, second = found.values["nvlink.links"]
        assert first == fine
        assert second == {"index": 3, "active": True, "version": 4, "errors": {"replay": 1}}
        assert "link 3: crc: the driver answered 18446744073709551615" in why(found, "nvlink.errors")
        assert "link 3: " in why(found, "nvlink.speed_bytes_per_s")


def test_a_list_with_a_process_that_cannot_be_tells_nobody() -> None:
    one = {"pid": 7, "memory_bytes": 5, "kind": "compute", "gpu_instance": None}
    found = sifted(Sieve(), processes=[one, {**one, "pid": 0xFFFFFFFF}])
    assert "4294967295" in why(found, "processes")
    found = sifted(Sieve(), processes=[one, {**one, "pid": 8, "memory_bytes": 1 << 62}])
    assert [entry.get("memory_bytes") for entry in found.values["processes"]] == [5, None]
    assert "process 8: " in str(found.problems["processes.memory_bytes"])


def test_an_instance_loses_only_what_cannot_be() -> None:
    one = {"index": 1, "name": "1g.10gb", "gpu_instance": 7, "memory_used_bytes": 9, "memory_total_bytes": 8}
    found = sifted(Sieve(), mig_instances=[{**one, "sm_active": float("nan"), "dram_active": 0.5}])
    assert found.values["mig_instances"] == [
        {"index": 1, "name": "1g.10gb", "gpu_instance": 7, "memory_total_bytes": 8, "dram_active": 0.5}
    ]
    assert set(found.problems) == {"mig_instances.1.sm_active", "mig_instances.1.memory_used_bytes"}
