"""The simulated fleet is one cheap process that speaks the agent's protocol for all its nodes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mltop.probes.agent.protocol import Message, Request, encode, payload_of
from mltop.probes.demo import fleet
from mltop.probes.reach.receiving import own_type
from tests.cpu import cpu_s
from tests.waiting import wait_until

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)
ROOT = str(Path(fleet.__file__).parents[3])


class Speaker:
    """A running fleet; ``read_until`` gives all messages up to the first that satisfies the condition."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mltop.probes.demo.fleet", *args],
            env={"PYTHONPATH": ROOT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, request: Request) -> None:
        self.process.stdin.write(encode(request))
        self.process.stdin.flush()

    def read_until(self, last: Callable[[Message], bool], timeout_s: float = 30.0) -> list[Message]:
        messages: list[Message] = []
        deadline = time.monotonic() + timeout_s
        while not (messages and last(messages[-1])):
            assert time.monotonic() < deadline, f"no such message among {len(messages)}"
            line = self.process.stdout.readline()
            assert line, "the fleet ended"
            payload = payload_of(line[:-1])
            assert payload is not None, line
            messages.append(DECODER.decode(payload))
        return messages


@contextlib.contextmanager
def speaking(*args: str) -> Iterator[Speaker]:
    speaker = Speaker(*args)
    try:
        yield speaker
    finally:
        speaker.process.kill()
        speaker.process.wait()
        speaker.process.stdin.close()
        speaker.process.stdout.close()


def is_done(number: int) -> Callable[[Message], bool]:
    return lambda message: message.id == number and message.kind in ("done", "error")


def test_hello_then_samples_of_every_node_at_the_interval() -> None:
    with speaking("--nodes", "5", "--first", "2", "--interval", "0.2") as speaker:
        names = ["sim002", "sim003", "sim004", "sim005", "sim006"]
        messages = speaker.read_until(lambda m: m.kind == "row" and m.node == "sim006")
        assert [m.node for m in messages if m.kind in ("hello", "sample")] == names * 2
        assert [m.node for m in messages if m.kind == "row"] == names
        judged: set[str] = set()  # by then the rules are loaded

        def all_judged(message: Message) -> bool:
            judged.update([message.node] if message.kind == "judged" else [])
            return judged == set(names) and message.node == "sim006" and message.row is not None

        first = speaker.read_until(all_judged)[-1].row.at
        later = speaker.read_until(lambda m: m.node == "sim006" and m.row is not None and m.row.at > first + 1.0)
        assert sum(m.node == "sim003" and m.kind == "row" for m in later) in (5, 6)
        assert not [m for m in later if m.kind == "sample" and m.node == "sim003"], "nothing has changed"


def test_stacks_of_one_node() -> None:
    with speaking("--nodes", "4", "--hang-after", "0") as speaker:
        speaker.ask(Request("request", id=7, op="stacks", node="sim002"))
        answer = [m for m in speaker.read_until(is_done(7)) if m.id == 7]
        assert [m.kind for m in answer] == ["part"] * 9 + ["done"]
        assert answer[0].expected == 8 and {m.node for m in answer} == {"sim002"}
        assert [m.stacks.rank for m in answer[1:-1]] == list(range(8, 16))
        waiting = {m.stacks.rank: m.stacks.digests[0].waiting_in for m in answer[1:-1]}
        assert [rank for rank, collective in waiting.items() if collective is None] == [13]


def test_stacks_of_all_nodes_narrowed_and_cancelled() -> None:
    with speaking("--nodes", "40", "--first", "1") as speaker:
        speaker.ask(Request("request", id=1, op="stacks"))
        answer = [m for m in speaker.read_until(is_done(1)) if m.id == 1]
        assert answer[0].expected == 39 * 8 == sum(m.stacks is not None for m in answer)
        pid = answer[1].stacks.pid
        speaker.ask(Request("request", id=2, op="stacks", args={"pids": [pid]}))
        assert [m.stacks.pid for m in speaker.read_until(is_done(2)) if m.stacks] == [pid]
        speaker.ask(Request("request", id=3, op="stacks", args={"job": "another"}))
        assert not [m for m in speaker.read_until(is_done(3)) if m.stacks]
        speaker.ask(Request("request", id=4, op="stacks"))
        speaker.ask(Request("cancel", id=4))
        assert speaker.read_until(is_done(4))[-1].kind == "done"


def test_doctor_and_what_it_does_not_know() -> None:
    with speaking("--nodes", "2") as speaker:
        speaker.process.stdin.write(b"profile noise\n")
        speaker.ask(Request("request", id=1, op="doctor", node="sim001"))
        (check,) = speaker.read_until(is_done(1))[-1].data["checks"]
        assert check["state"] == "ok" and check["name"] == "simulation"
        speaker.ask(Request("request", id=2, op="dance", node="sim001"))
        assert "dance" in speaker.read_until(is_done(2))[-1].error
        speaker.ask(Request("request", id=3, op="stacks", node="sim009"))
        assert "sim009" in speaker.read_until(is_done(3))[-1].error


def test_ends_with_its_stdin_even_when_nobody_reads_it() -> None:
    with speaking("--nodes", "64", "--interval", "0.1") as speaker:
        speaker.process.stdout.readline()
        wait_until(lambda: blocked_writing(speaker.process.pid), what="a full pipe")
        speaker.process.stdin.close()
        assert speaker.process.wait(60) in ENDED


ENDED = (0, 1)  # 1: on a busy machine, where a turn of its work takes longer than its caller's end leaves it


def blocked_writing(pid: int) -> bool:
    return any("pipe_write" in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/wchan"))


def test_ends_with_its_reader_and_at_once() -> None:
    with speaking("--nodes", "8", "--interval", "0.1") as speaker:
        speaker.process.stdout.close()
        assert speaker.process.wait(60) in ENDED
    with speaking("--nodes", "8", "--interval", "600") as speaker:
        speaker.read_until(lambda m: m.kind == "sample")
        speaker.process.stdin.close()
        assert speaker.process.wait(60) in ENDED


@pytest.mark.parametrize("args", [["--nodes", "0"], ["--nodes", "2", "--interval", "0"], []])
def test_bad_numbers_are_one_line(args: list[str]) -> None:
    command = [sys.executable, "-m", "mltop.probes.demo.fleet", *args]
    done = subprocess.run(command, env={"PYTHONPATH": ROOT}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "--nodes" in done.stderr


@pytest.mark.serial
def test_64_nodes_cost_a_small_share_of_a_core() -> None:
    with speaking("--nodes", "64") as speaker:
        speaker.read_until(lambda m: m.kind == "sample")
        speaker.read_until(lambda m: m.kind == "sample" and m.node == "sim064")
        before, started = cpu_s(speaker.process.pid), time.monotonic()
        speaker.read_until(lambda m: time.monotonic() - started > 4.0)
        share = (cpu_s(speaker.process.pid) - before) / (time.monotonic() - started)
        assert share < 0.25, f"{share:.1%}"  # measured 2 to 5 %
