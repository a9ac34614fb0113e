"""Files that ranks write to, followed: real processes write to real files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mltop.probes.agent.sampler import with_errors
from mltop.probes.collect.logs.follow import LogFollower
from mltop.probes.model import LogLine, RankDeath, RankSample
from tests.waiting import wait_until

TIMEOUT = (
    "[rank{rank}]:[E{stamp} ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds "
    "before timing out.\n"
)
ECHO = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"


def timeout_of(rank: int, ago_s: float = 0.0) -> str:
    stamp = time.strftime("%m%d %H:%M:%S.123456789", time.localtime(time.time() - ago_s))
    return TIMEOUT.format(rank=rank, stamp=stamp.lstrip("0"))


class Writer:
    """A rank: what it is told it writes to its output."""

    def __init__(self, rank: int, path: Path) -> None:
        with path.open("ab") as out:
            self._process = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=out, text=True)
        self.sample = RankSample(self._process.pid, rank, job="j", uid=os.getuid(), started_at=time.time() - 60.0)

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.communicate(timeout=30)


@contextmanager
def following(*writers: Writer) -> Iterator[Callable[[], list[LogLine]]]:
    follower, ranks = LogFollower(), [writer.sample for writer in writers]
    try:
        yield lambda: follower.read(time.time(), ranks)[0]
    finally:
        follower.close()
        for writer in writers:
            writer.end()


def test_a_timeout_is_told_with_rank_and_place(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text("step 1\n")
    rank = Writer(3, path)
    with following(rank) as lines:
        rank.say("step 2\n" + timeout_of(3))
        (line,) = wait_until(lines, what="the line")
    assert (line.kind, line.rank, line.pid, line.job) == ("timeout", 3, rank.sample.pid, "j")
    assert line.where == f"{path}:3" and line.waited_s == 600.021
    assert abs(line.at - time.time()) < 120


def test_one_file_of_several_ranks(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    ranks = [Writer(0, path), Writer(1, path)]
    with following(*ranks) as lines:
        ranks[1].say(timeout_of(1))
        wait_until(lambda: len(lines()) == 1, what="the first line")
        ranks[0].say('Traceback (most recent call last):\n  File "t.py", line 5, in f\nValueError: bad\n')
        found = wait_until(lambda: (now := lines())[1:] and now, what="the second line")
    assert [(line.kind, line.rank) for line in found] == [("timeout", 1), ("fault", None)]


def test_a_traceback_that_ends_the_file_is_whole(tmp_path: Path) -> None:
    rank = Writer(0, tmp_path / "err.log")
    with following(rank) as lines:
        rank.say('Traceback (most recent call last):\n  File "t.py", line 5, in f\nValueError: bad password=hunter2\n')
        (line,) = wait_until(lines, what="the traceback")
    assert line.kind == "fault" and "ValueError" in line.text and "hunter2" not in line.text


def test_the_last_words_of_a_rank_say_why_it_ended(tmp_path: Path) -> None:
    rank = Writer(0, tmp_path / "err.log")
    follower = LogFollower()
    try:
        wait_until(lambda: follower.read(time.time(), [rank.sample]) and follower.follows(1), what="its file")
        rank.say('Traceback (most recent call last):\n  File "t.py", line 5, in f\nValueError: bad')
        rank.end()
        lines = wait_until(lambda: follower.read(time.time(), [])[0], what="its last words")
    finally:
        follower.close()
    ended = RankDeath(rank.sample.pid, 0, how="exit", code=1, told_by="pidfd", started_at=rank.sample.started_at)
    (told,) = with_errors([ended], lines)
    assert (told.error, told.told_by) == ("ValueError: bad", "pidfd, log")
    another = replace(ended, started_at=time.time() + 60.0)  # its pid was used again
    well, known = replace(ended, code=0), replace(ended, error="known")
    assert with_errors([another, well, known], lines) == [another, well, known]


def test_what_stood_there_before_the_process_is_not_its(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text(timeout_of(3, ago_s=600.0))
    rank = Writer(3, path)
    with following(rank) as lines:
        rank.say("x" * (1000) + "\n" + timeout_of(4))
        (line,) = wait_until(lines, what="the new line")
    assert "[Rank 4]" in line.text


def test_a_file_that_was_emptied_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    rank = Writer(3, path)
    with following(rank) as lines:
        rank.say("step 1\n" * 100 + timeout_of(3))
        wait_until(lambda: len(lines()) == 1, what="the first line")
        os.truncate(path, 0)
        rank.say(timeout_of(3))
        wait_until(lambda: len(lines()) == 2, what="the line after it")


def test_pipes_and_processes_that_are_gone_are_no_files() -> None:
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as piped:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        follower = LogFollower()
        ranks = [RankSample(piped.pid, 0), RankSample(gone.pid, 1)]
        try:
            follower.read(time.time(), ranks)
            wait_until(lambda: follower._looking is None, what="the first look")
            assert follower.read(time.time(), ranks) == ([], [])
        finally:
            follower.close()
            piped.communicate()
