"""From DCGM's rows into GPU samples, and from gaps that were true without them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mltop.probes.collect.dcgm import words
from mltop.probes.collect.dcgm.rows import FIELDS, MAIN_FIELDS, Row, Snapshot
from mltop.probes.model import Gap, GpuSample, MigInstance

Reason = tuple[str, str, str]  # why, fix and kind of a gap
INSTANCE_FIELDS = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
_GPU_GAP = re.compile(r"gpu\.(\*|\d+)\.(?:mig_instances\.(\*|\d+)\.)?(?:\{([\w,]+)\}|(\w+))")


def lacking(gpu: GpuSample) -> bool:
    """Whether a GPU could use DCGM's values: it is readable and has none of its own."""
    return gpu.state == "ok" and gpu.activity_source is None and not any_instance_is_measured(gpu)


def any_instance_is_measured(gpu: GpuSample) -> bool:
    return any(instance.sm_active is not None or instance.dram_active is not None for instance in gpu.mig_instances)


class Filling:
    """One snapshot put into the GPUs of one sample. ``now_s``: monotonic."""

    def __init__(self, snapshot: Snapshot, now_s: float, stale_after_s: float) -> None:
        self._snapshot = snapshot
        self._where = snapshot.where
        self._now_s = now_s
        self._stale_after_s = stale_after_s
        self._lasting: set[int] = set()
        self._unknown: dict[Reason, dict[int, list[str]]] = {}  # -> GPU's index -> fields

    def fill(self, gpus: list[GpuSample], wanting: list[GpuSample], lasting: list[GpuSample]) -> list[Gap]:
        """Gaps for MAIN_FIELDS that stay unknown of ``lasting``: those that have wanted for a while."""
        self._lasting = {gpu.index for gpu in lasting}
        for gpu in wanting:
            self._fill_gpu(gpu)
        everyone = {gpu.index for gpu in gpus if gpu.state == "ok"}
        return [gap for reason, lacks in self._unknown.items() for gap in fold(lacks, everyone, reason)]

    def _fill_gpu(self, gpu: GpuSample) -> None:
        rows = self._snapshot.of(gpu)
        fresh = [row for row in rows if self._now_s - row.taken_s <= self._stale_after_s]
        whole = [row for row in fresh if row.gpu_instance is None]
        parts = {row.gpu_instance: row for row in fresh if row.gpu_instance is not None}
        # NVML's source gives the same objects sample after sample, so that they are replaced, not changed.
        gpu.mig_instances = [with_values(instance, parts) for instance in gpu.mig_instances]
        if whole:
            self._fill_whole(gpu, whole[-1])
        elif parts:
            self._tell(gpu, MAIN_FIELDS, words.only_instances(self._where), "", "unsupported")
        elif rows:
            age_s = min(self._now_s - row.taken_s for row in rows)
            self._tell(gpu, MAIN_FIELDS, words.stale(self._where, age_s))
        else:
            self._tell(gpu, MAIN_FIELDS, words.not_this_gpu(self._where))

    def _fill_whole(self, gpu: GpuSample, row: Row) -> None:
        for name, value in known(row, FIELDS).items():
            setattr(gpu, name, value)
            gpu.activity_source = "dcgm"
        for name in MAIN_FIELDS:
            if name in row.garbage:
                self._tell(gpu, (name,), words.garbage(self._where, row.garbage[name]))
            elif name not in row.values:
                self._tell(gpu, (name,), words.not_exported(self._where), words.EXPORT_PROFILING)
            elif row.values[name] is None:
                self._tell(gpu, (name,), words.blank(self._where))

    def _tell(self, gpu: GpuSample, names: tuple[str, ...], why: str, fix: str = "", kind: str = "unknown") -> None:
        if gpu.index not in self._lasting:
            return
        self._unknown.setdefault((why, fix, kind), {}).setdefault(gpu.index, []).extend(names)


def known(row: Row, names: tuple[str, ...]) -> dict[str, Any]:
    """The fractions that there are, by field name."""
    return {name: value for name in names if (value := row.values.get(name)) is not None}


def with_values(instance: MigInstance, parts: dict[int, Row]) -> MigInstance:
    """The same instance, with what DCGM says of its GPU instance."""
    row = None if instance.gpu_instance is None else parts.get(instance.gpu_instance)
    return instance if row is None else replace(instance, **known(row, INSTANCE_FIELDS))


def fold(lacks: dict[int, list[str]], everyone: set[int], reason: Reason) -> list[Gap]:
    """Gaps for one reason: one for all GPUs where all lack the same fields, otherwise one for each."""
    why, fix, kind = reason
    if lacks.keys() == everyone and len({tuple(names) for names in lacks.values()}) == 1:
        return [Gap(f"gpu.*.{together(next(iter(lacks.values())))}", why, fix, kind)]
    return [Gap(f"gpu.{index}.{together(names)}", why, fix, kind) for index, names in sorted(lacks.items())]


def together(names: Sequence[str]) -> str:
    """Several fields as one: "{sm_active,tensor_active}"."""
    return names[0] if len(names) == 1 else f"{{{','.join(names)}}}"


def without_filled(gaps: list[Gap], gpus: list[GpuSample]) -> list[Gap]:
    """NVML's gaps, less the activity that is known by now: "gpu.*.{sm_active,tensor_active}" may become
    "gpu.*.sm_active", or nothing. All other gaps stay as they are.
    """
    kept = []
    for gap in gaps:
        found = _GPU_GAP.fullmatch(gap.what)
        names = (found.group(3) or found.group(4)).split(",") if found else []
        if found is None or not set(names) <= set(FIELDS):
            kept.append(gap)
            continue
        targets = _targets(found.group(1), found.group(2), gpus)
        unknown = [name for name in names if any(getattr(target, name, None) is None for target in targets)]
        if unknown:
            fields = unknown[0] if len(unknown) == 1 else "{" + ",".join(unknown) + "}"
            kept.append(
                replace(gap, what=gap.what[: found.start(3) - 1 if found.group(3) else found.start(4)] + fields)
            )
    return kept


def _targets(gpu_index: str, instance_index: str | None, gpus: list[GpuSample]) -> list[GpuSample | MigInstance]:
    """What a gap's name speaks of."""
    chosen = [gpu for gpu in gpus if gpu.state == "ok" and gpu_index in ("*", str(gpu.index))]
    if instance_index is None:
        return list(chosen)
    return [
        instance for gpu in chosen for instance in gpu.mig_instances if instance_index in ("*", str(instance.index))
    ]
