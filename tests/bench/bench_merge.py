"""How long merging and judging take: `python tests/bench/bench_merge.py [--quick]`.

Goals on one core: merge 4,096 digests in 20 ms and 200,000 in 0.5 s, judge a job of 4,096 ranks in 100 ms.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / ".dev"), str(Path(__file__).parents[2])]

from mltop.probes.judge.hang.classes import merge, merged_tree
from mltop.probes.judge.hang.evidence import JobEvidence, RankSeen
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import Frame, RankSample, RankStacks, StackDigest

REPEATS = 5
DEPTH = 30
FILES = ("job/train.py", "torch/nn/modules/container.py")


def digests(count: int, kinds: int) -> list[StackDigest]:
    """``count`` ranks in ``kinds`` stacks of 30 frames, 8 of them user code; nothing is shared."""
    made = []
    for rank in range(count):
        kind = rank % kinds
        frames = [
            Frame(
                f"function_{depth}",
                FILES[depth % 4 != 1],
                depth + kind * (depth == 0),
                {"rank": rank, "step": 7},
            )
            for depth in range(DEPTH)
        ]
        waiting = "all_reduce" if kind else None
        made.append(StackDigest(rank, 4000 + rank, frames=frames, waiting_in=waiting, key=f"key-{kind}"))
    return made


def evidence(count: int, rounds: int, kinds: int) -> JobEvidence:
    """``kinds`` 1: every rank waits at the same line, so all steps run; more: rank 0's kind is outside."""
    job = JobEvidence("bench")
    turns = [digests(count, kinds) for _ in range(rounds)]
    for rank in range(count):
        sample = RankSample(
            4000 + rank, rank, world_size=count, job="bench", state="S", voluntary_switches=9, read_syscalls=9
        )
        node = f"node-{rank // 8}"
        job.roster.append(RankSeen(node, sample))
        for turn in range(rounds):
            digest = turns[turn][rank]
            if kinds == 1:
                digest.waiting_in = "all_reduce"
            at = 100.0 + 2.0 * turn
            job.dumps.append(RankStacks(4000 + rank, rank, "bench", node, at, 0.01, sample, sample, [digest]))
    return job


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """CPU time: the machine may be shared."""
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        spent.append((time.process_time() - began) * 1e3)
    return statistics.median(spent)


def main(quick: bool = False) -> list[tuple[str, float, float]]:
    """(what, median CPU ms, goal ms) of each measurement; ``quick``: only the small ones. Prints them."""
    rows: list[tuple[str, float, float]] = []
    repeats = 1 if quick else REPEATS
    for count, kinds, goal_ms in (
        (4096, 3, 20.0),
        (4096, 4096, 20.0),
        (200_000, 3, 500.0),
        (200_000, 200, 500.0),
    ):
        if quick and count > 4096:
            continue
        made = digests(count, kinds)
        rows.append((f"merge {count} digests, {kinds} classes", median_ms(lambda: merge(made), repeats), goal_ms))  # noqa: B023
    classes = merge(digests(4096, 200))
    rows.append(("tree of 200 classes", median_ms(lambda: merged_tree(classes), repeats), 20.0))
    for rounds, kinds, what in ((1, 4, "1 round"), (3, 4, "3 rounds"), (4, 1, "4 rounds, all wait alike")):
        if quick and rounds > 1:
            continue
        job = evidence(4096, rounds, kinds)
        rows.append((f"report on 4096 ranks, {what}", median_ms(lambda: report(job), repeats), 100.0))  # noqa: B023
    print(f"{'':<44}{'CPU ms':>10}{'goal ms':>9}")
    for what, spent_ms, goal_ms in rows:
        print(f"{what:<44}{spent_ms:>10.1f}{goal_ms:>9.0f}")
    return rows


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
