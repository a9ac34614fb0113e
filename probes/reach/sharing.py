"""Equal parts of many samples and dumps, kept once: the same boards have the same links, devices and error counts, and
16 rounds of 4,096 ranks repeat the same stacks, commands and lists. They are never changed after they arrived.
"""

from __future__ import annotations

from typing import TypeVar, cast

import msgspec

from mltop.probes.model import RankStacks, Sample

Part = TypeVar("Part")

# Of the parts as they are encoded; 512 nodes of 8 GPUs need half a megabyte. A node that sends other parts each time
# makes them be forgotten: then less is shared.
MOST_BYTES = 8 << 20
_OF_RANK = (
    *("job", "launcher", "user", "command", "python", "master_address"),
    *("cpus_allowed", "numa_nodes", "gpus", "children"),
)

_encode = msgspec.json.Encoder().encode  # locals in frames may exceed the 64 bits of msgpack


class Sharing:
    """Puts parts that were seen before in place of equal ones, where they hardly ever change or are large."""

    def __init__(self) -> None:
        self._parts: dict[tuple[type, bytes], object] = {}
        self.size_bytes = 0

    def sample(self, sample: Sample) -> None:
        for gpu in sample.gpus:
            gpu.nvlink.links = self._of(gpu.nvlink.links)
            self._share(gpu, "ecc", "remap", "fabric")
        sample.pci = [self._of(device) for device in sample.pci]

    def stacks(self, stacks: RankStacks) -> None:
        self._share(stacks, "job", "node")
        for rank in (stacks.before, stacks.after):
            if rank is not None:
                self._share(rank, *_OF_RANK)
        for digest in stacks.digests:
            self._share(digest, "frames", "key", "thread", "job", "node", "waiting_in")

    def ranks_of(self, sample: Sample) -> Sample:
        """The sample with its ranks only: all that a verdict needs of the past."""
        for rank in sample.ranks:
            self._share(rank, *_OF_RANK)
        return Sample(
            sample.node, sample.sampled_at, sample.boot_id, sample.interval_s, sample.simulated, ranks=sample.ranks
        )

    def _share(self, whole: object, *names: str) -> None:
        for name in names:
            setattr(whole, name, self._of(getattr(whole, name)))

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
