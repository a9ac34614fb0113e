"""Filesystems and disks: full, read-only, stalled, failing."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
