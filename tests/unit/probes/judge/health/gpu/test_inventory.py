"""Which GPUs are there: lost, mute and missing ones, and nodes whose versions or clocks are not the fleet's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.node import NodeJudge
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.model import Gap, GpuSample, Sample
from tests.builders.health_samples import gpu, judged, node_h100, sample

MUTE = dict.fromkeys(
    (
        "busy",
        "power_w",
        "temperature_c",
        "memory_temperature_c",
        "temperature_margin_c",
        "sm_clock_mhz",
        "memory_used_bytes",
        "throttle_reasons",
    )
)
NO_DRIVER = Gap("nvml", "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)")
MISMATCH = Gap(
    "nvml",
    "the driver was upgraded while the old one is loaded (NVML error 18, nvmlInit: mismatch)",
    code="driver_mismatch",
)
STARTING = Gap("nvml.starting", "GPUs not read yet: no answer from NVML since 0.4 s", kind="starting")
NO_PERMISSION = Gap("nvml", "no permission to use the NVIDIA driver (nvmlInit: Insufficient Permissions)")
STUCK = Gap("nvml", "NVML does not answer: stuck in nvmlInit for 12 s", code="stuck")


def _without(at: float, *indexes: int, **fields: Any) -> Sample:
    """NVML does not list them."""
    whole = node_h100(at, **fields)
    whole.gpus = [one for one in whole.gpus if one.index not in indexes]
    return whole


def test_a_mute_gpu_is_lost() -> None:
    """Two samples in a row; one may be a poll that failed."""
    assert judged([node_h100(100.0), node_h100(101.0, {3: MUTE})], "gpu.") == []
    found = judged([node_h100(100.0), node_h100(101.0, {3: MUTE}), node_h100(102.0, {3: MUTE})], "gpu.")
    assert [(one.id, one.subject) for one in found] == [("gpu.lost", "GPU 3")]
    assert found[0].message == "GPU 3 lost: none of its values can be read"
    partly = {3: {**MUTE, "memory_used_bytes": 5}}
    assert judged([node_h100(100.0 + at, partly) for at in range(3)], "gpu.") == []
    all_mute = dict.fromkeys(range(8), MUTE)
    assert judged([node_h100(100.0 + at, all_mute) for at in range(3)], "gpu.") == []


def test_a_card_without_its_power_cables_is_not_reset() -> None:
    text = "nvmlDeviceGetHandleByIndex_v2 failed (NVML error 8: Insufficient External Power)"
    unpowered = {"state": "error", "error": text, "error_code": "unpowered"}
    (finding,) = judged([node_h100(0, {2: unpowered})], "gpu.error")
    assert (finding.subject, finding.action) == ("GPU 2", "connect the card's power cables")


def test_a_gpu_on_the_bus_that_nvml_does_not_list() -> None:
    (finding,) = judged([_without(100.0, 4)], "gpu.")
    assert (finding.id, finding.severity, finding.subject) == ("gpu.missing", "critical", "GPUs")
    assert finding.message == "7 of 8 GPUs; 0000:9d:00.0 is on PCI but not in the driver"
    (finding,) = judged([_without(100.0, 4, 7)], "gpu.")
    assert finding.message == "6 of 8 GPUs; 0000:9d:00.0, 0000:df:00.0 are on PCI but not in the driver"


def test_a_gpu_without_a_kernel_driver_counts_beside_others_that_have_theirs() -> None:
    broken = _without(100.0, 4)
    next(device for device in broken.pci if device.bus_id == "0000:9d:00.0").driver = None
    (finding,) = judged([broken], "gpu.")
    assert "no kernel driver is bound to 0000:9d:00.0" in finding.evidence
    for device in broken.pci:
        device.driver = None if device.kind == "gpu" else device.driver
    assert judged([broken], "gpu.") == []


@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau"])
def test_what_other_drivers_hold_is_not_missing(driver: str) -> None:
    passed = _without(100.0, 4)
    next(device for device in passed.pci if device.bus_id == "0000:9d:00.0").driver = driver
    assert judged([passed], "gpu.") == []
    (finding,) = judged([passed], "gpu.", asked=Expectations(expect_gpus=8))
    assert finding.message == "7 of 8 GPUs"


def test_a_container_is_judged_by_what_was_asked_for_only() -> None:
    confined = _without(100.0, 4, 5, 6, 7, host={"is_confined": True})
    assert judged([confined], "gpu.") == []
    assert judged([confined], "gpu.", asked=Expectations(expect_gpus=4)) == []
    (finding,) = judged([confined], "gpu.", asked=Expectations(expect_gpus=8))
    assert (finding.message, finding.evidence) == ("4 of 8 GPUs", ["8 GPUs expected"])


@pytest.mark.parametrize("gap", [NO_DRIVER, NO_PERMISSION])
def test_no_nvml_at_all_is_missing_what_was_asked_for(gap: Gap) -> None:
    none = sample(100.0, gaps=[gap])
    assert judged([none], "gpu.") == []
    (finding,) = judged([none], "gpu.", asked=Expectations(expect_gpus=8))
    assert (finding.id, finding.severity, finding.subject) == ("gpu.missing", "critical", "GPUs")
    assert finding.message == "0 of 8 GPUs"
    assert f"NVML: {gap.why}" in finding.evidence


def test_without_nvml_the_bus_alone_accuses_nobody() -> None:
    """The GPUs may be fine: it is NVML that cannot be used, which is an unknown."""
    assert judged([_without(100.0, *range(8), gaps=[NO_PERMISSION])], "gpu.") == []


def test_what_has_not_answered_yet_is_not_missing() -> None:
    first = sample(100.0, gaps=[STARTING])
    assert judged([first], "gpu.", asked=Expectations(expect_gpus=8)) == []


@pytest.mark.parametrize("gap", [STARTING, Gap("gpus", "the collector failed: OSError: no")])
def test_an_agent_that_begins_anew_has_lost_nothing(gap: Gap) -> None:
    """It was reached again: until NVML answers it lists no GPU."""
    again = [_without(101.0, *range(8), gaps=[gap]), node_h100(102.0)]
    assert judged([node_h100(100.0), *again], "gpu.", asked=Expectations(expect_gpus=8)) == []


def test_a_lost_gpu_is_not_missing_too() -> None:
    lost = {4: {"state": "lost", "error": "GPU is lost (NVML error 15)", "last_seen_at": 95.0}}
    (finding,) = judged([node_h100(100.0, lost)], "gpu.", asked=Expectations(expect_gpus=8))
    assert (finding.id, finding.subject, finding.since) == ("gpu.lost", "GPU 4", 95.0)
    vanished = [node_h100(100.0), _without(101.0, 4)]
    assert [one.id for one in judged(vanished, "gpu.", asked=Expectations(expect_gpus=8))] == ["gpu.lost"]
    (first, second) = judged([node_h100(100.0, lost)], "gpu.", asked=Expectations(expect_gpus=9))
    assert (first.id, second.id) == ("gpu.lost", "gpu.missing")
    assert second.message == "7 of 9 GPUs"


def test_gpus_without_a_bus_id_stand_for_some_that_are_on_the_bus() -> None:
    nameless = _without(100.0, 4)
    nameless.gpus.append(GpuSample(4, state="error", error="Unknown Error"))
    assert [one.id for one in judged([nameless], "gpu.")] == ["gpu.error"]


def test_a_driver_that_was_upgraded_under_a_running_one() -> None:
    (finding,) = judged([_without(100.0, *range(8), gaps=[MISMATCH])], "gpu.", asked=Expectations(expect_gpus=8))
    assert (finding.id, finding.severity, finding.subject) == ("gpu.driver", "critical", "driver")


def test_nvml_that_hangs_from_the_start_is_one_line() -> None:
    (finding,) = judged([sample(100.0, gaps=[STUCK])], "gpu.", "nvml.", asked=Expectations(expect_gpus=8))
    assert (finding.id, finding.folded) == ("nvml.stuck", ["gpu.missing GPUs"])


def test_nvml_that_begins_is_given_time() -> None:
    """Without persistence mode its first answer takes seconds for each GPU."""

    def fired(*gaps: Gap, answered: bool) -> list[bool]:
        node = NodeJudge("n1", RULES, eager=True)
        node.see(node_h100(100.0) if answered else sample(100.0, gaps=[STARTING]))
        found = []
        for at in range(101, 130):
            node.see(sample(float(at), gaps=list(gaps)))
            found.append("nvml.stuck" in [one.id for one in node.findings()])
        return found

    assert fired(STUCK, STARTING, answered=False) == [False] * 20 + [True] * 9
    assert all(fired(STUCK, answered=True))


def _fleet(count: int, at: float, **odd: Any) -> list[Sample]:
    """Nodes n0, n1, … of one job; the last one's GPUs have ``odd``."""
    whole = [
        replace(node_h100(at, dict.fromkeys(range(8), odd if number == count - 1 else {})), node=f"n{number}")
        for number in range(count)
    ]
    for number, one in enumerate(whole):
        one.gpus = [replace(own, uuid=f"GPU-{number}-{own.index}") for own in one.gpus]
    return whole


@pytest.mark.parametrize(
    ("field", "value", "subject", "message"),
    [
        ("driver", "565.57.01", "driver", "n3 has driver 565.57.01, 3 others 570.124.06"),
        ("vbios", "96.00.74.00.01", "VBIOS", "n3 has VBIOS 96.00.74.00.01, 3 others 96.00.99.00.01"),
        ("gsp_firmware", "565.57.01", "GSP firmware", "n3 has GSP firmware 565.57.01, 3 others 570.124.06"),
    ],
)
def test_a_node_with_another_version(field: str, value: str, subject: str, message: str) -> None:
    (finding,) = judged(_fleet(4, 100.0, **{field: value}), "gpu.")
    assert (finding.id, finding.severity, finding.node) == ("gpu.driver", "warning", "n3")
    assert (finding.subject, finding.message) == (subject, message)
    assert judged(_fleet(2, 100.0, **{field: value}), "gpu.") == []
    assert judged(_fleet(4, 100.0, **{field: value, "name": "NVIDIA H200"}), "gpu.") == []


def test_a_fleet_with_a_lower_limit_has_decided_so() -> None:
    capped = [*_fleet(4, 100.0), *_fleet(4, 106.0)]
    for one in capped:
        one.gpus = [replace(own, power_limit_w=500.0) for own in one.gpus]
    found = judged(capped, "gpu.power.limit_low")
    assert {(one.severity, one.subject) for one in found if one.node != "n0"} == {("info", "all 8 GPUs")}


def test_a_slow_node_of_a_job_is_one_line() -> None:
    samples = [one for at in range(0, 70, 10) for one in _fleet(4, 100.0 + at, sm_clock_mhz=1100)]
    (finding,) = judged(samples, "gpu.")
    assert (finding.id, finding.node, finding.subject) == ("gpu.clock.low_busy", "n3", "all 8 GPUs")


def test_few_busy_gpus_are_no_peers() -> None:
    def three(at: float) -> Sample:
        slow = gpu(2, at=at, sm_clock_mhz=1100)
        return sample(at, [gpu(0, at=at), gpu(1, at=at), slow])

    def four(at: float) -> Sample:
        return sample(at, [*three(at).gpus, gpu(3, at=at)])

    assert judged([three(100.0 + at) for at in range(0, 70, 10)], "gpu.") == []
    assert [one.subject for one in judged([four(100.0 + at) for at in range(0, 70, 10)], "gpu.")] == ["GPU 2"]


@pytest.mark.parametrize(
    ("code", "fix", "remedy"),
    [
        ("needs_reset", "end the jobs on the node, then: sudo nvidia-smi -r", "reset"),
        ("lost", "reboot the node", "reboot"),
    ],
)
def test_nvml_that_cannot_start_for_a_bad_gpu_is_critical_at_first_sight(code: str, fix: str, remedy: str) -> None:
    """NVML itself says that there is a GPU and what it needs: no GPU must have been seen before."""
    bare = node_h100(100.0, gaps=[Gap("nvml", "NVML cannot be used: …", fix, code=code)])
    bare.gpus = []
    (finding,) = judged([bare], "gpu.")
    assert (finding.id, finding.severity, finding.subject) == ("gpu.driver", "critical", "driver")
    assert (finding.action, finding.remedy) == (fix, remedy)


def test_a_driver_that_lists_no_gpu_at_all_misses_those_on_the_bus() -> None:
    """NVML answers, and counts none: unlike a driver that is not there, this is told by nothing else."""
    bare = _without(100.0, *range(8))
    (finding,) = judged([bare], "gpu.")
    assert (finding.id, finding.severity) == ("gpu.missing", "critical")
    assert finding.message.startswith("0 of 8 GPUs; ")
    bare.gaps = [NO_DRIVER]
    assert judged([bare], "gpu.") == []
