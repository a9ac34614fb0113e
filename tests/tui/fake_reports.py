"""A scripted dump of the 4-rank job: rank 2 sleeps in the dataset, the others wait in all_reduce."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.investigate.progress import StackProgress
from mltop.probes.model import (
    Culprit,
    Frame,
    Gap,
    JobReport,
    NodeState,
    StackClass,
    StackDigest,
    Verdict,
    Waiting,
)
from mltop.probes.model.ranks import Ranges

DUMPED_AT = 1_763_640_009.0
ROOT = [Frame("train", "train.py", 88), Frame("main", "train.py", 141), Frame("<module>", "train.py", 160)]
WAITING = [
    Frame("all_reduce", "torch/distributed/distributed_c10d.py", 2501),
    Frame("step", "trainer.py", 412, {"step": 1204}),
    *ROOT,
]
HANGING = [
    Frame("__getitem__", "dataset.py", 57, {"index": 77213}),
    Frame("fetch", "torch/utils/data/_utils/fetch.py", 52),
    Frame("__next__", "torch/utils/data/dataloader.py", 733),
    *ROOT,
]


def digest(rank: int, frames: list[Frame], waiting_in: str | None) -> StackDigest:
    return StackDigest(
        rank=rank,
        pid=8120 + rank,
        state="S" if waiting_in is None else "R",
        frames=frames,
        waiting_in=waiting_in,
        samples=3,
        key="waiting" if waiting_in else "hanging",
        node="node01",
        job="llama-7b",
        wchan="hrtimer_nanosleep" if waiting_in is None else "0",
        taken_at=DUMPED_AT,
    )


def hang_report(ranks: Sequence[int] = (0, 1, 2, 3)) -> JobReport:
    waiting = [rank for rank in ranks if rank != 2]
    digests = [digest(rank, WAITING, "all_reduce") for rank in waiting]
    classes = [StackClass(Ranges.of(waiting), len(waiting), "all_reduce", WAITING)]
    culprits = []
    if 2 in ranks:
        digests.append(digest(2, HANGING, None))
        classes.append(StackClass(Ranges.of([2]), 1, None, HANGING))
        culprits = [
            Culprit(2, "node01", 8122, "did not move for 47 s, not in a collective", "__getitem__ (dataset.py:57)")
        ]
    verdict = Verdict(
        kind="hang" if culprits else "unclear",
        culprits=culprits,
        waiting=[Waiting(Ranges.of(waiting), "all_reduce (trainer.py:412)")],
        evidence=[
            "3 of 4 ranks wait in all_reduce",
            "rank 2: no switch and no syscall in 3 dumps over 2.1 s",
        ],
        confidence="high" if culprits else "low",
        since=DUMPED_AT - 47.0 if culprits else None,
    )
    return JobReport("llama-7b", 4, verdict, classes, digests)


def denied_report() -> JobReport:
    """Rank 3 could not be read: its gap and its digest say why and what helps."""
    report = hang_report((0, 1, 2))
    fix = "sudo sysctl kernel.yama.ptrace_scope=0"
    report.verdict.gaps = [Gap("rank 3", "permission denied", fix)]
    report.verdict.confidence = "medium"
    report.digests.append(
        StackDigest(3, 8123, node="node01", job="llama-7b", error="permission denied", fix=fix, state="S")
    )
    return report


def dump_script() -> list[StackProgress]:
    """Two rounds: half of the ranks, all of them, judging, done."""
    return [
        StackProgress("dumping", 1, 2, 0, 4, 0.2),
        StackProgress("dumping", 1, 2, 2, 4, 0.9, (hang_report((0, 1)),)),
        StackProgress("dumping", 2, 2, 4, 4, 1.9, (hang_report(),)),
        StackProgress("judging", 2, 2, 4, 4, 2.1, (hang_report(),)),
        StackProgress("done", 2, 2, 4, 4, 2.2, (hang_report(),)),
    ]


def denied_script() -> list[StackProgress]:
    lost = (NodeState("node07", "lost", "ssh: connection reset by peer", 41.0),)
    return [StackProgress("done", 2, 2, 3, 4, 2.2, (denied_report(),), lost)]
