"""`--native` shows more of a stack and changes nothing that is judged: its frames come and go, with addresses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mltop.probes.judge.hang.classes import merge
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import Frame, StackDigest, Verdict
from tests.builders.stack_evidence import (
    Rank,
    Stack,
    Thread,
    all_reduce,
    dataset,
    evidence,
    judge_job,
    loader_wait,
    main_frames,
    stack,
    waiters,
)

TORCH = "torch/lib/libtorch_cpu.so"


def natives(rank: int, turn: int) -> list[Frame]:
    """One and the same wait, as py-spy shows it in another process and a moment later."""
    return [
        Frame(f"0x7f{rank:02x}{turn:02x}0ca3f16", "x86_64-linux-gnu/libc.so.6", 0),
        *[Frame(f"0x7f{rank:02x}{turn + at:02x}ffff000", "?", 0) for at in range((rank + turn) % 3)],
        Frame("__futex_abstimed_wait_common64", "nptl/futex-internal.c", 57 + turn),
        Frame(f"c10d::Foo<bar{turn}, {rank}>::wait", TORCH, 0),
        Frame("_ZN4c10d4Work4waitENSt6chrono8durationE", "[libtorch_python.so]", 0),
    ]


def with_natives(made: Stack | Callable[[int], Stack], rank: int) -> Callable[[int], Stack]:
    def at(turn: int) -> Stack:
        shown = made(turn) if callable(made) else made
        return Stack([*natives(rank, turn), *shown.frames], shown.waiting_in)

    return at


def both(ranks: dict[int, Rank], rounds: int = 4) -> tuple[Verdict, Verdict]:
    """The verdict without native frames and with them."""
    plain = judge_job(evidence(ranks, rounds=rounds))
    for number, rank in ranks.items():
        rank.stack = with_natives(rank.stack, number)  # type: ignore[arg-type]
        for thread in rank.threads:
            thread.stack = with_natives(thread.stack, number)
    return plain, judge_job(evidence(ranks, rounds=rounds))


def backward() -> Stack:
    return stack(("_engine_run_backward", "torch/autograd/graph.py", 869), *main_frames())


def future_wait() -> Stack:
    above = (("wait", "threading.py", 320), ("Future.result", "concurrent/futures/_base.py", 451))
    return stack(*above, ("load_batch", "job/case.py", 31), *main_frames(55))


def pool_thread() -> Stack:
    pool = (("run", "concurrent/futures/thread.py", 58), ("_worker", "concurrent/futures/thread.py", 83))
    return stack(("worker_fn", "job/io.py", 12), *pool, ("Thread.run", "threading.py", 975))


JOBS: dict[str, Callable[[], dict[int, Rank]]] = {
    "one stands outside": lambda: {**waiters(0, 1, 3), 2: Rank(dataset())},
    "one waits for its worker": lambda: {**waiters(0, 1, 3), 2: Rank(loader_wait())},
    "one waits for its thread": lambda: {
        **waiters(0, 1, 3),
        2: Rank(future_wait(), threads=[Thread("pool-0", pool_thread())]),
    },
    "backward": lambda: {**{number: Rank(backward()) for number in (0, 1, 3)}, 2: Rank(dataset())},
    "one step ahead": lambda: {number: Rank(all_reduce(step=6 if number == 2 else 5)) for number in range(4)},
    "all equal": lambda: waiters(0, 1, 2, 3),
    "two lines": lambda: {**waiters(0, 1, 3), 2: Rank(all_reduce(line=66))},
    "it moves": lambda: {number: Rank(lambda turn: all_reduce(step=turn)) for number in range(4)},
}


@pytest.mark.parametrize("name", JOBS)
def test_the_verdict_is_the_one_without_native_frames(name: str) -> None:
    plain, native = both(JOBS[name]())
    assert native == plain


def test_equal_ranks_are_one_class() -> None:
    given = evidence({number: Rank(with_natives(all_reduce(), number)) for number in range(4)})
    (made,) = report(given).classes
    assert (str(made.ranks), made.count, made.waiting_in) == ("0-3", 4, "all_reduce")
    assert made.frames[0].native  # and one rank's are shown


def test_a_rank_that_must_not_be_stopped_is_in_the_class_of_its_equals() -> None:
    digests = [
        StackDigest(0, 4000, frames=all_reduce().frames, waiting_in="all_reduce"),
        StackDigest(1, 4001, frames=[*natives(1, 0), *all_reduce().frames], waiting_in="all_reduce"),
    ]
    (made,) = merge(digests)
    assert (str(made.ranks), made.frames[0].native) == ("0-1", True)


def test_one_stack_is_counted_over_all_dumps() -> None:
    made = report(evidence({number: Rank(with_natives(all_reduce(), number)) for number in range(4)}))
    assert [digest.samples for digest in made.digests] == [4, 4, 4, 4]


def handle_wait(rank: int, shown: bool) -> Stack:
    """``handles[0].synchronize_now()``: no frame and no word of the line tells what it waits in, only a native one."""
    frames = [Frame(*place) for place in (("drain", "job/case.py", 33), *main_frames())]
    return Stack([*natives(rank, 0), *frames], "work.wait") if shown else Stack(frames)


def test_a_wait_that_one_look_does_not_show_is_no_movement() -> None:
    def at(turn: int) -> Stack:
        return handle_wait(0, shown=turn % 2 == 0)

    verdict = judge_job(evidence({**{number: Rank(at) for number in (0, 1, 3)}, 2: Rank(dataset())}))
    assert (verdict.kind, [one.rank for one in verdict.culprits]) == ("hang", [2])


def test_a_wait_that_is_seen_on_one_rank_is_that_of_all_at_its_line() -> None:
    """py-spy could not stop rank 3: it is not accused for that."""
    ranks = {number: Rank(handle_wait(number, shown=number != 3)) for number in (0, 1, 3)}
    made = report(evidence({**ranks, 2: Rank(dataset())}))
    assert [one.rank for one in made.verdict.culprits] == [2]
    assert [(str(one.ranks), one.waiting_in) for one in made.classes] == [("2", None), ("0-1,3", "work.wait")]


def test_a_rank_whose_native_frames_show_no_wait_does_not_wait() -> None:
    elsewhere = handle_wait(3, shown=False)
    elsewhere.frames.insert(0, Frame("cudaMalloc", "lib/libcudart.so.12", 0))
    ranks = {number: Rank(handle_wait(number, shown=True)) for number in (0, 1, 2)}
    made = report(evidence({**ranks, 3: Rank(elsewhere)}))
    assert [one.rank for one in made.verdict.culprits] == [3]
    assert [str(one.ranks) for one in made.classes] == ["3", "0-2"]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("x86_64-linux-gnu/libc.so.6", 0),
        ("torch/lib/libtorch_cpu.so", 0),
        ("_C.cpython-311-x86_64-linux-gnu.so", 12),
        ("[libtorch_cpu.so]", 0),
        ("[vdso]", 0),
        ("?", 0),
        ("", 0),
        ("bin/python3.11", 0),
        ("nptl/futex-internal.c", 57),
        ("src/kernel.cu", 3),
        ("src/lib.rs", 3),
        ("own/fast.pyx", 9),
    ],
)
def test_frames_below_python(file: str, line: int) -> None:
    assert Frame("f", file, line).native


@pytest.mark.parametrize(
    "file", ["job/case.py", "<string>", "<frozen importlib._bootstrap>", "bin/train", "torch/x.py"]
)
def test_frames_of_python(file: str) -> None:
    assert not Frame("f", file, 1).native


def proven(rank: int, native: Frame | None) -> Callable[[int], Stack]:
    """In backward: of its third look native frames were taken, too."""

    def at(turn: int) -> Stack:
        made = backward()
        if turn == 2 and native is not None:
            made.frames.insert(0, native)
            made.waiting_in = "ddp.backward" if "Reducer" in native.function else None
        return made

    return at


REDUCER = Frame("c10d::Reducer::finalize_backward", TORCH, 0)


def test_one_native_look_at_one_rank_proves_the_wait_of_all_that_sleep_there() -> None:
    ranks = {number: Rank(proven(number, REDUCER if number == 0 else None)) for number in (0, 1, 3)}
    guessed = judge_job(evidence({**{number: Rank(backward()) for number in (0, 1, 3)}, 2: Rank(dataset())}))
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset())}))
    assert (guessed.confidence, verdict.confidence) == ("medium", "high")
    assert [one.rank for one in verdict.culprits] == [2]
    assert [one.where for one in verdict.waiting] == ["ddp.backward, called from train (job/case.py:60)"]


def test_who_computes_in_backward_does_not_wait_because_others_there_do() -> None:
    """Rank 2 was looked at below Python, and shows a kernel; or it was not, but has a core."""
    ranks = {number: Rank(proven(number, REDUCER if number == 0 else None)) for number in (0, 1, 3)}
    for native in (Frame("at::native::add_kernel", TORCH, 0), None):
        busy = Rank(proven(2, native), cpu=1.0, state="R")
        assert [one.rank for one in judge_job(evidence({**ranks, 2: busy})).culprits] == [2]
