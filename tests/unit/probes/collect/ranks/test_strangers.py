"""Processes of several users on one node: nobody's hides another's, and what any of them claims costs little."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.ranks.identity import Identity, identify
from mltop.probes.collect.ranks.roster import MOST_RANKS_OF_A_USER, find_ranks
from mltop.probes.collect.ranks.table import Process
from mltop.probes.model import Gap, RankSample
from tests.fakes.proctree import ProcTree

ALICE, MALLORY = 1000, 1001
MANY = 20_000


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def environ(rank: object, world_size: object = 2, **more: object) -> dict[str, str]:
    values = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", **more}
    return {name: str(value) for name, value in values.items()}


def look(tree: ProcTree, gpus: dict[int, list[int]] | None = None) -> tuple[list[RankSample], list[Gap]]:
    return RankSource(str(tree.root)).read(0.0, gpus or {})


def process(pid: int, ppid: int = 1, uid: int = MALLORY, rank: int = 0, job: str = "") -> Process:
    identity = Identity("env", rank, 2, world_size=1, job=job or f"job-{pid}")
    image = (b"%d" % pid, b"", b"")
    return Process(pid, pid, ppid, 1, "python", "S", image, uid=uid, argv=["python"], role="python", identity=identity)


def test_a_better_claim_of_another_user_takes_no_rank_away(tree: ProcTree) -> None:
    """A child of a shell counts more than a detached process: of one user's, not of two."""
    tree.add(20, argv=["/venv/bin/python", "train.py"], exe="/usr/bin/python3", environ=environ(0), uid=ALICE)
    tree.add(30, argv=["/bin/bash"], uid=MALLORY)
    for pid in (31, 32):
        tree.add(
            pid, ppid=30, argv=["/venv/bin/python", "t.py"], exe="/usr/bin/python3", environ=environ(0), uid=MALLORY
        )
    found, _ = look(tree)
    assert sorted((rank.pid, rank.uid) for rank in found) == [(20, ALICE), (31, MALLORY), (32, MALLORY)]


def test_a_strangers_zombie_is_no_dead_rank_of_ours(tree: ProcTree) -> None:
    tree.add(10, argv=["/venv/bin/torchrun"], exe="/usr/bin/python3", uid=ALICE)
    tree.add(20, ppid=10, argv=["/venv/bin/python", "t.py"], exe="/usr/bin/python3", environ=environ(0), uid=ALICE)
    tree.add(21, ppid=10, comm="python3", state="Z", uid=MALLORY)
    tree.add(22, ppid=10, comm="python3", state="Z", uid=ALICE)
    found, _ = look(tree)
    assert [(rank.pid, rank.state, rank.uid) for rank in found] == [(20, "S", ALICE), (22, "Z", ALICE)]


@pytest.mark.parametrize(
    ("fields", "rank", "world_size", "said"),
    [
        ({"RANK": "-5"}, None, 2, "RANK=-5"),
        ({"RANK": "999999999999"}, None, 2, "RANK=999999999999"),
        ({"WORLD_SIZE": "999999999999"}, 0, None, "WORLD_SIZE=999999999999"),
        ({"WORLD_SIZE": "9" * 100_000}, 0, None, "WORLD_SIZE=" + "9" * 24 + "…"),
        ({"RANK": "9" * 5000}, None, 2, "RANK=" + "9" * 24 + "…"),
        ({"LOCAL_WORLD_SIZE": "-1000"}, 0, 2, "LOCAL_WORLD_SIZE=-1000"),
    ],
)
def test_numbers_that_cannot_be_are_unknown_and_said(
    tree: ProcTree, fields: dict[str, str], rank: int | None, world_size: int | None, said: str
) -> None:
    tree.add(
        20,
        argv=["/venv/bin/python", "t.py"],
        exe="/usr/bin/python3",
        uid=MALLORY,
        environ={**environ(0), **fields},
    )
    (found,), gaps = look(tree)
    assert (found.rank, found.world_size) == (rank, world_size)
    (gap,) = gaps
    assert gap.what == "ranks"
    assert gap.why.startswith("pid 20 of ")
    assert f" has {said}: " in gap.why


def test_minus_one_is_how_a_program_says_that_it_is_no_rank() -> None:
    assert identify(environ(-1, -1)) is None


def test_slurms_list_of_tasks_may_hold_anything() -> None:
    for text in ("9" * 10_000, "8(x" + "9" * 10_000 + ")", "8(x2"):
        found = identify(
            {
                "SLURM_JOB_ID": "1",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "0",
                "SLURM_NODEID": "9" * 10_000,
                "SLURM_STEP_TASKS_PER_NODE": text,
            }
        )
        assert found is not None
        assert found.local_world_size is None


def test_names_of_jobs_are_bounded() -> None:
    found = identify({**environ(0), "TORCHELASTIC_RUN_ID": "x" * 100_000, "MASTER_ADDR": "y" * 100_000})
    assert found is not None
    assert len(found.job) == 256
    assert found.master_address is not None
    assert len(found.master_address) == 256


def test_of_a_user_with_too_many_ranks_some_are_shown_and_nobody_elses_are_missed(tree: ProcTree) -> None:
    everyone = {pid: process(pid) for pid in range(10, 10 + MANY)}
    everyone[5] = process(5, uid=ALICE, job="hers")
    ranks, _ = find_ranks(everyone, gpu_pids={MANY})
    mallorys = [rank.process.pid for rank in ranks if rank.process.uid == MALLORY]
    assert len(mallorys) == MOST_RANKS_OF_A_USER
    assert MANY in mallorys  # who holds a GPU computes
    assert [rank.job for rank in ranks if rank.process.uid == ALICE] == ["hers"]


def test_that_some_are_not_looked_at_is_said(tree: ProcTree) -> None:
    for pid in range(100, 100 + MOST_RANKS_OF_A_USER + 5):
        tree.add(pid, argv=["python"], exe="/usr/bin/python3", environ=environ(0, 1, MASTER_PORT=pid), uid=MALLORY)
    found, gaps = look(tree)
    assert len(found) == MOST_RANKS_OF_A_USER
    assert any(f"{MOST_RANKS_OF_A_USER} ranks or more" in gap.why for gap in gaps)


@pytest.mark.parametrize("same", [True, False])
def test_processes_nested_in_each_other_cost_no_more_than_beside_each_other(same: bool) -> None:
    """Each has all others above or below it: going through these for each would take minutes."""
    everyone = {pid: process(pid, ppid=pid - 1, rank=0 if same else pid, job="one") for pid in range(10, 10 + MANY)}
    ranks, _ = find_ranks(everyone, set())
    assert [rank.process.pid for rank in ranks] == [10]
