"""A demo beside other people's jobs: it shows, dumps and captures its own processes only, and no real GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from mltop.probes.agent.protocol import Message, Request, encode, payload_of
from mltop.probes.demo import node
from mltop.probes.demo.gpus import still_gpu
from mltop.probes.demo.machine import pci_devices
from mltop.probes.investigate.capture import load
from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.investigate.session import LiveSession
from mltop.probes.model import Sample, to_json
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.receiving import own_type
from tests.fakes.kmsg import FakeKmsg
from tests.fakes.sysfs import SysTree
from tests.waiting import wait_until

# Whoever dumps every job of the machine would dump the foreign ones here, too: see test_verdicts.py.
pytestmark = pytest.mark.jobs

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)
COMMAND = [sys.executable, "-m", "mltop.probes.demo.node", "--torch", "no", "--healthy", "0.2", "--interval", "0.2"]
ROOT = str(Path(node.__file__).parents[3])

# A rank of somebody else, with a worker, and one of its threads in state D.
FOREIGN = """
import ctypes, os, sys, time
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if os.fork() == 0:
    if ctypes.CDLL(None).syscall(number, 0x4000 | 17, 0, 0, 0, 0) == 0:
        time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


def foreign_rank(rank: int, **environ: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", FOREIGN],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4", **environ},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def foreign() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [foreign_rank(0, MASTER_ADDR="elsewhere", MASTER_PORT="29500", TORCHELASTIC_RUN_ID="foreign-job")]
    yield started
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def group_of(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == pid:
                found.add(int(entry.name))
    return found


def switches(pid: int) -> str:
    """py-spy stops a process for its stack, which moves this."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("voluntary"))


def at_rest(pids: set[int]) -> dict[int, str]:
    """Their switches, once all of them sleep for good."""

    def asleep() -> bool:
        return all(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "SD" for pid in pids)

    wait_until(asleep, what="the foreign processes to sleep")
    return {pid: switches(pid) for pid in pids}


def messages(process: subprocess.Popen[bytes]) -> Iterator[Message]:
    assert process.stdout is not None
    for line in process.stdout:
        yield DECODER.decode(payload_of(line[:-1]))


def pids_in(sample: Sample) -> set[int]:
    return {
        *[rank.pid for rank in sample.ranks],
        *[pid for rank in sample.ranks for pid in rank.children],
        *[process.pid for gpu in sample.gpus for process in gpu.processes or ()],
        *[process.pid for process in sample.host.blocked],
        *[event.pid for event in sample.kernel_events if event.pid is not None],
    }


def test_nobody_elses_processes_are_shown_or_stopped(foreign: list[subprocess.Popen[bytes]]) -> None:
    agent = subprocess.Popen(
        [*COMMAND, "--node", "here"],
        env={"PYTHONPATH": ROOT, "PATH": str(Path(sys.executable).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert agent.stdin is not None
        agent.stdin.write(encode(Request("watch", args={"seconds": 3600.0})))
        agent.stdin.flush()
        stream = messages(agent)
        first = next(m.sample for m in stream if m.sample is not None and len(m.sample.ranks) >= 4)
        own = {rank.pid for rank in first.ranks}
        # One that claims to be a rank of the demo's very job.
        foreign.append(foreign_rank(1, TORCHELASTIC_RUN_ID=first.ranks[0].job))
        others = set().union(*(group_of(process.pid) for process in foreign))
        assert len(others) >= 4
        before = at_rest(others)
        began = time.time()
        for sample in samples_until(stream, began + 3.0):
            assert {rank.pid for rank in sample.ranks} == own and not pids_in(sample) & others
            assert "foreign-job" not in to_json(sample)
            assert not sample.kernel_events and sample.pci in ([], pci_devices(8))
        assert agent.stdin is not None
        for args in ({}, {"pids": sorted(others | own)}, {"job": "foreign-job"}, {"job": first.ranks[0].job}):
            agent.stdin.write(encode(Request("request", id=9, op="stacks", args=args)))
            agent.stdin.flush()
            dumped = set()
            for message in stream:
                if message.stacks is not None:
                    dumped |= {message.stacks.pid, *(digest.pid for digest in message.stacks.digests)}
                if message.kind in ("done", "error"):
                    assert message.kind == "done", message.error
                    break
            assert dumped == (set() if args.get("job") == "foreign-job" else own)
        assert {pid: switches(pid) for pid in others} == before
    finally:
        agent.kill()
        agent.wait()
        for pipe in (agent.stdin, agent.stdout):
            assert pipe is not None
            pipe.close()


def samples_until(stream: Iterator[Message], end: float, least: int = 4) -> list[Sample]:
    """Those up to ``end`` (Unix time), and as many as needed on a machine that is slow to start."""
    samples: list[Sample] = []
    for message in stream:
        if message.sample is not None:
            samples.append(message.sample)
            if message.sample.sampled_at > end and len(samples) >= least:
                break
    return samples


def test_a_capture_of_the_demo_holds_the_demo_only(
    foreign: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    session = LiveSession("demo", [Channel((*COMMAND, "--node", "here"), ("here",))], 0.2, lambda *_: "")
    try:
        wait_until(lambda: [n for n in session.view().nodes if n.sample and len(n.sample.ranks) >= 4], 60, "the job")
        others = group_of(foreign[0].pid)
        before = at_rest(others)
        told: list[StackProgress] = []
        session.dump_stacks(None, told.append).wait(60)
        assert {report.job for report in told[-1].reports} == {session.view().nodes[0].sample.ranks[0].job}
        done: list[CaptureResult] = []
        session.capture(done.append, tmp_path / "c")
        wait_until(lambda: done, 60, "the capture")
        material = load(tmp_path / "c")
        assert {dump.pid for dump in material.dumps} and not {dump.pid for dump in material.dumps} & others
        text = to_json([list(material.samples.by_time()), material.dumps])
        assert "foreign-job" not in text
        assert not any(pids_in(sample) & others for own in material.samples.values() for sample in own)
        assert {pid: switches(pid) for pid in others} == before
    finally:
        session.close()


def test_real_gpus_do_not_get_among_the_simulated_ones(tmp_path: Path) -> None:
    """A machine with eight GPUs of its own, one of which has an Xid and the bus id of a simulated one."""
    SysTree(tmp_path).h100_node()
    log = tmp_path / "dev"
    log.mkdir(exist_ok=True)
    kmsg = FakeKmsg(log)
    bus = still_gpu(2, 0).pci_bus_id
    kmsg.write(f"NVRM: Xid (PCI:{bus}): 79, pid=4711, name=python3, GPU has fallen off the bus.")
    agent = subprocess.Popen(
        [*COMMAND, "--node", "here"],
        env={"PYTHONPATH": ROOT, "PATH": str(Path(sys.executable).parent), "MLTOP_SYSROOT": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        samples = samples_until(messages(agent), time.time() + 3.0)
        assert len(samples) > 3
        for sample in samples:
            assert len(sample.gpus) == 8 and all("SIMULATED" in (gpu.uuid or "") for gpu in sample.gpus)
            assert sample.simulated and not sample.kernel_events
            assert {gap.what for gap in sample.gaps} <= {"gpu processes"}  # there is no /proc with the ranks' pids
            assert sample.pci in ([], pci_devices(8)) and sample.host.cpu_count in (None, 96)
    finally:
        agent.kill()
        agent.wait()
        for pipe in (agent.stdin, agent.stdout):
            assert pipe is not None
            pipe.close()
