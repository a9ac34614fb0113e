"""GPU memory: ECC errors, remapped rows, retired pages."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
