"""Processors: overcommitted, throttled, processes stuck in the kernel."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
