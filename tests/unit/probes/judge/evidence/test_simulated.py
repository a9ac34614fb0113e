"""A hundred made-up jobs: whoever is accused by counters is the one who did it."""

from __future__ import annotations

from mltop.probes.judge.evidence.progress import judge_progress
from tests.builders.simulated_collectives import simulate

JOBS = 120


def test_no_victim_is_accused_and_most_culprits_are_found() -> None:
    named = told = 0
    for seed in range(JOBS):
        job, progress = simulate(seed)
        verdicts = judge_progress(progress, job.size)
        accused = {rank for verdict in verdicts for rank in verdict.culprits}
        assert accused <= {job.culprit}, (seed, job, verdicts)
        has_record = any(record.rank == job.culprit for record in progress)
        told += has_record
        named += bool(accused)
    assert named > 0.65 * told, (named, told)
