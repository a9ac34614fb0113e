"""What the hub knows at one moment: frozen, cheap to hand to the screen, safe across threads.

Of samples the part that views of all nodes need (``SampleSummary``), which takes an eighth of the time to decode; the
whole when somebody asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from mltop.probes.agent.protocol import Boot, Hello
from mltop.probes.model import GapKind, GpuSample, GpuState, JobKey, NodeState, Sample, Via
from mltop.probes.model.gpu import Nvlink
from mltop.probes.model.receipt import MOST_GPUS, MOST_RANK_NUMBERS, MOST_RANKS, MOST_TIME_S, Refused, said
from mltop.probes.model.sample import traffic_of
from mltop.probes.reach.courtesy import give_way

# Field names, units and meanings are those of probes.model. Nothing here can be part of a cycle: the garbage collector
# need not look at some ten thousand objects a second (gc=False).


class NvlinkSummary(msgspec.Struct, frozen=True, gc=False):
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None


class GpuSummary(msgspec.Struct, frozen=True, gc=False):
    index: int
    state: GpuState = "ok"
    busy: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    nvlink: NvlinkSummary = NvlinkSummary()


class RankSummary(msgspec.Struct, frozen=True, gc=False):
    pid: int
    rank: int | None = None
    job: str = ""
    uid: int | None = None
    started_at: float | None = None
    gpus: tuple[int, ...] = ()
    voluntary_switches: int | None = None
    read_syscalls: int | None = None
    write_syscalls: int | None = None

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.job, self.uid)


class HostSummary(msgspec.Struct, frozen=True, gc=False):
    cpu_fraction: float | None = None
    network_rx_bytes_per_s: float | None = None
    network_tx_bytes_per_s: float | None = None
    ports_rx_bytes_per_s: float | None = None
    ports_tx_bytes_per_s: float | None = None

    @property
    def all_network_bytes_per_s(self) -> float | None:
        """In and out together, of all ports; of agents that do not tell it, of network interfaces (without RDMA)."""
        received, sent = self.ports_rx_bytes_per_s, self.ports_tx_bytes_per_s
        if received is None or sent is None:
            received, sent = self.network_rx_bytes_per_s, self.network_tx_bytes_per_s
        return None if received is None or sent is None else received + sent


class GapSummary(msgspec.Struct, frozen=True, gc=False):
    """That there is a gap; ``kind`` as in Gap."""

    kind: GapKind = "unknown"


class SampleSummary(msgspec.Struct, frozen=True, gc=False):
    sampled_at: float
    node: str = ""
    interval_s: float = 1.0
    simulated: bool = False
    gpus: tuple[GpuSummary, ...] = ()
    ranks: tuple[RankSummary, ...] = ()
    host: HostSummary = HostSummary()
    gaps: tuple[GapSummary, ...] = ()

    def admitted(self) -> SampleSummary:
        """The summary itself when all of it can be, else what is left, as by ``receipt.admit``. Raises Refused."""
        if not 0 <= self.sampled_at <= MOST_TIME_S:
            raise Refused(f"its sampled_at, {said(self.sampled_at)}, is no time")
        gpus, ranks = self.gpus, self.ranks
        if [gpu.index for gpu in gpus] != list(range(len(gpus))) or len(gpus) > MOST_GPUS:
            by_index = {gpu.index: gpu for gpu in reversed(gpus) if 0 <= gpu.index < MOST_GPUS}
            gpus = tuple(gpu for gpu in gpus if by_index.get(gpu.index) is gpu)
        can_be = [rank.rank is None or 0 <= rank.rank <= MOST_RANK_NUMBERS for rank in ranks]
        if not all(can_be):
            ranks = tuple(
                rank if fine else msgspec.structs.replace(rank, rank=None)
                for rank, fine in zip(ranks, can_be, strict=True)
            )
        interval_s = self.interval_s if 0 < self.interval_s <= 86_400 else 1.0
        if gpus is self.gpus and ranks is self.ranks and len(ranks) <= MOST_RANKS and interval_s == self.interval_s:
            return self
        return msgspec.structs.replace(self, gpus=gpus, ranks=ranks[:MOST_RANKS], interval_s=interval_s)


class SampleFrame(msgspec.Struct):
    """As much of an agent's frame as a summary takes."""

    sample: SampleSummary | None = None


AnyGpu = GpuSummary | GpuSample


def summary_of(sample: Sample) -> SampleSummary:
    """The summary of a sample that is already whole."""
    return SampleSummary(
        sample.sampled_at,
        sample.node,
        sample.interval_s,
        sample.simulated,
        tuple(GpuSummary(**_fields(gpu, GpuSummary)) for gpu in sample.gpus),
        tuple(RankSummary(**_fields(rank, RankSummary)) for rank in sample.ranks),
        _host_summary(sample),
        tuple(GapSummary(gap.kind) for gap in sample.gaps),
    )


def _host_summary(sample: Sample) -> HostSummary:
    fields = _fields(sample.host, HostSummary)
    if fields["ports_rx_bytes_per_s"] is None:  # an older agent
        fields["ports_rx_bytes_per_s"], fields["ports_tx_bytes_per_s"] = traffic_of(sample.links)
    return HostSummary(**fields)


def _fields(whole: object, part: type[msgspec.Struct]) -> dict[str, Any]:
    values = {name: getattr(whole, name) for name in part.__struct_fields__}
    return {name: _frozen(value) for name, value in values.items()}


def _frozen(value: object) -> object:
    if isinstance(value, list):
        return tuple(value)
    return NvlinkSummary(value.rx_bytes_per_s, value.tx_bytes_per_s) if isinstance(value, Nvlink) else value


_DECODING = threading.Lock()  # for a moment, and rarely by two: one for all


class Received:
    """A received sample: ``summary`` is there at once, the whole when it is asked for, decoded once. For any thread."""

    __slots__ = ("_decode", "_decoded", "_sample", "asked", "payload", "slow", "summary")

    def __init__(
        self, payload: bytes, summary: SampleSummary, decode: Callable[[bytes, bytes], Sample | None], slow: bytes = b""
    ) -> None:
        """``slow``: the "slow" frame that holds the rest of it. ``decode`` is given both and returns None when the
        sample cannot be decoded; it sees to it that the user learns of it.
        """
        self.payload = payload
        self.slow = slow
        self.summary = summary
        self.asked = False  # somebody wanted the whole sample
        self._decode = decode
        self._decoded = False
        self._sample: Sample | None = None

    def sample(self) -> Sample | None:
        self.asked = True
        return self.decoded()

    def decoded(self) -> Sample | None:
        """The sample, for a caller that does not look at it but knows that somebody will."""
        if not self._decoded:
            give_way()
            with _DECODING:
                if not self._decoded:
                    self._sample = self._decode(self.payload, self.slow)
                    self._decoded = True
        return self._sample


@dataclass(frozen=True)
class Connection:
    """How a node was reached the last time it was.

    ``connect_s``: from starting the channel to the agent's hello; ``clock_skew_s``: the node's clock minus ours, the
    smallest difference seen (it includes what a sample needs to arrive); None while unknown. ``trying``: how it is
    being reached, and ``tried_at`` since when, unix s by our clock.
    """

    via: Via = "local"
    connect_s: float | None = None
    boot: Boot | None = None
    hello: Hello | None = None
    clock_skew_s: float | None = None
    restarts: int = 0
    trying: Via | None = None
    tried_at: float | None = None


@dataclass(frozen=True)
class NodeView:
    """One node: its connection state and its newest sample (kept when the node is lost).

    What looks at all nodes takes ``summary``: ``sample`` is decoded when it is first asked for, in the asker's thread.
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
        """As ``sample``, but the next one does not come decoded with its view: for callers that take nodes in turns."""
        newest = self.newest
        return newest.decoded() if isinstance(newest, Received) else newest

    @property
    def summary(self) -> SampleSummary | None:
        """The little of ``sample`` that views of many nodes need; None before the first."""
        newest = self.newest
        if isinstance(newest, Received):
            return newest.summary
        return None if newest is None else summary_of(newest)


@dataclass(frozen=True)
class FleetView:
    """All nodes in the order they were asked for. ``taken_at`` is unix s; ``serial`` grows with every change."""

    taken_at: float
    nodes: tuple[NodeView, ...]
    serial: int = 0
