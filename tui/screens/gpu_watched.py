"""Every GPU as it was when it was first looked at: counters are worth what they grew by since."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.model import GpuSample


@dataclass(frozen=True)
class First:
    """``at``: unix s."""

    at: float
    gpu: GpuSample


class WatchedGpus:
    """By node and index. Another board in the place, or a time that goes back (a replay), starts anew."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], First] = {}

    def first(self, node: str, gpu: GpuSample, at: float) -> First:
        key = (node, gpu.index)
        known = self._first.get(key)
        if known is None or known.gpu.uuid != gpu.uuid or at < known.at:
            known = self._first[key] = First(at, gpu)
        return known
