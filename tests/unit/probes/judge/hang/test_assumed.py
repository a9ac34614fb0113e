"""Ranks that wait where no rule says so: all of them poll, or nearly all stand in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.model import Frame, Verdict
from tests.builders.stack_evidence import (
    Child,
    Rank,
    Stack,
    Thread,
    all_reduce,
    compute,
    dataset,
    evidence,
    judge_job,
    main_frames,
    spin,
    stack,
    validation,
)

SLEEP = "hrtimer_nanosleep"
POLLING = {"switches_per_s": 10.0, "main_cpu_s_per_s": 0.001, "wchan": SLEEP}


def marker() -> Stack:
    """``while not os.path.exists(done): time.sleep(0.1)``: the leaf is the user's line."""
    return stack(("wait_for_rank0", "job/case.py", 31), *main_frames(50))


def baton() -> Stack:
    load = (("_jit_compile", "torch/utils/cpp_extension.py", 2100), ("load", "torch/utils/cpp_extension.py", 1600))
    return stack(("wait", "torch/utils/file_baton.py", 64), *load, *main_frames(50))


def file_lock(leaf: bool = False) -> Stack:
    look = (("_acquire", "filelock/_unix.py", 40),) if leaf else ()
    line = 1170 if leaf else 1177
    called = (("acquire", "filelock/_api.py", line), ("__enter__", "filelock/_api.py", 1300))
    return stack(*look, *called, *main_frames(50))


def ranks(count: int, shown: object, **more: object) -> dict[int, Rank]:
    return {number: Rank(shown, **{**POLLING, **more}) for number in range(count)}  # type: ignore[arg-type]


def named(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


@pytest.mark.parametrize(
    ("shown", "what"), [(baton, "the lock file of a C++ extension's build"), (file_lock, "a file lock")]
)
def test_a_stale_lock_that_every_rank_polls_is_a_hang_of_nobody(shown: object, what: str) -> None:
    verdict = judge_job(evidence(ranks(4, shown())))  # type: ignore[operator]
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("hang", [], "medium")
    assert "every rank polls at" in verdict.evidence[0]
    assert what in verdict.evidence[1]
    assert [line.ranks.count for line in verdict.waiting] == [4]


def test_a_known_poll_that_is_caught_at_its_look_is_one_poll() -> None:
    """Its own counters of turns change, and some dumps show what its look calls."""

    def turn_of(turn: int) -> Stack:
        shown = file_lock(leaf=turn % 3 == 1)
        next(frame for frame in shown.frames if frame.function == "acquire").ints["attempt"] = turn
        return shown

    verdict = judge_job(evidence(ranks(4, turn_of)))
    assert (verdict.kind, verdict.culprits) == ("hang", [])


def test_an_unknown_poll_is_no_hang_yet() -> None:
    verdict = judge_job(evidence(ranks(4, marker())))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])
    assert "every rank polls at wait_for_rank0 (job/case.py:31)" in verdict.evidence[0]
    assert "look again in a minute" in verdict.evidence[-1]


@pytest.mark.parametrize(
    ("rhythm_s", "polled_s", "kind"),
    [(None, 55.0, "unclear"), (None, 295.0, "hang"), (2.0, 55.0, "hang"), (30.0, 200.0, "unclear")],
)
def test_an_unknown_poll_is_a_hang_by_and_by(rhythm_s: float | None, polled_s: float, kind: str) -> None:
    given = evidence(ranks(4, marker()))
    given.rhythm_s = rhythm_s
    for seen in given.roster:
        seen.polled_s = polled_s
    verdict = judge_job(given)
    assert (verdict.kind, verdict.culprits) == (kind, [])


def test_a_single_process_that_sleeps_and_looks_is_no_hang() -> None:
    given = evidence(ranks(1, marker()))
    given.roster[0].polled_s = 1000.0
    assert judge_job(given).kind == "unclear"


@pytest.mark.parametrize(
    "more",
    [
        {"syscalls_per_s": 40.0},  # gloo's steps, a log, a loader
        {"main_cpu_s_per_s": 0.2},  # it computes between its sleeps
        {"main_cpu_s_per_s": None},  # nobody knows
        {"wchan": "futex_do_wait"},
        {"wchan": None},
    ],
)
def test_a_slow_step_that_sleeps_in_one_line_moves(more: dict[str, object]) -> None:
    verdict = judge_job(evidence(ranks(4, marker(), **more)))
    assert (verdict.kind, verdict.culprits) == ("moving", [])


def test_a_loop_that_counts_is_no_poll() -> None:
    verdict = judge_job(evidence(ranks(4, lambda turn: compute(step=turn))))
    assert (verdict.kind, verdict.culprits) == ("moving", [])


def test_a_loop_whose_stack_changes_is_no_poll() -> None:
    verdict = judge_job(evidence(ranks(4, lambda turn: compute(48 + turn % 2))))
    assert (verdict.kind, verdict.culprits) == ("moving", [])


@pytest.mark.parametrize("shown", [marker, baton])
def test_who_stands_elsewhere_while_the_others_poll_is_named(shown: object) -> None:
    polling = ranks(4, shown())  # type: ignore[operator]
    verdict = judge_job(evidence({**polling, 2: Rank(dataset(), wchan="pipe_read", main_cpu_s_per_s=0.0)}))
    assert (verdict.kind, named(verdict), verdict.confidence) == ("hang", [2], "medium")
    assert "3 of 4 ranks poll at" in verdict.evidence[0]


@pytest.mark.parametrize(("polled_s", "kind", "suspects"), [(None, "unclear", []), (60.0, "suspect", [0])])
def test_who_works_while_the_others_poll_is_suspected_by_and_by(
    polled_s: float | None, kind: str, suspects: list[int]
) -> None:
    """Rank 0 prepares the data, or compiles the extension that the others wait for."""
    busy = Rank(validation(), switches_per_s=30, syscalls_per_s=90, main_cpu_s_per_s=0.4)
    given = evidence({**ranks(4, marker()), 0: busy})
    for seen in given.roster:
        seen.polled_s = polled_s
    verdict = judge_job(given)
    assert (verdict.kind, named(verdict)) == (kind, suspects)
    assert any("rank 0 not in a collective" in line for line in verdict.evidence)
    program = (("communicate", "subprocess.py", 1200), ("run", "subprocess.py", 550))
    ninja = Child(77, None, state="S", error="not Python: ninja", key=lambda turn: f"k{turn}")
    builds = Rank(stack(*program, ("build", "job/case.py", 60)), main_cpu_s_per_s=0.0, children=[ninja])
    given = evidence({**ranks(4, baton()), 0: builds})
    for seen in given.roster:
        seen.polled_s = polled_s
    verdict = judge_job(given)
    assert (verdict.kind, named(verdict)) == (kind, suspects)


def test_some_poll_and_the_others_wait_in_a_collective_names_nobody() -> None:
    verdict = judge_job(evidence({**ranks(4, baton()), 3: Rank(all_reduce())}))
    assert verdict.culprits == []
    assert any("rank 3 waits in all_reduce" in line for line in verdict.evidence)


def test_half_the_ranks_that_poll_are_no_majority() -> None:
    moving = {number: Rank(validation(), switches_per_s=9, syscalls_per_s=40) for number in (2, 3)}
    verdict = judge_job(evidence({**ranks(2, marker()), **moving}))
    assert (verdict.kind, verdict.culprits) == ("moving", [])


def test_two_looks_show_no_unknown_poll() -> None:
    verdict = judge_job(evidence(ranks(4, marker()), rounds=2))
    assert verdict.culprits == []
    assert verdict.kind != "hang"


def test_a_known_wait_that_does_not_sleep_between_looks_is_no_hang_yet() -> None:
    """Every rank waits for compilers, a download: a first compilation takes minutes."""
    compiling = (("wait", "torch/_inductor/async_compile.py", 300), ("compile", "torch/_inductor/graph.py", 9))
    shown = stack(("wait", "threading.py", 320), *compiling, *main_frames(50))
    standing = ranks(4, shown, switches_per_s=0.0, wchan="futex_do_wait")
    verdict = judge_job(evidence(standing))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])
    assert "every rank polls at" in verdict.evidence[0]
    at_work = evidence(standing)
    for seen in at_work.roster:
        seen.polled_s, seen.sample.children_cpu_fraction = 1000.0, 3.0
    assert judge_job(at_work).kind == "unclear"


# A place where nearly all stand.


def native_call(line: int = 60) -> Stack:
    """``comm.Allreduce(...)`` of mpi4py, or jax's block_until_ready: no frame of its own."""
    return stack(*main_frames(line))


def standing(count: int, **more: object) -> dict[int, Rank]:
    return {number: Rank(native_call(), **more) for number in range(count)}  # type: ignore[arg-type]


def test_the_minority_is_named_where_nearly_all_stand() -> None:
    others = standing(4, wchan="futex_do_wait")
    verdict = judge_job(evidence({**others, 2: Rank(dataset(), wchan="pipe_read")}))
    assert (verdict.kind, named(verdict), verdict.confidence) == ("hang", [2], "medium")
    assert "3 of 4 ranks are at train (job/case.py:60)" in verdict.evidence[0]


def test_it_is_suspected_only_where_the_kernel_shows_no_difference() -> None:
    others = standing(4, wchan="futex_do_wait")
    for wchan in ("futex_do_wait", None):
        verdict = judge_job(evidence({**others, 2: Rank(native_call(70), wchan=wchan)}))
        assert (verdict.kind, named(verdict)) == ("suspect", [2])


def test_ranks_that_spin_in_one_line_wait_only_under_mpi() -> None:
    spinning = standing(4, state="R", cpu=1.0, main_cpu_s_per_s=1.0)
    sleeping = {2: Rank(dataset(), wchan=SLEEP)}
    assert judge_job(evidence({**spinning, **sleeping})).culprits == []
    verdict = judge_job(evidence({**spinning, **sleeping}, launcher="mpirun"))
    assert (verdict.kind, named(verdict)) == ("suspect", [2])
    spinning = standing(4, state="R", cpu=1.0, main_cpu_s_per_s=1.0, quiet_s=60.0, wchan="a")
    verdict = judge_job(evidence({**spinning, **sleeping}, launcher="mpirun"))
    assert (verdict.kind, named(verdict), verdict.confidence) == ("hang", [2], "medium")


def test_under_mpi_the_one_at_another_line_is_suspected_though_all_spin() -> None:
    """Two in a barrier, one in the next all-reduce: all of them run, and nothing of them moves."""
    busy = {"state": "R", "cpu": 0.05, "main_cpu_s_per_s": 0.3}
    other = {2: Rank(native_call(66), **busy)}  # type: ignore[arg-type]
    verdict = judge_job(evidence({**standing(3, **busy), **other}, launcher="mpirun"))
    assert (verdict.kind, named(verdict), verdict.confidence) == ("suspect", [2], "low")
    assert (verdict.culprits[0].how, verdict.culprits[0].where) == ("elsewhere", "train (job/case.py:66)")
    short = judge_job(evidence({**standing(3, **busy), **other}, launcher="mpirun", rounds=3, gap_s=1.0))
    by_hand = judge_job(evidence({**standing(3, **busy), **other}))
    evaluates = judge_job(evidence({**standing(3, **busy), 2: Rank(validation(), **busy)}, launcher="mpirun"))  # type: ignore[arg-type]
    loops = judge_job(evidence({**standing(3, **busy), 2: Rank(spin, **busy)}, launcher="mpirun"))  # type: ignore[arg-type]
    assert [verdict.culprits for verdict in (short, by_hand, evaluates, loops)] == [[]] * 4


@pytest.mark.parametrize(
    "others",
    [
        {0: Rank(validation(), switches_per_s=9, syscalls_per_s=40)},  # it logs, or saves
        {0: Rank(validation(), cpu=0.99, state="R")},  # it computes
        {0: Rank(validation()), 1: Rank(dataset())},  # two places: stages of a pipeline look so
    ],
)
def test_helpers_beside_a_majority_are_not_accused(others: dict[int, Rank]) -> None:
    verdict = judge_job(evidence({**standing(8), **others}))
    assert verdict.culprits == []
    assert verdict.kind != "hang"


def test_a_pipeline_is_no_majority() -> None:
    given = evidence({**standing(4, wchan="a"), 0: Rank(dataset(), wchan="b")})
    for seen in given.roster:
        seen.sample.parallel = {"pp": seen.sample.rank or 0, "pp_size": 4}
    assert judge_job(given).culprits == []


def test_less_than_two_thirds_are_no_majority() -> None:
    rest = {number: Rank(dataset(), wchan="b") for number in (3, 4)}
    assert judge_job(evidence({**standing(3, wchan="a"), **rest})).culprits == []


# How long one rank may work alone.


@pytest.mark.parametrize(
    ("rhythm_s", "quiet_s", "kind"),
    [
        (None, 45.0, "suspect"),
        (None, 56.0, "hang"),
        (2.0, 25.0, "suspect"),
        (2.0, 55.0, "hang"),
        (30.0, 200.0, "suspect"),
        (30.0, 295.0, "hang"),
    ],
)
def test_a_rank_may_compute_alone_for_as_long_as_its_rhythm_allows(
    rhythm_s: float | None, quiet_s: float, kind: str
) -> None:
    waiting = {number: Rank(all_reduce(), quiet_s=quiet_s) for number in (0, 1, 3)}
    for own in (Rank(validation(), cpu=0.98), Rank(stack(("save_checkpoint", "job/case.py", 9), *main_frames()))):
        given = evidence({**waiting, 2: own})
        given.rhythm_s = rhythm_s
        verdict = judge_job(given)
        assert (verdict.kind, named(verdict)) == (kind, [2])


def test_a_rank_that_sleeps_outside_is_accused_at_once_whatever_the_rhythm() -> None:
    given = evidence({**{number: Rank(all_reduce()) for number in (0, 1, 3)}, 2: Rank(dataset())})
    given.rhythm_s = 30.0
    verdict = judge_job(given)
    assert (verdict.kind, verdict.confidence) == ("hang", "high")


def test_the_rank_its_worker_and_its_gpu_are_told() -> None:
    given = evidence({**{number: Rank(all_reduce()) for number in (0, 1, 3)}, 2: Rank(dataset())})
    for seen in given.roster:
        seen.sample.gpus = [(seen.sample.rank or 0) + 4]
    (culprit,) = judge_job(given).culprits
    assert (culprit.pid, culprit.child_pid, culprit.gpu) == (4002, None, 6)


# A lock that a thread of the rank holds.


def lock_wait(leaf: tuple[str, str, int] = ("push", "job/metrics.py", 20)) -> Stack:
    return stack(leaf, *main_frames(58))


def pusher() -> Stack:
    run = (("run", "threading.py", 950), ("_bootstrap", "threading.py", 970))
    return stack(("write", "job/io.py", 3), ("push_blocked", "job/metrics.py", 16), *run)


def locked_out(main: Stack, holds: str = "", acquires: str = "", wchan: str | None = "futex_do_wait") -> Verdict:
    timer = stack(("wait", "threading.py", 320), ("beat", "job/metrics.py", 70), ("run", "threading.py", 950))
    threads = [Thread("timer", timer), Thread("pusher", pusher())]
    given = evidence(
        {**{number: Rank(all_reduce()) for number in (0, 1, 3)}, 2: Rank(main, wchan=wchan, threads=threads)}
    )
    for stacks in given.dumps:
        if stacks.rank == 2:
            stacks.digests[0].acquires = acquires
            stacks.digests[2].holds = [holds] if holds else []
    return judge_job(given)


def test_the_thread_that_holds_the_lock_is_named() -> None:
    verdict = locked_out(lock_wait(), "metrics.lock", "self.lock")
    (culprit,) = verdict.culprits
    assert "waits for a lock that its thread pusher holds, which is stuck in write (job/io.py:3)" in culprit.reason
    assert (culprit.rank, culprit.pid, verdict.kind, verdict.confidence) == (2, 4002, "hang", "high")


def test_without_source_lines_a_thread_in_the_same_file_may_hold_it() -> None:
    verdict = locked_out(lock_wait())
    assert "its thread pusher is stuck in write (job/io.py:3) and may hold it" in verdict.culprits[0].reason
    assert verdict.confidence == "medium"


@pytest.mark.parametrize(
    ("acquires", "holds", "wchan", "leaf"),
    [
        ("", "", "pipe_read", ("push", "job/metrics.py", 20)),  # it waits for no lock
        ("", "", "futex_do_wait", ("fetch", "job/other.py", 20)),  # no thread is anywhere near
    ],
)
def test_a_thread_that_holds_nothing_is_not_named(
    acquires: str, holds: str, wchan: str, leaf: tuple[str, str, int]
) -> None:
    reason = locked_out(lock_wait(leaf), holds, acquires, wchan).culprits[0].reason
    assert "thread" not in reason


@pytest.mark.parametrize("leaf", ["acquire", "handle"])
def test_a_log_handler_that_stands_holds_the_lock_of_all_who_log(leaf: str) -> None:
    log = "logging/__init__.py"
    asks = ((leaf, log, 930),) if leaf == "handle" else (("acquire", log, 930), ("handle", log, 977))
    main = stack(*asks, ("callHandlers", log, 1700), ("info", log, 1500), *main_frames(58))
    emits = (("emit", "job/s3.py", 4), ("handle", log, 978), ("callHandlers", log, 1700), ("push", "job/x.py", 9))
    threads = [Thread("uploader", stack(*emits))]
    waiting = {number: Rank(all_reduce()) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**waiting, 2: Rank(main, threads=threads)}))
    assert "waits for a lock that its thread uploader holds" in verdict.culprits[0].reason


def test_frames_are_not_changed_by_judging() -> None:
    given = evidence(ranks(4, baton()))
    judge_job(given)
    assert all(digest.waiting_in is None for stacks in given.dumps for digest in stacks.digests)
    assert all(isinstance(frame, Frame) for stacks in given.dumps for frame in stacks.digests[0].frames)


def counted(turn: int) -> Stack:
    """``while not os.path.exists(done): time.sleep(0.5); waited += 1``."""
    made = stack(("wait_for_marker", "job/case.py", 31), *main_frames(50))
    made.frames[0].ints["waited"] = turn
    return made


def test_loops_that_sleep_and_count_may_poll_and_are_not_surely_moving() -> None:
    ranks = {number: Rank(counted, switches_per_s=2.0, main_cpu_s_per_s=0.001, wchan=SLEEP) for number in range(4)}
    verdict = judge_job(evidence(ranks))
    assert (verdict.kind, verdict.confidence, verdict.culprits) == ("moving", "low", [])
    assert any("a poll looks the same" in line for line in verdict.evidence)
    works = {number: replace(rank, syscalls_per_s=20.0) for number, rank in ranks.items()}
    assert judge_job(evidence(works)).confidence == "high"
