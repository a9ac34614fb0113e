"""The short memory of the screen: the counters of every rank one sample ago, of which rates are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mltop.probes.model import RankSample
from mltop.probes.reach.view import FleetView, RankSummary


@dataclass
class EarlierRank(RankSample):
    """A rank as the sample before saw it (identity and counters only), and how long before, in seconds."""

    elapsed_s: float = 0.0


class _Node(NamedTuple):
    """The ranks of the newest sample, and those of the one before, ``elapsed_s`` earlier."""

    sampled_at: float
    ranks: Sequence[RankSummary]
    before: Sequence[RankSummary] = ()
    elapsed_s: float = 0.0


class EarlierRanks:
    """Fed with every view: a sample counts once, however often it comes. Nodes that left are forgotten."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def feed(self, view: FleetView) -> None:
        nodes = self._nodes
        fed: dict[str, _Node] = {}
        for node in view.nodes:
            summary, known = node.summary, nodes.get(node.node)
            if summary is None:
                if known is not None:
                    fed[node.node] = known
            elif known is None:
                fed[node.node] = _Node(summary.sampled_at, summary.ranks)
            elif summary.sampled_at == known.sampled_at:
                fed[node.node] = known
            else:
                elapsed_s = summary.sampled_at - known.sampled_at
                before = known.ranks if elapsed_s > 0 else ()
                fed[node.node] = _Node(summary.sampled_at, summary.ranks, before, elapsed_s)
        self._nodes = fed

    def rank(self, node: str, pid: int) -> EarlierRank | None:
        """The same process one sample ago; None when it was not there or another process had its pid."""
        known = self._nodes.get(node)
        if known is None:
            return None
        earlier, now = (
            next((rank for rank in ranks if rank.pid == pid), None) for ranks in (known.before, known.ranks)
        )
        if earlier is None or (now is not None and now.started_at != earlier.started_at):
            return None
        return EarlierRank(
            pid=pid,
            rank=earlier.rank,
            started_at=earlier.started_at,
            voluntary_switches=earlier.voluntary_switches,
            read_syscalls=earlier.read_syscalls,
            write_syscalls=earlier.write_syscalls,
            elapsed_s=known.elapsed_s,
        )

    def copy(self) -> EarlierRanks:
        """One that stands still while this one is fed on."""
        copied = EarlierRanks()
        copied._nodes = self._nodes  # never changed, only replaced
        return copied
