"""Processes on GPUs: dead ones that hold memory, memory held by none."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
