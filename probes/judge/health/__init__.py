"""Health rules: from samples to findings. One file per subject holds its rules."""

from mltop.probes.judge.health.engine import Health, evaluate
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.rule import Asked

__all__ = ["RULES", "Asked", "Health", "evaluate"]
