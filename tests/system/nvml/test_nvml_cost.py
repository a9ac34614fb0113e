"""What a minute of watching costs, at one poll per second: calls into the driver, CPU, bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml.counts import calls_on_gpu
from tests.fakes.nvml.machine import Machine
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape
from tests.nvml_sources import fake_here

MINUTE = 60


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 8)


@pytest.fixture
def machine(fake: FakeNvml) -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def counted(fake: FakeNvml, machine: Machine, gpu: int) -> tuple[float, float]:
    """Calls on one GPU per second over a minute, after the first poll: GPM's, all others."""
    machine.poll(0.0)
    before = calls_on_gpu(fake.counts_path, gpu)
    for second in range(1, MINUTE + 1):
        machine.poll(float(second))
    after = calls_on_gpu(fake.counts_path, gpu)
    made = {name: after[name] - before.get(name, 0) for name in after}
    gpm = sum(count for name, count in made.items() if "Gpm" in name)
    return gpm / MINUTE, (sum(made.values()) - gpm) / MINUTE


@pytest.mark.parametrize(("kind", "driver"), [("a100", "535"), ("h100", "535"), ("h100", "580"), ("gb200", "570")])
def test_calls_per_gpu_and_second(fake: FakeNvml, machine: Machine, kind: str, driver: str) -> None:
    """Polls follow each other at once here, so GPM, which wants 100 ms between samples, is not counted."""
    shape(kind, fake, 8, driver)
    fake.write()
    _, others = counted(fake, machine, 5)
    assert others <= 8.0


def test_slow_tiers_of_a_machine_take_turns(fake: FakeNvml, machine: Machine) -> None:
    """No poll reads the links of all GPUs, after the first one."""
    machine.poll(0.0)
    together: list[int] = []
    for second in range(1, 31):
        before = [calls_on_gpu(fake.counts_path, gpu)["nvmlDeviceGetFieldValues"] for gpu in range(8)]
        machine.poll(float(second))
        after = [calls_on_gpu(fake.counts_path, gpu)["nvmlDeviceGetFieldValues"] for gpu in range(8)]
        together.append(sum(one - other > 1 for one, other in zip(after, before, strict=True)))
    assert max(together) <= 4
    assert sum(together) >= 8 * 5


def test_links_are_not_told_every_second(fake: FakeNvml, machine: Machine) -> None:
    shape("gb200", fake, 8)
    fake.write()
    machine.poll(0.0)
    first = len(json.dumps(machine.answer))
    largest = 0
    for second in range(1, 21):
        machine.poll(float(second))
        largest = max(largest, len(json.dumps(machine.answer)))
    assert largest < first / 4


@pytest.mark.serial
def test_cpu_of_the_reader_process(fake: FakeNvml, machine: Machine) -> None:
    """Of eight GPUs at one poll per second a quarter of a percent; measured 1.7 ms per poll and 1.7 ms in the fake."""
    shape("h100", fake, 8)
    fake.write()

    def cpu_s() -> float:
        fields = Path(f"/proc/{machine.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    machine.poll(0.0)
    before_s = cpu_s()
    polls = 150
    for second in range(1, polls + 1):
        machine.poll(float(second))
    assert (cpu_s() - before_s) / polls < 0.02


def test_the_reader_process_loads_little() -> None:
    """Two MiB and a tenth of a second at each start are what the samples' own classes would cost it."""
    code = "import sys, mltop.probes.collect.nvml.child, mltop.probes.collect.nvml.reader; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "mltop.probes.model.plausible" in loaded
    assert {"dataclasses", "inspect", "mltop.probes.model.sample", "mltop.probes.collect.nvml.library"}.isdisjoint(
        loaded
    )
