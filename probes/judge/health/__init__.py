"""Health rules: from samples to findings. One file per subject holds its rules."""

from mltop.probes.judge.health.engine import Health, evaluate, evaluated
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.rule import FAILED, NO_EXPECTATIONS, Expectations

__all__ = ["FAILED", "NO_EXPECTATIONS", "RULES", "Expectations", "Health", "evaluate", "evaluated"]
