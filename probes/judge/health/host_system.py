"""Clocks, limits and permissions of the machine."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
