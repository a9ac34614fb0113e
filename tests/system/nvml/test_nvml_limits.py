"""Degrees left: which drivers tell what of the GPU and of its memory, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.model import Sample
from tests.builders.evaluated import evaluate
from tests.fakes.nvml.machine import Machine
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import DRIVERS, NO_ABSOLUTE_LIMITS, branch_of, shape
from tests.nvml_sources import fake_here

HOPPER = [driver for driver in DRIVERS if branch_of(driver) >= 535]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 2)


@pytest.fixture
def machine(fake: FakeNvml) -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def heat(fake: FakeNvml, gpu_c: int, memory_c: int, left_c: int | None = None) -> None:
    fake.set("gpu.*.temperature_c", gpu_c)
    fake.set("gpu.*.memory_temperature_c", memory_c)
    if left_c is not None:
        fake.set("gpu.*.temperature_margin_c", left_c)
    fake.write()


@pytest.mark.parametrize("driver", HOPPER)
def test_every_driver_of_hopper_tells_both_margins(fake: FakeNvml, machine: Machine, driver: str) -> None:
    """By absolute limits up to 550, by T.Limit from 570 on: 87 °C for the GPU, 95 °C for the memory."""
    shape("h100", fake, 2, driver)
    heat(fake, 60, 70, left_c=25)
    sample = machine.poll(0.0)[0]
    if branch_of(driver) < 570:
        assert (sample.temperature_slowdown_c, sample.memory_temperature_max_c) == (89, 95)
        assert (sample.temperature_margin_c, sample.memory_temperature_margin_c) == (29, 25)
    else:
        assert (sample.temperature_slowdown_c, sample.memory_temperature_max_c) == (None, None)
        assert (sample.temperature_margin_c, sample.memory_temperature_margin_c) == (25, 25)
    assert not [gap for what, gap in machine.gaps().items() if "temperature" in what and gap.kind == "unknown"]


def test_margins_to_absolute_limits_are_as_fresh_as_the_temperature(fake: FakeNvml, machine: Machine) -> None:
    shape("h100", fake, 2, "535")
    heat(fake, 60, 70)
    machine.poll(0.0)
    heat(fake, 91, 97)
    sample = machine.poll(1.0)[0]
    assert (sample.temperature_margin_c, sample.memory_temperature_margin_c) == (-2, -2)


def test_a_driver_that_tells_only_offsets_says_what_would_help(fake: FakeNvml, machine: Machine) -> None:
    """T.Limit's fields without its reading, and no absolute limits: there is a margin that we do not have."""
    shape("h100", fake, 2, "535")
    for key, value in NO_ABSOLUTE_LIMITS.items():
        fake.set(f"gpu.*.{key}", value)
    heat(fake, 91, 97)
    sample = machine.poll(0.0)[0]
    assert (sample.temperature_margin_c, sample.memory_temperature_margin_c) == (None, None)
    for field in ("temperature_margin_c", "memory_temperature_margin_c"):
        gap = machine.gaps()[f"gpu.*.{field}"]
        assert (gap.kind, gap.fix) == ("unknown", "update the NVIDIA driver to 570 or newer")


def test_a_gpu_without_any_limit_lacks_nothing(fake: FakeNvml, machine: Machine) -> None:
    shape("a100", fake, 2, "535")
    for key, value in NO_ABSOLUTE_LIMITS.items():
        fake.set(f"gpu.*.{key}", value)
    fake.write()
    assert machine.poll(0.0)[0].temperature_margin_c is None
    assert machine.gaps()["gpu.*.temperature_margin_c"].kind == "unsupported"
    assert machine.gaps()["gpu.*.memory_temperature_margin_c"].kind == "unsupported"


def test_memory_above_its_limit_is_told_apart_from_a_hot_gpu(fake: FakeNvml, machine: Machine) -> None:
    """T.Limit is of the nearer of the two: that the GPU can be hotter than it is now was seen before."""
    shape("h100", fake, 2)
    heat(fake, 80, 70, left_c=7)
    assert machine.poll(0.0)[0].memory_temperature_margin_c == 7, "at least"
    heat(fake, 78, 97, left_c=-2)
    assert machine.poll(20.0)[0].memory_temperature_margin_c == -2
    heat(fake, 90, 70, left_c=-3)
    sample = machine.poll(40.0)[0]
    assert (sample.temperature_margin_c, sample.memory_temperature_margin_c) == (-3, None)
    gap = machine.gaps()["gpu.*.memory_temperature_margin_c"]
    assert gap.kind == "unknown" and "the GPU or its memory is above its limit" in gap.why


@pytest.mark.parametrize(("gpu_c", "left_c", "memory_left_c"), [(65, -2, -2), (85, -2, None), (85, 0, 0)])
def test_memory_above_its_limit_from_the_start(
    fake: FakeNvml, machine: Machine, gpu_c: int, left_c: int, memory_left_c: int | None
) -> None:
    """No board's GPU has to slow down at 63 °C, so it is the memory; at 83 °C it may be either."""
    shape("h100", fake, 2)
    heat(fake, gpu_c, 97, left_c=left_c)
    assert machine.poll(0.0)[0].memory_temperature_margin_c == memory_left_c


def test_a_board_without_a_memory_sensor_has_no_memory_margin(fake: FakeNvml, machine: Machine) -> None:
    shape("h100", fake, 2)
    fake.set("gpu.*.tlimit_memory_max_c", "unsupported")
    fake.set("gpu.*.memory_temperature_c", "unsupported")
    fake.write()
    sample = machine.poll(0.0)[0]
    assert (sample.temperature_margin_c, sample.memory_temperature_margin_c) == (55, None)
    assert machine.gaps()["gpu.*.memory_temperature_margin_c"].kind == "unsupported"


@pytest.mark.parametrize("driver", HOPPER)
def test_the_rule_about_margins_has_its_input_under_every_driver(fake: FakeNvml, machine: Machine, driver: str) -> None:
    shape("h100", fake, 2, driver)
    heat(fake, 85, 70, left_c=2)
    samples = [Sample("n1", float(at), gpus=machine.poll(float(at))) for at in range(0, 70, 10)]
    assert "gpu.temp.margin" in {finding.id for finding in evaluate(samples)}
    heat(fake, 60, 70, left_c=27)
    samples = [Sample("n1", float(at), gpus=machine.poll(float(at))) for at in range(70, 140, 10)]
    assert "gpu.temp.margin" not in {finding.id for finding in evaluate(samples)}
