"""What the hub knows at one moment: frozen, cheap to hand to the screen, safe across threads."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.agent.protocol import Boot, Hello
from mltop.probes.model import NodeState, Sample
from mltop.probes.reach.glance import Glance, glance_of
from mltop.probes.reach.received import Received


@dataclass(frozen=True)
class Connection:
    """How a node was reached the last time it was.

    ``connect_s``: from starting the channel to the agent's hello; ``clock_skew_s``: the node's clock minus ours, the
    smallest difference seen (it includes what a sample needs to arrive); None while unknown.
    """

    via: str = "local"
    connect_s: float | None = None
    boot: Boot | None = None
    hello: Hello | None = None
    clock_skew_s: float | None = None
    restarts: int = 0


@dataclass(frozen=True)
class NodeView:
    """One node: its connection state and its newest sample (kept when the node is lost).

    Who looks at all nodes takes ``glance``: ``sample`` is decoded when it is first asked for, in the asker's thread.
    """

    state: NodeState
    newest: Received | Sample | None = None
    connection: Connection = Connection()

    @property
    def node(self) -> str:
        return self.state.node

    @property
    def sample(self) -> Sample | None:
        """Everything that the node said; None before its first sample."""
        newest = self.newest
        return newest.sample() if isinstance(newest, Received) else newest

    def sample_in_turn(self) -> Sample | None:
        """As ``sample``, for who takes nodes in turns: of those asked, the next sample comes decoded with its view."""
        newest = self.newest
        return newest.decoded() if isinstance(newest, Received) else newest

    @property
    def glance(self) -> Glance | None:
        """The little of ``sample`` that views of many nodes need; None before the first."""
        newest = self.newest
        if isinstance(newest, Received):
            return newest.glance
        return None if newest is None else glance_of(newest)


@dataclass(frozen=True)
class FleetView:
    """All nodes in the order they were asked for. ``taken_at`` is unix s; ``serial`` grows with every change."""

    taken_at: float
    nodes: tuple[NodeView, ...]
    serial: int = 0
