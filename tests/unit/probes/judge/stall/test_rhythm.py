"""The rhythm of a job: found where there is one, and never in noise or in steps too short to be told apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from mltop.probes.judge.stall.rhythm import Series
from mltop.probes.model.news.judged import PartNumbers
from tests.builders.simulated_motion import ASLEEP, GLOO, NCCL, NCCL_WAIT, SimulatedJob, stepping

BINS = 400


def numbers(seconds: float, switches: float, calls: float, main_cpu_s: float) -> PartNumbers:
    return PartNumbers(seconds=seconds, switches=switches, calls=calls, main_cpu_s=main_cpu_s)


def simulated(period_s: float, share: float, spread: float = 0.03, interval_s: float = 1.0, bins: int = 220) -> Series:
    """What a node's counters of such a job add up to."""
    doing = stepping(period_s, GLOO, ASLEEP, share, spread)
    series, at, parts = Series(), 0.0, round(interval_s / 0.05)
    for index in range(bins):
        worked = sum(doing(at + 0.05 * part) is GLOO for part in range(parts)) * 0.05 if callable(doing) else 0.0
        at += interval_s
        series.add(1000.0 + index, numbers(interval_s, 36 * worked, 26 * worked, 0.007 * worked))
    return series


@pytest.mark.parametrize("interval_s", [1.0, 2.0])
@pytest.mark.parametrize("samples", [2.1, 2.5, 3.3, 5.0, 9.0, 20.0])
def test_steps_are_found(samples: float, interval_s: float) -> None:
    rhythm = simulated(samples * interval_s, 0.2, interval_s=interval_s).rhythm
    assert rhythm is not None
    assert rhythm.step_s == pytest.approx(samples * interval_s, rel=0.05)
    assert rhythm.spread <= 0.12 and rhythm.steps >= 5


@pytest.mark.parametrize("spread", [0.0, 0.03, 0.1])
def test_how_even_steps_are(spread: float) -> None:
    rhythm = simulated(12.0, 0.3, spread).rhythm
    assert rhythm is not None and rhythm.spread == pytest.approx(spread, abs=0.03)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("period_s", [0.3, 0.7, 0.9, 1.1, 1.25, 1.5, 1.75])
def test_steps_shorter_than_two_samples_have_none(period_s: float, share: float) -> None:
    """They would pass for longer ones: three samples of which two hold a step."""
    assert simulated(period_s, share, spread=0.0).rhythm is None
    assert simulated(period_s, share).rhythm is None


def test_a_gpu_job_has_its_own() -> None:
    job = SimulatedJob(8, with_gpus=True)
    job.look = False
    rhythm = job.run(150.0, stepping(6.0, NCCL, NCCL_WAIT, share=0.6)).motion.rhythm
    assert rhythm is not None and rhythm.step_s == pytest.approx(6.0, rel=0.05)


def test_a_sample_that_is_missed_costs_nothing() -> None:
    series, doing = Series(), stepping(5.0, GLOO, ASLEEP, 0.2, 0.02)
    at, missed = 0.0, 0.0
    for index in range(220):
        worked = sum(doing(at + 0.05 * part) is GLOO for part in range(20)) * 0.05 if callable(doing) else 0.0
        at += 1.0
        if index % 17 == 16:
            missed = worked
            continue
        both = worked + missed
        seconds = 2.0 if index % 17 == 0 and index else 1.0
        series.add(1000.0 + at, numbers(seconds, 36 * both, 26 * both, 0.007 * both))
        missed = 0.0
    assert series.rhythm is not None and series.rhythm.step_s == pytest.approx(5.0, rel=0.05)


def test_polls_are_no_steps() -> None:
    series = Series()
    for index in range(BINS):
        polls = index % 5 == 0
        series.add(1000.0 + index, numbers(1.0, 2.0 * polls, 0.0, 0.0003 * polls))
    assert series.rhythm is None


def _states(source: random.Random) -> Iterator[float]:
    """Work and rest for as long as it happens to take."""
    while True:
        for level in (0.0, 40.0):
            yield from [level] * source.randint(2, 20)


def _wandering(source: random.Random, stays: float, scale: float) -> Iterator[float]:
    value = 0.0
    while True:
        value = stays * value + source.gauss(0, 1)
        yield max(0.0, 20 + scale * value)


NOISE: dict[str, Callable[[random.Random], Iterator[float]]] = {
    "normal": lambda source: iter(lambda: max(0.0, source.gauss(20, 8)), None),
    "exponential": lambda source: iter(lambda: source.expovariate(1 / 20), None),
    "lognormal": lambda source: iter(lambda: source.lognormvariate(2, 1.2), None),
    "bursts": lambda source: iter(lambda: 40.0 if source.random() < 0.25 else 0.0, None),
    "rare bursts": lambda source: iter(lambda: 60.0 if source.random() < 0.08 else 0.0, None),
    "wandering": lambda source: _wandering(source, 0.8, 15),
    "walk": lambda source: _wandering(source, 0.97, 10),
    "work and rest": _states,
}


def claimed(kind: str, jobs: int, bins: int = BINS) -> int:
    """In how many of so many jobs of noise a rhythm is claimed at any time."""
    count = 0
    for seed in range(jobs):
        source = random.Random(f"{kind} {seed}")
        values, series, seen = NOISE[kind](source), Series(), False
        for index in range(bins):
            value = next(values)
            filled = numbers(1.0, value, value * source.uniform(0.8, 1.2), value / 1e3)
            series.add(1000.0 + index, filled._replace(sm=min(1.0, value / 50), power_share=min(1.0, value / 60)))
            seen |= series.rhythm is not None
        count += seen
    return count


@pytest.mark.parametrize("kind", NOISE)
def test_noise_has_none(kind: str) -> None:
    """Of "work and rest", whose spells are alike to a third, now and then a stretch is as even as steps are."""
    assert claimed(kind, 6) <= (1 if kind == "work and rest" else 0)
