"""The short memory of the screen: how busy every GPU was, and the counters of every rank one sample ago.

One byte per value: 4,096 GPUs over 60 samples take 245 KB.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mltop.probes.model import GpuSample, RankSample, Sample
from mltop.probes.reach.view import FleetView
from mltop.tui.render.units import known

LENGTH = 60  # samples
_UNKNOWN = 255
_STEPS = 200  # half a percent


@dataclass
class EarlierRank(RankSample):
    """A rank as the sample before saw it (identity and counters only), and how long before, in seconds."""

    elapsed_s: float = 0.0


@dataclass
class _Node:
    sampled_at: float = 0.0
    elapsed_s: float = 0.0
    rings: dict[int, bytearray] = field(default_factory=dict)
    ranks: dict[int, RankSample] = field(default_factory=dict)
    ranks_before: dict[int, RankSample] = field(default_factory=dict)


class Trends:
    """Fed with every view: a sample counts once, however often it comes. Nodes that left are forgotten."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def feed(self, view: FleetView) -> None:
        gone = self._nodes.keys() - {node.node for node in view.nodes}
        for name in gone:
            del self._nodes[name]
        for node in view.nodes:
            if node.sample is not None:
                self._take(self._nodes.setdefault(node.node, _Node()), node.sample)

    def busy(self, node: str, gpu: int) -> list[float | None]:
        """NVML's GPU-Util of the last samples, oldest first, at most 60; None where a sample is missing."""
        history = self._nodes.get(node)
        ring = history.rings.get(gpu, b"") if history is not None else b""
        return [None if value == _UNKNOWN else value / _STEPS for value in ring]

    def previous_rank(self, node: str, pid: int) -> EarlierRank | None:
        """The same process one sample ago; None when it was not there or another process had its pid."""
        history = self._nodes.get(node)
        if history is None or pid not in history.ranks_before:
            return None
        earlier, now = history.ranks_before[pid], history.ranks.get(pid)
        if now is not None and now.started_at != earlier.started_at:
            return None
        return EarlierRank(
            pid=pid,
            rank=earlier.rank,
            started_at=earlier.started_at,
            voluntary_switches=earlier.voluntary_switches,
            read_syscalls=earlier.read_syscalls,
            write_syscalls=earlier.write_syscalls,
            elapsed_s=history.elapsed_s,
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Trends:
        """A copy that stands still while this one is fed on; samples never change and are shared."""
        copied = Trends()
        for name, node in self._nodes.items():
            rings = {index: bytearray(ring) for index, ring in node.rings.items()}
            copied._nodes[name] = replace(node, rings=rings)
        return copied

    def _take(self, history: _Node, sample: Sample) -> None:
        if sample.sampled_at == history.sampled_at:
            return
        elapsed_s = sample.sampled_at - history.sampled_at if history.sampled_at else 0.0
        missed = _missed(elapsed_s, sample.interval_s)
        busy = {gpu.index: _byte(gpu) for gpu in sample.gpus}
        for index in busy.keys() | history.rings.keys():
            ring = history.rings.setdefault(index, bytearray())
            ring.extend([_UNKNOWN] * missed)
            ring.append(busy.get(index, _UNKNOWN))
            del ring[:-LENGTH]
        history.ranks_before = history.ranks if elapsed_s > 0 else {}
        history.ranks = {rank.pid: rank for rank in sample.ranks}
        history.sampled_at, history.elapsed_s = sample.sampled_at, elapsed_s


def _missed(elapsed_s: float, interval_s: float) -> int:
    """How many samples are missing in between; none when time went backwards."""
    if interval_s <= 0 or elapsed_s <= 0:
        return 0
    return min(LENGTH, max(0, round(elapsed_s / interval_s) - 1))


def _byte(gpu: GpuSample) -> int:
    if gpu.state != "ok" or gpu.busy is None or not known(gpu.busy):
        return _UNKNOWN
    return round(min(max(gpu.busy, 0.0), 1.0) * _STEPS)
