"""Host memory: pressure, swap, OOM kills, /dev/shm, DIMM errors."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
