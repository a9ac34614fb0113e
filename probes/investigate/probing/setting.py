"""What every part of one probe run works with."""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.investigate.probing.board import Board
from mltop.probes.investigate.probing.stop import Stop
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.reach.hub import Hub


@dataclass
class Setting:
    """``nodes``: those that are asked, in order; ``key``: names this run on every node."""

    hub: Hub
    wanted: ProbeWanted
    nodes: tuple[str, ...]
    stop: Stop
    key: str
    board: Board = field(default_factory=Board)

    def args(self, kind: str, options: dict[str, object]) -> dict[str, object]:
        """Of the request "probe"."""
        return {
            "key": self.key,
            "kind": kind,
            "gpus": list(self.wanted.gpus),
            "force": self.wanted.force,
            "python": self.wanted.python,
            "options": options,
            "total_s": self.stop.deadline_s,
        }
