"""The rank source over time: births, execs, deaths, and what it says of what it cannot see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.collect.ranks import RankSource
from tests.fakes.proctree import ProcTree


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def rank_env(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "run-1"}


def start_job(tree: ProcTree) -> RankSource:
    tree.python(10, "/venv/bin/torchrun", "train.py")
    for rank in (0, 1):
        tree.python(20 + rank, "train.py", ppid=10, environ=rank_env(rank))
    return RankSource(str(tree.root))


def states(source: RankSource, now: float) -> list[tuple[int, int | None, str]]:
    return [(s.pid, s.rank, s.state) for s in source.read(now, {})[0]]


def test_a_process_seen_between_fork_and_exec_is_looked_at_again(tree: ProcTree) -> None:
    tree.python(10, "/venv/bin/torchrun", "train.py")
    source = RankSource(str(tree.root))
    assert states(source, 0.0) == []
    tree.fork(10, 20)
    assert states(source, 1.0) == []
    tree.exec(20, "/venv/bin/python", "train.py", environ=rank_env(0))
    assert states(source, 2.0) == [(20, 0, "S")]


def test_a_late_exec_is_found_within_half_a_minute(tree: ProcTree) -> None:
    tree.add(20, argv=["/bin/bash", "wait_then_exec.sh"], environ=rank_env(0))
    source = RankSource(str(tree.root))
    for now in range(10):
        assert states(source, float(now)) == []
    tree.exec(20, "/venv/bin/python", "train.py")
    assert next(now for now in range(10, 45) if states(source, float(now))) <= 40
    tree.exec(20, "/bin/bash", "again.sh")
    assert next(now for now in range(45, 90) if not states(source, float(now))) <= 76


def test_everything_is_looked_at_again_when_the_clock_goes_back(tree: ProcTree) -> None:
    tree.add(20, argv=["/bin/bash"], environ=rank_env(0))
    source = RankSource(str(tree.root))
    for now in (1000.0, 1001.0, 1002.0):
        states(source, now)
    tree.exec(20, "/venv/bin/python", "train.py")
    assert states(source, 5.0) == [(20, 0, "S")]


def test_a_title_written_over_the_environment_later_changes_nothing(tree: ProcTree) -> None:
    source = start_job(tree)
    states(source, 0.0)
    tree.change(20, environ_bytes=b"\0" * 200, argv=["ray::Worker"])
    for now in range(1, 70):
        assert (20, 0, "S") in states(source, float(now))


def test_a_known_rank_that_dies_stays_known_as_a_zombie(tree: ProcTree) -> None:
    source = start_job(tree)
    tree.fork(21, 31)
    assert states(source, 0.0) == [(20, 0, "S"), (21, 1, "S")]
    tree.die(21)
    for now in range(1, 70):  # its orphan is not taken for a new rank
        assert states(source, float(now)) == [(20, 0, "S"), (21, 1, "Z")]
    sample = source.read(70.0, {})[0][1]
    assert (sample.rss_bytes, sample.wchan, sample.command) == (None, None, "/venv/bin/python train.py")
    tree.remove(21)
    assert states(source, 71.0) == [(20, 0, "S")]


def test_a_rank_that_died_before_mltop_came_is_shown_without_a_number(tree: ProcTree) -> None:
    source = start_job(tree)
    tree.die(21)
    tree.add(22, ppid=10, comm="nvidia-smi", state="Z")
    tree.add(23, ppid=1, comm="python", state="Z")
    samples, gaps = source.read(0.0, {})
    assert [(s.pid, s.rank, s.state, s.job) for s in samples] == [
        (20, 0, "S", "run-1"),
        (21, None, "Z", "run-1"),
    ]
    assert (samples[1].launcher, samples[1].world_size, gaps) == ("torchrun", 2, [])


def test_orphans_of_a_rank_that_vanished_are_no_rank(tree: ProcTree) -> None:
    source = start_job(tree)
    tree.fork(21, 31)
    states(source, 0.0)
    tree.remove(21)
    assert [states(source, float(now)) for now in (1, 2, 40)] == [[(20, 0, "S")]] * 3


def test_a_pid_used_again_is_another_process(tree: ProcTree) -> None:
    source = start_job(tree)
    for now in range(5):
        states(source, float(now))
    tree.remove(21)
    tree.python(21, "other.py", ppid=10, environ=rank_env(7))
    tree.change(21, start_ticks=999_999)
    assert states(source, 5.0) == [(20, 0, "S")]
    assert states(source, 6.0) == [(20, 0, "S"), (21, 7, "S")]


def test_a_main_thread_that_has_not_run_is_read_again_every_five_seconds_only(tree: ProcTree) -> None:
    """Its state and the counts of the whole process are read each second."""
    source = start_job(tree)
    runs = tree.root / "20" / "schedstat"
    runs.write_text("1000000000 5 7\n")

    def seen(now: float) -> tuple[int | None, str | None, int | None, float | None]:
        sample = source.read(now, {})[0][0]
        return sample.voluntary_switches, sample.wchan, sample.read_syscalls, sample.main_cpu_s

    assert seen(0.0) == (0, None, 0, 1.0)
    tree.change(20, switches=3, wchan="futex_wait", reads=9)
    assert seen(1.0) == (0, None, 9, 1.0)
    assert seen(5.0) == (3, "futex_wait", 9, 1.0)
    tree.change(20, switches=4, wchan="poll_wait")
    runs.write_text("2000000000 5 8\n")
    assert seen(6.0) == (4, "poll_wait", 9, 2.0)
    tree.change(20, switches=5, state="D")
    assert seen(7.0)[0] == 5, "another state tells that it has run"


def test_a_kernel_that_does_not_count_runs_is_read_each_second(tree: ProcTree) -> None:
    source = start_job(tree)
    source.read(0.0, {})
    tree.change(20, switches=3)
    sample = source.read(1.0, {})[0][0]
    assert (sample.voluntary_switches, sample.main_cpu_s) == (3, None)


def test_cpu_share_is_of_one_core_between_two_reads(tree: ProcTree) -> None:
    source = start_job(tree)
    first = source.read(0.0, {})[0][0]
    tree.change(20, cpu_ticks=int(1.5 * os.sysconf("SC_CLK_TCK")))
    second = source.read(1.0, {})[0][0]
    assert (first.cpu_fraction, second.cpu_fraction) == (None, 1.5)


def test_a_process_that_disappears_between_two_files_is_left_out(tree: ProcTree) -> None:
    source = start_job(tree)
    states(source, 0.0)
    (tree.root / "21" / "status").unlink()
    assert states(source, 1.0) == [(20, 0, "S")]
    (tree.root / "20" / "stat").write_text("20 (pyth")
    assert states(source, 2.0) == []


def test_an_environment_lost_to_a_process_title_is_told(tree: ProcTree) -> None:
    source = start_job(tree)
    tree.change(21, environ_bytes=b"\0" * 200, argv=["ray::Worker"])
    samples, gaps = source.read(0.0, {})
    assert [s.rank for s in samples] == [0]
    assert gaps[0].what == "ranks" and "1 Python process has written a title" in gaps[0].why


def test_hidepid_that_hides_other_users_is_told(tree: ProcTree) -> None:
    source = start_job(tree)
    tree.mount_options("rw,nosuid,hidepid=invisible")
    assert source.read(0.0, {})[1] == []  # pid 1 is visible: it does not apply to us
    tree.remove(1)
    gaps = RankSource(str(tree.root)).read(0.0, {77: [0]})[1]
    assert [gap.what for gap in gaps] == ["ranks"] and "hidepid=invisible" in gaps[0].why


def test_sysroot_is_put_before_proc(tree: ProcTree) -> None:
    start_job(tree)
    program = (
        "from mltop.probes.collect.ranks import RankSource, read_counters\n"
        "samples, gaps = RankSource().read(0.0, {})\n"
        "print([s.rank for s in samples], [read_counters(s).pid for s in samples], gaps)"
    )
    environ = {**os.environ, "MLTOP_SYSROOT": str(tree.root.parent), "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[0, 1] [20, 21] []\n", "")
