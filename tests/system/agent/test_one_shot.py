"""One request answered by an agent process of its own, which ends in every case and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mltop.probes.agent import one_shot
from mltop.probes.agent.protocol import TEXT_MARK, Assembler, Message, payload_of
from mltop.probes.reach.receiving import own_type
from tests.fakes.scripts import shell_script
from tests.waiting import wait_until

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)
AGENT = [sys.executable, "-m", "mltop.probes.agent"]
RANK = "import time\ndef train():\n    while True: time.sleep(0.01)\ntrain()"
JOB = f"one-shot-{os.getpid()}:1"  # other workers run these tests, too


def start(op: str, args: dict[str, Any], *options: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*AGENT, "--node", "n1", "--text", *options, "--op", op, "--args", json.dumps(args)],
        env={**os.environ, "PYTHONPATH": str(Path(one_shot.__file__).parents[3]), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def run(op: str, args: dict[str, Any], *options: str) -> tuple[int, list[Message]]:
    process = start(op, args, *options)
    output, _ = process.communicate(timeout=60)
    payloads = [payload_of(line) for line in output.splitlines()]
    assert None not in payloads
    return process.returncode, [DECODER.decode(payload) for payload in payloads if payload]


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a launcher of training jobs could have started."""
    address, _, port = JOB.partition(":")
    environment = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": address, "MASTER_PORT": port}
    process = subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def endless_py_spy(tmp_path: Path) -> Path:
    """One that never answers, under a name of its own."""
    inner = "exec -a {name} sleep 600"  # bash's own
    return shell_script(tmp_path / "py-spy", "exec bash -c {inner}", inner=inner.format(name=f"'{tmp_path}/endless'"))


def running(program: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if str(program.parent / "endless").encode() in command.split(b"\0"):
                    found.append(entry.name)
    return found


def test_a_request_is_answered_and_the_process_ends() -> None:
    code, messages = run("doctor", {})
    assert code == 0
    assert [(message.kind, message.node) for message in messages] == [("done", "n1")]
    assert "python" in [check["name"] for check in messages[0].data["checks"]]


def test_stacks_of_a_rank(rank: subprocess.Popen[bytes]) -> None:
    code, messages = run("stacks", {"job": JOB})
    assert code == 0
    assert [message.kind for message in messages] == ["part", "part", "done"]
    assert messages[0].expected == 1
    stacks = messages[1].stacks
    assert stacks is not None
    assert stacks.pid == rank.pid
    assert [(digest.rank, digest.frames[0].function) for digest in stacks.digests] == [(3, "train")]


def test_long_frames_come_in_pieces() -> None:
    process = start("doctor", {}, "--frame-bytes", "200")
    output, _ = process.communicate(timeout=60)
    lines = output.splitlines()
    assert len(lines) > 1
    assert all(len(line) < 200 for line in lines)
    assembler = Assembler()
    whole = [payload for payload in map(assembler.take, lines) if payload]
    assert [DECODER.decode(payload).kind for payload in whole] == ["done"]


def test_what_cannot_be_done_is_an_error_frame() -> None:
    code, messages = run("dance", {})
    assert code == 0
    assert [(message.kind, message.error) for message in messages] == [("error", "unknown operation 'dance'")]


def test_a_deadline_ends_it(rank: subprocess.Popen[bytes], endless_py_spy: Path) -> None:
    args = {"job": JOB, "deadline_s": 300, "total_s": 1.0}
    process = start("stacks", args, MLTOP_PY_SPY=str(endless_py_spy))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == one_shot.EXIT_LATE
    assert output.splitlines()[-1].endswith(b'{"kind":"error","node":"n1","error":"no answer within 1 s"}')
    assert running(endless_py_spy) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_and_its_py_spy(
    rank: subprocess.Popen[bytes], endless_py_spy: Path, number: signal.Signals
) -> None:
    process = start("stacks", {"job": JOB, "deadline_s": 300}, MLTOP_PY_SPY=str(endless_py_spy))
    wait_until(lambda: running(endless_py_spy), what="the dump")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert running(endless_py_spy) == []


def test_it_ends_when_nobody_reads_any_more(rank: subprocess.Popen[bytes], endless_py_spy: Path) -> None:
    process = start("stacks", {"job": JOB, "deadline_s": 300}, MLTOP_PY_SPY=str(endless_py_spy))
    wait_until(lambda: running(endless_py_spy), what="the dump")
    assert process.stdout
    assert process.stdout.readline().startswith(TEXT_MARK)
    process.stdout.close()
    assert process.wait(30) == one_shot.EXIT_NO_READER
    assert running(endless_py_spy) == []


def test_a_reader_that_does_not_read_holds_it_no_longer_than_its_deadline(rank: subprocess.Popen[bytes]) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"\n" * 65536)
    os.set_blocking(write_end, True)
    process = subprocess.Popen(
        [*AGENT, "--op", "stacks", "--args", '{"total_s": 1.0}'],
        env={**os.environ, "PYTHONPATH": str(Path(one_shot.__file__).parents[3])},
        stdin=subprocess.DEVNULL,
        stdout=write_end,
    )
    os.close(write_end)
    try:
        assert process.wait(30) == one_shot.EXIT_LATE
    finally:
        process.kill()
        process.wait()
        os.close(read_end)
