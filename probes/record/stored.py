"""Samples of a recording, kept packed: 1 GB of them needs about 70 MB. They are decoded one by one, when looked at."""

from __future__ import annotations

import heapq
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from mltop.probes.model import Sample
from mltop.probes.record.decoding import BadRecording, decode_sample
from mltop.probes.record.limits import (
    MOST_DISORDERED_BYTES,
    MOST_PACKED_BYTES,
    MOST_RECORDED_NODES,
    MOST_SAMPLES,
)

_UNPACKED_BYTES = 64 << 20  # that wait to be packed, or are read at a time, of all nodes together
_PIECE_BYTES = (16 << 10, 128 << 10)  # at least and at most


class NodeSamples:
    """One node's samples. ``len``, ``newest`` and iteration, which is in the order of time."""

    def __init__(self) -> None:
        self._times = array("d")
        self._pieces: list[tuple[int, bytes]] = []  # (number of lines, packed)
        self._open: list[bytes] = []
        self._newest = 0  # its place
        self.open_bytes = 0
        self.all_bytes = 0
        self.in_order = True

    def __len__(self) -> int:
        return len(self._times)

    def add(self, sampled_at: float, line: bytes) -> None:
        if self._times and sampled_at < self._times[self._newest]:
            self.in_order = False
        else:
            self._newest = len(self._times)
        self._times.append(sampled_at)
        self._open.append(line)
        self.open_bytes += len(line)
        self.all_bytes += len(line)

    def pack(self) -> int:
        """Returns the bytes that this takes."""
        if not self._open:
            return 0
        packed = zlib.compress(b"\n".join(self._open), 1)
        self._pieces.append((len(self._open), packed))
        self._open, self.open_bytes = [], 0
        return len(packed)

    @property
    def newest(self) -> Sample:
        """Of equal times the last one in the file."""
        when = self._times[self._newest]
        *_, (_, line) = (found for found in self._lines(when) if found[0] == when)
        return decode_sample(line, "sample")

    @property
    def newest_at(self) -> float:
        return self._times[self._newest]

    def __iter__(self) -> Iterator[Sample]:
        return self.since(float("-inf"))

    def since(self, when: float) -> Iterator[Sample]:
        """Those of ``when`` (unix s) and later."""
        found: Iterable[tuple[float, bytes]] = (one for one in self._lines(when) if one[0] >= when)
        if not self.in_order:
            found = sorted(found, key=itemgetter(0))
        return (decode_sample(line, "sample") for _, line in found)

    def _lines(self, when: float) -> Iterator[tuple[float, bytes]]:
        """(time, line) in the order of the file; pieces that are older than ``when`` as a whole are not unpacked."""
        place = 0
        for count, packed in self._pieces:
            times = self._times[place : place + count]
            place += count
            if max(times) >= when:
                yield from zip(times, zlib.decompress(packed).split(b"\n"), strict=True)
        yield from zip(self._times[place:], self._open, strict=True)


class StoredSamples(Mapping[str, NodeSamples]):
    """By node, within the limits of `limits.py`: ``add`` raises BadRecording beyond them."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeSamples] = {}
        self._open_bytes = self._packed_bytes = self._count = 0

    def __getitem__(self, node: str) -> NodeSamples:
        return self._nodes[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, sample: Sample, line: bytes, where: str) -> None:
        """``line``: the sample's JSON."""
        own = self._nodes.get(sample.node)
        if own is None:
            own = self._nodes[sample.node] = NodeSamples()
        own.add(sample.sampled_at, line)
        self._count += 1
        self._open_bytes += len(line)
        if own.open_bytes > self._piece_bytes():
            self._pack([own])
        if self._open_bytes > _UNPACKED_BYTES:
            self._pack(self._nodes.values())
        if self._count > MOST_SAMPLES:
            raise BadRecording(f"{where}: more than the {MOST_SAMPLES:,} samples that mltop reads")
        if len(self._nodes) > MOST_RECORDED_NODES:
            raise BadRecording(f"{where}: samples of more than the {MOST_RECORDED_NODES:,} nodes that mltop reads")
        if self._packed_bytes > MOST_PACKED_BYTES:
            raise BadRecording(f"{where}: more samples than mltop can keep in {MOST_PACKED_BYTES >> 20} MiB of memory")

    def _piece_bytes(self) -> int:
        """Small for many nodes: who reads them in the order of time has a piece of each in hand."""
        least, most = _PIECE_BYTES
        return max(least, min(most, _UNPACKED_BYTES // len(self._nodes)))

    def _pack(self, nodes: Iterable[NodeSamples]) -> None:
        for own in nodes:
            self._open_bytes -= own.open_bytes
            self._packed_bytes += own.pack()

    def finish(self, where: str) -> None:
        """All are added. Raises BadRecording."""
        for node, own in self._nodes.items():
            if own.all_bytes > MOST_DISORDERED_BYTES and not own.in_order:
                raise BadRecording(f"{where}: the samples of {node} do not stand in the order of time")

    def by_time(self) -> Iterator[Sample]:
        """Those of all nodes, the oldest first."""
        return heapq.merge(*self._nodes.values(), key=lambda sample: sample.sampled_at)

    @property
    def newest(self) -> list[Sample]:
        """The last one of every node."""
        return [own.newest for own in self._nodes.values()]

    def oldest(self) -> list[Sample]:
        """The first one of every node."""
        return [next(iter(own)) for own in self._nodes.values()]
