"""Each hanging job of tests/system/cases, dumped for real: what every rank's digest must show."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from mltop.probes.collect.stacks import StackOptions, dump_ranks
from mltop.probes.model import RankSample, RankStacks, StackDigest
from tests.system.cases.launch import RunningJob, start

RANKS = 4
CULPRIT = 2
WAITERS = (0, 1, 3)

# case → (culprit's innermost function in the job's own script, state, waiting_in)
CULPRITS = {
    "sleep_in_dataset": ("Samples.read_blocked", "S", None),
    "slow_validation": ("slow_validation", "S", None),
    "mismatch": ("sync_metrics", "S", "broadcast"),
    "endless_loop": ("spin_forever", "R", None),
    "fifo_read": ("Samples.read_shard", "S", None),
    "uninterruptible": ("Samples.run_decoder", "D", None),
    "skewed_steps": ("all_reduce_grads", "S", "all_reduce"),
}


def samples(job: RunningJob) -> list[RankSample]:
    return [RankSample(pid=pid, rank=rank, job=job.address) for rank, pid in enumerate(job.pids)]


def dump(job: RunningJob, **options: bool) -> list[RankStacks]:
    """All ranks' stacks in rank order. Each rank's counters are its own sample with a new object per call."""
    found: list[RankStacks] = []
    dump_ranks(samples(job), StackOptions(**options), _recount, found.append, threading.Event())
    assert "SECRET" not in repr(found)
    return sorted(found, key=lambda stacks: stacks.rank or 0)


def _recount(rank: RankSample) -> RankSample:
    return RankSample(pid=rank.pid, rank=rank.rank, voluntary_switches=1)


def main_digest(stacks: RankStacks) -> StackDigest:
    assert stacks.digests[0].thread == "MainThread"
    assert stacks.digests[0].child_of is None
    return stacks.digests[0]


def own_functions(digest: StackDigest) -> list[str]:
    # Bare names: Python has qualified ones from 3.11 on only.
    return [
        frame.function.rpartition(".")[2]
        for frame in digest.frames
        if frame.file in ("cases/train.py", "cases/standin.py")
    ]


def assert_waiters_wait(stacks: list[RankStacks]) -> None:
    waiters = [main_digest(stacks[rank]) for rank in WAITERS]
    assert [digest.waiting_in for digest in waiters] == ["all_reduce"] * 3
    for digest in waiters:
        assert own_functions(digest)[:2] == ["all_reduce_grads", "train"]
        assert digest.frames[0].file == "torch/distributed/distributed_c10d.py"
    assert len({digest.key for digest in waiters}) == 1


def step_of(digest: StackDigest) -> int:
    return next(frame.ints["step"] for frame in digest.frames if "step" in frame.ints)


@pytest.mark.parametrize("case", CULPRITS)
def test_hang_in_the_main_thread(case, tmp_path):
    function, state, waiting_in = CULPRITS[case]
    with start(case, tmp_path) as job:
        job.wait_hung()
        stacks = dump(job, raw=True)
    assert_waiters_wait(stacks)
    culprit = main_digest(stacks[CULPRIT])
    assert own_functions(culprit)[0] == function.rpartition(".")[2]
    assert (culprit.state, culprit.waiting_in, culprit.error) == (state, waiting_in, None)
    steps = [step_of(main_digest(found)) for found in stacks]
    assert steps == ([3, 3, 4, 3] if case == "skewed_steps" else [3, 3, 3, 3])
    assert_identity(stacks, job)


def assert_identity(stacks: list[RankStacks], job: RunningJob) -> None:
    for rank, found in enumerate(stacks):
        assert (found.pid, found.rank, found.job, found.node) == (job.pids[rank], rank, job.address, "")
        assert found.before is not None
        assert found.after is not None
        assert found.before is not found.after
        assert 0 < found.took_s < 60
        assert [entry["pid"] for entry in found.raw] == [job.pids[rank]]


def test_stopped_rank_is_read_without_stopping_it(tmp_path):
    with start("sigstop", tmp_path) as job:
        job.wait_hung()
        stacks = dump(job)
    culprit = main_digest(stacks[CULPRIT])
    assert (culprit.state, culprit.error) == ("T", None)
    assert "train" in own_functions(culprit)
    assert_waiters_wait(stacks)


def test_deadlocked_dataloader_worker_is_found_below_its_rank(tmp_path):
    with start("worker_deadlock", tmp_path) as job:
        job.wait_hung()
        stacks = dump(job, raw=True)
        without_children = dump(job, children=False)
    assert_waiters_wait(stacks)
    (worker,) = [digest for digest in stacks[CULPRIT].digests if digest.child_of]
    assert worker.child_of == job.pids[CULPRIT]
    assert worker.pid not in job.pids
    assert own_functions(worker) == ["read_blocked", "__getitem__"]  # and nothing of its parent's train()
    assert worker.frames[-1].function == "_worker_loop"
    assert main_digest(stacks[CULPRIT]).waiting_in is None
    assert [entry["pid"] for entry in stacks[CULPRIT].raw] == [job.pids[CULPRIT], worker.pid]
    # The others have workers too, but do not wait for them.
    assert not any(digest.child_of for rank in WAITERS for digest in stacks[rank].digests)
    assert not any(digest.child_of for found in without_children for digest in found.digests)


def test_killed_rank_is_a_zombie_and_then_gone(tmp_path):
    with start("gone", tmp_path) as job:
        job.wait_hung()
        zombie = dump(job)
        job.reap_culprit()
        gone = dump(job)
    (dead,) = zombie[CULPRIT].digests
    assert (dead.state, dead.frames) == ("Z", [])
    assert dead.error is not None
    assert dead.error.startswith("zombie")
    assert [digest.error for digest in gone[CULPRIT].digests] == ["the process is gone"]
    assert [main_digest(zombie[rank]).waiting_in for rank in WAITERS] == ["all_reduce"] * 3


def test_a_rank_that_was_to_live_is_not_waited_for(tmp_path):
    """Whatever it dies of: the test that waits fails at once, and with what it said."""
    with start("gone", tmp_path) as job:
        os.kill(job.pids[0], signal.SIGKILL)
        with pytest.raises(AssertionError, match=r"of the ranks ended \[0\]\n(.|\n)*rank0.log: "):
            job.wait_hung()


@pytest.mark.parametrize("case", ["healthy_slow", "straggler"])
def test_slow_jobs_move_between_two_dumps(case, tmp_path):
    with start(case, tmp_path) as job:
        job.wait_hung()
        first = {step_of(main_digest(found)) for found in dump(job)}
        for _ in range(200):
            now = {step_of(main_digest(found)) for found in dump(job)}
            if min(now) > max(first):
                return
        raise AssertionError(f"still at the steps {now} after 200 dumps, first {first}")
