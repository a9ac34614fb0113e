"""Severe lines that no row knows, deaths that nothing explains, and numbers that are no ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.investigate.explain import explain
from mltop.probes.model.evidence.logs import ExplainedJob

LOST = "RuntimeError: [/gloo/pair.cc:537] Read error [10.0.0.4]:9902: Connection reset by peer"


def judged(folder: Path, *lines: str) -> ExplainedJob:
    (folder / "train.log").write_text("".join(f"{line}\n" for line in lines))
    (job,) = explain([str(folder)], lambda _: None).jobs
    return job


def culprits(job: ExplainedJob) -> list[int | None]:
    return [culprit.rank for culprit in job.incident.culprits] if job.incident is not None else []


def lost(rank: int) -> list[str]:
    lines = ("Traceback (most recent call last):", '  File "/job/train.py", line 7, in main', "    step()", LOST)
    return [f"[rank{rank}]: {line}" for line in lines]


def row(rank: int, code: int) -> list[str]:
    """Of torchrun's table."""
    return [
        f"[{rank}]:",
        "  time      : 2026-11-20_10:00:02",
        "  host      : n1",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: {700 + rank})",
        "  error_file: <N/A>",
    ]


def table(first: tuple[int, int], *others: tuple[int, int]) -> list[str]:
    rows = [line for rank, code in others for line in row(rank, code)]
    return ["Failures:", *rows, "-" * 60, "Root Cause (first observed failure):", *row(*first), "=" * 60]


def test_who_dies_without_a_complaint_is_whom_the_others_lost(tmp_path: Path) -> None:
    """torchrun saw the abort of a victim first."""
    job = judged(tmp_path, *lost(0), *lost(2), *table((0, -6), (1, -9), (2, -15)))
    assert culprits(job) == [1]


def test_an_exit_code_alone_accuses_nobody(tmp_path: Path) -> None:
    """The ranks' own logs are elsewhere: the first to fail may be the first whose wait timed out."""
    job = judged(tmp_path, *table((0, 1), (1, -15), (2, -15)))
    assert culprits(job) == []


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("worker 1 has stopped: worker 1 died", [1]),
        ("worker 48213 died", []),  # a pid
        ("lost contact with rank 1", [1]),
    ],
)
def test_whom_unknown_words_name(tmp_path: Path, said: str, named: list[int]) -> None:
    job = judged(tmp_path, "[rank1]: up", "[rank2]: up", "[rank3]: up", *lost(0), said)
    assert culprits(job) == named


@pytest.mark.parametrize(
    "line", ["Using LoRA with alpha=32 rank=16", "[utils2.py:57]: loss 2.1", "[train.py:3]: loss 2.1"]
)
def test_numbers_that_are_no_ranks(tmp_path: Path, line: str) -> None:
    job = judged(tmp_path, line, "step 3 loss 2.1", "training finished")
    assert not job.ranks
    assert job.is_told
    assert job.good_end[0].text == "training finished"


def test_what_a_later_attempt_came_to_says_nothing_of_one_that_gave_up(tmp_path: Path) -> None:
    failed = "E1120 10:00:01.1 9 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 1) local_rank: 0 (pid: 700) of binary: python"
    raised = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/job/t.py", line 1, in f',
        "[rank0]: KeyError: 'x'",
    ]
    ended = ["step 9 loss 1.0", "training finished"]
    assert culprits(judged(tmp_path, "step 1", *raised, failed, *table((0, 1)), *ended)) == [0]
    job = judged(tmp_path, "step 1", *raised, failed, *ended)
    assert job.incident is None
    assert job.attempts == 2
