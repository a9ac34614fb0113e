"""Lines of a probe process, and the words for its end."""

from __future__ import annotations

import signal

import pytest

from mltop.probes.active.child import MOST_LINE_BYTES, Lines, event_of, fields_of
from mltop.probes.active.endings import died, last_words
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.model.probe_kinds import stage_deadline_s


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_lines_come_whole_however_they_are_cut(step: int) -> None:
    data, lines = b"one\n\ntwo\nthree", Lines()
    found = [line for at in range(0, len(data), step) for line in lines.take(data[at : at + step])]
    assert found == [b"one", b"", b"two"]
    assert lines.take(b"!\n") == [b"three!"]


def test_of_a_line_that_is_too_long_nothing_is_kept() -> None:
    lines = Lines()
    assert lines.take(b"a\n" + b"x" * MOST_LINE_BYTES) == [b"a"]
    assert lines.take(b"y") == []
    assert lines.take(b"y\nb\n") == [b"b"]
    assert lines.take(b"x" * (MOST_LINE_BYTES + 1) + b"\nc\n") == [b"c"]


def test_an_event_travels_without_its_defaults() -> None:
    event = ProbeEvent("stage", stage="warm", fraction=0.5)
    assert fields_of(event) == {"event": "stage", "stage": "warm", "fraction": 0.5}
    assert event_of(b'{"event":"stage","stage":"warm","fraction":0.5,"new":1}') == event


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b'{"event":null}',
        b'{"event":"stage","stage":1}',
        b'{"event":"stage","fraction":"half"}',
        b'{"event":"stage","fraction":true}',
        b'{"event":"stage","rank":1.5}',
        b'{"event":"result","data":[]}',
        b'{"event":"result","data":{"x":Infinity}}',
        b'{"event":"result","data":' + b"[" * 50_000,
        b"\xff{",
    ],
)
def test_what_is_no_event(line: bytes) -> None:
    assert event_of(line) is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", ""),
        ("a\n\n b \n", "b"),
        ("ValueError: no\nmore about it\n", "ValueError: no"),
        ("[rank3]: torch.distributed.DistBackendError: NCCL error\n", "torch.distributed.DistBackendError: NCCL error"),
        ("terminate called after throwing\n  what():  [enforce fail at x.cc] size\n", "[enforce fail at x.cc] size"),
        ("loading\nFatal Python error: Segmentation fault\n\nThread 0x1\n", "loading"),
        ("\x1b[31mred\x07\n", "[31mred"),
    ],
)
def test_last_words(said: str, words: str) -> None:
    assert last_words(said) == words


@pytest.mark.parametrize(
    ("code", "said", "oom_killed", "why"),
    [
        (-signal.SIGKILL, "", True, "out of memory: the kernel killed it (SIGKILL)"),
        (-signal.SIGKILL, "", False, "killed by SIGKILL"),
        (-signal.SIGSEGV, "", True, "killed by SIGSEGV"),
        (-64, "", False, "killed by SIGRTMAX"),
        (
            1,
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
            False,
            "out of memory",
        ),
        (127, "sh: 1: exec: /x/python: not found\n", False, "sh: 1: exec: /x/python: not found"),
        (3, "", False, "it ended with exit code 3 and no result"),
    ],
)
def test_why_it_died(code: int, said: str, oom_killed: bool, why: str) -> None:
    assert died(code, "warm", said, oom_killed)[0].startswith(f"died in stage 'warm': {why}")


@pytest.mark.parametrize(
    ("kind", "stage", "ordered", "wanted"),
    [
        ("matmul", "scan", {}, 15.0),
        ("matmul", "scan", {"scan": 3.0}, 3.0),
        ("copies", "to device", {}, 20.0),
        ("all_reduce", "measure 256 MiB", {}, 30.0),
        ("all_reduce", "measure 256 MiB", {"measure": 9.0}, 9.0),
        ("all_reduce", "measure 256 MiB", {"measure": 9.0, "measure 256 MiB": 4.0}, 4.0),
        ("memory", "something new", {}, 30.0),
    ],
)
def test_deadlines(kind: str, stage: str, ordered: dict[str, float], wanted: float) -> None:
    assert stage_deadline_s(kind, stage, ordered) == wanted
