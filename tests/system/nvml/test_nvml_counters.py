"""How old a GPU's error counters can be: what the agent says of it is what NVML's reader does."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.agent.sampler import GPU_COUNTERS_S
from tests.fakes.nvml.machine import Machine
from tests.nvml_sources import fake_here


@pytest.mark.parametrize("every_s", [0.5, 1.0, 2.0])
def test_a_gpu_that_answers_has_told_its_counters_within_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    """At every poll each GPU's counters are those of a poll that is not older than that."""
    fake = fake_here(tmp_path, monkeypatch, 8)
    machine = Machine()
    try:
        for number in range(int(25 / every_s)):
            for key in ("nvlink_replay", "pcie_replay_count", "ecc_corrected_aggregate"):
                fake.set(f"gpu.*.{key}", number)
            fake.write()
            for gpu in machine.poll(number * every_s):
                told = (gpu.nvlink.links[0].errors["replay"], gpu.pcie.replay_count, gpu.ecc.corrected_aggregate)
                oldest = min(count for count in told if count is not None)
                assert (number - oldest) * every_s < GPU_COUNTERS_S, (gpu.index, number, told)
    finally:
        machine.close()
