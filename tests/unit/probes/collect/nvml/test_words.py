"""From what the reader process says to gaps, and the pure parts of the readers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mltop.probes.collect.nvml import codes, faults
from mltop.probes.collect.nvml.calls import GarbageError, UnreadError
from mltop.probes.collect.nvml.codes import Failure, Problem, Reason, implausible, reason_of, starting, unsupported
from mltop.probes.collect.nvml.device import Reading
from mltop.probes.collect.nvml.fields import FIRST_SAMPLE, Meter
from mltop.probes.collect.nvml.reader import Schedule
from mltop.probes.collect.nvml.readers import nvlink
from mltop.probes.collect.nvml.registry import KnownGpu, as_one
from mltop.probes.model import Gap, NvlinkLink, RemapBanks
from mltop.probes.model.nvml_fields import as_numbers, throttle_ns_fields

NOT_SUPPORTED = Failure("nvmlDeviceGetX", 3)
UNCLEAR = Problem("?")
IT = "gpu.0.it"


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem("37100 %"), Gap(IT, "37100 %")),
        (unsupported("none here"), Gap(IT, "none here", kind="unsupported")),
        (starting("soon"), Gap(IT, "soon", kind="starting")),
        (
            Failure("nvmlDeviceGetX", 13),
            Gap(
                IT,
                "not supported by this GPU or driver (nvmlDeviceGetX: Function Not Found)",
                kind="unsupported",
            ),
        ),
        (
            Failure("nvmlDeviceGetFieldValues 230 X", 2),
            Gap(
                IT,
                "not supported by this GPU or driver (nvmlDeviceGetFieldValues 230 X: Invalid Argument)",
                kind="unsupported",
            ),
        ),
        (Failure("nvmlDeviceGetX", 2), Gap(IT, "nvmlDeviceGetX failed (NVML error 2: Invalid Argument)")),
        (
            Failure("nvmlDeviceGetX", 4),
            Gap(
                IT,
                "no permission for nvmlDeviceGetX (Insufficient Permissions)",
                faults.permission_fix("nvmlDeviceGetX"),
                code="no_permission",
            ),
        ),
        (
            Failure("nvmlGpmSampleGet", 4),
            Gap(
                IT,
                "no permission for nvmlGpmSampleGet (Insufficient Permissions)",
                faults.permission_fix("nvmlGpmSampleGet"),
                code="no_permission",
            ),
        ),
        (implausible("the driver answered 255 °C"), Gap(IT, "the driver answered 255 °C", code="implausible")),
        (codes.T_LIMIT_ALONE, Gap(IT, codes.T_LIMIT_ALONE.why, "update the NVIDIA driver to 570 or newer")),
    ],
)
def test_problems_become_gaps(problem: Reason, expected: Gap) -> None:
    assert faults.field_gap(["it"], "0", problem) == expected
    assert reason_of(json.loads(json.dumps(problem))) == problem


def test_root_is_not_sent_to_sudo() -> None:
    assert faults.permission_fix("nvmlDeviceGetX", uid=1000) == "sudo mltop"
    assert faults.permission_fix("nvmlGpmSampleGet", uid=1000).startswith("sudo mltop; in a container: start it")
    for call in ("nvmlDeviceGetX", "nvmlGpmSampleGet"):
        assert "sudo" not in faults.permission_fix(call, uid=0)


@pytest.mark.parametrize(
    ("problems", "known", "expected"),
    [
        ({"ecc.a": NOT_SUPPORTED, "ecc.b": NOT_SUPPORTED}, set(), {"ecc"}),
        ({"ecc.a": NOT_SUPPORTED, "ecc.b": NOT_SUPPORTED}, {"ecc.c"}, {"ecc.a", "ecc.b"}),
        ({"ecc.a": NOT_SUPPORTED, "ecc.b": Failure("nvmlDeviceGetX", 999)}, set(), {"ecc.a", "ecc.b"}),
        ({"ecc.a": NOT_SUPPORTED}, set(), {"ecc.a"}),
        ({"ecc": NOT_SUPPORTED, "ecc.b": NOT_SUPPORTED, "power_w": Problem("?")}, {"energy_j"}, {"ecc", "power_w"}),
    ],
)
def test_a_part_that_does_not_exist_is_one_problem(
    problems: dict[str, Any], known: set[str], expected: set[str]
) -> None:
    assert set(as_one("ecc", problems, known)) == expected


def test_tiers_become_one_sample() -> None:
    known = KnownGpu(0, 0)
    tiers = {
        "static": {"values": {"name": "H100", "pcie.gen_max": 5, "nvlink.remotes": ["switch", None]}, "problems": {}},
        "nvlink": {"values": {"nvlink.links": [{"index": 0, "errors": {}}, {"index": 1}]}, "problems": {}},
        "repair": {"values": {"remap.banks.max": 7, "remap.repair_pending": False}, "problems": {}},
        "fast": {"values": {"power_w": 300.0}, "problems": {"nvlink.rx_bytes_per_s": starting("soon")}},
        "activity": {"values": {"pcie.rx_bytes_per_s": 5.0, "nvlink.rx_bytes_per_s": 7.0}, "problems": {}},
    }
    known.read(tiers, 1.0)
    sample = known.sample()
    assert sample.nvlink.links == [NvlinkLink(0, remote="switch"), NvlinkLink(1)]
    assert (sample.pcie.gen_max, sample.pcie.rx_bytes_per_s, sample.pcie.tx_bytes_per_s) == (5, 5.0, None)
    assert (sample.nvlink.rx_bytes_per_s, sample.nvlink.tx_bytes_per_s) == (7.0, None)
    assert (sample.remap.banks, sample.remap.repair_pending) == (RemapBanks(max=7), False)
    assert known.all_problems() == {}, "what the activity counters tell is not missing"
    problems = known.all_problems()
    known.read({"fast": {"values": {"nvlink.rx_bytes_per_s": 2.0}, "problems": {}}}, 2.0)
    assert known.sample().nvlink.links is sample.nvlink.links, "made once, not for every sample"
    known.read({"activity": {"values": {}, "problems": {"sm_active": UNCLEAR}}}, 3.0)
    later = known.sample()
    assert (later.nvlink.rx_bytes_per_s, later.pcie.rx_bytes_per_s, later.pcie.gen_max) == (2.0, None, 5)
    assert (sample.nvlink.rx_bytes_per_s, sample.pcie.rx_bytes_per_s) == (7.0, 5.0), "the one before stays as it was"
    assert (problems, known.all_problems()) == ({}, {"sm_active": UNCLEAR})
    known.read({"modes": {"values": {}, "problems": {"persistence": UNCLEAR}}}, 4.0)
    assert known.all_problems() == {"sm_active": UNCLEAR, "persistence": UNCLEAR}


def test_a_lost_gpu_keeps_only_what_it_is() -> None:
    known = KnownGpu(0, 0)
    values = {"name": "H100", "cuda": "13.0", "pcie.gen_max": 5, "nvlink.remotes": ["switch"]}
    known.read({"static": {"values": values, "problems": {}}}, 1.0)
    known.fail("lost", "gone")
    sample = known.sample()
    assert (sample.name, sample.cuda, sample.pcie.gen_max) == ("H100", "13.0", None)


def test_a_meter_counts_per_second() -> None:
    meter = Meter()
    with pytest.raises(UnreadError) as first:
        meter.per_s("a", 100, 10.0)
    assert first.value.reason == FIRST_SAMPLE
    assert meter.per_s("a", 300, 12.0) == 100.0
    assert meter.per_s("a", 300, 13.0) == 0.0
    with pytest.raises(UnreadError, match="anew"):
        meter.per_s("a", 5, 14.0)
    assert meter.per_s("a", 6, 15.0) == 1.0
    with pytest.raises(UnreadError):
        meter.per_s("a", 7, 15.0)


@pytest.mark.parametrize(
    ("mask", "health", "problems"),
    [
        (0, None, []),
        (0x1AA, "ok", []),
        (0x002, "ok", []),
        (0x001, "limited", ["degraded_bandwidth"]),
        (0x004, "limited", ["route_recovery"]),
        (0x010, "unhealthy", ["route_unhealthy"]),
        (0x040, "limited", ["access_timeout"]),
        (0x100, "ok", []),
        (0x200, "unhealthy", ["misconfigured"]),
        (0x855, "unhealthy", [
            "degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout", "misconfigured",
        ]),
    ],
)  # fmt: skip
def test_the_health_of_a_fabric_by_its_mask(mask: int, health: str | None, problems: list[str]) -> None:
    assert nvlink.health_of(mask) == health
    assert nvlink.problems_of(mask) == problems


@pytest.mark.parametrize(("number", "expected"), [(1, 1), (3, 2), (4, 3), (5, 3), (6, 4), (7, 5), (8, 6)])
def test_generations_of_nvlink(number: int, expected: int) -> None:
    assert nvlink.generation(number) == expected


def test_an_unknown_generation_is_not_guessed() -> None:
    with pytest.raises(GarbageError, match="77"):
        nvlink.generation(77)


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ((0,), None),
        ((470, 1), 269),  # nothing lies there
        ((570, 211, 1), 269),
        ((575,), 251),
        ((575, 57, 8), 251),
        ((580,), None),
        ((580, 65, 6), 251),
        ((580, 76, 5), 251),
        ((580, 82, 7), 269),
        ((580, 119, 2), 269),
        ((590,), 269),
        ((1000, 1), 269),
    ],
)
def test_field_ids_of_throttle_time_by_version(version: tuple[int, ...], first: int | None) -> None:
    moved = {field: name for field, name in throttle_ns_fields(version).items() if field > 200}
    names = ("sw_thermal", "hw_thermal", "power_brake")
    assert moved == ({} if first is None else dict(zip(range(first, first + 3), names, strict=True)))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("570.86.15", (570, 86, 15)),
        ("580.65.06", (580, 65, 6)),
        ("R590", (590,)),
        ("535.161.05-grid", (535, 161, 5)),
        ("vGPU 17.3 (550.90.05)", (550, 90, 5)),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.82.09  Release Build", (580, 82, 9)),
        ("GRID 18.4", (0,)),
        ("13.580.82.07", (0,)),  # NVML's own has CUDA's version in front
        ("", (0,)),
        (None, (0,)),
        ("?", (0,)),
    ],
)
def test_versions_as_numbers(text: str | None, numbers: tuple[int, ...]) -> None:
    assert as_numbers(text) == numbers


def test_tiers_are_read_at_first_and_then_in_their_time() -> None:
    schedule = Schedule()
    times = [at for at in range(31) if schedule.is_due("a", 5.0, 2, float(at))]
    assert times == [0, 3, 8, 13, 18, 23, 28]
    schedule.forget()
    assert schedule.is_due("a", 5.0, 2, 31.0)


def test_late_polls_do_not_read_twice_to_catch_up() -> None:
    schedule = Schedule()
    schedule.is_due("a", 5.0, 0, 0.0)
    assert [at for at in (100.0, 101.0, 102.0, 105.0) if schedule.is_due("a", 5.0, 0, at)] == [100.0, 105.0]


def test_polls_that_jitter_do_not_skip_a_turn() -> None:
    schedule = Schedule()
    times = [second + (0.2 if second % 2 else -0.2) for second in range(1, 31)]
    assert sum(schedule.is_due("a", 5.0, 4, at) for at in times) == 6


def test_only_what_changed_is_news() -> None:
    schedule = Schedule()
    first, same, other = Reading(), Reading(), Reading()
    other.problems["x"] = UNCLEAR
    assert [schedule.is_news("a", reading) for reading in (first, same, same, other, first)] == [
        True,
        False,
        False,
        True,
        True,
    ]
