"""PCIe links of GPUs and NICs, and what keeps GPUs from talking to NICs."""

from __future__ import annotations

from mltop.probes.judge.health.rule import Rule

RULES: tuple[Rule, ...] = ()
