"""Which GPUs there are and how they are set: missing ones, drivers, modes, lemons."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
