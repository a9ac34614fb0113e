"""A sample of a moment out of what is kept of it: what is not kept is unknown, and a gap says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any, TypeVar, cast

from mltop.probes.model import Gap, GpuSample, RankSample, Sample
from mltop.probes.model.gpu import Nvlink, Pcie
from mltop.probes.model.news.row import gpus_of, values_of, with_row
from mltop.probes.model.units import clock_time
from mltop.probes.reach.view import RankSummary
from mltop.tui.app.past.wholes import TROUBLED_EVERY_S, Kept

Record = TypeVar("Record")
# What does not change in the life of a GPU, a rank or a node, beside the fields that the model calls slow.
_LASTING: dict[type, tuple[str, ...]] = {
    GpuSample: ("index", "uuid", "memory_total_bytes", "power_limit_w", "sm_clock_max_mhz", "activity_source"),
    RankSample: ("pid", "rank", "world_size", "job", "uid", "started_at", "gpus"),
}
_OF_HOST = ("memory_total_bytes",)


def sample_then(
    node: str, at: float, lanes: bytes, ranks: Sequence[RankSummary], *, base: Kept | None, step_s: float
) -> Sample:
    """The whole sample of a moment, as far as it is known. ``lanes`` of ``at``: the row of ``step_s``; ``base``: the
    nearest whole sample.
    """
    whole, row = base.sample(node) if base is not None else None, values_of(lanes)
    if base is None or whole is None:
        gpus = [GpuSample(index) for index in range(gpus_of(row))]
        then = Sample(node, at, gpus=gpus, ranks=[*map(_rank, ranks)], gaps=_gaps("", step_s))
    elif at - 1.0 < base.at <= at:
        return whole
    elif at - TROUBLED_EVERY_S < base.at <= at:
        why = f"what is not kept of every second is of {clock_time(base.at)}"
        then = replace(whole, gaps=[*whole.gaps, Gap("moment", why)], cost_s={})
    else:
        then = _lasting(whole, at, ranks)
        then.gaps += _gaps(f", what hardly changes of {clock_time(base.at)}", step_s)
    then = with_row(then, at, row)
    for gpu in then.gpus:
        if gpu.state != "ok":
            gpu.error = gpu.error or "it did not answer (its error is not kept)"
    return then


def _lasting(whole: Sample, at: float, ranks: Sequence[RankSummary]) -> Sample:
    """The whole sample of another time, without what changes."""
    known = {rank.pid: rank for rank in whole.ranks}
    return replace(
        whole,
        gpus=[_gpu(gpu) for gpu in whole.gpus],
        ranks=[_only_lasting(known[rank.pid]) if rank.pid in known else _rank(rank) for rank in ranks],
        unassigned=[],
        deaths=[death for death in whole.deaths if (death.at or 0.0) <= at],
        kernel_events=[event for event in whole.kernel_events if event.at <= at],
        host=_only_lasting(whole.host),
        links=[replace(link, rx_bytes_per_s=None, tx_bytes_per_s=None, counters={}) for link in whole.links],
        gaps=[*whole.gaps],
        counters_read_at={},
        cost_s={},
    )


def _gpu(gpu: GpuSample) -> GpuSample:
    then = _only_lasting(gpu)
    then.pcie, then.nvlink = Pcie(gen_max=gpu.pcie.gen_max, width_max=gpu.pcie.width_max), Nvlink()
    return then


def _rank(then: RankSummary) -> RankSample:
    return RankSample(then.pid, then.rank, job=then.job, uid=then.uid, started_at=then.started_at, gpus=[*then.gpus])


def _gaps(since: str, step_s: float) -> list[Gap]:
    every = "second" if step_s <= 1.0 else f"{step_s:.0f} s"
    of_gpus = f"not kept: of this moment there is what is kept of every {every}{since}"
    others = f"not kept: of each {every} there are only the CPUs' load and the traffic of all ports together{since}"
    return [
        Gap.about("gpu", item="*", why=of_gpus),
        Gap.about("host", why=others),
        Gap.about("links", "rates", why=others),
        Gap.about("ranks", "counters", why=f"not kept: counters and states of ranks{since}"),
    ]


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields that change, with a function that makes what they are while they are unknown."""
    changing = []
    for field in fields(kind):
        if field.metadata.get("slow") or field.name in _LASTING.get(kind, _OF_HOST):
            continue
        made = field.default_factory if field.default_factory is not MISSING else lambda value=field.default: value
        changing.append((field.name, made))
    return tuple(changing)


def _only_lasting(record: Record) -> Record:
    """A copy in which all that changes is unknown."""
    unknown = {name: make() for name, make in _defaults(cast("type", type(record)))}
    return cast("Record", replace(cast("Any", record), **unknown))
