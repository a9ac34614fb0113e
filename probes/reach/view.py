"""What the hub knows at one moment: frozen, cheap to hand to the screen, safe across threads.

Of a node its newest row beside the whole sample before it. A sample that has the row's values is made when somebody
asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from mltop.probes.agent.protocol import Boot, Hello
from mltop.probes.model import GpuSample, GpuState, JobKey, NodeState, RankSample, Sample, Via
from mltop.probes.model.news.judged import JobPart, Judged, PartNumbers
from mltop.probes.model.news.row import (
    GPU_LANES,
    GPU_WIDTH,
    STATES,
    pack_row,
    place_of,
    reasons_of,
    row_of,
    values_of,
    with_row,
)

# These cannot be part of a cycle: the garbage collector need not look at some thousand objects a second (gc=False).


class GpuSummary(msgspec.Struct, frozen=True, gc=False):
    """A GPU as views of many nodes need it: what a row has of it, and its limits. The names are those of GpuSample."""

    index: int
    state: GpuState = "ok"
    busy: float | None = None
    sm_active: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


class RankSummary(msgspec.Struct, frozen=True, gc=False):
    """What does not change while a rank lives, as RankSample has it."""

    pid: int
    rank: int | None
    job: str
    uid: int | None
    started_at: float | None
    gpus: tuple[int, ...]

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.job, self.uid)


AnyGpu = GpuSummary | GpuSample
AnyRank = RankSummary | RankSample
_MEMORY_UNIT = next(lane.unit for lane in GPU_LANES if lane.name == "memory_used_bytes")  # of the others it is 1
_reasons = lru_cache(maxsize=512)(lambda bits: tuple(reasons_of(bits)))


def gpus_of_row(row: Sequence[float], whole: Sequence[GpuSample]) -> list[AnyGpu]:
    """``row``: by model/news/row.py, in memory's units. ``whole``: the GPUs of the whole sample before it."""
    begins = [place_of(gpu.index, 0) for gpu in whole]
    return [
        _gpu_of_row(gpu, row[begin : begin + GPU_WIDTH]) if 0 <= begin < len(row) else gpu
        for gpu, begin in zip(whole, begins, strict=True)
    ]


def _gpu_of_row(gpu: GpuSample, values: Sequence[float]) -> GpuSummary:
    """Thousands a second: what is NaN, and so not equal to itself, is unknown."""
    clock, power, heat, busy, sm, _, _, _, used, bits = values
    return GpuSummary(
        gpu.index,
        STATES.get(bits, "ok"),
        busy if busy == busy else None,  # noqa: PLR0124
        sm if sm == sm else None,  # noqa: PLR0124
        int(used * _MEMORY_UNIT) if used == used else None,  # noqa: PLR0124
        gpu.memory_total_bytes,
        heat if heat == heat else None,  # noqa: PLR0124
        power if power == power else None,  # noqa: PLR0124
        gpu.power_limit_w,
        int(clock) if clock == clock else None,  # noqa: PLR0124
        gpu.sm_clock_max_mhz,
        _reasons(int(bits)) if bits >= 0 else None,
    )


def summary_of_rank(rank: RankSample) -> RankSummary:
    return RankSummary(rank.pid, rank.rank, rank.job, rank.uid, rank.started_at, tuple(rank.gpus))


class Received:
    """A node's newest row (``lanes`` of ``at``), and what it is about: the ``whole`` sample before it, its parts of
    jobs with their numbers, and what its own rules say (None: not yet). For any thread.
    """

    __slots__ = ("_gpus", "_make", "_sample", "at", "judged", "lanes", "numbers", "packed", "parts", "ranks", "whole")

    def __init__(
        self,
        whole: Sample,
        at: float | None = None,
        lanes: bytes = b"",
        *,
        packed: bytes = b"",
        parts: Sequence[JobPart] = (),
        numbers: Sequence[PartNumbers] = (),
        judged: Judged | None = None,
        ranks: Sequence[AnyRank] | None = None,
        make: Callable[[], Sample | None] | None = None,
    ) -> None:
        """``at`` None: of the whole sample's time, whose values replace a row's. ``packed``: its frame, by zlib.
        ``ranks``: in place of its own; ``make`` makes the sample, where it is not the whole one with the row's values.
        """
        self.whole, self.packed = whole, packed
        self.at = whole.sampled_at if at is None else at
        self.lanes, self.parts, self.numbers, self.judged = lanes, parts, numbers, judged
        self.ranks = whole.ranks if ranks is None else ranks
        is_whole = self.at == whole.sampled_at
        self._gpus: Sequence[AnyGpu] | None = whole.gpus if is_whole else None
        self._make = make
        self._sample = whole if is_whole and make is None else None

    @property
    def gpus(self) -> Sequence[AnyGpu]:
        if self._gpus is None:
            self._gpus = gpus_of_row(values_of(self.lanes), self.whole.gpus)
        return self._gpus

    def sample(self) -> Sample | None:
        """The whole sample with the row's values, made once; None where it cannot be made."""
        if self._sample is None:
            with _MAKING:
                if self._sample is None and self._make is not None:
                    self._sample = self._make()
                elif self._sample is None:
                    self._sample = with_row(self.whole, self.at, values_of(self.lanes))
        return self._sample


_MAKING = threading.Lock()  # for a moment, and rarely by two: one for all


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

    What looks at all nodes takes ``gpus`` and ``ranks``: ``sample`` is made when it is first asked for.
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

    @property
    def row(self) -> tuple[float, bytes] | None:
        """When its newest row was taken (unix s by the node's clock), and its lanes; None before the first sample."""
        newest = self.newest
        if isinstance(newest, Received) and newest.lanes:
            return newest.at, newest.lanes
        whole = self.whole
        return None if whole is None else (whole.sampled_at, pack_row(row_of(whole)))

    @property
    def whole(self) -> Sample | None:
        """Its newest whole sample: what hardly changes is the same as in ``sample``."""
        newest = self.newest
        return newest.whole if isinstance(newest, Received) else newest

    # The little of ``sample`` that views of many nodes need.

    @property
    def sampled_at(self) -> float | None:
        newest = self.newest
        return newest.at if isinstance(newest, Received) else None if newest is None else newest.sampled_at

    @property
    def gpus(self) -> Sequence[AnyGpu]:
        return self.newest.gpus if self.newest is not None else ()

    @property
    def ranks(self) -> Sequence[AnyRank]:
        return self.newest.ranks if self.newest is not None else ()


@dataclass(frozen=True)
class FleetView:
    """All nodes in the order they were asked for. ``taken_at`` is unix s; ``serial`` grows with every change."""

    taken_at: float
    nodes: tuple[NodeView, ...]
    serial: int = 0
