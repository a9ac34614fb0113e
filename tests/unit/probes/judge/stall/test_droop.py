"""Jobs that become slower, with what changed beside it; phases of another kind are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.judge.stall.droop import Pace
from mltop.probes.judge.stall.surroundings import History
from mltop.probes.model import GpuSample, HostSample, LinkSample, Pressure, Sample
from mltop.probes.model.news.judged import PartNumbers
from tests.builders.simulated_motion import GLOO, NCCL, Act, SimulatedJob

Rates = tuple[float, float, float | None]  # switches, calls, link bytes
TRAINING: Rates = (36.0, 26.0, 5e9)


def fed(pace: Pace, minutes: float, rates: Rates, step_s: float | None = None, at: float = 1000.0) -> float:
    for _ in range(round(minutes * 12)):
        at += 5.0
        switches, calls, links = rates
        moved = None if links is None else links * 5
        numbers = PartNumbers(seconds=5.0, switches=switches * 5, calls=calls * 5, main_cpu_s=0.1, link_bytes=moved)
        pace.add(at, numbers, step_s)
    return at


def scaled(rates: Rates, factor: float) -> Rates:
    switches, calls, links = rates
    return switches * factor, calls * factor, None if links is None else links * factor


@pytest.mark.parametrize("factor", [0.88, 0.7])
def test_all_rates_that_fall_alike_are_a_droop(factor: float) -> None:
    pace = Pace()
    changed_at = fed(pace, 25, TRAINING)
    assert pace.slower is None
    at = fed(pace, 8, scaled(TRAINING, factor), at=changed_at)
    assert pace.slower is not None
    assert pace.slower.factor == pytest.approx(1 / factor, rel=0.02)
    assert pace.slower.since == pytest.approx(changed_at, abs=65.0)
    fed(pace, 4, TRAINING, at=at)
    assert pace.slower is None


def test_a_longer_step_is_a_droop() -> None:
    pace = Pace()
    at = fed(pace, 25, TRAINING, step_s=2.1)
    fed(pace, 8, scaled(TRAINING, 0.8), step_s=2.6, at=at)
    assert pace.slower is not None and pace.slower.by == "steps"
    assert (1 / pace.slower.before, 1 / pace.slower.now) == (pytest.approx(2.1), pytest.approx(2.6))


def test_one_rate_alone_has_to_last_longer() -> None:
    pace = Pace()
    at = fed(pace, 25, (36.0, 0.0, None))
    at = fed(pace, 8, (30.0, 0.0, None), at=at)
    assert pace.slower is None
    fed(pace, 5, (30.0, 0.0, None), at=at)
    assert pace.slower is not None


@pytest.mark.parametrize(
    ("rates", "minutes"),
    [
        ((60.0, 40.0, 0.5e9), 20.0),  # an evaluation: little is exchanged, more is read
        ((10.0, 60.0, 0.0), 20.0),  # a checkpoint of twenty minutes
        (scaled(TRAINING, 0.93), 20.0),
        (scaled(TRAINING, 0.8), 3.0),
        (scaled(TRAINING, 1.3), 20.0),
    ],
)
def test_these_are_none(rates: Rates, minutes: float) -> None:
    pace = Pace()
    at = fed(pace, 25, TRAINING)
    fed(pace, minutes, rates, at=at)
    assert pace.slower is None


def test_the_first_minutes_are_no_measure() -> None:
    """Sequences grow: fast at first, then as it stays."""
    pace = Pace()
    at = fed(pace, 5, scaled(TRAINING, 1.6))
    fed(pace, 40, TRAINING, at=at)
    assert pace.slower is None


def test_a_droop_that_ended_has_to_last_longer_the_next_time() -> None:
    pace = Pace()
    at = fed(pace, 25, TRAINING)
    at = fed(pace, 8, scaled(TRAINING, 0.8), at=at)
    at = fed(pace, 15, TRAINING, at=at)
    at = fed(pace, 10, scaled(TRAINING, 0.8), at=at)
    assert pace.slower is None
    fed(pace, 10, scaled(TRAINING, 0.8), at=at)
    assert pace.slower is not None


def slow(act: Act, factor: float) -> Act:
    nvlink = act.nvlink * factor
    return replace(
        act, switches=act.switches * factor, reads=act.reads * factor, writes=act.writes * factor, nvlink=nvlink
    )


def test_a_straggling_gpu_is_named_with_its_clock() -> None:
    job = SimulatedJob(8, with_gpus=True, interval_s=5.0)
    job.look = False
    job.run(1500.0, NCCL)
    assert job.motion.slowdown is None
    job.gpu_changes = {3: {"sm_clock_mhz": 1200, "throttle_reasons": ["hw_thermal"]}}
    slowdown = job.run(500.0, slow(NCCL, 0.8)).motion.slowdown
    assert slowdown is not None and str(slowdown.ranks) == "3"
    assert slowdown.share == pytest.approx(0.25, rel=0.05)
    assert slowdown.beside == [
        "SM clock of GPU 3 of node-0: 1.98 GHz before, 1.20 GHz now",
        "GPU 3 of node-0 is throttled: hw_thermal",
    ]


def test_disks_beside_a_droop() -> None:
    job = SimulatedJob(4, interval_s=5.0)
    job.look = False
    job.run(1500.0, GLOO)
    job.host = replace(job.host, pressure=Pressure(io_some=0.4))
    slowdown = job.run(500.0, slow(GLOO, 0.8)).motion.slowdown
    assert slowdown is not None and slowdown.ranks.count == 0
    assert slowdown.beside == ["tasks of node-0 wait for disks 40 % of the time"]


def around(at: float, **changes: object) -> Sample:
    host = HostSample(cpu_count=64, load_1m=8.0, memory_total_bytes=100 << 30, memory_available_bytes=50 << 30)
    links = [LinkSample("mlx5_2", rate_bits_per_s=400e9, state="ACTIVE", counters={"symbol_error": 3})]
    gpus = [GpuSample(index, sm_clock_mhz=1980, throttle_reasons=[]) for index in range(8)]
    sample = Sample("n1", at, host=host, links=links, gpus=gpus)
    for name, value in changes.items():
        setattr(sample, name, value)
    return sample


CHANGES: dict[str, dict[str, object]] = {
    "mlx5_2 of n1: 400 Gb/s before, 200 Gb/s now": {
        "links": [LinkSample("mlx5_2", rate_bits_per_s=200e9, state="ACTIVE", counters={"symbol_error": 3})]
    },
    "mlx5_2 of n1: 500 errors more": {
        "links": [LinkSample("mlx5_2", rate_bits_per_s=400e9, state="ACTIVE", counters={"symbol_error": 503})]
    },
    "mlx5_2 of n1 is DOWN": {
        "links": [LinkSample("mlx5_2", rate_bits_per_s=400e9, state="DOWN", counters={"symbol_error": 3})]
    },
    "load of n1 on 64 cores: 8 before, 40 now": {"host": HostSample(cpu_count=64, load_1m=40.0)},
    "2 % of the memory of n1 is left": {
        "host": HostSample(memory_total_bytes=100 << 30, memory_available_bytes=2 << 30, load_1m=8.0)
    },
    "n1 swaps, 30.0 MB/s": {"host": HostSample(swap_out_bytes_per_s=30e6, load_1m=8.0)},
    "SM clocks of 8 GPUs on 1 node: 1.98 GHz before, 1.41 GHz now": {
        "gpus": [GpuSample(index, sm_clock_mhz=1410, throttle_reasons=[]) for index in range(8)]
    },
}


@pytest.mark.parametrize("line", CHANGES)
def test_what_changed(line: str) -> None:
    history = History()
    for at in range(0, 1800, 30):
        history.see(around(float(at)), float(at))
    assert history.beside(["n1", "unknown"], 1500.0) == []
    history.see(around(1900.0, **CHANGES[line]), 1900.0)
    assert history.beside(["n1"], 1750.0) == [line]
    history.forget("n1")
    assert history.beside(["n1"], 1750.0) == []
