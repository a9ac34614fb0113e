"""The short memory of the screen: the counters of every rank one sample ago, of which rates are made."""

from __future__ import annotations

from typing import NamedTuple

from mltop.probes.reach.view import FleetView


class EarlierRank(NamedTuple):
    """A rank as the sample before saw it, and how long before, in seconds."""

    pid: int
    started_at: float | None = None
    voluntary_switches: int | None = None
    read_syscalls: int | None = None
    write_syscalls: int | None = None
    elapsed_s: float = 0.0


Ranks = dict[int, EarlierRank]  # by pid


class EarlierRanks:
    """Fed with every view: a sample counts once, however often it comes. Nodes that left are forgotten."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[float, Ranks, Ranks]] = {}  # the newest sample's time and ranks, and those before

    def feed(self, view: FleetView) -> None:
        changed: dict[str, tuple[float, Ranks, Ranks]] = {}
        for node in view.nodes:
            whole, known = node.whole, self._nodes.get(node.node)
            if whole is not None and (known is None or known[0] != whole.sampled_at):
                at, ranks, _ = known or (whole.sampled_at, {}, {})
                elapsed_s = whole.sampled_at - at
                before = {pid: rank._replace(elapsed_s=elapsed_s) for pid, rank in ranks.items() if elapsed_s > 0}
                counters = (
                    (one.pid, one.started_at, one.voluntary_switches, one.read_syscalls, one.write_syscalls)
                    for one in whole.ranks
                )
                changed[node.node] = whole.sampled_at, {rank[0]: EarlierRank(*rank) for rank in counters}, before
        gone = self._nodes.keys() - {node.node for node in view.nodes}
        if changed or gone:
            self._nodes = {**{name: one for name, one in self._nodes.items() if name not in gone}, **changed}

    def rank(self, node: str, pid: int) -> EarlierRank | None:
        """The same process one sample ago; None when it was not there or another process had its pid."""
        _, ranks, before = self._nodes.get(node, (0.0, {}, {}))
        earlier, now = before.get(pid), ranks.get(pid)
        is_same = earlier is None or now is None or now.started_at == earlier.started_at
        return earlier if is_same else None

    def copy(self) -> EarlierRanks:
        """One that stands still while this one is fed on."""
        copied = EarlierRanks()
        copied._nodes = self._nodes  # never changed, only replaced
        return copied
