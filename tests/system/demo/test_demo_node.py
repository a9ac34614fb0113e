"""The demo's node: the real agent with real ranks and stacks, and GPUs that say they are simulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mltop.probes.agent.protocol import Message, Request, encode, payload_of
from mltop.probes.demo import node
from mltop.probes.model import Sample
from mltop.probes.reach.receiving import own_type
from tests.waiting import wait_until

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    options = ["--node", "here", "--torch", "no", "--healthy", "1", "--interval", "0.3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mltop.probes.demo.node", *options],
        env={"PYTHONPATH": str(Path(node.__file__).parents[3]), "PATH": str(Path(sys.executable).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def messages(process: subprocess.Popen[bytes]) -> Iterator[Message]:
    for line in process.stdout:
        yield DECODER.decode(payload_of(line[:-1]))


def test_real_ranks_hold_simulated_gpus_until_stdin_ends(agent: subprocess.Popen[bytes]) -> None:
    stream = messages(agent)
    sample = next(m.sample for m in stream if m.sample is not None and is_hung(m.sample))
    assert sample.simulated and len(sample.gpus) == 8 and sample.gpus[4].processes == []
    held = {process.pid: gpu.index for gpu in sample.gpus for process in gpu.processes}
    mine = {rank.pid: rank for rank in sample.ranks if rank.pid in held}
    assert set(held) == set(mine) and len(held) == 4
    assert all(mine[pid].rank == index and mine[pid].gpus == [index] for pid, index in held.items())

    settled = sample.sampled_at + 0.5  # by then the other ranks have finished their step and wait
    next(m for m in stream if m.sample is not None and m.sample.sampled_at > settled)
    agent.stdin.write(encode(Request("request", id=3, op="stacks", args={"pids": list(held)})))
    agent.stdin.flush()
    stacks = {}
    for message in stream:
        if message.stacks:
            stacks[message.stacks.rank] = message.stacks.digests[0]
        if message.kind in ("done", "error"):
            assert message.kind == "done", message.error
            break
    assert sorted(stacks) == [0, 1, 2, 3]
    assert stacks[2].waiting_in is None and "__getitem__" in stacks[2].frames[0].function
    assert {stacks[rank].waiting_in for rank in (0, 1, 3)} == {"all_reduce"}
    assert len({stacks[rank].key for rank in (0, 1, 3)}) == 1

    agent.stdin.close()
    assert agent.wait(30) == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in held), what="the ranks' end")


def test_a_rank_that_ends_is_told_in_the_samples(agent: subprocess.Popen[bytes]) -> None:
    samples = (m.sample for m in messages(agent) if m.sample is not None)
    first = next(samples)
    assert told(first) == []
    os.kill(first.gpus[1].processes[0].pid, signal.SIGKILL)
    later = next(sample for sample in samples if told(sample) or sample.sampled_at > first.sampled_at + 30)
    assert [why.split(":")[0] for why in told(later)] == ["rank 1 of the demo job ended"]
    assert len(later.gpus) == 8


def told(sample: Sample) -> list[str]:
    return [gap.why for gap in sample.gaps if gap.what == "demo job"]


def is_hung(sample: Sample) -> bool:
    return [gpu.busy for gpu in sample.gpus if gpu.processes] == [1.0, 1.0, 0.0, 1.0] and len(sample.ranks) >= 4


def test_a_culprit_that_is_no_rank_is_refused() -> None:
    command = [sys.executable, "-m", "mltop.probes.demo.node", "--ranks", "2", "--culprit", "2"]
    root = str(Path(node.__file__).parents[3])
    done = subprocess.run(command, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--culprit" in done.stderr and "Traceback" not in done.stderr
