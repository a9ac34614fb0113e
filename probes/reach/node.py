"""The state machine of one node: connecting → live → stale → lost or refused, and back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mltop.probes.model import NodeState
from mltop.probes.reach.received import Received
from mltop.probes.reach.view import Connection

HISTORY_S = 600.0
MOST_KEPT = 2400  # samples: four a second
STALE_INTERVALS = 3.0  # this many intervals without a sample (at least STALE_MIN_S) make a node stale
STALE_MIN_S = 3.0


class Phase(Enum):
    """What the node's channel does; whether an UP node is live or stale depends on its newest sample's age."""

    CONNECTING = "connecting"
    UP = "live"
    LOST = "lost"
    REFUSED = "refused"


class Kept(NamedTuple):
    """A sample's frame as received ``at``, and the "slow" frame that holds the rest of it, which others share."""

    at: float
    payload: bytes
    slow: bytes
    size_bytes: int


@dataclass
class NodeRecord:
    """Everything the hub keeps of one node. Times are monotonic seconds.

    ``slow``: the newest "slow" frame. ``received`` is what somebody looked at last: ``looked_at``, which may be older
    than ``newest``. While newest samples are ``refused``, the last good one stands, and ages.
    """

    node: str
    interval_s: float = 1.0
    phase: Phase = Phase.CONNECTING
    reason: str = "waiting for a slot"
    connection: Connection = field(default_factory=Connection)
    received_at: float | None = None
    skew_s: float | None = None
    newest: bytes = b""
    slow: bytes = b""
    looked_at: bytes = b""
    received: Received | None = None
    refused: str = ""  # why the newest sample could not be taken
    taken_at: float | None = None  # when the last one came that could
    history: deque[Kept] = field(default_factory=deque)
    history_bytes: int = 0

    def take(self, payload: bytes, now: float, budget_bytes: int) -> None:
        """A sample arrived; ``budget_bytes`` is this node's share of the history."""
        self.newest, self.received_at, self.phase, self.reason = payload, now, Phase.UP, ""
        shared = bool(self.history) and self.history[-1].slow is self.slow
        kept = Kept(now, payload, self.slow, len(payload) + (0 if shared else len(self.slow)))
        self.history.append(kept)
        self.history_bytes += kept.size_bytes
        while self.history and (
            now - self.history[0].at > HISTORY_S
            or len(self.history) > MOST_KEPT
            or (self.history_bytes > budget_bytes and len(self.history) > 2)
        ):
            self.history_bytes -= self.history.popleft().size_bytes

    def state(self, now: float) -> NodeState:
        if self.phase is Phase.UP and self.refused:
            age_s = None if self.taken_at is None else max(0.0, now - self.taken_at)
            return NodeState(self.node, "stale", self.refused, age_s)
        age_s = None if self.received_at is None else max(0.0, now - self.received_at)
        if self.phase is not Phase.UP or age_s is None:
            return NodeState(self.node, self.phase.value, self.reason, age_s)
        if self.is_stale(now):
            return NodeState(self.node, "stale", f"no sample for {age_s:.0f} s", age_s)
        return NodeState(self.node, "live", self.reason, age_s)

    def is_stale(self, now: float) -> bool:
        if self.phase is not Phase.UP or self.received_at is None:
            return False
        return now - self.received_at > max(STALE_MIN_S, STALE_INTERVALS * self.interval_s)
