"""Ranks that write to a pipe: the files that get it are found by who reads it. A real tee, a real Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from mltop.probes.agent.sampler import with_errors
from mltop.probes.collect.logs.follow import LogFollower, last_lines
from mltop.probes.collect.logs.pipes import PipeReaders
from mltop.probes.model import LogLine, RankDeath, RankSample
from mltop.probes.record import read_recording
from tests.slurm import slurm_cluster
from tests.waiting import wait_until

SAYS = (
    "[E{stamp} ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600021 milliseconds before timing out.\n"
)
ECHO = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"


def timeout_of(rank: int) -> str:
    return SAYS.format(rank=rank, stamp=stamp_of(time.time_ns()))


def stamp_of(at_ns: int) -> str:
    return time.strftime("%m%d %H:%M:%S", time.localtime(at_ns // 10**9)).lstrip("0") + f".{at_ns % 10**9:09d}"


class Piped:
    """Ranks whose outputs are one pipe, read by what the shell runs as ``reader``."""

    def __init__(self, reader: str, folder: Path, ranks: int = 1) -> None:
        self._reader = subprocess.Popen(["bash", "-c", reader], stdin=subprocess.PIPE, cwd=folder)
        assert self._reader.stdin is not None
        self._ranks = [
            subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=self._reader.stdin,
                             stderr=subprocess.STDOUT, text=True)
            for _ in range(ranks)
        ]  # fmt: skip
        self._reader.stdin.close()
        self.samples = [
            RankSample(each.pid, rank, rank, ranks, job="j", uid=os.getuid(), started_at=time.time() - 60.0)
            for rank, each in enumerate(self._ranks)
        ]

    def say(self, text: str, rank: int = 0) -> None:
        stdin: IO[str] | None = self._ranks[rank].stdin
        assert stdin is not None
        stdin.write(text)
        stdin.flush()

    def end_ranks(self) -> None:
        for rank in self._ranks:
            if rank.returncode is None:
                rank.communicate(timeout=30)

    def end(self) -> None:
        self.end_ranks()
        self._reader.wait(30)


@contextmanager
def following(piped: Piped, *samples: RankSample) -> Iterator[Callable[[], list[LogLine]]]:
    follower, ranks = LogFollower(), list(samples) or piped.samples
    try:
        yield lambda: follower.read(time.time(), ranks)[0]
    finally:
        follower.close()
        piped.end()


@pytest.mark.parametrize(
    "reader",
    [
        "exec tee out.log > /dev/null",
        "exec cat > out.log",
        "grep --line-buffered -v nothing | tee -a out.log > /dev/null",
    ],
    ids=["tee", "cat", "several"],
)
def test_what_a_rank_writes_through_a_pipe_is_its_own(reader: str, tmp_path: Path) -> None:
    piped = Piped(reader, tmp_path)
    with following(piped) as lines:
        piped.say("step 1\n" + timeout_of(0))
        (line,) = wait_until(lines, what="the line")
    assert (line.kind, line.rank, line.pid, line.job) == ("timeout", 0, piped.samples[0].pid, "j")
    assert line.where == f"{tmp_path}/out.log:2" and line.waited_s == 600.021


@pytest.mark.parametrize(
    ("launcher", "prefix", "rank"),
    [
        ("torchrun", "[rank1]:", 1), ("torchrun", "[default1]:", 1), ("srun", "1: ", 1),
        ("torchrun", "1: ", None),  # Slurm's task is a node there
        ("torchrun", "", None), ("srun", "7: ", 7), ("torchrun", "[rank7]:", 7),
    ],
)  # fmt: skip
def test_of_several_ranks_the_prefix_tells_whose_it_is(
    launcher: str, prefix: str, rank: int | None, tmp_path: Path
) -> None:
    piped = Piped("exec tee out.log > /dev/null", tmp_path, ranks=2)
    samples = [replace(sample, launcher=launcher) for sample in piped.samples]
    with following(piped, *samples) as lines:
        piped.say(prefix + timeout_of(1), rank=1)
        (line,) = wait_until(lines, what="the line")
    pid = samples[rank].pid if rank is not None and rank < len(samples) else None
    assert (line.rank, line.pid, line.job, line.uid) == (rank, pid, "j", os.getuid())


def test_a_tail_of_one_rank_is_without_the_lines_of_others(tmp_path: Path) -> None:
    piped = Piped("exec tee out.log > /dev/null", tmp_path, ranks=2)
    try:
        piped.say("[rank0]: of 0\nof somebody\n")
        piped.say("[rank1]: of 1\n", rank=1)
        readers = PipeReaders(lambda _: None)
        wait_until(lambda: (tmp_path / "out.log").exists() and len((tmp_path / "out.log").read_text()) > 35)
        behind = wait_until(lambda: readers.files_of(piped.samples), what="its file")
        (tail,) = last_lines(piped.samples[1].pid, 10, behind)
        assert (tail.file, tail.lines) == (f"{tmp_path}/out.log", [line for line in tail.lines if "of 0" not in line])
        assert sorted(tail.lines) == ["[rank1]: of 1", "of somebody"]
        (without,) = last_lines(piped.samples[1].pid, 10)
        assert "pipe" in without.why
    finally:
        piped.end()


def test_the_last_words_come_through_the_pipe_after_the_end(tmp_path: Path) -> None:
    piped = Piped("(until [ -e go ]; do sleep 0.05; done; exec cat) >> out.log", tmp_path)
    follower, rank = LogFollower(lingers_s=60.0), piped.samples[0]
    try:
        wait_until(lambda: follower.read(time.time(), [rank]) and follower.follows(1), what="its file")
        piped.say('Traceback (most recent call last):\n  File "t.py", line 5, in f\nValueError: bad\n')
        piped.end_ranks()
        assert follower.read(time.time(), [])[0] == []
        (tmp_path / "go").touch()
        (line,) = wait_until(lambda: follower.read(time.time(), [])[0], what="its last words")
        assert (line.kind, line.pid) == ("fault", rank.pid) and "ValueError: bad" in line.text
        ended = RankDeath(rank.pid, 0, how="exit", code=1, told_by="pidfd", started_at=rank.started_at)
        assert with_errors([ended], [line])[0].error == "ValueError: bad"
        wait_until(lambda: follower.read(time.time(), []) and not follower.follows(1), 120, "the file's end")
    finally:
        follower.close()
        piped.end()


def test_files_of_others_and_what_is_no_file_are_left_alone(tmp_path: Path) -> None:
    """A terminal or a pipe that nobody reads from would hold up who opens it."""
    os.mkfifo(tmp_path / "fifo")
    out = tmp_path / "out.log"
    piped = Piped("exec tee out.log 3<> fifo > fifo", tmp_path)
    (tmp_path / "own.log").touch()
    with (tmp_path / "own.log").open("ab") as own:
        other = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=own, text=True)
    direct = RankSample(other.pid, 1, job="j", uid=os.getuid(), started_at=time.time() - 60.0)
    strangers = replace(piped.samples[0], uid=os.getuid() + 1)
    try:
        with following(piped, strangers, direct) as lines:
            piped.say(timeout_of(0))
            wait_until(lambda: out.exists() and out.stat().st_size, what="the line in the file")
            assert other.stdin is not None
            other.stdin.write(timeout_of(1))
            other.stdin.flush()
            (line,) = wait_until(lines, what="the other rank's line")
            assert line.rank == 1
            for _ in range(3):
                assert [line.rank for line in lines()] == [1]
    finally:
        other.communicate(timeout=30)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another")
def test_a_file_that_is_not_the_owners_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "out.log").touch()
    os.chown(tmp_path / "out.log", 12345, 12345)
    piped = Piped("exec tee out.log mine.log > /dev/null", tmp_path)
    with following(piped) as lines:
        piped.say(timeout_of(0))
        (line,) = wait_until(lines, what="the line")
    assert line.file == f"{tmp_path}/mine.log"


TRAIN = """
import os, sys, time
rank = int(os.environ["SLURM_PROCID"])
print("step 1", flush=True)
if rank in (1, 3):
    now = time.time_ns()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now // 10**9)).lstrip("0") + f".{{now % 10**9:09d}}"
    sys.stderr.write({says!r}.format(rank=rank, stamp=stamp))
    sys.stderr.flush()
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--label", {("gpu01", 1): True, ("gpu01", 3): False}),
        ("--label -o {directory}/srun.out", {("gpu01", 1): True, ("gpu01", 3): False}),
        ("--label -o {directory}/srun-%t.out", {("gpu01", 1): True, ("gpu02", 3): True}),
    ],
    ids=["the batch script's file", "srun's file", "slurmstepd's files"],
)
def test_of_a_real_slurm_job(options: str, told: dict[tuple[str, int], bool], tmp_path: Path) -> None:
    """``told``: by which node of which rank, and whether that one is there."""
    with slurm_cluster(nodes=2) as slurm:
        train = slurm.directory / "train.py"
        train.write_text(TRAIN.format(says=SAYS))
        given = options.format(directory=slurm.directory)
        job = slurm.submit(f"srun {given} -N2 -n4 {sys.executable} {train}\n", 2, "-n4")
        wait_until(lambda: outputs(slurm.directory).count("Watchdog") == 2, 60, "what two ranks say")
        recording = tmp_path / "r.jsonl"
        slurm.mltop("record", "--job", job, "--via", "srun", "--for", "15", "-o", str(recording))
        samples = [sample for of_node in read_recording(recording).samples.values() for sample in of_node]
        lines = {(sample.node, line.rank): line for sample in samples for line in sample.log_lines}
        assert {place: line.pid is not None for place, line in lines.items()} == told
        assert all(line.kind == "timeout" and line.job == job for line in lines.values())


def outputs(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.glob("*.out"))
