"""What of a sample goes out every second, and what only with the whole one every five seconds ("slow" frames).

Ports, NVLinks one by one, error counters, identities: three quarters of a sample hardly ever change. The agent sends a
whole sample now and then (``WholeSamples``), in between light ones, without the fields that the model calls ``slow``;
the hub completes these (``complete``).
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from mltop.probes.model import Sample
from mltop.probes.model.sample import Reads

EVERY_S = 4.5  # five seconds at one sample per second, with room for its jitter


def light_fields(record: Any) -> dict[str, Any]:
    """What goes out of a record: no slow field, and none that holds its default, which every decoder knows."""
    values = vars(record)
    return {name: value for name, default in _light(record.__class__) if (value := values[name]) != default}


@cache
def _light(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields that are not slow, and their defaults; ``...``, which equals no value, for those without."""
    return tuple((field.name, _default(field)) for field in fields(kind) if not field.metadata.get("slow"))


def _default(field: Field[Any]) -> Any:
    """Records as defaults differ from any value: their own fields are left out instead."""
    if field.default is not MISSING:
        return field.default
    made = field.default_factory() if field.default_factory is not MISSING else ...
    return ... if is_dataclass(made) else made


@cache
def _slow(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.metadata.get("slow"))


def complete(sample: Sample, whole: Sample) -> None:
    """Fill in what a light sample leaves to the whole one before it. What both share is not to be changed."""
    _take_slow(sample, whole)
    _take_slow(sample.host, whole.host)
    gpus = {(gpu.index, gpu.uuid): gpu for gpu in whole.gpus}
    for gpu in sample.gpus:
        whole_gpu = gpus.get((gpu.index, gpu.uuid))
        if whole_gpu is not None:
            _take_slow(gpu, whole_gpu)
            _take_slow(gpu.pcie, whole_gpu.pcie)
            _take_slow(gpu.nvlink, whole_gpu.nvlink)
    ranks = {rank.pid: rank for rank in whole.ranks}
    for rank in sample.ranks:
        if rank.pid in ranks:
            _take_slow(rank, ranks[rank.pid])


def _take_slow(record: Any, whole: Any) -> None:
    values = vars(record)
    for name in _slow(record.__class__):
        values[name] = getattr(whole, name)


class WholeSamples:
    """Sent every five seconds, and at once when something that matters is not as in the last one."""

    def __init__(self) -> None:
        self._reads = Reads()
        self._sent_at = float("-inf")
        self._sent: object = None

    def is_due(self, sample: Sample) -> bool:
        """Whether to send this one whole; then it counts as sent."""
        self._reads.see(sample)
        # That all counters were read a second time: somebody may wait to see whether they grow.
        all_twice = all(map(self._reads.twice, sample.counters_read_at))
        matters = (all_twice, *_what_matters(sample))
        if matters == self._sent and 0 <= sample.sampled_at - self._sent_at < EVERY_S:
            return False
        self._sent_at, self._sent = sample.sampled_at, matters
        return True


def _what_matters(sample: Sample) -> tuple[object, ...]:
    newest = sample.kernel_events[-1].at if sample.kernel_events else None
    return (
        len(sample.kernel_events),
        newest,
        [(link.device, link.port, link.state, link.error) for link in sample.links],
        len(sample.pci),
        [(gpu.uuid, gpu.state, gpu.recovery_action, gpu.mig_enabled) for gpu in sample.gpus],
        [gpu.remap for gpu in sample.gpus],
        [gpu.ecc.uncorrected_volatile for gpu in sample.gpus],
        [(rank.pid, rank.rank, rank.job) for rank in sample.ranks],
        [rank.pid for rank in sample.unassigned],
        [(death.pid, death.at, death.how, death.error) for death in sample.deaths],
        [(line.at, line.where) for line in sample.log_lines[-1:]],
        [(gap.what, gap.kind) for gap in sample.gaps],
    )
