"""A sample of a moment out of what is kept of it: what is not kept is unknown, and a gap says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any, TypeVar, cast

from mltop.probes.model import Gap, GpuSample, GpuState, RankSample, Sample
from mltop.probes.model.gpu import Nvlink, Pcie
from mltop.probes.model.units import clock_time
from mltop.probes.reach.view import GpuSummary, HostSummary, NvlinkSummary, RankSummary, SampleSummary
from mltop.tui.app.past.lanes import GPU_LANES, GPU_WIDTH, NODE_LANES, NODE_WIDTH, STATES
from mltop.tui.app.past.track import reasons_of
from mltop.tui.app.past.wholes import Whole

Record = TypeVar("Record")
# What does not change in the life of a GPU, a rank or a node, beside the fields that the model calls slow.
_OF_GPU = ("index", "uuid", "memory_total_bytes", "power_limit_w", "sm_clock_max_mhz", "activity_source")
_OF_RANK = ("pid", "rank", "world_size", "job", "uid", "started_at", "gpus")
_OF_HOST = ("memory_total_bytes",)


def summary_then(
    base: SampleSummary | None, node: str, at: float, row: Sequence[float], interval_s: float
) -> SampleSummary:
    """``row``: by `lanes.py`, in memory's units. ``base``: of the newest sample before that more is known of."""
    before = {gpu.index: gpu for gpu in base.gpus} if base is not None else {}
    gpus = []
    for begin in range(NODE_WIDTH, len(row), GPU_WIDTH):
        index = (begin - NODE_WIDTH) // GPU_WIDTH
        values = row[begin : begin + GPU_WIDTH]
        known = [None if value != value else value * unit for value, unit in zip(values, _UNITS, strict=True)]  # noqa: PLR0124
        if index in before or known != _NOTHING:
            gpus.append(_gpu_summary(index, known, before.get(index)))
    cpu, network = row[0], row[1]
    rate = None if network != network else network * NODE_LANES[1].unit  # noqa: PLR0124
    host = HostSummary(
        None if cpu != cpu else cpu,  # noqa: PLR0124
        ports_rx_bytes_per_s=rate,
        ports_tx_bytes_per_s=None if rate is None else 0.0,
    )
    return SampleSummary(
        at,
        node,
        interval_s,
        base.simulated if base is not None else False,
        tuple(gpus),
        _ranks_of(base.ranks) if base is not None else (),
        host,
    )


_UNITS = tuple(lane.unit for lane in GPU_LANES)
_NOTHING: list[float | None] = [None] * GPU_WIDTH


def _ranks_of(ranks: tuple[RankSummary, ...]) -> tuple[RankSummary, ...]:
    """Without their counters."""
    return tuple(RankSummary(rank.pid, rank.rank, rank.job, rank.uid, rank.started_at, rank.gpus) for rank in ranks)


def _gpu_summary(index: int, known: Sequence[float | None], before: GpuSummary | None) -> GpuSummary:
    clock, power, heat, busy, sm, tensor, dram, nvlink, used, bits = known
    state: GpuState = STATES.get(bits, "ok") if bits is not None and bits < 0 else "ok"
    return GpuSummary(
        index,
        state,
        busy,
        sm,
        tensor,
        dram,
        None if used is None else int(used),
        before.memory_total_bytes if before is not None else None,
        heat,
        power,
        before.power_limit_w if before is not None else None,
        None if clock is None else int(clock),
        before.sm_clock_max_mhz if before is not None else None,
        tuple(reasons_of(int(bits))) if bits is not None and bits >= 0 else None,
        NvlinkSummary() if nvlink is None else NvlinkSummary(nvlink, 0.0),
    )


def sample_then(summary: SampleSummary, base: Whole | None, step_s: float) -> Sample:
    """The whole sample of a moment, as far as it is known."""
    whole = base.sample() if base is not None else None
    if whole is None:
        whole = Sample(summary.node, summary.sampled_at)
    of_gpus = {gpu.index: gpu for gpu in whole.gpus}
    gpus = [_gpu_then(gpu, of_gpus.get(gpu.index)) for gpu in summary.gpus]
    pids = {rank.pid for rank in summary.ranks}
    of_ranks = {rank.pid: rank for rank in whole.ranks}
    ranks = [_only_lasting(of_ranks[pid], _OF_RANK) for pid in of_ranks if pid in pids]
    ranks += [_rank_then(rank) for rank in summary.ranks if rank.pid not in of_ranks]
    host = _only_lasting(whole.host, _OF_HOST)
    host.cpu_fraction = summary.host.cpu_fraction
    return replace(
        whole,
        sampled_at=summary.sampled_at,
        interval_s=summary.interval_s,
        gpus=gpus,
        ranks=ranks,
        unassigned=[],
        deaths=[death for death in whole.deaths if (death.at or 0.0) <= summary.sampled_at],
        host=host,
        links=[replace(link, rx_bytes_per_s=None, tx_bytes_per_s=None, counters={}) for link in whole.links],
        gaps=[*whole.gaps, *_gaps(base, step_s)],
        counters_read_at={},
        cost_s={},
    )


def near_sample(summary: SampleSummary, base: Whole | None, step_s: float) -> Sample:
    """The same where a whole sample of seconds before is kept: what changes less often than every second is of it."""
    whole = base.sample() if base is not None else None
    if whole is None or base is None:
        return sample_then(summary, base, step_s)
    of_gpus = {gpu.index: gpu for gpu in whole.gpus}
    gpus = [
        _with_values(before, gpu) if (before := of_gpus.get(gpu.index)) is not None else _gpu_then(gpu, None)
        for gpu in summary.gpus
    ]
    host = replace(whole.host, cpu_fraction=summary.host.cpu_fraction)
    why = f"what is not kept of every second is of {clock_time(base.at)}"
    gaps = [*whole.gaps, Gap("moment", why)]
    return replace(whole, sampled_at=summary.sampled_at, gpus=gpus, host=host, gaps=gaps, cost_s={})


def _gaps(base: Whole | None, step_s: float) -> list[Gap]:
    since = f", what hardly changes of {clock_time(base.at)}" if base is not None and base.packed is not None else ""
    every = "second" if step_s <= 1.0 else f"{step_s:.0f} s"
    of_gpus = f"not kept: of this moment there is what is kept of every {every}{since}"
    others = f"not kept: of each {every} there are only the CPUs' load and the traffic of all ports together{since}"
    return [
        Gap.about("gpu", item="*", why=of_gpus),
        Gap.about("host", why=others),
        Gap.about("links", "rates", why=others),
        Gap.about("ranks", "counters", why=f"not kept: counters and states of ranks{since}"),
    ]


def _gpu_then(then: GpuSummary, before: GpuSample | None) -> GpuSample:
    gpu = _only_lasting(before, _OF_GPU) if before is not None else GpuSample(then.index)
    gpu.pcie, gpu.nvlink = Pcie(), Nvlink()
    if before is not None:
        gpu.pcie = Pcie(gen_max=before.pcie.gen_max, width_max=before.pcie.width_max)
    if then.state != "ok":
        gpu.error = "it did not answer (its error is not kept)"
    return _with_values(gpu, then)


def _with_values(gpu: GpuSample, then: GpuSummary) -> GpuSample:
    """``gpu`` with the values of that moment."""
    gpu.state = then.state
    for name in ("busy", "sm_active", "tensor_active", "dram_active", "memory_used_bytes", "memory_total_bytes"):
        setattr(gpu, name, getattr(then, name))
    gpu.temperature_c, gpu.power_w = then.temperature_c, then.power_w
    gpu.power_limit_w, gpu.sm_clock_max_mhz = then.power_limit_w, then.sm_clock_max_mhz
    gpu.sm_clock_mhz = then.sm_clock_mhz
    gpu.throttle_reasons = None if then.throttle_reasons is None else list(then.throttle_reasons)
    return gpu


def _rank_then(then: RankSummary) -> RankSample:
    return RankSample(then.pid, then.rank, job=then.job, uid=then.uid, started_at=then.started_at, gpus=list(then.gpus))


@cache
def _defaults(kind: Any, lasting: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    """The fields that change, with a function that makes what they are while they are unknown."""
    changing = []
    for field in fields(kind):
        if field.metadata.get("slow") or field.name in lasting:
            continue
        made = field.default_factory if field.default_factory is not MISSING else lambda value=field.default: value
        changing.append((field.name, made))
    return tuple(changing)


def _only_lasting(record: Record, lasting: tuple[str, ...]) -> Record:
    """A copy in which all that changes is unknown."""
    unknown = {name: make() for name, make in _defaults(cast("type", type(record)), lasting)}
    return cast("Record", replace(cast("Any", record), **unknown))
