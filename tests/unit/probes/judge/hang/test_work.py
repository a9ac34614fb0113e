"""A rank outside collectives may be at work for all: a checkpoint, an evaluation, a busy helper."""

from __future__ import annotations

import pytest

from mltop.probes.model import Verdict
from tests.builders.stack_evidence import (
    C10D,
    Child,
    Rank,
    Stack,
    Thread,
    all_reduce,
    compute,
    dataset,
    evidence,
    judge_job,
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
    [(None, "low"), (50.0, "low"), (55.0, "medium"), (110.0, "medium"), (115.0, "high")],
)
def test_a_rank_that_computes_is_accused_by_and_by(how: str, quiet_s: float | None, confidence: str) -> None:
    verdict = judged(BUSY[how], quiet_s)
    assert verdict.confidence == confidence
    assert verdict.culprits[0].reason.startswith("loops or computes")
    assert (LOOK_AGAIN in verdict.evidence) == (confidence != "high")


def test_a_rank_that_sleeps_is_accused_at_once() -> None:
    verdict = judged(Rank(dataset(), cpu=0.01, main_cpu_s_per_s=0.0001))
    assert verdict.confidence == "high"
    assert verdict.culprits[0].reason.startswith("is stuck")
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
def test_one_that_sleeps_below_a_checkpoint_is_given_a_minute(function: str, file: str) -> None:
    """It may be the storage that is slow, and the job be well."""
    stuck = stack(("write", "job/io.py", 3), (function, file, 9), *main_frames(58))
    early = judged(Rank(stuck), quiet_s=40.0)
    assert (early.kind, early.confidence) == ("suspect", "low")
    assert LOOK_AGAIN in early.evidence
    late = judged(Rank(stuck), quiet_s=56.0)
    assert (late.kind, late.confidence) == ("hang", "high")
    assert LOOK_AGAIN not in late.evidence


def barrier(name: str = "barrier") -> Stack:
    return stack((name, "torch/distributed/distributed_c10d.py", 9), *main_frames(58), waiting_in=name)


@pytest.mark.parametrize("wait", ["barrier", "broadcast", "scatter_object_list"])
def test_the_first_rank_that_keeps_the_others_in_a_barrier_is_given_a_minute(wait: str) -> None:
    """Whatever it does there, all scripts let it do it: download, unpack, write, build."""

    def of(culprit: int, quiet_s: float, held: str) -> Verdict:
        ranks = {number: Rank(barrier(held), quiet_s=quiet_s) for number in range(4) if number != culprit}
        verdict = judge_job(evidence({**ranks, culprit: Rank(stack(("unpack", "job/io.py", 3), *main_frames(57)))}))
        assert [one.rank for one in verdict.culprits] == [culprit]
        return verdict

    early, late = of(0, 40.0, wait), of(0, 60.0, wait)
    assert (early.kind, early.confidence, late.kind, late.confidence) == ("suspect", "low", "hang", "high")
    assert LOOK_AGAIN in early.evidence
    assert of(2, 40.0, wait).kind == of(0, 40.0, "all_reduce").kind == "hang"


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
    assert culprit.reason == ("waits for its thread ThreadPoolExecutor-1_0, which is stuck in worker_fn (job/io.py:12)")
    assert (culprit.where, culprit.pid, verdict.confidence) == ("worker_fn (job/io.py:12)", 4002, "high")


def test_the_thread_that_a_rank_joins_is_named_and_its_children_are_not() -> None:
    rank = Rank(thread_join(), threads=[Thread("Thread-1", own_thread())], children=[Child(4711, worker_stuck())])
    verdict = judged(rank)
    assert "waits for its thread Thread-1, which is stuck in worker_fn" in verdict.culprits[0].reason
    assert verdict.confidence == "high"


def test_a_process_pool_leads_to_its_process_not_to_a_thread_beside_it() -> None:
    rank = Rank(future_wait(), threads=[Thread("metrics", own_thread())], children=[Child(4711, worker_stuck())])
    culprit = judged(rank).culprits[0]
    assert (culprit.pid, culprit.child_pid) == (4002, 4711)
    assert "waits for its child process 4711, which is stuck in DS.__getitem__" in culprit.reason


def test_a_thread_at_work_is_given_time() -> None:
    moving = Thread("ThreadPoolExecutor-1_0", lambda turn: pool_thread(10 + turn))
    verdict = judged(Rank(future_wait(), threads=[moving]))
    assert "which is busy in worker_fn" in verdict.culprits[0].reason
    assert verdict.confidence == "low"


def test_a_pool_without_a_thread_at_work_is_said_to_be_so() -> None:
    verdict = judged(Rank(future_wait()))
    assert "none is in code of the script" in verdict.culprits[0].reason
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
    where = "fetch (job/case.py:31) [run, subprocess.py:550]"
    assert (culprit.child_pid, culprit.where, verdict.confidence) == (1234, where, "high")


def test_a_program_that_runs_is_given_time() -> None:
    copying = Child(1234, None, error="not Python: rsync", key=str)
    verdict = judged(Rank(program_wait(), children=[copying]))
    assert verdict.confidence == "low"
    assert LOOK_AGAIN in verdict.evidence


def test_a_python_child_at_work_goes_before_programs() -> None:
    children = [Child(1234, None, error="not Python: sleep", key="k"), Child(4711, worker_stuck())]
    assert judged(Rank(program_wait(), children=children)).culprits[0].child_pid == 4711


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


def garbage() -> Stack:
    native = (("gc_collect_main", "Modules/gcmodule.c", 1200), ("PyGC_Collect", "Modules/gcmodule.c", 2000))
    return stack(*native, *main_frames(58))


def test_a_garbage_collection_is_suspected_and_says_what_helps() -> None:
    verdict = judged(Rank(garbage(), cpu=0.9))
    assert (verdict.kind, verdict.confidence) == ("suspect", "low")
    assert "collects garbage" in verdict.culprits[0].reason
    assert "gc.collect()" in verdict.culprits[0].reason


def event_loop() -> Stack:
    loop = (("select", "selectors.py", 468), ("_run_once", "asyncio/base_events.py", 1900))
    return stack(*loop, ("run_forever", "asyncio/base_events.py", 600), *main_frames(90))


def test_an_idle_event_loop_is_no_culprit() -> None:
    """The server of an inference engine, whose workers wait for it: no request has come."""
    waiting = {number: Rank(all_reduce()) for number in (1, 2, 3)}
    verdict = judge_job(evidence({**waiting, 0: Rank(event_loop())}))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])
    assert any("an event loop without work" in line for line in verdict.evidence)
    verdict = judge_job(evidence({**waiting, 0: Rank(event_loop()), 4: Rank(dataset())}))
    assert [one.rank for one in verdict.culprits] == [4]
    standing = {number: Rank(compute(), wchan="futex_do_wait") for number in (1, 2, 3, 4)}
    verdict = judge_job(evidence({**standing, 0: Rank(event_loop(), wchan="ep_poll")}))
    assert verdict.culprits == []


def loop_below(function: str) -> Stack:
    loop = (("select", "selectors.py", 468), ("_run_once", "asyncio/base_events.py", 1900))
    return stack(*loop, ("run_forever", "asyncio/base_events.py", 600), (function, "job/case.py", 12), *main_frames(90))


def test_an_event_loop_that_the_collectives_own_function_began_is_waited_for() -> None:
    """It awaits something that does not come; a server's loop is none of that function's."""

    def of(function: str, wait: str) -> Verdict:
        waits = stack(
            (wait, "torch/distributed/x.py", 9), ("step", "job/case.py", 20), *main_frames(90), waiting_in=wait
        )
        return judge_job(evidence({**{number: Rank(waits) for number in (0, 1, 3)}, 2: Rank(loop_below(function))}))

    verdict = of("step", "all_reduce")
    assert (verdict.kind, [one.rank for one in verdict.culprits]) == ("hang", [2])
    assert verdict.culprits[0].where.startswith("step (job/case.py:12)")
    assert of("serve", "all_reduce").culprits == of("step", "broadcast").culprits == []


def test_an_event_loop_below_which_the_others_run_the_collective_in_a_thread_is_waited_for() -> None:
    pool = (("run", "concurrent/futures/thread.py", 58), ("_worker", "concurrent/futures/thread.py", 83))
    reduces = stack(
        ("all_reduce", "torch/distributed/x.py", 9), ("step", "job/case.py", 3), *pool, waiting_in="all_reduce"
    )
    trains = {n: Rank(loop_below("run"), threads=[Thread("asyncio_0", reduces)]) for n in (0, 1, 3)}
    verdict = judge_job(evidence({**trains, 2: Rank(loop_below("run"))}))
    assert [one.rank for one in verdict.culprits] == [2]


SCRIPT = (("main", "job/case.py", 88), ("<module>", "job/case.py", 90))
ASYNCIO = (
    ("BaseEventLoop.run_forever", "asyncio/base_events.py", 607),
    ("BaseEventLoop.run_until_complete", "asyncio/base_events.py", 640),
    ("run", "asyncio/runners.py", 190),
)
# As py-spy shows them: what an idle loop stands in, and what stands between the loop and a coroutine that it runs.
LOOPS = {
    "asyncio": (
        (("EpollSelector.select", "selectors.py", 468), ("BaseEventLoop._run_once", "asyncio/base_events.py", 1884)),
        (("Handle._run", "asyncio/events.py", 80), ("BaseEventLoop._run_once", "asyncio/base_events.py", 1922)),
        ASYNCIO,
    ),
    "asyncio of Python 3.8": (
        (("select", "selectors.py", 468), ("_run_once", "asyncio/base_events.py", 1823)),
        (("_run", "asyncio/events.py", 81), ("_run_once", "asyncio/base_events.py", 1859)),
        (("run_forever", "asyncio/base_events.py", 570), ("run", "asyncio/runners.py", 44)),
    ),
    "uvloop": (
        (),
        (("run.<locals>.wrapper", "uvloop/__init__.py", 48),),
        (("Runner.run", "asyncio/runners.py", 118), ("run", "uvloop/__init__.py", 92)),
    ),
    "trio": (
        (("EpollIOManager.get_events", "trio/_core/_io_epoll.py", 243), ("run", "trio/_core/_run.py", 2535)),
        (("unrolled_run", "trio/_core/_run.py", 2866), ("run", "trio/_core/_run.py", 2532)),
        (),
    ),
}


def in_loop(kind: str, operation: str | None, script: tuple[tuple[str, str, int], ...] = SCRIPT, **ints: int) -> Stack:
    idle, runs, loop = LOOPS[kind]
    if operation is None:
        return stack(*idle, *loop, *script)
    shown = stack((operation, C10D, 2900), ("train", "job/case.py", 20), *runs, *loop, *script, waiting_in=operation)
    shown.frames[0].ints.update(ints)
    return shown


def with_idle(idle: Stack, *waits: Stack) -> Verdict:
    """Rank 2 is ``idle``."""
    return judge_job(evidence({2: Rank(idle), **{(0, 1, 3)[at]: Rank(each) for at, each in enumerate(waits)}}))


@pytest.mark.parametrize("kind", LOOPS)
def test_an_idle_loop_is_suspected_where_the_others_run_the_collective_in_it(kind: str) -> None:
    verdict = with_idle(in_loop(kind, None), *[in_loop(kind, "all_reduce")] * 3)
    assert (verdict.kind, [one.rank for one in verdict.culprits]) == ("suspect", [2])
    assert "its event loop is idle" in verdict.culprits[0].reason
    elsewhere = (("main", "job/case.py", 89), *SCRIPT[1:])  # begun at another line: it may serve there
    assert with_idle(in_loop(kind, None, elsewhere), *[in_loop(kind, "all_reduce")] * 3).culprits == []


def test_the_source_of_a_broadcast_may_serve_and_who_else_is_idle_has_not_come() -> None:
    idle = in_loop("asyncio", None)
    assert with_idle(idle, *[in_loop("asyncio", "broadcast", src=2)] * 3).culprits == []
    assert [one.rank for one in with_idle(idle, *[in_loop("asyncio", "broadcast", src=0)] * 3).culprits] == [2]
    ahead = [in_loop("asyncio", "all_gather")] * 2  # of a collective with a source some come out before the others
    assert [one.rank for one in with_idle(idle, in_loop("asyncio", "broadcast", src=0), *ahead).culprits] == [2]
    assert with_idle(idle, in_loop("asyncio", "all_reduce"), *ahead).culprits == []


def test_an_idle_loop_in_the_same_step_is_suspected_and_one_in_the_same_epoch_is_not() -> None:
    def of(name: str, value: int) -> list[int | None]:
        idle, waits = in_loop("asyncio", None, main_frames(30)), all_reduce(60)
        for shown in (idle, waits):
            next(frame for frame in shown.frames if frame.function == "train").ints[name] = value
        return [one.rank for one in with_idle(idle, waits, waits, waits).culprits]

    assert (of("step", 4), of("step", 0), of("epoch", 4)) == ([2], [], [])


def test_beside_a_rank_that_stands_elsewhere_no_idle_loop_is_accused() -> None:
    trains = in_loop("asyncio", "all_reduce")
    verdict = with_idle(in_loop("asyncio", None), trains, trains, dataset())
    assert [one.rank for one in verdict.culprits] == [3]


def test_the_thread_that_an_idle_loop_has_given_work_to_is_told() -> None:
    pool = (("_WorkItem.run", "concurrent/futures/thread.py", 58), ("_worker", "concurrent/futures/thread.py", 83))
    idle = Rank(in_loop("asyncio", None), threads=[Thread("asyncio_0", stack(("load", "job/io.py", 7), *pool))])
    trains = {number: Rank(in_loop("asyncio", "all_reduce")) for number in (0, 1, 3)}
    (culprit,) = judge_job(evidence({**trains, 2: idle})).culprits
    assert (culprit.rank, culprit.where) == (2, "load (job/io.py:7)")


def test_a_driver_that_waits_at_a_queue_is_put_aside_for_who_stands_elsewhere() -> None:
    verdict = with_idle(prefetched(), all_reduce(), all_reduce(), dataset())
    assert [one.rank for one in verdict.culprits] == [3]
    assert any("next_batch" in line and "nobody is known to wait for it" in line for line in verdict.evidence)


def prefetched() -> Stack:
    above = (("Condition.wait", "threading.py", 327), ("Queue.get", "queue.py", 171))
    return stack(*above, ("next_batch", "job/case.py", 31), *main_frames(55))


def test_the_thread_that_has_to_fill_a_queue_is_named() -> None:
    idle = stack(("Queue.get", "queue.py", 171), ("push", "job/metrics.py", 5), ("Thread.run", "threading.py", 975))
    threads = [Thread("metrics", idle), Thread("prefetch", own_thread())]
    verdict = judged(Rank(prefetched(), threads=threads))
    assert verdict.culprits[0].reason == (
        "waits at a queue; its thread prefetch is stuck in worker_fn (job/io.py:12) and may have to serve it"
    )
    assert (verdict.kind, verdict.confidence) == ("hang", "medium")
    alone = judged(Rank(prefetched(), threads=[Thread("metrics", idle)]))
    assert alone.culprits[0].reason.startswith("is stuck outside any collective")


def test_what_waits_in_the_kernel_for_a_child_waits_for_it_whoever_called() -> None:
    """os.waitpid and os.system have no frames of their own."""
    waits = stack(("convert", "job/case.py", 31), *main_frames(55))
    verdict = judged(Rank(waits, wchan="do_wait", children=[Child(4711, worker_stuck())]))
    assert verdict.culprits[0].child_pid == 4711
    verdict = judged(Rank(waits, wchan="do_wait", children=[Child(1234, None, error="not Python: ffmpeg", key="k")]))
    assert verdict.culprits[0].reason == "waits for its child process 1234 (ffmpeg, state S)"
    verdict = judged(Rank(waits, wchan="do_wait"))
    assert (verdict.confidence, verdict.culprits[0].reason[:8]) == ("high", "is stuck")


@pytest.mark.parametrize(
    ("above", "wchan", "told"),
    [
        ((("lock", "job/io.py", 3),), "flock_lock_inode_wait", "a file lock. Look who holds it: `lslocks`"),
        ((("cmdloop", "cmd.py", 126), ("interaction", "pdb.py", 463)), "n_tty_read", "somebody at a debugger's"),
        ((("readinto", "socket.py", 706), ("urlopen", "urllib/request.py", 1)), None, "an answer over the network"),
    ],
)
def test_what_one_rank_is_known_to_wait_for_is_told_with_its_advice(
    above: tuple[tuple[str, str, int], ...], wchan: str | None, told: str
) -> None:
    verdict = judged(Rank(stack(*above, ("load", "job/case.py", 9), *main_frames(58)), wchan=wchan))
    assert any(line.startswith(f"rank 2 waits for {told}") for line in verdict.evidence), verdict.evidence


def test_one_that_polls_for_a_lock_is_not_said_to_work() -> None:
    def asks(turn: int) -> Stack:
        return stack(("acquire", "filelock/_api.py", 300 + turn % 2), ("prepare", "job/case.py", 9), *main_frames(58))

    verdict = judged(Rank(asks, switches_per_s=20.0, main_cpu_s_per_s=0.01))
    culprit = verdict.culprits[0]
    assert (culprit.how, culprit.reason[:43]) == ("polls", "polls for a file lock while the others wait")
    assert any(line.startswith("rank 2 waits for a file lock. Look who holds it") for line in verdict.evidence)
    assert verdict.kind == "suspect"  # who holds it may be at work
