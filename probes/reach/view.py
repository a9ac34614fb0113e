"""What the hub knows at one moment: frozen, cheap to hand to the screen, safe across threads."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.model import NodeState, Sample


@dataclass(frozen=True)
class NodeView:
    """One node: its connection state and its newest sample (kept when the node is lost)."""

    state: NodeState
    sample: Sample | None = None

    @property
    def node(self) -> str:
        return self.state.node


@dataclass(frozen=True)
class FleetView:
    """All nodes in the order they were asked for. ``taken_at`` is unix s; ``serial`` grows with every change."""

    taken_at: float
    nodes: tuple[NodeView, ...]
    serial: int = 0
