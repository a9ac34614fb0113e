"""The GPUs known so far, without a child: answers in, samples and gaps out."""

from __future__ import annotations

from typing import Any

from mltop.probes.collect.nvml.faults import permission_fix
from mltop.probes.collect.nvml.registry import Registry

NONE_SKIPPED: frozenset[int] = frozenset()


def read(index: int, uuid: str | None, problems: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    static = {"values": {"name": "H100", "sm_clock_max_mhz": 1980}, "problems": {}}
    return {
        "index": index,
        "uuid": uuid,
        "read": {"static": static, "fast": {"values": values, "problems": problems or {}}},
    }


def lost(index: int, uuid: str | None, code: int = 15) -> dict[str, Any]:
    return {"index": index, "uuid": uuid, "lost": ["nvmlDeviceGetHandleByIndex_v2", code], "gone": True}


def summary(registry: Registry) -> list[tuple[int, str | None, str]]:
    return [(gpu.index, gpu.uuid, gpu.state) for gpu in registry.samples()]


def test_a_lost_gpu_keeps_its_identity_and_loses_its_values() -> None:
    registry = Registry()
    registry.merge([read(0, "A", power_w=100.0)], 1000.0, NONE_SKIPPED)
    registry.merge([lost(0, "A")], 1001.0, NONE_SKIPPED)
    (gpu,) = registry.samples()
    assert (gpu.state, gpu.name, gpu.last_seen_at) == ("lost", "H100", 1000.0)
    assert (gpu.power_w, gpu.sm_clock_max_mhz) == (None, None)
    assert gpu.error == "GPU is lost (NVML error 15: GPU is lost)"


def test_the_index_is_kept_when_nvml_renumbers() -> None:
    registry = Registry()
    registry.merge([read(0, "A"), read(1, "B"), read(2, "C")], 1.0, NONE_SKIPPED)
    registry.merge([read(0, "B"), read(1, "C")], 2.0, NONE_SKIPPED)
    assert summary(registry) == [(0, "A", "lost"), (1, "B", "ok"), (2, "C", "ok")]
    assert registry.at_nvml_index(1).uuid == "C"
    registry.merge([read(0, "A"), read(1, "B"), read(2, "C")], 3.0, NONE_SKIPPED)
    assert summary(registry) == [(0, "A", "ok"), (1, "B", "ok"), (2, "C", "ok")]


def test_a_gpu_that_is_lost_after_renumbering_is_told_by_who_is_left() -> None:
    registry = Registry()
    registry.merge([read(0, "A"), read(1, "B"), read(2, "C")], 1.0, NONE_SKIPPED)
    registry.merge([lost(0, None), read(1, "C"), read(2, "A")], 2.0, NONE_SKIPPED)
    assert sorted(summary(registry)) == [(0, "A", "ok"), (1, "B", "lost"), (2, "C", "ok")]


def test_a_gpu_without_a_uuid_is_adopted_when_it_gets_one() -> None:
    registry = Registry()
    registry.merge([read(0, "A"), lost(1, None)], 1.0, NONE_SKIPPED)
    assert summary(registry) == [(0, "A", "ok"), (1, None, "lost")]
    registry.merge([read(0, "A"), read(1, "B")], 2.0, NONE_SKIPPED)
    assert summary(registry) == [(0, "A", "ok"), (1, "B", "ok")]


def test_a_new_gpu_does_not_take_the_number_of_a_lost_one() -> None:
    registry = Registry()
    registry.merge([read(0, "A"), read(1, "B")], 1.0, NONE_SKIPPED)
    registry.merge([read(0, "A"), read(1, "NEW")], 2.0, NONE_SKIPPED)
    assert summary(registry) == [(0, "A", "ok"), (1, "B", "lost"), (2, "NEW", "ok")]


def test_a_skipped_gpu_is_not_reported_as_vanished() -> None:
    registry = Registry()
    registry.merge([read(0, "A"), read(1, "B")], 1.0, NONE_SKIPPED)
    registry.at_nvml_index(1).fail("error", "stuck")
    registry.merge([read(0, "A")], 2.0, frozenset({1}))
    assert summary(registry) == [(0, "A", "ok"), (1, "B", "error")]
    assert registry.samples()[1].error == "stuck"


def test_a_value_that_becomes_unreadable_is_not_kept() -> None:
    registry = Registry()
    registry.merge([read(0, "A", power_w=100.0)], 1.0, NONE_SKIPPED)
    registry.merge([read(0, "A", {"power_w": ["nvmlDeviceGetPowerUsage", 999]})], 2.0, NONE_SKIPPED)
    assert registry.samples()[0].power_w is None
    assert [gap.why for gap in registry.gaps() if gap.what == "gpu.0.power_w"] == [
        "nvmlDeviceGetPowerUsage failed (NVML error 999: Unknown Error)"
    ]


def test_gaps_are_folded_only_over_all_gpus_with_the_same_reason() -> None:
    unsupported = {"energy_j": ["nvmlDeviceGetTotalEnergyConsumption", 3]}
    denied = {"energy_j": ["nvmlDeviceGetTotalEnergyConsumption", 4]}
    registry = Registry()
    registry.merge([read(0, "A", unsupported), read(1, "B", unsupported)], 1.0, NONE_SKIPPED)
    assert [gap.what for gap in registry.gaps()] == ["gpu.*.energy_j"]
    registry.merge([read(0, "A", unsupported), read(1, "B", denied)], 2.0, NONE_SKIPPED)
    found = {gap.what: gap for gap in registry.gaps()}
    assert set(found) == {"gpu.0.energy_j", "gpu.1.energy_j"}
    assert found["gpu.0.energy_j"].fix == ""
    assert found["gpu.1.energy_j"].fix == permission_fix("nvmlDeviceGetTotalEnergyConsumption")


def test_one_gpu_alone_is_named_and_not_folded() -> None:
    registry = Registry()
    registry.merge([read(0, "A", {"busy": ["37100 %", "", "unknown", ""]})], 1.0, NONE_SKIPPED)
    assert [(gap.what, gap.why) for gap in registry.gaps()] == [("gpu.0.busy", "37100 %")]
