"""The last minutes of nodes, as they have kept them themselves: asked for where a dump or a capture needs them."""

from __future__ import annotations

import base64
import binascii
import time
import zlib
from collections.abc import Collection, Iterable

from mltop.probes.model import Sample
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.receiving import MOST_SAMPLE_BYTES, UNREADABLE, sample_of_line

MOST_BYTES = 64 * 1024 * 1024  # packed, over all nodes
MOST_OF_ONE_BYTES = 8 * 1024 * 1024


class Histories:
    """Samples stay packed until somebody asks for a node's. What does not answer has none."""

    def __init__(self, hub: Hub, nodes: Iterable[str]) -> None:
        names = tuple(nodes)
        share = min(MOST_OF_ONE_BYTES, MOST_BYTES // max(1, len(names)))
        self._left_bytes = dict.fromkeys(names, 2 * share)
        self._packed: dict[str, list[str]] = {}
        self._pending = hub.request("history", {"bytes": share}, names) if names else None

    def collect(self, nodes: Collection[str], timeout_s: float) -> None:
        """Takes what has come, and waits for that of these nodes, at most so long."""
        deadline = time.monotonic() + timeout_s
        while self._pending is not None and self._pending.open_nodes:
            left_s = max(0.0, deadline - time.monotonic())
            for answer in self._pending.answers(left_s):
                packed = answer.message.packed
                self._left_bytes[answer.node] -= len(packed)
                if packed and self._left_bytes[answer.node] >= 0:
                    self._packed.setdefault(answer.node, []).append(packed)
                if nodes and all(map(self.has, nodes)):
                    break
            if time.monotonic() >= deadline or all(map(self.has, nodes)):
                return

    def has(self, node: str) -> bool:
        """Whether all of a node's has come."""
        return self._pending is None or node not in self._pending.open_nodes

    def of(self, node: str) -> list[Sample]:
        """The oldest first."""
        samples = []
        for packed in self._packed.get(node, ()):
            try:
                unpacking = zlib.decompressobj()
                sample = sample_of_line(unpacking.decompress(base64.b64decode(packed), MOST_SAMPLE_BYTES))
            except (*UNREADABLE, zlib.error, binascii.Error):
                continue  # the node's newest sample says what is wrong with them
            sample.node = node
            samples.append(sample)
        return sorted(samples, key=lambda sample: sample.sampled_at)

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
