"""The state machine of one node: connecting → live → stale → lost, and back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mltop.probes.model import NodeState, Sample
from mltop.probes.reach.view import NodeView

HISTORY_S = 600.0
HISTORY_BYTES = 64 * 1024 * 1024  # over all nodes
STALE_INTERVALS = 3.0  # this many intervals without a sample (at least STALE_MIN_S) make a node stale
STALE_MIN_S = 3.0


@dataclass
class NodeRecord:
    """Everything the hub keeps of one node. Times are monotonic seconds; ``history``: samples' JSON as received."""

    node: str
    interval_s: float = 1.0
    reason: str = "starting the agent"
    ended: bool = False  # its channel is gone; reason says why
    sample: Sample | None = None
    received_at: float | None = None
    history: deque[tuple[float, bytes]] = field(default_factory=deque)
    history_bytes: int = 0

    def take(self, sample: Sample, payload: bytes, now: float, budget_bytes: int) -> None:
        """A sample arrived; ``budget_bytes`` is this node's share of the history."""
        self.sample, self.received_at, self.ended, self.reason = sample, now, False, ""
        self.history.append((now, payload))
        self.history_bytes += len(payload)
        while self.history and (
            now - self.history[0][0] > HISTORY_S or (self.history_bytes > budget_bytes and len(self.history) > 2)
        ):
            self.history_bytes -= len(self.history.popleft()[1])

    def state(self, now: float) -> NodeState:
        age_s = None if self.received_at is None else max(0.0, now - self.received_at)
        if self.ended:
            return NodeState(self.node, "lost", self.reason, age_s)
        if age_s is None:
            return NodeState(self.node, "connecting", self.reason, None)
        if age_s > max(STALE_MIN_S, STALE_INTERVALS * self.interval_s):
            return NodeState(self.node, "stale", f"no sample for {age_s:.0f} s", age_s)
        return NodeState(self.node, "live", "", age_s)

    def view(self, now: float) -> NodeView:
        return NodeView(self.state(now), self.sample)


def share_of_history(nodes: int) -> int:
    return HISTORY_BYTES // max(1, nodes)
