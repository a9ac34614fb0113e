"""InfiniBand and RoCE ports: down, flapping, slow, missing."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
