"""The short memory of the screen: how busy every GPU was, and the counters of every rank one sample ago.

One byte per value: 4,096 GPUs over 60 samples take 245 KB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from mltop.probes.model import RankSample
from mltop.probes.model.units import known
from mltop.probes.reach.view import FleetView, RankSummary, SampleSummary
from mltop.tui.render.guarded import guarded

LENGTH = 60  # samples
MOST_GPUS = 256  # per node; what claims a higher index is not remembered
_UNKNOWN = 255
_STEPS = 200  # half a percent


@dataclass
class EarlierRank(RankSample):
    """A rank as the sample before saw it (identity and counters only), and how long before, in seconds."""

    elapsed_s: float = 0.0


@dataclass
class _Node:
    """``ring``: one byte per GPU index up to ``stride``, sample after sample."""

    sampled_at: float = 0.0
    elapsed_s: float = 0.0
    stride: int = 0
    ring: bytearray = field(default_factory=bytearray)
    ranks: Sequence[RankSummary] = ()
    ranks_before: Sequence[RankSummary] = ()


class Trends:
    """Fed with every view: a sample counts once, however often it comes. Nodes that left are forgotten."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def feed(self, view: FleetView) -> None:
        for node in view.nodes:
            summary = node.summary
            if summary is None:
                continue
            history = self._nodes.get(node.node)
            if history is None:
                history = self._nodes[node.node] = _Node()
            if summary.sampled_at != history.sampled_at:
                guarded("the trends of a node", partial(_take, history, summary), None)
        for gone in self._nodes.keys() - {node.node for node in view.nodes}:
            del self._nodes[gone]

    def busy(self, node: str, gpu: int) -> list[float | None]:
        """NVML's GPU-Util of the last samples, oldest first, at most 60; None where a sample is missing."""
        history = self._nodes.get(node)
        if history is None or gpu >= history.stride:
            return []
        ring = history.ring[gpu :: history.stride]
        return [None if value == _UNKNOWN else value / _STEPS for value in ring]

    def previous_rank(self, node: str, pid: int) -> EarlierRank | None:
        """The same process one sample ago; None when it was not there or another process had its pid."""
        history = self._nodes.get(node)
        if history is None:
            return None
        earlier, now = (
            next((rank for rank in ranks if rank.pid == pid), None) for ranks in (history.ranks_before, history.ranks)
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
            elapsed_s=history.elapsed_s,
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Trends:
        """A copy that stands still while this one is fed on; samples never change and are shared."""
        copied = Trends()
        for name, node in self._nodes.items():
            copied._nodes[name] = replace(node, ring=bytearray(node.ring))
        return copied


def _take(history: _Node, sample: SampleSummary) -> None:
    elapsed_s = sample.sampled_at - history.sampled_at if history.sampled_at else 0.0
    now = _row(sample, history.stride)
    if now is None:
        _widen(history, 1 + max(gpu.index for gpu in sample.gpus if gpu.index < MOST_GPUS))
        now = _row(sample, history.stride) or bytearray()
    stride = history.stride
    missed = _missed(elapsed_s, sample.interval_s)
    if missed:
        history.ring += bytes([_UNKNOWN]) * (missed * stride)
    history.ring += now
    del history.ring[: -LENGTH * stride or None]
    history.ranks_before = history.ranks if elapsed_s > 0 else ()
    history.ranks = sample.ranks
    history.sampled_at, history.elapsed_s = sample.sampled_at, elapsed_s


def _row(sample: SampleSummary, stride: int) -> bytearray | None:
    """One byte per GPU; None when ``stride`` is too small. Runs for every sample of a fleet: kept short."""
    row = bytearray(b"\xff" * stride)
    for gpu in sample.gpus:
        index, busy = gpu.index, gpu.busy
        if not 0 <= index < stride:
            if 0 <= index < MOST_GPUS:
                return None
        elif busy is not None and gpu.state == "ok":
            if 0.0 <= busy <= 1.0:
                row[index] = int(busy * _STEPS + 0.5)
            elif known(busy):
                row[index] = _STEPS if busy > 1.0 else 0
    return row


def _widen(history: _Node, stride: int) -> None:
    """Room for more GPUs, unknown up to now."""
    old, before = history.ring, history.stride
    history.ring = bytearray([_UNKNOWN]) * (len(old) // before * stride if before else 0)
    history.stride = stride
    for gpu in range(before):
        history.ring[gpu::stride] = old[gpu::before]


def _missed(elapsed_s: float, interval_s: float) -> int:
    """How many samples are missing in between; none when time went backwards."""
    if interval_s <= 0 or elapsed_s <= 0:
        return 0
    return min(LENGTH, max(0, round(elapsed_s / interval_s) - 1))
