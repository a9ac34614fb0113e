"""Support is remembered for a call with its arguments: one value that a GPU does not have hides no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml.machine import Machine, value_at
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape

KNOWN = {
    "sm_clock_mhz": 1200,
    "memory_clock_mhz": 2619,
    "sm_clock_max_mhz": 1980,
    "memory_clock_max_mhz": 2619,
    "ecc.enabled": True,
    "ecc.enabled_pending": True,
    "ecc.corrected_volatile": 1,
    "ecc.uncorrected_volatile": 2,
    "ecc.corrected_aggregate": 3,
    "ecc.uncorrected_aggregate": 4,
    "remap.corrected": 5,
    "remap.uncorrected": 6,
    "remap.pending": True,
    "remap.failed": True,
    "retired_pages_double_bit": 7,
    "temperature_slowdown_c": 89.0,
    "memory_temperature_max_c": 95.0,
}
SCENARIO = {
    "sm_clock_mhz": 1200, "ecc_corrected_volatile": 1, "ecc_uncorrected_volatile": 2, "ecc_corrected_aggregate": 3,
    "ecc_uncorrected_aggregate": 4, "remap_corrected": 5, "remap_uncorrected": 6, "remap_pending": 1,
    "remap_failed": 1, "retired_pages": 7, "retired_pages_single_bit": 8,
}  # fmt: skip
KEY_OF = {
    "retired_pages_double_bit": "retired_pages",
    "memory_temperature_max_c": "temperature_memory_max_c",
    "ecc.enabled_pending": "ecc_pending",
}
# What a counter's absence takes with it: while ECC is off there are none.
ALSO = {"ecc.enabled": {path for path in KNOWN if path.startswith("ecc.")}, "ecc.enabled_pending": {"ecc.enabled"}}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(tmp_path, count=1)
    for name, value in made.env().items():
        monkeypatch.setenv(name, value)
    for key, value in SCENARIO.items():
        made.set(f"gpu.0.{key}", value)
    return made


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


@pytest.mark.parametrize("refused", KNOWN)
def test_one_refused_value_hides_no_other(fake: FakeNvml, machine: Machine, refused: str) -> None:
    """At the second poll, too."""
    fake.set(f"gpu.0.{KEY_OF.get(refused, refused.replace('.', '_'))}", "unsupported")
    fake.write()
    machine.poll(0.0)
    (sample,) = machine.poll(6.0)
    lost = {path for path, value in KNOWN.items() if value_at(sample, path) != value}
    assert refused in lost and lost <= {refused, *ALSO.get(refused, ())}


def test_a_refused_link_hides_no_other(fake: FakeNvml, machine: Machine) -> None:
    shape("a100", fake, 1, "535")
    fake.set("gpu.0.nvlink_state", "unsupported, 1")
    fake.write()
    (sample,) = machine.poll(0.0)
    assert [link.active for link in sample.nvlink.links] == [None] + [True] * 11
