"""Equal parts of many nodes' samples, kept once: the same boards have the same links, devices and error counts."""

from __future__ import annotations

from typing import TypeVar, cast

import msgspec

from mltop.probes.model import Sample

Part = TypeVar("Part")

# Of the parts as they are encoded; 512 nodes of 8 GPUs need half a megabyte. A node that sends other parts each time
# makes them be forgotten: then less is shared.
MOST_BYTES = 8 << 20

_encode = msgspec.msgpack.Encoder().encode


class Sharing:
    """Puts parts that were seen before in place of equal ones, where they hardly ever change and are large."""

    def __init__(self) -> None:
        self._parts: dict[tuple[type, bytes], object] = {}
        self.size_bytes = 0

    def sample(self, sample: Sample) -> None:
        for gpu in sample.gpus:
            gpu.nvlink.links = self._of(gpu.nvlink.links)
            gpu.ecc, gpu.remap, gpu.fabric = self._of(gpu.ecc), self._of(gpu.remap), self._of(gpu.fabric)
        sample.pci = [self._of(device) for device in sample.pci]

    def _of(self, part: Part) -> Part:
        encoded = _encode(part)
        known = self._parts.get((type(part), encoded))
        if known is not None:
            return cast("Part", known)
        if self.size_bytes + len(encoded) > MOST_BYTES:
            self._parts.clear()
            self.size_bytes = 0
        if len(encoded) <= MOST_BYTES:
            self._parts[type(part), encoded] = part
            self.size_bytes += len(encoded)
        return part
