"""A GPU that is lost keeps its rank and its process, as long as that lives. Real processes, the agent's own sampler."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.agent.sampler import Holders, Sampler, started
from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.model import GpuProcess, GpuSample, RankSample, Sample
from mltop.tui.render.gpus.table import GpuLine, gpu_row
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import DEADLINE_S, fake_here
from tests.waiting import wait_until

RANK = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 2)


@pytest.fixture
def sampler(fake: FakeNvml) -> Iterator[Sampler]:
    made = Sampler("n1", NvmlSource(), 1.0)
    yield made
    made.close()


def sleeper(**environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, **environ})


def until(sampler: Sampler, state: str) -> Sample:
    def step() -> Sample | None:
        sample = sampler.sample(time.time())
        return sample if len(sample.gpus) == 2 and sample.gpus[1].state == state else None

    return wait_until(step, DEADLINE_S, f"GPU 1 to be {state}")


def held(gpu: GpuSample) -> list[tuple[int, int | None]]:
    """Which process holds how much of it."""
    return [(process.pid, process.memory_bytes) for process in gpu.processes or ()]


def rank_of(sample: Sample, pid: int) -> RankSample | None:
    return next((rank for rank in sample.ranks if rank.pid == pid), None)


@pytest.mark.parametrize(("failure", "state"), [("error 15", "lost"), ("error 16", "lost"), ("error 4", "error")])
def test_a_lost_gpu_keeps_its_rank_and_pid(fake: FakeNvml, sampler: Sampler, failure: str, state: str) -> None:
    process = sleeper(**RANK)
    try:
        fake.set("gpu.1.processes", [(process.pid, 2**30, "compute")])
        fake.write()

        def step() -> Sample | None:
            sample = sampler.sample(time.time())
            rank = rank_of(sample, process.pid)
            return sample if rank is not None and rank.gpus == [1] else None

        wait_until(step, DEADLINE_S, "the rank on its GPU")
        fake.set("gpu.1.call.*", failure)
        fake.write()
        until(sampler, state)
        for _ in range(3):
            sample = sampler.sample(time.time())
            rank = rank_of(sample, process.pid)
            assert rank is not None and rank.gpus == [1]
            assert held(sample.gpus[1]) == [(process.pid, 2**30)]
        banner = gpu_row(GpuLine(sample.gpus[1], [rank])).banner
        assert banner is not None and f", rank 5 pid {process.pid} – " in banner.text
    finally:
        process.kill()
        process.wait()
    sample = sampler.sample(time.time())
    assert rank_of(sample, process.pid) is None
    assert sample.gpus[1].processes is None, "who holds it now is not known"


def test_a_gpu_that_comes_back_has_the_processes_that_it_has(fake: FakeNvml, sampler: Sampler) -> None:
    process = sleeper(**RANK)
    try:
        fake.set("gpu.1.processes", [(process.pid, 7, "compute")])
        fake.write()
        until(sampler, "ok")
        fake.set("gpu.1.call.*", "error 15")
        fake.write()
        assert held(until(sampler, "lost").gpus[1]) == [(process.pid, 7)]
        fake.unset("gpu.1.call.*")
        fake.set("gpu.1.processes", [])
        fake.write()
        assert until(sampler, "ok").gpus[1].processes == []
    finally:
        process.kill()
        process.wait()


def gpu(state: str, *pids: int) -> GpuSample:
    return GpuSample(0, state=state, processes=[GpuProcess(pid) for pid in pids] if pids else None)


def test_processes_that_are_not_there_are_not_kept() -> None:
    """Of another namespace, or ended; nor another process with the same pid."""
    holders, own = Holders(), os.getpid()
    holders.keep([gpu("ok", own, 4_194_303)])
    lost = gpu("lost")
    holders.keep([lost])
    assert [process.pid for process in lost.processes or ()] == [own]
    assert started(4_194_303) is None
    held = holders._by_gpu[0]
    holders._by_gpu[0] = [(process, -1) for process, _ in held]  # as if the pid were another's by now
    lost = gpu("lost")
    holders.keep([lost])
    assert lost.processes is None


def test_a_gpu_whose_list_cannot_be_read_while_it_answers_is_unknown() -> None:
    holders = Holders()
    holders.keep([gpu("ok", os.getpid())])
    denied = gpu("ok")
    holders.keep([denied])
    assert denied.processes is None


def test_a_process_that_is_no_rank_is_named_too() -> None:
    lost = GpuSample(3, state="lost", error="gone", error_code="lost", processes=[GpuProcess(41), GpuProcess(42)])
    banner = gpu_row(GpuLine(lost)).banner
    assert banner is not None and ", held by pid 41+1 – " in banner.text


@pytest.mark.parametrize(
    ("code", "start", "style"),
    [
        ("lost", "LOST ", "crit"),
        ("needs_reset", "NEEDS RESET ", "crit"),
        ("no_permission", "NO PERMISSION ", "warn"),
        ("", "LOST ", "crit"),
    ],
)
def test_the_row_of_a_gpu_that_does_not_answer_says_what_it_needs(code: str, start: str, style: str) -> None:
    banner = gpu_row(GpuLine(GpuSample(3, state="lost", error="why", error_code=code))).banner
    assert banner is not None and banner.text.startswith(start) and banner.style == style
    assert ("sudo nvidia-smi -r -i 3" in banner.text) is (code == "needs_reset")
