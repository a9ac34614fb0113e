"""Stacks in files: of Python's own faulthandler, in a debug server's dump, in the log of a watchdog."""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path

import pytest

from mltop.probes.collect.records.files import Unusable
from mltop.probes.collect.records.stack_files import failed_collective, parse_stacks, read_stacks
from mltop.probes.judge.hang.classes import merge

HEAD = "Thread 0x00007f3a7c7fe6c0 (most recent call first):"
WAITS = [
    HEAD,
    '  File "/env/lib/python3.11/threading.py", line 320 in wait',
    '  File "/home/ann/llm/metrics.py", line 12 in flush',
    "",
    "Current thread 0x00007f3a8d3fe740 (most recent call first):",
    '  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce',
    '  File "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper',
    '  File "/home/ann/llm/train.py", line 40 in step',
    '  File "/home/ann/llm/train.py", line 80 in <module>',
]
READS = [
    "Thread 0x00007f3a8d3fe740 [python] (most recent call first):",
    '  File "/home/ann/llm/data.py", line 7 in read_shard',
    '  File "/home/ann/llm/train.py", line 38 in step',
]


def dumped(tmp_path: Path, stop: threading.Event) -> Path:
    with (tmp_path / "stacks.txt").open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    stop.set()
    return tmp_path / "stacks.txt"


def test_what_faulthandler_wrote(tmp_path: Path) -> None:
    stop, ready = threading.Event(), threading.Event()

    def read_shard() -> None:
        ready.set()
        stop.wait()

    thread = threading.Thread(target=read_shard)
    thread.start()
    ready.wait()
    main, *others = read_stacks(dumped(tmp_path, stop), rank=3)
    thread.join()
    assert (main.thread, main.rank) == ("MainThread", 3)
    assert [frame.function for frame in main.frames][:2] == ["dumped", "test_what_faulthandler_wrote"]
    assert any("read_shard" in [frame.function for frame in other.frames] for other in others)
    assert main.taken_at == os.stat(tmp_path / "stacks.txt").st_mtime


def test_a_debug_servers_dump_is_merged_as_stacks_are() -> None:
    lines = ["2 of 3 workers answered", ""]
    for rank, stack in ((0, WAITS), (1, READS), (2, WAITS)):
        lines += [f"=== Rank {rank}: http://10.0.0.1:4{rank}17 ===", *stack]
    lines += ["=== Rank 3: http://10.0.0.2:417 ===", "Error: 503"]
    digests = parse_stacks(lines)
    main = [digest for digest in digests if digest.thread == "MainThread"]
    assert [digest.rank for digest in main] == [0, 1, 2]
    classes = merge(main)
    assert {(str(each.ranks), each.waiting_in, each.frames[0].function) for each in classes} == {
        ("0,2", "all_reduce", "all_reduce"),
        ("1", None, "read_shard"),
    }
    assert main[0].frames[0].file == "torch/distributed/distributed_c10d.py"
    assert main[0].frames[-1].user


def test_in_the_middle_of_a_log() -> None:
    lines = ["step 12 loss 2.1", "Timeout (0:10:00)!", *WAITS, "step 13", '  File "/x/y.py", line 3 in not_of_a_stack']
    main, other = parse_stacks(lines, rank=5)
    assert [frame.function for frame in main.frames] == ["all_reduce", "step", "<module>"]
    assert [frame.function for frame in other.frames] == ["wait", "flush"]


LAUNCHED = [
    "[rank0]:[E1103 10:00:05.1 ProcessGroupNCCL.cpp:683] [PG 0 Rank 0] Stack trace of the failed collective: ",
    "#0 all_reduce from /env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2501",
    "#1 wrapper from /env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:83",
    "#2 step from /home/ann/llm/train.py:40",
    "",
    "#0 of something else from /x.py:1",
]


def test_where_a_failed_collective_was_launched() -> None:
    digest = failed_collective(LAUNCHED, rank=0)
    assert digest is not None
    assert [(frame.function, frame.line) for frame in digest.frames] == [("all_reduce", 2501), ("step", 40)]
    assert failed_collective(LAUNCHED[1:]) is None
    assert failed_collective([]) is None


@pytest.mark.parametrize(
    "lines",
    [
        [], ["=== Rank 99999999: x ==="], [HEAD], [HEAD, "  <no Python frame>"], [HEAD] * 1000,
        [HEAD, *['  File "x.py", line 1 in f'] * 5000], [HEAD, '  File "' + "x" * 100_000],
        ["=== Rank 1: " + "=" * 100_000], [HEAD, '  File "x.py", line ??? in f'],
    ],
)  # fmt: skip
def test_strange_ones(lines: list[str]) -> None:
    assert all(len(digest.frames) <= 256 for digest in parse_stacks(lines))


def test_secrets_do_not_leave() -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    (digest,) = parse_stacks([HEAD, f'  File "/x/{token}.py", line 1 in f_{token}'])
    assert token not in repr(digest)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="cannot be opened"):
        read_stacks(tmp_path / "none")
