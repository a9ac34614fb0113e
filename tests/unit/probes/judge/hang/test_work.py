"""A rank outside collectives may be at work for all: a checkpoint, an evaluation, a busy helper."""

from __future__ import annotations

import pytest

from mltop.probes.judge.hang.verdict import judge_job
from mltop.probes.model import Verdict
from tests.builders.stack_evidence import (
    Child,
    Rank,
    Stack,
    Thread,
    all_reduce,
    compute,
    dataset,
    evidence,
    loader_wait,
    main_frames,
    spin,
    stack,
    worker_stuck,
)

LOOK_AGAIN = "a checkpoint or an evaluation on this rank alone looks the same: look again in a minute"


def judged(culprit: Rank, quiet_s: float | None = None, rounds: int = 4) -> Verdict:
    """Ranks 0, 1 and 3 wait, rank 2 does not; 6 s are watched."""
    ranks = {number: Rank(all_reduce(), quiet_s=quiet_s) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: culprit}, rounds=rounds))
    assert [one.rank for one in verdict.culprits] == [2]
    return verdict


def compressing() -> Stack:
    return stack(("write_archive", "job/case.py", 47), *main_frames(58))


BUSY = {
    "by CPU": Rank(compressing(), cpu=0.96),
    "by its stack": Rank(spin),
    "by its state": Rank(compressing(), state="R", cpu=0.1),
    "by its main thread's CPU time": Rank(compressing(), cpu=0.2, main_cpu_s_per_s=0.2),
}


@pytest.mark.parametrize("how", BUSY)
@pytest.mark.parametrize(
    ("quiet_s", "confidence"),
    [(None, "low"), (20.0, "low"), (25.0, "medium"), (110.0, "medium"), (115.0, "high")],
)
def test_a_rank_that_computes_is_accused_by_and_by(how: str, quiet_s: float | None, confidence: str) -> None:
    verdict = judged(BUSY[how], quiet_s)
    assert verdict.confidence == confidence
    assert verdict.culprits[0].reason.startswith("loops or computes")
    assert (LOOK_AGAIN in verdict.evidence) == (confidence != "high")


def test_a_rank_that_sleeps_is_accused_at_once() -> None:
    verdict = judged(Rank(dataset(), cpu=0.01, main_cpu_s_per_s=0.0001))
    assert verdict.confidence == "high"
    assert verdict.culprits[0].reason.startswith("stands still")
    assert LOOK_AGAIN not in verdict.evidence


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("save_checkpoint", "job/case.py"),
        ("Trainer.evaluate", "job/case.py"),
        ("runValidation", "job/case.py"),
        ("Uploader.push", "job/s3.py"),
        ("fsync_all", "job/case.py"),
        ("save", "torch/serialization.py"),
        ("_write_item", "torch/distributed/checkpoint/filesystem.py"),
    ],
)
def test_one_that_sleeps_below_a_checkpoint_is_given_half_a_minute(function: str, file: str) -> None:
    stuck = stack(("write", "job/io.py", 3), (function, file, 9), *main_frames(58))
    early = judged(Rank(stuck))
    assert early.confidence == "medium"
    assert LOOK_AGAIN in early.evidence
    late = judged(Rank(stuck), quiet_s=25.0)
    assert late.confidence == "high"
    assert LOOK_AGAIN not in late.evidence


@pytest.mark.parametrize("function", ["retrieval", "invalidate_cache", "unsaved", "interval"])
def test_names_that_only_contain_such_a_word_are_no_checkpoint(function: str) -> None:
    assert judged(Rank(stack((function, "job/case.py", 9), *main_frames(58)))).confidence == "high"


def test_a_busy_loader_worker_is_given_time_and_a_stuck_one_is_not() -> None:
    busy = Child(4711, worker_stuck(), state="R")
    assert judged(Rank(loader_wait(), children=[busy])).confidence == "low"
    assert judged(Rank(loader_wait(), children=[Child(4711, worker_stuck())])).confidence == "high"


# Threads of its own


def future_wait() -> Stack:
    above = (("wait", "threading.py", 320), ("Future.result", "concurrent/futures/_base.py", 451))
    return stack(*above, ("load_batch", "job/case.py", 31), *main_frames(55))


def thread_join() -> Stack:
    above = (("_wait_for_tstate_lock", "threading.py", 1112), ("Thread.join", "threading.py", 1092))
    return stack(*above, ("load_batch", "job/case.py", 31), *main_frames(55))


def pool_thread(line: int = 12) -> Stack:
    pool = (("run", "concurrent/futures/thread.py", 58), ("_worker", "concurrent/futures/thread.py", 83))
    return stack(("worker_fn", "job/io.py", line), *pool, ("Thread.run", "threading.py", 975))


def own_thread() -> Stack:
    return stack(("worker_fn", "job/io.py", 12), ("Thread.run", "threading.py", 975))


def test_the_pool_thread_that_a_rank_waits_for_is_named() -> None:
    threads = [Thread("metrics", own_thread()), Thread("ThreadPoolExecutor-1_0", pool_thread())]
    verdict = judged(Rank(future_wait(), threads=threads))
    culprit = verdict.culprits[0]
    assert culprit.reason == ("waits for its thread ThreadPoolExecutor-1_0, which stands in worker_fn (job/io.py:12)")
    assert (culprit.where, culprit.pid, verdict.confidence) == ("worker_fn (job/io.py:12)", 4002, "high")


def test_the_thread_that_a_rank_joins_is_named_and_its_children_are_not() -> None:
    rank = Rank(thread_join(), threads=[Thread("Thread-1", own_thread())], children=[Child(4711, worker_stuck())])
    verdict = judged(rank)
    assert "waits for its thread Thread-1, which stands in worker_fn" in verdict.culprits[0].reason
    assert verdict.confidence == "high"


def test_a_process_pool_leads_to_its_process_not_to_a_thread_beside_it() -> None:
    rank = Rank(future_wait(), threads=[Thread("metrics", own_thread())], children=[Child(4711, worker_stuck())])
    culprit = judged(rank).culprits[0]
    assert culprit.pid == 4711
    assert "waits for its child process 4711, which is stuck in DS.__getitem__" in culprit.reason


def test_a_thread_at_work_is_given_time() -> None:
    moving = Thread("ThreadPoolExecutor-1_0", lambda turn: pool_thread(10 + turn))
    verdict = judged(Rank(future_wait(), threads=[moving]))
    assert "which is busy in worker_fn" in verdict.culprits[0].reason
    assert verdict.confidence == "low"


def test_a_pool_without_a_thread_at_work_is_said_to_be_so() -> None:
    verdict = judged(Rank(future_wait()))
    assert "none stands in code of the script" in verdict.culprits[0].reason
    assert verdict.confidence == "medium"


def test_a_rank_whose_thread_waits_in_a_collective_waits_itself() -> None:
    pool = (("run", "concurrent/futures/thread.py", 58), ("_worker", "concurrent/futures/thread.py", 83))
    reduces = stack(("all_reduce", "torch/distributed/distributed_c10d.py", 9), *pool, waiting_in="all_reduce")
    ranks = {n: Rank(future_wait(), threads=[Thread("ThreadPoolExecutor-1_0", reduces)]) for n in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset())}))
    assert [one.rank for one in verdict.culprits] == [2]


# Programs that are not Python


def program_wait() -> Stack:
    above = (("Popen._try_wait", "subprocess.py", 1990), ("run", "subprocess.py", 550))
    return stack(*above, ("fetch", "job/case.py", 31), *main_frames(55))


def test_a_program_that_a_rank_waits_for_is_named() -> None:
    older = Child(1200, None, error="not Python: wandb-core", key="k")
    sleeping = Child(1234, None, error="not Python: sleep", key="k")
    verdict = judged(Rank(program_wait(), children=[older, sleeping]))
    culprit = verdict.culprits[0]
    assert culprit.reason == "waits for its child process 1234 (sleep, state S) (and 1 more)"
    assert (culprit.pid, culprit.where, verdict.confidence) == (1234, "fetch (job/case.py:31)", "high")


def test_a_program_that_runs_is_given_time() -> None:
    copying = Child(1234, None, error="not Python: rsync", key=str)
    verdict = judged(Rank(program_wait(), children=[copying]))
    assert verdict.confidence == "low"
    assert LOOK_AGAIN in verdict.evidence


def test_a_python_child_at_work_goes_before_programs() -> None:
    children = [Child(1234, None, error="not Python: sleep", key="k"), Child(4711, worker_stuck())]
    assert judged(Rank(program_wait(), children=children)).culprits[0].pid == 4711


def test_programs_beside_the_loader_are_not_what_it_waits_for() -> None:
    verdict = judged(Rank(loader_wait(), children=[Child(1200, None, error="not Python: wandb-core", key="k")]))
    assert verdict.culprits[0].pid == 4002
    assert verdict.culprits[0].reason == "waits for one of its dataloader workers, and none was found"
    assert verdict.confidence == "medium"


# More ranks than cores


def test_ranks_that_share_a_core_compute_and_do_not_stand_still() -> None:
    ranks = {number: Rank(compute(), state="R", cpu=0.12) for number in range(3)}
    verdict = judge_job(evidence({**ranks, 3: Rank(all_reduce())}))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])
    assert "busy: a slow step looks the same" in verdict.evidence[1]
