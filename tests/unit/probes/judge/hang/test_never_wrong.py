"""Jobs made by chance, healthy and hung, watched in part, for a while or once: no rank that waits is ever accused.

Each seed is one job; what it is made of is said by its seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mltop.probes.judge.hang.evidence import JobEvidence
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import RankDeath, Verdict
from tests.builders.stack_evidence import (
    C10D,
    Child,
    Rank,
    Stack,
    all_reduce,
    compute,
    dataset,
    evidence,
    loader_wait,
    main_frames,
    spin,
    stack,
    validation,
    worker_stuck,
)

SEEDS = range(400)
SLEEP = "hrtimer_nanosleep"


def native() -> Stack:
    return stack(*main_frames(62))


def marker() -> Stack:
    return stack(("wait_for_rank0", "job/case.py", 31), *main_frames(50))


def recv(peer: int) -> Stack:
    shown = stack(("recv", C10D, 2799), *main_frames(66), waiting_in="recv")
    shown.frames[0].ints["src"] = peer
    return shown


def _waiter(rng: random.Random) -> Callable[[int], Rank]:
    """How the waiting ranks of one job look: all alike, but for what chance does to their counters."""
    quiet_s = rng.choice([None, 5.0, 40.0, 300.0])
    kind = rng.choice(["collective", "collective", "poll", "native"])

    def made(rank: int) -> Rank:
        noise = rng.choice([0.0, 0.0, 0.2])
        if kind == "poll":
            return Rank(marker(), switches_per_s=10.0, main_cpu_s_per_s=0.001, wchan=SLEEP, quiet_s=None)
        shown = all_reduce() if kind == "collective" else native()
        return Rank(shown, switches_per_s=noise, wchan="futex_do_wait", main_cpu_s_per_s=0.0, quiet_s=quiet_s)

    return made


def _culprit(rng: random.Random) -> Rank:
    how = rng.randrange(7)
    if how == 0:
        return Rank(spin, state="R", cpu=0.99, main_cpu_s_per_s=0.99)
    if how == 1:
        return Rank(dataset(), state="D", wchan="nfs_wait_bit_killable")
    if how == 2:
        return Rank(compute(), state="T")
    if how == 3:
        return Rank(loader_wait(), children=[Child(4711, worker_stuck())], wchan="ep_poll")
    if how == 4:
        return Rank(None, gone=True)
    if how == 5:
        return Rank(validation(), switches_per_s=4.0, syscalls_per_s=9.0)
    return Rank(dataset(), wchan="pipe_read")


def _watched(rng: random.Random, ranks: dict[int, Rank]) -> JobEvidence:
    """Some of the ranks, on a few nodes, over some rounds, with and without counters."""
    count = len(ranks)
    seen = (
        ranks
        if rng.random() < 0.6
        else {rank: ranks[rank] for rank in rng.sample(sorted(ranks), rng.randint(1, count))}
    )
    for rank, shown in seen.items():
        shown.node = f"n{rank // 4}"
    given = evidence(
        seen,
        rounds=rng.choice([1, 2, 3, 5, 16]),
        gap_s=rng.choice([0.02, 0.35, 1.0, 2.5]),
        world_size=count,
        master=rng.choice(["n0", "elsewhere"]),
        launcher=rng.choice(["torchrun", "mpirun", "env", ""]),
        counters=rng.random() < 0.9,
    )
    given.rhythm_s = rng.choice([None, 0.5, 12.0])
    for one in given.roster:
        one.polled_s = rng.choice([None, 50.0, 500.0])
    rng.shuffle(given.dumps)
    return given


def _named(verdict: Verdict) -> set[int | None]:
    return {culprit.rank for culprit in verdict.culprits}


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_hung_job_nobody_but_its_culprits_is_accused(seed: int) -> None:
    rng = random.Random(seed)
    count, waiter = rng.randint(3, 16), _waiter(rng)
    culprits = set(rng.sample(range(count), 1 if rng.random() < 0.8 else rng.randint(0, count // 3)))
    ranks = {rank: _culprit(rng) if rank in culprits else waiter(rank) for rank in range(count)}
    given = _watched(rng, ranks)
    given.deaths = [
        ("n0", RankDeath(4000 + rank, rank, "job-1", how="signal", code=9, at=500.0 + rank)) for rank in culprits
    ] * (rng.random() < 0.3)
    given.deaths = [told for told in given.deaths if ranks[told[1].rank or 0].gone]
    verdict = report(given).verdict
    seen = {one.sample.rank for one in given.roster}
    # Numbers that no process was seen of may be told as missing; nobody who is there and waits is.
    assert _named(verdict) & seen <= culprits, (verdict, given.rhythm_s)


def _steps(rng: random.Random) -> dict[int, Rank]:
    """It steps: in and out of a collective, or always seen in one place while its counters move."""
    count, changes = rng.randint(1, 12), rng.random() < 0.5
    moving = {"switches_per_s": rng.uniform(2, 60), "syscalls_per_s": rng.uniform(5, 200), "main_cpu_s_per_s": 0.006}

    def shown(turn: int, rank: int) -> Stack:
        return all_reduce(step=turn) if (turn + rank) % 3 else compute(step=turn)

    made: dict[int, Rank] = {}
    for rank in range(count):
        stack_of: Stack | Callable[[int], Stack] = (lambda turn, rank=rank: shown(turn, rank)) if changes else compute()
        made[rank] = Rank(stack_of, **moving)  # type: ignore[arg-type]
    return made


def _pipeline(rng: random.Random) -> dict[int, Rank]:
    count = rng.randint(2, 8)
    moving = {"switches_per_s": 20.0, "syscalls_per_s": 80.0, "main_cpu_s_per_s": 0.05}

    def at(rank: int, turn: int) -> Stack:
        return recv(rank - 1) if rank and (rank + turn) % 2 else compute(48, step=turn)

    made: dict[int, Rank] = {}
    for rank in range(count):
        made[rank] = Rank(lambda turn, rank=rank: at(rank, turn), **moving)  # type: ignore[arg-type, misc]
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_healthy_job_nobody_is_accused(seed: int) -> None:
    rng = random.Random(seed)
    given = _watched(rng, rng.choice([_steps, _pipeline])(rng))
    verdict = report(given).verdict
    several = len({stacks.taken_at for stacks in given.dumps}) > 1
    if several and any(stacks.after and stacks.after.voluntary_switches for stacks in given.dumps):
        assert verdict.culprits == [], (verdict, given.rhythm_s)
    assert verdict.kind not in ("hang",) or not verdict.culprits


@pytest.mark.parametrize("seed", SEEDS[:200])
def test_a_rank_that_works_alone_is_suspected_at_most(seed: int) -> None:
    """A checkpoint, an evaluation, a first compilation on one rank, for less than ten steps."""
    rng = random.Random(seed)
    count, waiter = rng.randint(3, 12), _waiter(rng)
    ranks = {rank: waiter(rank) for rank in range(count)}
    for shown in ranks.values():
        shown.quiet_s = rng.choice([None, 10.0])
    saving = stack(("write", "job/io.py", 3), ("save_checkpoint", "job/case.py", 9), *main_frames(58))
    at_work = [
        Rank(saving, switches_per_s=9.0, syscalls_per_s=50.0, main_cpu_s_per_s=0.3),
        Rank(saving, state="R", cpu=0.9, main_cpu_s_per_s=0.9),
        Rank(saving, wchan="wait_on_page_bit"),
        Rank(validation(), cpu=0.97, state="R", main_cpu_s_per_s=0.97),
    ]
    ranks[0] = rng.choice(at_work)
    given = evidence(ranks, rounds=rng.choice([2, 4, 16]), gap_s=rng.choice([0.35, 2.0]))
    given.rhythm_s = rng.choice([0.5, 5.0, 30.0])
    verdict = report(given).verdict
    assert _named(verdict) <= {0}, verdict
    assert verdict.kind != "hang" or not verdict.culprits, verdict
