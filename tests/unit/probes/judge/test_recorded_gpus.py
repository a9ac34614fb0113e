"""What was recorded beside real GPUs is judged as what it was: training, or a job that stands, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.job.whole_job import spins
from mltop.probes.judge.stall.activity import COMPUTED, IDLE, RESIDENT, IdlePower, gpu_state
from mltop.probes.judge.stall.motions import JobMotions
from mltop.probes.judge.states import is_working
from mltop.probes.model import GpuSample, JobMotion, RankSample, Sample
from mltop.probes.record import read_recording

FOLDER = Path(__file__).parents[3] / "fixtures/gpu/H100-80GB-HBM3-580.159.04"
STATES: dict[str, Any] = json.loads((FOLDER / "stacks.json").read_text())["known"]
HEALTHY_S, STANDS_S = 30, 20


def gpu_in(state: str) -> GpuSample:
    """As `bash tests/gpu` recorded it: medians over some seconds."""
    return GpuSample(0, name="NVIDIA H100 80GB HBM3", **STATES[state]["gpu"])


def ranks_in(state: str, before: list[RankSample], *, main_calls: bool) -> list[RankSample]:
    """A second later than ``before``. ``main_calls``: newer agents count those of the main thread, which made none."""
    every = []
    for rank, rates in enumerate(STATES[state]["ranks"].values()):
        old = before[rank]
        ran_s = rates["main_cpu"]
        every.append(
            RankSample(
                pid=old.pid, rank=rank, job="train", uid=0, started_at=old.started_at, gpus=[0], cpu_fraction=ran_s,
                voluntary_switches=(old.voluntary_switches or 0) + round(rates["switches"]),
                main_cpu_s=(old.main_cpu_s or 0.0) + ran_s,
                main_syscalls=(old.main_syscalls or 0) if main_calls else None,
                read_syscalls=(old.read_syscalls or 0) + round(rates["calls"] / 2),
                write_syscalls=(old.write_syscalls or 0) + round(rates["calls"] / 2),
            )
        )  # fmt: skip
    return every


def motion_in(state: str, *, main_calls: bool) -> JobMotion:
    """Of a job that trains, then is in ``state``, or of one that goes on training."""
    motions, count = JobMotions(), len(STATES[state]["ranks"])
    ranks = [RankSample(100 + rank, rank, job="train", started_at=999.0) for rank in range(count)]
    trained: list[RankSample] = []
    for second in range(HEALTHY_S + STANDS_S):
        now = state if second >= HEALTHY_S else "healthy"
        if now == "healthy":  # recorded of one rank: all do what it does
            trained = [ranks_in(now, [rank], main_calls=main_calls)[0] for rank in ranks]
            ranks = [RankSample(**{**vars(one), "rank": number}) for number, one in enumerate(trained)]
        else:
            ranks = ranks_in(now, ranks, main_calls=main_calls)
        motions.see(Sample("n1", 1000.0 + second, gpus=[gpu_in(now)], ranks=ranks))
    (motion,) = motions.motions()
    return motion


@pytest.mark.parametrize("main_calls", [True, False])
@pytest.mark.parametrize(
    ("state", "phase", "signal"),
    [
        ("healthy", "moving", ""),
        ("collective", "quiet", "GPUs run a kernel that does no work"),
        ("kernel", "quiet", "GPUs run a kernel that does no work"),
        ("dataloader", "quiet", "GPUs do no work"),
    ],
)
def test_how_the_job_gets_on(state: str, phase: str, signal: str, main_calls: bool) -> None:
    motion = motion_in(state, main_calls=main_calls)
    assert motion.phase == phase
    assert not signal or signal in motion.signals


@pytest.mark.parametrize(
    ("state", "does", "works", "waits"),
    [
        ("idle", IDLE, False, False),
        ("dataloader", IDLE, False, False),
        ("collective", RESIDENT, True, True),
        ("kernel", RESIDENT, True, True),
        ("healthy", COMPUTED, True, False),
        ("gemm", COMPUTED, True, False),
    ],
)
def test_what_the_gpu_does(state: str, does: int, works: bool, waits: bool) -> None:
    gpu = gpu_in(state)
    assert (gpu_state(gpu, IdlePower(), None), is_working(gpu), spins(gpu)) == (does, works, waits)
    gpu.busy = None  # as in MIG mode: SM activity alone tells it
    assert is_working(gpu) is works


def test_a_minute_of_training_raises_no_alarm() -> None:
    health, motions, phases = Health(), JobMotions(), set()
    samples = list(read_recording(FOLDER / "train-60s.jsonl.gz").samples.by_time())
    for sample in samples:
        health.see(sample)
        motions.see(sample)
        phases |= {motion.phase for motion in motions.motions()}
    assert len(samples) >= 60
    assert phases <= {"starting", "moving"} and "moving" in phases
    assert health.findings() == []
