"""How many active NVLinks a GPU should have. A count of its own tells little: boards, bridges and partitions differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.link_memo import OfNewest, usual
from mltop.probes.judge.health.link_ports import gpu_key, gpu_name, group
from mltop.probes.judge.health.rule import Moment
from mltop.probes.model import GpuSample, NvlinkLink, Sample

TOPIC = "nvlink.active"
# All links of a GPU on a board with NVSwitches lead to these. The first name that fits counts.
ON_SWITCH_BOARDS = (
    ("H800", 8),
    ("A800", 8),
    ("H20", 18),
    ("H100", 18),
    ("GH200", 18),
    ("B200", 18),
    ("B300", 18),
    ("A100", 12),
    ("V100", 6),
)
# Cards with bridges, which may be fewer than fit.
_BRIDGED = re.compile(r"PCIe|\bNVL\b|RTX|\bA(?:10|16|30|40)\b|\bL(?:4|40)S?\b|Quadro|GeForce|TITAN")


@dataclass(frozen=True)
class Expected:
    count: int
    why: str
    severity: str


def of(moment: Moment, gpu: GpuSample, up: int) -> Expected | None:
    """The highest count that there is a reason for; None when ``up`` is as many. ``up``: active now."""
    card = "warning" if _BRIDGED.search(gpu.name or "") else "critical"
    found = [
        Expected(count, why, severity)
        for count, why, severity in (
            (_earlier(moment, gpu, up), "so many were active before", "critical"),
            _siblings(moment.now, gpu, card),
            _peers(moment, gpu, card),
            (_board(moment.now, gpu, card), "all links of an NVSwitch board have to be active", "critical"),
        )
        if count > up
    ]
    return max(found, key=lambda one: (one.count, one.severity == "critical"), default=None)


class Linked(NamedTuple):
    """A GPU whose NVLinks can be judged, what is remembered of it is under ``key``, and its active links."""

    gpu: GpuSample
    key: str
    up: int


def _linked(sample: Sample) -> list[Linked]:
    return [
        Linked(gpu, gpu_key(gpu), active_count(gpu.nvlink.links))
        for gpu in sample.gpus
        if gpu.nvlink.links and gpu.state == "ok" and not gpu.mig_enabled  # in MIG mode they are not used
    ]


linked = OfNewest(_linked)


def active_count(links: list[NvlinkLink]) -> int:
    return [link.active for link in links].count(True)


@lru_cache(maxsize=128)
def seen_name(count: int) -> str:
    """Of the counter that exists once a GPU has been seen with so many active links."""
    return f"nvlink {count} active"


def peers_group(sample: Sample, model: str) -> str:
    """Virtual machines with one GPU have no NVLinks, those with eight have all."""
    return group(model, f"{len(sample.gpus)} GPUs")


def _earlier(moment: Moment, gpu: GpuSample, up: int) -> int:
    for count in range(len(gpu.nvlink.links), up, -1):
        if moment.increase(gpu_key(gpu), seen_name(count), 1.0) is not None:
            return count
    return 0


def _siblings(sample: Sample, gpu: GpuSample, severity: str) -> tuple[int, str, str]:
    best = _best_of_model(linked(sample)).get(gpu.name)
    if best is None or best.gpu is gpu:
        return 0, "", severity
    return best.up, f"{gpu_name(best.gpu)} of the same model has {best.up}", severity


class _BestOfModel:
    """By model the first GPU that has most active links; of the list that was asked about last."""

    def __init__(self) -> None:
        self._kept: tuple[list[Linked], dict[str | None, Linked]] = [], {}

    def __call__(self, gpus: list[Linked]) -> dict[str | None, Linked]:
        kept = self._kept
        if kept[0] is not gpus:
            best: dict[str | None, Linked] = {}
            for one in gpus:
                known = best.get(one.gpu.name)
                if known is None or one.up > known.up:
                    best[one.gpu.name] = one
            kept = self._kept = gpus, best
        return kept[1]


_best_of_model = _BestOfModel()


def _peers(moment: Moment, gpu: GpuSample, severity: str) -> tuple[int, str, str]:
    typical = usual(moment.peers, TOPIC, peers_group(moment.now, gpu.name)) if gpu.name else None
    if typical is None:
        return 0, "", severity
    return typical.value, f"{typical.count} of {typical.of} like nodes have {typical.value}", severity


def _board(sample: Sample, gpu: GpuSample, severity: str) -> int:
    if severity != "critical" or not any(device.kind == "nvswitch" for device in sample.pci):
        return 0
    full = next((count for name, count in ON_SWITCH_BOARDS if name in (gpu.name or "")), 0)
    return min(full, len(gpu.nvlink.links))
