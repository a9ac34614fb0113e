"""An agent ends with its caller, whatever it is stuck in, and not before."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from mltop.probes.agent import loop
from mltop.probes.agent.protocol import Message, Request, encode, payload_of
from mltop.probes.reach.receiving import own_type
from tests.waiting import wait_until

DEADLINE_S = 60.0
SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ: the module has its name since Python 3.10
DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)
PING = encode(Request("ping"))
# An agent with a GPU source that may be stuck for ever.
PROGRAM = """
import sys, time
from mltop.probes.agent.caller import Terms
from mltop.probes.agent.loop import Agent, exit_now
class Gpus:
    def request(self, now): pass
    def collect(self, now, wait_s):
        if {stuck}: time.sleep(600)
        return [], []
    def events(self): return []
    def close(self): pass
exit_now(Agent("here", Gpus(), {interval_s}, terms=Terms({terms})).run())
"""


@contextlib.contextmanager
def agent(terms: str = "", interval_s: float = 0.1, stuck: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(terms=terms, interval_s=interval_s, stuck=stuck)],
        env={**os.environ, "PYTHONPATH": str(Path(loop.__file__).parents[3])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout
    fcntl.fcntl(process.stdout, SET_PIPE_SIZE, 4096)  # so that it is full after a few samples
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin and process.stdout
        process.stdin.close()
        process.stdout.close()


def say(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin
    process.stdin.write(data)


def messages(process: subprocess.Popen[bytes]) -> Iterator[Message]:
    assert process.stdout
    buffer = b""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if not select.select([process.stdout], [], [], 0.1)[0]:
            continue
        data = os.read(process.stdout.fileno(), 65536)
        assert data, "the agent ended"
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            payload = payload_of(line)
            assert payload is not None
            yield DECODER.decode(payload)
    raise AssertionError("nothing more from the agent")


def first(process: subprocess.Popen[bytes], kind: str) -> Message:
    return next(message for message in messages(process) if message.kind == kind)


def test_silence_ends_it_and_pings_keep_it() -> None:
    with agent("silence_s=4.0") as process:
        first(process, "sample")
        for _ in range(50):
            say(process, PING)
            time.sleep(0.1)  # longer in all than the silence it bears
            os.read(process.stdout.fileno(), 65536)
        assert process.poll() is None
        assert process.wait(DEADLINE_S) == 0


def test_silence_ends_one_whose_collector_is_stuck_and_whose_output_nobody_reads() -> None:
    with agent("silence_s=1.0", stuck=True) as process:
        assert process.wait(DEADLINE_S) == 1
    with agent("silence_s=4.0", interval_s=0.001) as process:
        wait_until(lambda: is_blocked(process), DEADLINE_S, "a full pipe")
        process.wait(DEADLINE_S)


def is_blocked(process: subprocess.Popen[bytes]) -> bool:
    threads = Path(f"/proc/{process.pid}/task").glob("*/wchan")
    for thread in threads:
        with suppress(FileNotFoundError, ProcessLookupError):  # threads that read memory end at any time
            if "pipe_write" in thread.read_text():
                return True
    return False


def test_the_end_of_stdin_ends_one_that_is_stuck() -> None:
    with agent(stuck=True) as process:
        first(process, "hello")
        main_thread = Path(f"/proc/{process.pid}/task/{process.pid}/wchan")
        wait_until(lambda: "nanosleep" in main_thread.read_text(), DEADLINE_S, "a collector that is stuck")
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 1


def test_its_children_end_with_it() -> None:
    command = [sys.executable, "-m", "mltop.probes.agent", "--node", "here", "--interval", "0.2", "--silence", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(loop.__file__).parents[3])}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        children = wait_until(lambda: psutil.Process(process.pid).children(), DEADLINE_S, "NVML's child")
        process.wait(DEADLINE_S)
        assert not psutil.wait_procs(children, DEADLINE_S)[1]
    finally:
        process.kill()
        process.communicate()


def test_unattended_it_outlives_its_stdin_and_ends_with_its_reader_at_once() -> None:
    with agent("attended=False", interval_s=600.0) as process:
        process.stdin.close()
        first(process, "sample")
        assert first(process, "pong").node == "here"  # so that its caller sees it is there
        closed = time.monotonic()
        process.stdout.close()
        process.wait(DEADLINE_S)
        assert time.monotonic() - closed < DEADLINE_S  # its next sample is 600 s away


def test_unattended_it_ends_when_nobody_reads() -> None:
    with agent("attended=False, unread_s=2.0", interval_s=0.001) as process:
        wait_until(lambda: is_blocked(process), DEADLINE_S, "a full pipe")
        process.wait(DEADLINE_S)


def test_a_ping_is_answered_when_nothing_else_is_said() -> None:
    with agent(interval_s=600.0) as process:
        first(process, "row")
        say(process, PING)  # the hello, the sample and its row came since the last one, which is none
        say(process, PING)
        assert first(process, "pong").node == "here"
    with agent(interval_s=0.02) as process:
        seen = messages(process)
        kinds = []
        while kinds.count("row") < 20:
            kinds.append(next(seen).kind)
            if kinds[-1] == "row" and kinds.count("row") % 5 == 0:
                say(process, PING)
        assert "pong" not in kinds


def test_a_request_for_another_node_is_not_answered() -> None:
    with agent() as process:
        first(process, "sample")
        for number, node in ((1, "there"), (2, "here"), (3, ""), (4, "there")):
            say(process, encode(Request("request", id=number, op="dance", node=node)))
        say(process, encode(Request("request", id=5, op="dance")))
        answered = []
        for message in messages(process):
            if message.kind == "error":
                answered.append(message.id)
            if message.id == 5:
                break
        assert answered == [2, 3, 5]


def test_what_stage_1_read_too_much_is_not_lost() -> None:
    early = encode(Request("request", id=9, op="dance"))
    with agent(f"received={early!r}") as process:
        assert first(process, "error").id == 9


def test_what_arrives_slowly_is_told() -> None:
    frame = encode(Request("request", id=1, op="x" * 100_000))
    with agent(interval_s=600.0) as process:
        first(process, "sample")
        for at in range(0, 80_000, 20_000):
            say(process, frame[at : at + 20_000])
            assert first(process, "progress").node == "here"
        say(process, frame[80_000:])
        assert first(process, "error").id == 1


def test_a_file_of_megabytes_on_stdin_is_one_request() -> None:
    with agent() as process:
        first(process, "sample")
        say(process, encode(Request("request", id=1, op="x" * 4_000_000)))
        assert first(process, "error").id == 1
