"""Ranks of a job on one node: pinning, NUMA, settings."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
