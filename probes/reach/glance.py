"""The part of a sample that views of all nodes need: decoding it takes an eighth of the time of the whole."""

from __future__ import annotations

from typing import Any

import msgspec

from mltop.probes.model import GpuSample, Sample

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
    started_at: float | None = None
    voluntary_switches: int | None = None
    read_syscalls: int | None = None
    write_syscalls: int | None = None


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
