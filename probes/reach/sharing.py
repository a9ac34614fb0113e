"""Equal parts of many nodes' samples, kept once: the same boards have the same links, devices and error counts."""

from __future__ import annotations

from typing import TypeVar, cast

import msgspec

from mltop.probes.model import Sample

Part = TypeVar("Part")

MOST_PARTS = 8192  # a node that names others each time costs what is shared, not memory

_encode = msgspec.msgpack.Encoder().encode


class Sharing:
    """Puts parts that were seen before in place of equal ones, where they hardly ever change and are large."""

    def __init__(self) -> None:
        self._parts: dict[tuple[type, bytes], object] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def sample(self, sample: Sample) -> None:
        for gpu in sample.gpus:
            gpu.nvlink.links = self._of(gpu.nvlink.links)
            gpu.ecc, gpu.remap, gpu.fabric = self._of(gpu.ecc), self._of(gpu.remap), self._of(gpu.fabric)
        sample.pci = [self._of(device) for device in sample.pci]

    def _of(self, part: Part) -> Part:
        if len(self._parts) >= MOST_PARTS:
            self._parts.clear()
        return cast("Part", self._parts.setdefault((type(part), _encode(part)), part))
