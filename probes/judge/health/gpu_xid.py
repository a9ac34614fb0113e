"""What the driver reported: Xid, SXid, and what it asks for."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
