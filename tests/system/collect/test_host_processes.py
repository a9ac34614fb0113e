"""Blocked processes and zombies: in a tree on disk, and a real one that the kernel holds in state D."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.host.processes import Processes
from mltop.probes.model import BlockedProcess, RankSample
from tests.cpu import children_of
from tests.fakes.proctree import ProcTree
from tests.processes import state_of
from tests.waiting import wait_until


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path)
    tree.add(100, argv=["/usr/sbin/sshd"])
    tree.python(200, "train.py")
    tree.fork(200, 201)
    tree.add(300, argv=["/usr/bin/nvidia-smi"])
    return tree


@pytest.fixture
def source(tree: ProcTree) -> Processes:
    return Processes(str(tree.root.parent))


def blocked(source: Processes, now: float, ranks: list[RankSample] | None = None) -> list[tuple[int, float]]:
    return [(one.pid, one.blocked_s) for one in source.read(now, ranks or []).values["blocked"]]


def test_who_is_blocked_since_when_and_where(tree: ProcTree, source: Processes) -> None:
    tree.change(300, state="D", wchan="os_acquire_mutex")
    tree.change(200, state="D", wchan="0")
    ranks = [RankSample(200, rank=11, state="D")]
    source.read(0.0, ranks)
    assert source.read(2.5, ranks).values["blocked"] == [
        BlockedProcess(200, "python3.11", 2.5, None, 11, 0),
        BlockedProcess(300, "nvidia-smi", 2.5, "os_acquire_mutex", None, 0),
    ]
    tree.change(300, state="S")
    assert blocked(source, 3.0, ranks) == [(200, 3.0)]
    tree.change(300, state="D")
    assert any((300, 0.0) in blocked(source, float(now), ranks) for now in range(4, 15))


def test_one_that_blocks_later_is_found_within_ten_seconds(tree: ProcTree, source: Processes) -> None:
    assert blocked(source, 0.0) == []
    tree.change(100, state="D")
    found = [now for now in range(1, 21) if blocked(source, float(now))]
    assert found[0] <= 10 and found == list(range(found[0], 21))


def test_ranks_and_their_children_are_found_at_once(tree: ProcTree, source: Processes) -> None:
    source.read(0.0, [])
    tree.change(200, state="D")
    tree.change(201, state="D")
    assert blocked(source, 1.0, [RankSample(200, state="S", children=[201], children_blocked=0)]) == []
    assert blocked(source, 2.0, [RankSample(200, state="D", children=[201], children_blocked=0)]) == [(200, 0.0)]
    ranks = [RankSample(200, state="D", children=[201], children_blocked=1)]
    assert blocked(source, 3.0, ranks) == [(200, 1.0), (201, 0.0)]


@pytest.mark.parametrize("work", [{"user_ticks": 1}, {"start_ticks": 5}])
def test_one_that_works_in_between_is_not_stuck(tree: ProcTree, source: Processes, work: dict[str, int]) -> None:
    tree.change(100, state="D")
    source.read(0.0, [])
    assert blocked(source, 5.0) == [(100, 5.0)]
    tree.change(100, **work)
    assert blocked(source, 6.0) == [(100, 0.0)]
    assert blocked(source, 7.0) == [(100, 1.0)]


def test_of_many_the_ranks_are_shown_and_the_rest_is_told(tree: ProcTree, source: Processes) -> None:
    for pid in range(1000, 1060):
        tree.add(pid, argv=["/bin/cat"], state="D")
    tree.change(200, state="D")
    reading = source.read(0.0, [RankSample(200, state="D")])
    assert len(reading.values["blocked"]) == 40 and reading.values["blocked"][0].pid == 200
    assert [gap.why for gap in reading.gaps] == ["61 processes or more are blocked: 40 of them are shown"]


def test_zombies_are_counted_once_in_ten_seconds(tree: ProcTree, source: Processes) -> None:
    tree.die(201)
    assert source.read(0.0, []).values["zombies"] == 1
    tree.die(300)
    assert [source.read(float(now), []).values["zombies"] for now in range(1, 22)][-1] == 2
    tree.remove(201)
    tree.remove(300)
    assert [source.read(float(now), []).values["zombies"] for now in range(22, 44)][-1] == 0


def test_a_clock_that_goes_back_and_odd_processes_do_no_harm(tree: ProcTree, source: Processes) -> None:
    (tree.root / "400").mkdir()
    (tree.root / "401").mkdir()
    (tree.root / "401" / "stat").write_bytes(b"\xff\0(")
    tree.add(2, ppid=0, comm="kthreadd", kernel_thread=True)
    tree.change(100, state="D")
    assert blocked(source, 50.0) == [(100, 0.0)]
    assert blocked(source, 10.0) == [(100, 0.0)]
    (tree.root / "100" / "task" / "100" / "stat").write_text("100 (sshd) D 1 2")
    assert blocked(source, 11.0) == []


def test_a_proc_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    reading = Processes(str(tmp_path)).read(0.0, [])
    assert [gap.what for gap in reading.gaps] == ["host.{zombies,blocked}"]
    assert reading.values == {"blocked": []}


# clone(2) with CLONE_VFORK: the parent waits in state D until its child has ended.
HELD = """
import ctypes, os, time
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if ctypes.CDLL(None).syscall(number, 0x4000 | 17, 0, 0, 0, 0) == 0:
    time.sleep(600)
"""


@pytest.fixture
def held() -> Iterator[int]:
    # A shell between us: processes that we started ourselves are never told of.
    shell = subprocess.Popen(
        ["/bin/sh", "-c", f"'{sys.executable}' -c \"$PROGRAM\" & echo $!; wait"],
        env={**os.environ, "PROGRAM": HELD},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        # Not only while it is started: it is held as long as the child of its vfork lives.
        wait_until(lambda: children_of(pid) and state_of(pid) == "D", what="state D")
        yield pid
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        assert shell.stdout is not None
        shell.stdout.close()


def test_a_real_process_that_the_kernel_holds(held: int) -> None:
    source = Processes("")
    found = {one.pid: one for one in source.read(100.0, []).values["blocked"]}
    assert found[held].blocked_s == 0.0 and found[held].name.startswith("python")
    later = {one.pid: one for one in source.read(160.0, []).values["blocked"]}
    assert later[held].blocked_s == 60.0
    assert later[held].wchan is None or "vfork" in later[held].wchan or later[held].wchan.isidentifier()
    source.close()


def test_real_zombies_are_counted() -> None:
    before = Processes("").read(0.0, []).values["zombies"]
    child = subprocess.Popen(["/bin/true"])
    wait_until(lambda: state_of(child.pid) == "Z", what="a zombie")
    source = Processes("")
    assert source.read(0.0, []).values["zombies"] >= 1 and before is not None
    child.wait()
    source.close()
