"""The part of a sample that views of all nodes need: decoding it takes an eighth of the time of the whole."""

from __future__ import annotations

from typing import Any

import msgspec

from mltop.probes.model import GpuSample, JobKey, Sample
from mltop.probes.model.receipt import MOST_GPUS, MOST_RANK_NUMBERS, MOST_RANKS, MOST_TIME_S, Refused, said

# Field names, units and meanings are those of probes.model. Nothing here can be part of a cycle: the garbage collector
# need not look at some ten thousand objects a second (gc=False).


class GpuGlance(msgspec.Struct, frozen=True, gc=False):
    index: int
    state: str = "ok"
    busy: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


class RankGlance(msgspec.Struct, frozen=True, gc=False):
    pid: int
    rank: int | None = None
    job: str = ""
    uid: int | None = None
    started_at: float | None = None
    voluntary_switches: int | None = None
    read_syscalls: int | None = None
    write_syscalls: int | None = None

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.job, self.uid)


class GapGlance(msgspec.Struct, frozen=True, gc=False):
    """That there is one; ``kind`` as in Gap."""

    kind: str = "unknown"


class Glance(msgspec.Struct, frozen=True, gc=False):
    sampled_at: float
    node: str = ""
    interval_s: float = 1.0
    simulated: bool = False
    gpus: tuple[GpuGlance, ...] = ()
    ranks: tuple[RankGlance, ...] = ()
    gaps: tuple[GapGlance, ...] = ()

    def admitted(self) -> Glance:
        """Itself when all of it can be, else what of it is left, as ``receipt.admit`` does it. Raises Refused."""
        if not 0 <= self.sampled_at <= MOST_TIME_S:
            raise Refused(f"its sampled_at, {said(self.sampled_at)}, is no time")
        gpus, ranks = self.gpus, self.ranks
        if [gpu.index for gpu in gpus] != list(range(len(gpus))) or len(gpus) > MOST_GPUS:
            by_index = {gpu.index: gpu for gpu in reversed(gpus) if 0 <= gpu.index < MOST_GPUS}
            gpus = tuple(gpu for gpu in gpus if by_index.get(gpu.index) is gpu)
        if any(rank.rank is not None and not 0 <= rank.rank <= MOST_RANK_NUMBERS for rank in ranks):
            known = [rank.rank is None or 0 <= rank.rank <= MOST_RANK_NUMBERS for rank in ranks]
            ranks = tuple(
                rank if fine else msgspec.structs.replace(rank, rank=None)
                for rank, fine in zip(ranks, known, strict=True)
            )
        interval_s = self.interval_s if 0 < self.interval_s <= 86_400 else 1.0
        if gpus is self.gpus and ranks is self.ranks and len(ranks) <= MOST_RANKS and interval_s == self.interval_s:
            return self
        return msgspec.structs.replace(self, gpus=gpus, ranks=ranks[:MOST_RANKS], interval_s=interval_s)


class SampleFrame(msgspec.Struct):
    """As much of an agent's frame as a glance takes."""

    sample: Glance | None = None


AnyGpu = GpuGlance | GpuSample


def glance_of(sample: Sample) -> Glance:
    """Of a sample that is already whole."""
    return Glance(
        sample.sampled_at,
        sample.node,
        sample.interval_s,
        sample.simulated,
        tuple(GpuGlance(**_fields(gpu, GpuGlance)) for gpu in sample.gpus),
        tuple(RankGlance(**_fields(rank, RankGlance)) for rank in sample.ranks),
        tuple(GapGlance(gap.kind) for gap in sample.gaps),
    )


def _fields(whole: object, part: type[msgspec.Struct]) -> dict[str, Any]:
    found = {name: getattr(whole, name) for name in part.__struct_fields__}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
