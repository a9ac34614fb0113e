"""The agent as a process: one collector's failure is one gap, and neither that nor a busy machine keeps it alive."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mltop.probes.agent import loop
from mltop.probes.agent.protocol import Message, Request, encode, payload_of
from mltop.probes.model import Sample
from mltop.probes.reach.receiving import own_type
from tests.fakes.proctree import ProcTree

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)
# An agent whose GPU source fails at every second sample.
FAILING_GPUS = """
from mltop.probes.agent.loop import Agent, exit_now
from mltop.probes.model import GpuSample

class Gpus:
    reads = 0
    def request(self, now):
        self.reads += 1
    def collect(self, now, wait_s):
        if self.reads % 2:
            raise RuntimeError("no luck")
        return [GpuSample(7)], []
    def events(self):
        return []
    def close(self):
        pass

exit_now(Agent("here", Gpus(), 0.1).run())
"""
STARTING_GPUS = """
import time
from mltop.probes.agent.loop import Agent, exit_now
from mltop.probes.model import Gap, GpuSample

class Gpus:
    began = time.monotonic()
    def request(self, now): pass
    def collect(self, now, wait_s):
        if time.monotonic() - self.began < 1.0:
            return [], [Gap.about("nvml", "starting", why="no answer yet", kind="starting")]
        return [GpuSample(7)], []
    def events(self):
        return []
    def close(self):
        pass

exit_now(Agent("here", Gpus(), 60.0).run())
"""
SPIN = "while True: pass"
BUSY_PROCESSES = 16


@contextlib.contextmanager
def running(*arguments: str, sysroot: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(loop.__file__).parents[3]),
            "MLTOP_SYSROOT": str(sysroot or ""),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin and process.stdout
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def agent(sysroot: Path | None = None, interval_s: float = 0.1) -> Iterator[subprocess.Popen[bytes]]:
    """That sends all samples whole."""
    words = ("-m", "mltop.probes.agent", "--node", "here", "--interval", str(interval_s))
    with running(*words, sysroot=sysroot) as process:
        assert process.stdin
        process.stdin.write(encode(Request("watch", args={"seconds": 3600.0})))
        process.stdin.flush()
        yield process


def samples(process: subprocess.Popen[bytes]) -> Iterator[Sample]:
    assert process.stdout
    for line in process.stdout:
        payload = payload_of(line[:-1])
        assert payload is not None
        message = DECODER.decode(payload)
        if message.sample is not None:
            yield message.sample


def gaps_of(sample: Sample) -> dict[str, str]:
    return {gap.what: gap.why for gap in sample.gaps}


def later_samples(process: subprocess.Popen[bytes]) -> Iterator[Sample]:
    """Without the first one."""
    stream = samples(process)
    first = next(stream)
    return (sample for sample in stream if sample.sampled_at != first.sampled_at)


def close_and_wait(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    assert process.stdin
    process.stdin.close()
    return process.wait(timeout_s)


def test_a_broken_stat_leaves_the_ranks(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.python(500, "train.py", environ={"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "MASTER_PORT": "1"})
    (tree.root / "stat").write_text("cpu  1 2 3 4\n")
    with agent(tmp_path) as process:
        stream = later_samples(process)
        first, second = next(stream), next(stream)
        assert close_and_wait(process, 30) == 0
    for sample in (first, second):
        assert [(rank.pid, rank.rank) for rank in sample.ranks] == [(500, 3)]
        assert "TypeError" in gaps_of(sample)["host.cpu"]


def test_the_first_sample_waits_for_nothing_that_is_slow(tmp_path: Path) -> None:
    """It has the ranks; what has to be loaded or started first follows with the second."""
    tree = ProcTree(tmp_path)
    tree.python(500, "train.py", environ={"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "MASTER_PORT": "1"})
    with agent(tmp_path) as process:
        first = next(samples(process))
        second = next(sample for sample in samples(process) if sample.sampled_at != first.sampled_at)
    starting = {gap.source for gap in first.gaps if gap.kind == "starting"}
    assert starting == {"nvml", "host", "links", "pci", "kernel_log", "logs"}
    assert [rank.rank for rank in first.ranks] == [3]
    assert "nvml.starting" in gaps_of(first)
    lacked = {field for gap in first.gaps if gap.source == "host" and gap.kind == "starting" for field in gap.fields}
    assert lacked >= {"memory", "filesystems", "cpu"}
    assert not {"links", "pci", "kernel_log", "logs"} & {gap.what for gap in second.gaps if gap.kind == "starting"}
    assert second.host.shm_total_bytes or "host.shm" in gaps_of(second)


def test_a_proc_that_cannot_be_listed_leaves_the_rest_and_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    with agent(tmp_path) as process:
        stream = later_samples(process)
        sample = next(stream)
        assert gaps_of(sample)["ranks"].startswith("the collector failed: FileNotFoundError: ")
        assert sample.ranks == []
        assert sample.host.shm_total_bytes
        assert "nvml.starting" in gaps_of(sample) or "nvml" in gaps_of(sample)
        tree = ProcTree(tmp_path / "made")  # at once: a process that is half there for a moment would be no rank
        tree.python(500, "train.py", environ={"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "MASTER_PORT": "1"})
        (tmp_path / "made" / "proc").rename(tmp_path / "proc")
        deadline = time.monotonic() + 30
        found = next(sample for sample in stream if sample.ranks or time.monotonic() > deadline)
        assert [rank.rank for rank in found.ranks] == [3]


def test_a_gpu_source_that_fails_is_a_gap_and_is_tried_again() -> None:
    with running("-c", FAILING_GPUS) as process:
        stream = samples(process)
        # A sample that waits for a busy reader is replaced by the next: every second one need not be seen.
        failed = next(sample for sample in stream if not sample.gpus)
        worked = next(sample for sample in stream if sample.gpus)
        again = next(sample for sample in stream if not sample.gpus)
        assert close_and_wait(process, 30) == 0
    for sample in (failed, again):
        assert [(gap.why, gap.fix) for gap in sample.gaps if gap.what == "gpus"] == [
            ("the collector failed: RuntimeError: no luck", "please report this")
        ]
    assert [gpu.index for gpu in worked.gpus] == [7]
    assert "gpus" not in gaps_of(worked)
    assert all(sample.host.memory_total_bytes for sample in (failed, worked, again))


def test_gpus_that_answer_late_are_not_a_whole_interval_late() -> None:
    began = time.monotonic()
    with running("-c", STARTING_GPUS) as process:
        stream = samples(process)
        assert next(stream).gpus == []
        assert [gpu.index for gpu in next(sample.gpus for sample in stream if sample.gpus)] == [7]
        took_s = time.monotonic() - began
        assert close_and_wait(process, 30) == 0
    assert took_s < 40, "the interval is 60 s"


@pytest.mark.serial
def test_on_a_busy_machine_it_samples_and_ends_with_its_caller() -> None:
    spinning = []
    try:
        with agent(interval_s=0.5) as process:
            stream = samples(process)
            next(stream)
            spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(BUSY_PROCESSES)]
            started = time.monotonic()
            newest = [next(stream) for _ in range(4)]
            assert time.monotonic() - started < 40
            assert newest[-1].host.memory_total_bytes and newest[-1].host.cpu_fraction is not None
            closed = time.monotonic()
            close_and_wait(process, 20)
            assert time.monotonic() - closed < 10
    finally:
        for spinner in spinning:
            spinner.kill()
            spinner.wait()
