"""The simulated GPUs stay inside what hardware can do, at every moment, and show the signature of a hang."""

from __future__ import annotations

import itertools

import pytest

from mltop.probes.demo.gpus import SM_CLOCK_MAX_MHZ, SimulatedGpus, simulate
from mltop.probes.model import Gap, GpuSample, to_json

RANKS = [(4001, 0), (4002, 1), (4003, 2), (4004, 3)]
HUNG = 500.0
TIMES = [step * 0.7 for step in range(1200)]  # healthy to 500 s, hung to 840 s


def at(t: float, hung_since: float | None = HUNG) -> list[GpuSample]:
    return simulate(t, 8, 3, RANKS, hung_since, culprit_gpu=2)


@pytest.fixture(scope="module")
def series() -> list[list[GpuSample]]:
    return [at(t) for t in TIMES]


def test_every_value_is_physically_possible(series: list[list[GpuSample]]) -> None:
    for gpus in series:
        for gpu in gpus:
            for share in (gpu.busy, gpu.sm_active, gpu.sm_occupancy, gpu.tensor_active, gpu.dram_active):
                assert share is not None and 0 <= share <= 1
            assert 60 <= gpu.power_w <= gpu.power_limit_w
            assert 25 <= gpu.temperature_c <= 87 and gpu.temperature_c <= gpu.memory_temperature_c
            assert gpu.temperature_margin_c == 87 - gpu.temperature_c
            assert 210 <= gpu.sm_clock_mhz <= gpu.sm_clock_max_mhz == SM_CLOCK_MAX_MHZ
            held = sum(process.memory_bytes for process in gpu.processes)
            assert held <= gpu.memory_used_bytes <= gpu.memory_total_bytes
            assert gpu.tensor_active <= gpu.sm_active


def test_counters_never_fall_and_energy_is_the_integral_of_power(series: list[list[GpuSample]]) -> None:
    for index in range(8):
        summed = 0.0
        for before, after in itertools.pairwise(series):
            assert after[index].energy_j >= before[index].energy_j
            assert after[index].throttle_ns["hw_thermal"] >= before[index].throttle_ns["hw_thermal"]
            summed += 0.7 * (before[index].power_w + after[index].power_w) / 2
        assert series[-1][index].energy_j - series[0][index].energy_j == pytest.approx(summed, rel=0.03)


def test_values_move_while_healthy() -> None:
    for read in ("power_w", "sm_active", "tensor_active", "temperature_c"):
        assert len({getattr(at(t, None)[0], read) for t in range(100, 160)}) > 5, read


def test_throttled_means_slow_hot_and_counted(series: list[list[GpuSample]]) -> None:
    throttled = [gpu for gpus in series for gpu in gpus if "hw_thermal" in gpu.throttle_reasons]
    assert {gpu.index for gpu in throttled} == {1}
    assert all(gpu.sm_clock_mhz < 1200 and gpu.temperature_c >= 70 for gpu in throttled)
    cool = [gpus[0].temperature_c for gpus in series]
    assert max(gpu.temperature_c for gpu in throttled) > max(cool)
    seconds = series[-1][1].throttle_ns["hw_thermal"] / 1e9
    assert seconds == pytest.approx(0.7 * len(throttled), abs=2)


def test_a_hang_spins_at_low_power_and_starves_the_culprit() -> None:
    healthy, hung = at(HUNG - 1), at(HUNG + 60)
    for index in (0, 1, 3):
        assert hung[index].busy == 1.0 and hung[index].tensor_active == 0.0
        assert hung[index].power_w < 0.3 * hung[index].power_limit_w
        assert hung[index].temperature_c < healthy[index].temperature_c - 10
    assert hung[2].busy == 0.0 and "gpu_idle" in hung[2].throttle_reasons
    assert hung[2].memory_used_bytes == healthy[2].memory_used_bytes


def test_ranks_hold_their_gpus_and_the_rest_is_idle() -> None:
    gpus = at(10.0)
    assert [gpu.processes[0].pid for gpu in gpus[:4]] == [pid for pid, _ in RANKS]
    assert all(gpu.processes == [] and gpu.busy == 0 for gpu in gpus[4:])


def test_pure_and_labelled_and_unlike_each_other() -> None:
    assert to_json(at(42.0)) == to_json(at(42.0))
    assert all("SIMULATED" in gpu.name and gpu.uuid.startswith("GPU-SIMULATED-") for gpu in at(1.0))
    assert len({gpu.uuid for gpu in at(1.0)}) == len({gpu.pci_bus_id for gpu in at(1.0)}) == 8
    assert len({gpu.power_w for gpu in at(1.0)[:4]}) == 4


def test_source_follows_the_job_it_is_given() -> None:
    hung: list[float | None] = [None]
    source = SimulatedGpus(4, lambda: RANKS, lambda: hung[0], culprit_gpu=2)
    source.request(1e9)
    now = 1_800_000_000.0
    gpus, gaps = source.collect(now, 0.1)
    assert gaps == [] and source.simulated
    assert all(gpu.last_seen_at == now and gpu.power_w > 300 for gpu in gpus)
    hung[0] = now - 5
    gpus, _ = source.collect(now, 0.1)
    assert [gpu.busy for gpu in gpus] == [1.0, 1.0, 0.0, 1.0]
    source.close()


def test_a_job_that_does_not_run_is_a_gap() -> None:
    problem: list[str | None] = [None]
    source = SimulatedGpus(4, lambda: RANKS, lambda: None, problem=lambda: problem[0])
    assert source.collect(1_800_000_000.0, 0.1)[1] == []
    problem[0] = "rank 1 of the demo job ended: Killed"
    assert source.collect(1_800_000_001.0, 0.1)[1] == [Gap("demo job", "rank 1 of the demo job ended: Killed")]
