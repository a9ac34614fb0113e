"""Results of the GEMM probe beside what they are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.judge.active.compare import Comparison
from mltop.probes.judge.active.matmul_reasons import Reason
from mltop.probes.model.probe import MatmulResult


@dataclass
class Look:
    """One result. ``rate``: TFLOP/s; ``others``: it against all of its group, whatever their power limits.

    ``reason``: why it is accused, None when it is not; ``by_history``: because it was faster before.
    """

    result: MatmulResult
    rate: float
    history: Comparison
    peers: Comparison
    others: Comparison
    reason: Reason | None = None

    @property
    def by_history(self) -> bool:
        return self.history.slow is True and self.peers.slow is not True

    @property
    def slower(self) -> float:
        """By how much, of what it is accused by: 0.21 for 21 %."""
        if self.by_history:
            return self.history.slower
        return self.peers.slower if self.peers.slow else max(0.0, self.others.slower)


@dataclass
class Group:
    """Results that may be compared: one model, type, shape; of CPUs one code path and number of threads."""

    looks: list[Look] = field(default_factory=list)

    @property
    def slow(self) -> list[Look]:
        return [look for look in self.looks if look.reason is not None]

    @property
    def rest(self) -> list[Look]:
        return [look for look in self.looks if look.reason is None]
