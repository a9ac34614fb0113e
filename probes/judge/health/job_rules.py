"""Rules about a job as a whole."""

from __future__ import annotations

from mltop.probes.judge.health.jobs import JobRule

JOB_RULES: tuple[JobRule, ...] = ()
