"""How long a command waits for nodes that are not there yet, once the others are done. Pure: times are given."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from mltop.probes.reach.view import NodeView

REACHED = ("live", "stale")
FAILED = ("lost", "refused")


def waited(seconds: float) -> str:
    """``12 s``, ``0.4 s``; never "0 s", which reads as if nobody had waited."""
    return f"{seconds:.0f} s" if seconds >= 1.0 else f"{max(seconds, 0.1):.1f} s"


@dataclass(frozen=True)
class Patience:
    """For how many seconds without any news a node is waited for. ``connecting_s``: one that was never reached and has
    not failed either; ``lost_s``: one that failed sooner than that and may be reached at the next attempt, or whose
    samples stopped; ``live_s``: one that sends samples but has not finished what it was asked.
    """

    connecting_s: float
    lost_s: float
    live_s: float


@dataclass
class Arrivals:
    """Which nodes were reached and which failed, so far. Times are monotonic seconds.

    ``news_at``: the last time that anything came; ``failed``: after how many seconds. A node that fails again and
    again is news once only: it must not keep anybody waiting.
    """

    began_at: float
    news_at: float = field(init=False)
    reached: set[str] = field(default_factory=set)
    failed: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.news_at = self.began_at

    def look(self, views: Iterable[NodeView], now: float) -> None:
        for view in views:
            node, state = view.node, view.state.state
            if state in REACHED and node not in self.reached:
                self.reached.add(node)
                self.news_at = now
            elif state in FAILED and node not in self.failed:
                self.failed[node] = now - self.began_at
                self.news_at = now

    def awaited(
        self, views: Iterable[NodeView], done: Collection[str], now: float, patience: Patience
    ) -> list[NodeView]:
        """The nodes still worth waiting for: not ``done``, and nothing has come for less than their patience."""
        quiet_s = now - self.news_at
        return [view for view in views if view.node not in done and quiet_s < self._patience_s(view, patience)]

    def _patience_s(self, view: NodeView, patience: Patience) -> float:
        state, failed_s = view.state.state, self.failed.get(view.node)
        if state == "live":
            return patience.live_s
        if state == "connecting" and failed_s is None:
            return patience.connecting_s
        # One that took long to fail takes as long to fail again.
        hopeless = state == "refused" or (failed_s is not None and failed_s > patience.lost_s)
        return 0.0 if hopeless else patience.lost_s
