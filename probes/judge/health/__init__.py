"""Health rules: from samples to findings. One file per subject holds its rules."""

from mltop.probes.judge.health.engine import RULES, evaluate

__all__ = ["RULES", "evaluate"]
