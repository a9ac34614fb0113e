"""A GPU is known by its slot: boards come and go, and an Xid belongs to whatever sits, or sat, at its address."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.model import Finding, GpuSample, Sample
from tests.builders.health_samples import GPU_BUSES, gpu, judged, node_h100, xid

NOW = 100_000.0
LOST = {"state": "lost", "error": "GPU is lost (NVML error 15: GPU is lost)"}


def about_gpus(*samples: Sample) -> list[Finding]:
    return judged(samples, "gpu.", "nvlink.", "pcie.")


def told(*samples: Sample) -> list[tuple[str, str]]:
    return [(one.id, one.subject) for one in about_gpus(*samples)]


def nameless(index: int, state: str = "error", **fields: Any) -> GpuSample:
    """Lost before mltop looked: NVML says nothing of it but its index."""
    return GpuSample(index, state=state, error="GPU is lost (NVML error 15: GPU is lost)", **fields)


def swapped(at: float, *boards: GpuSample) -> Sample:
    """GPU 3's board is another one: ``boards`` are listed in its place."""
    sample = node_h100(at)
    sample.gpus[3:4] = boards
    sample.gpus.sort(key=lambda one: one.index)
    return sample


@pytest.mark.parametrize("index", [3, 8])
def test_a_new_board_in_a_slot_is_neither_lost_nor_missing(index: int) -> None:
    """NVML's reader may list it in the old one's place, or with an index of its own beside the old one."""
    new = gpu(3, "training", NOW, uuid="GPU-new", serial="999")
    new.index = index
    old = [] if index == 3 else [gpu(3, **LOST)]
    assert told(*(node_h100(NOW + at) for at in range(3)), *(swapped(NOW + at, *old, new) for at in range(3, 9))) == []


def test_while_nothing_works_in_the_slot_its_gpu_is_lost() -> None:
    new = gpu(3, uuid="GPU-new", state="error", error="Unknown Error")
    new.index = 8
    found = about_gpus(node_h100(NOW), *(swapped(NOW + at, gpu(3, **LOST), new) for at in range(1, 4)))
    assert ("gpu.lost", "GPU 3") in [(one.id, one.subject) for one in found]


def test_a_new_board_counts_anew() -> None:
    """What the old one had counted is no growth of the new one, and the new one's growth is its own."""
    old = [node_h100(NOW + at, {3: {"ecc": {"corrected_aggregate": 10}}}) for at in range(0, 60, 10)]
    high = [
        node_h100(NOW + at, {3: {"uuid": "GPU-new", "ecc": {"corrected_aggregate": 90_000}}})
        for at in range(60, 120, 10)
    ]
    assert told(*old, *high) == []
    grown = [
        node_h100(NOW + at, {3: {"uuid": "GPU-new", "ecc": {"corrected_aggregate": 90_000 + 20 * at}}})
        for at in range(120, 240, 10)
    ]
    assert told(*old, *high, *grown) == [("gpu.ecc.sbe_rate", "GPU 3")]


@pytest.mark.parametrize("state", ["error", "lost"])
def test_an_xid_of_a_gpu_that_was_lost_before_we_looked_is_its_own(state: str) -> None:
    """By its address: the only one on the bus that no other GPU has."""
    samples = [swapped(NOW + at, nameless(3, state)) for at in range(5)]
    for one in samples:
        one.kernel_events = [xid(NOW - 30, 79), xid(NOW - 29, 45)]
    (finding,) = about_gpus(*samples)
    assert finding.subject == "GPU 3"
    names = [finding.id, *(name.partition(" ")[0] for name in finding.folded)]
    assert {f"gpu.{state}", "gpu.xid.hw"} <= set(names)


def test_of_two_such_gpus_each_has_its_own_xids() -> None:
    """NVML numbers them in the order of their addresses."""
    sample = node_h100(NOW)
    sample.gpus[2:4] = [nameless(2, "lost"), nameless(3, "lost")]
    sample.kernel_events = [xid(NOW - 90, 79, 2), xid(NOW - 30, 74, 3, "NVLink: fatal")]
    found = about_gpus(sample)
    assert {one.subject: [name for name in one.folded if "xid" in name] for one in found} == {
        "GPU 2": ["gpu.xid.hw GPU 2"],
        "GPU 3": ["gpu.xid.hw GPU 3"],
    }


def test_an_xid_of_a_gpu_that_is_not_listed_belongs_to_what_is_missing() -> None:
    sample = node_h100(NOW)
    del sample.gpus[7]
    sample.kernel_events = [xid(NOW - 30, 79, 7)]
    (finding,) = about_gpus(sample)
    assert (finding.id, finding.subject) == ("gpu.missing", "GPUs")
    assert GPU_BUSES[7] in finding.message
    assert any("gpu.xid.hw" in name for name in finding.folded)


def test_an_xid_of_another_address_stays_a_line_of_its_own() -> None:
    samples = [node_h100(NOW + at, {3: LOST}, kernel_events=[xid(NOW - 30, 79, 5)]) for at in range(3)]
    assert sorted(told(*samples)) == [("gpu.lost", "GPU 3"), ("gpu.xid.hw", "GPU 5")]


def test_a_gpu_that_was_known_before_it_was_lost_keeps_its_xids() -> None:
    """Also when NVML forgets its address with it."""
    after = [swapped(NOW + at, nameless(3, "lost")) for at in range(1, 4)]
    for one in after:
        one.kernel_events = [xid(NOW + 0.5, 79)]
    (finding,) = about_gpus(node_h100(NOW), *after)
    assert (finding.id, finding.subject) == ("gpu.lost", "GPU 3")
    assert "gpu.xid.hw GPU 3" in finding.folded
