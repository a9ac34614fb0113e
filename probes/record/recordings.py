"""A recording: JSON lines, plain or gzip: a header, then one Sample per line, of any nodes.

Samples are kept packed, 1 GB of them needs about 70 MB, and decoded one by one when they are looked at.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import os
import time
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

from mltop.probes.model import Sample, to_json
from mltop.probes.model.units import size_words
from mltop.probes.record.decoding import (
    MOST_LINE_BYTES,
    MOST_PACKED_BYTES,
    MOST_RECORDED_NODES,
    MOST_RECORDING_BYTES,
    MOST_SAMPLES,
    BadRecording,
    SampleHead,
    decode,
    decode_sample,
)
from mltop.probes.system.files import BadFile, open_regular
from mltop.probes.version import __version__

_UNPACKED_BYTES = 64 << 20  # that wait to be packed, or are read at a time, of all nodes together
_PIECE_BYTES = (16 << 10, 128 << 10)  # at least and at most
FORMAT = 1
_MOST_UNPACKED = 128  # pieces of all nodes whose clocks were set back
DecodeLine = Callable[[bytes, str], "Sample | SampleHead"]
_GZIP = b"\x1f\x8b"


class NodeSamples:
    """One node's samples. ``len``, ``newest`` and iteration, which is in the order of time: the node's clock may have
    been set back.
    """

    def __init__(self) -> None:
        self._times = array("d")
        self._begins = [0]  # of pieces: the places of their first lines
        self._pieces: list[bytes] = []  # packed
        self._open: list[bytes] = []  # the lines after them
        self._in_order = True
        self._order: Sequence[int] = ()  # by time
        self.open_bytes = 0
        self._unpacked = lru_cache(maxsize=1)(_unpacked)

    def __len__(self) -> int:
        return len(self._times)

    def add(self, sampled_at: float, line: bytes) -> None:
        if self._in_order and self._times and sampled_at < self._times[-1]:
            self._in_order = False
            self._unpacked = _unpacked_of_any
        self._times.append(sampled_at)
        self._open.append(line)
        self.open_bytes += len(line)

    def pack(self) -> int:
        """Packs what is open. Returns the bytes that this takes."""
        if not self._open:
            return 0
        packed = zlib.compress(b"\n".join(self._open), 1)
        self._pieces.append(packed)
        self._begins.append(len(self._times))
        self._open, self.open_bytes = [], 0
        return len(packed)

    @property
    def newest(self) -> Sample:
        """The newest sample; of equal times the last one in the file."""
        return decode_sample(self._line(self._by_time()[-1]), "sample")

    @property
    def newest_at(self) -> float:
        return self._times[self._by_time()[-1]]

    @property
    def oldest_at(self) -> float:
        return min(self._times)

    def __iter__(self) -> Iterator[Sample]:
        return self.since(float("-inf"))

    def since(self, when: float) -> Iterator[Sample]:
        """The samples of ``when`` (unix s) and later, in the order of time."""
        return (decode_sample(line, "sample") for _, line in self.lines(when))

    def lines(self, when: float = float("-inf")) -> Iterator[tuple[float, bytes]]:
        """(time, JSON) of the samples of ``when`` and later, in the order of time."""
        order = self._by_time()
        for place in range(bisect_left(order, when, key=self._times.__getitem__), len(order)):
            yield self._times[order[place]], self._line(order[place])

    def at(self, when: float) -> tuple[float, bytes] | None:
        """The newest sample that is not newer than ``when``: its time and its JSON; None before the first."""
        order = self._by_time()
        place = bisect_right(order, when, key=self._times.__getitem__) - 1
        return None if place < 0 else (self._times[order[place]], self._line(order[place]))

    def _by_time(self) -> Sequence[int]:
        if self._in_order:
            return range(len(self._times))
        if len(self._order) != len(self._times):
            self._order = sorted(range(len(self._times)), key=self._times.__getitem__)
        return self._order

    def _line(self, index: int) -> bytes:
        number = bisect_right(self._begins, index) - 1
        lines = self._unpacked(self._pieces[number]) if number < len(self._pieces) else self._open
        return lines[index - self._begins[number]]


def _unpacked(packed: bytes) -> list[bytes]:
    return zlib.decompress(packed).split(b"\n")


_unpacked_of_any = lru_cache(maxsize=_MOST_UNPACKED)(_unpacked)


class StoredSamples(Mapping[str, NodeSamples]):
    """Samples by node, within the limits of `decoding.py`: ``add`` raises BadRecording beyond them. ``oldest_at`` and
    ``newest_at``: of all of them.
    """

    def __init__(self) -> None:
        self.oldest_at, self.newest_at = math.inf, -math.inf
        self._nodes: dict[str, NodeSamples] = {}
        self._open_bytes = self._packed_bytes = self._count = 0

    def __getitem__(self, node: str) -> NodeSamples:
        return self._nodes[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, sample: Sample | SampleHead, line: bytes, where: str) -> None:
        """``line``: the sample's JSON."""
        samples = self._nodes.get(sample.node)
        if samples is None:
            samples = self._nodes[sample.node] = NodeSamples()
        samples.add(sample.sampled_at, line)
        self.oldest_at, self.newest_at = min(self.oldest_at, sample.sampled_at), max(self.newest_at, sample.sampled_at)
        self._count += 1
        self._open_bytes += len(line)
        # Pieces are small for many nodes, as reading in the order of time holds a piece of each.
        least, most = _PIECE_BYTES
        if samples.open_bytes > max(least, min(most, _UNPACKED_BYTES // len(self._nodes))):
            self._pack([samples])
        if self._open_bytes > _UNPACKED_BYTES:
            self._pack(self._nodes.values())
        if self._count > MOST_SAMPLES:
            raise BadRecording(f"{where}: more than the {MOST_SAMPLES:,} samples that mltop reads")
        if len(self._nodes) > MOST_RECORDED_NODES:
            raise BadRecording(f"{where}: samples of more than the {MOST_RECORDED_NODES:,} nodes that mltop reads")
        if self._packed_bytes > MOST_PACKED_BYTES:
            raise BadRecording(f"{where}: more samples than mltop can keep in {MOST_PACKED_BYTES >> 20} MiB of memory")

    def _pack(self, nodes: Iterable[NodeSamples]) -> None:
        for samples in nodes:
            self._open_bytes -= samples.open_bytes
            self._packed_bytes += samples.pack()

    def lines_by_time(self) -> Iterator[tuple[float, bytes, str]]:
        """(time, JSON, node) of the samples of all nodes, the oldest first."""

        def of_node(node: str, samples: NodeSamples) -> Iterator[tuple[float, bytes, str]]:
            return ((at, line, node) for at, line in samples.lines())

        return heapq.merge(*(of_node(*item) for item in self._nodes.items()), key=itemgetter(0))

    def by_time(self) -> Iterator[Sample]:
        """The samples of all nodes, the oldest first."""
        return heapq.merge(*self._nodes.values(), key=lambda sample: sample.sampled_at)

    @property
    def newest(self) -> list[Sample]:
        """The last one of every node."""
        return [samples.newest for samples in self._nodes.values()]

    def oldest(self) -> list[Sample]:
        """The first one of every node."""
        return [next(iter(samples)) for samples in self._nodes.values()]


def header_line(started_at: float) -> str:
    """The first line of a recording."""
    return json.dumps({"mltop_recording": FORMAT, "version": __version__, "started_at": started_at})


def recording(samples: list[Sample]) -> bytes:
    """The text of a recording of these samples."""
    started_at = samples[0].sampled_at if samples else time.time()
    return ("\n".join([header_line(started_at), *map(to_json, samples)]) + "\n").encode()


@dataclass
class _Header:
    mltop_recording: int


def read_recording(path: Path, decode_line: DecodeLine = decode_sample) -> OpenRecording:
    """All samples of a recording; one that was cut off in the middle gives what is whole. Raises BadRecording.

    ``decode_line``: ``decode_head`` leaves it to who looks at a sample to see whether all of it can be read.
    """
    with OpenRecording(path, decode_line) as recording:
        recording.read()
    return recording


def sentence(error: OSError | BadFile) -> str:
    """The error in one line: "PATH: No such file or directory"."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


class _Packed:
    """A gzip file's bytes, up to what its text can take: empty parts, one after the other, would make no end."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._bytes = self.unpacked_bytes = 0

    def read(self, size: int) -> bytes:
        self._bytes += size
        if self._bytes > 2 * (MOST_LINE_BYTES + self.unpacked_bytes):
            raise BadRecording(f"{self._path}: is packed into more than it holds")
        return self._file.read(size)


class OpenRecording:
    """A recording that is read bit by bit, from one thread at a time: ``samples`` are those that were read so far.
    Opening and ``read`` raise BadRecording. ``cut_off``: whether it ends in the middle, as far as it was read.

    Of a capture's file ``fd`` is its descriptor, closed with this, ``budget`` and ``into`` what all of its files share.
    """

    def __init__(
        self,
        path: Path,
        decode_line: DecodeLine = decode_sample,
        *,
        fd: int = -1,
        budget: Budget | None = None,
        into: StoredSamples | None = None,
    ) -> None:
        self.path, self.samples = path, StoredSamples() if into is None else into
        self.cut_off = False
        self._decode_line = decode_line
        self._number = 1
        try:
            self._file = open(open_regular(path) if fd < 0 else fd, "rb")  # noqa: SIM115 - ``close`` closes it
        except (OSError, BadFile) as error:
            raise BadRecording(sentence(error)) from None
        try:
            self._lines = self._whole_lines(budget or Budget())
            self._check(next(self._lines, b""))
        except BadRecording:
            self.close()
            raise

    def _check(self, header: bytes) -> None:
        try:
            number = decode(header, _Header, "its first line", 100).mltop_recording
        except BadRecording as problem:
            raise BadRecording(f"{self.path} is not an mltop recording ({problem})") from None
        check_format(number, FORMAT, f"{self.path} is a recording")

    def _whole_lines(self, budget: Budget) -> Iterator[bytes]:
        """Those that end in a newline. A gzip stream that breaks off ends them, not the program."""
        try:
            budget.check(os.fstat(self._file.fileno()).st_size, self.path)  # a gzip file may hold no bytes for ever
            packed = _Packed(self._file, self.path)
            is_packed = self._file.peek(2).startswith(_GZIP)
            stream: Any = gzip.GzipFile(fileobj=cast("BinaryIO", packed)) if is_packed else self._file
            while line := stream.readline(MOST_LINE_BYTES + 1):
                packed.unpacked_bytes += len(line)
                if len(line) > MOST_LINE_BYTES:
                    raise BadRecording(f"{self.path}: has a line of more than {size_words(MOST_LINE_BYTES)}")
                budget.take(len(line), self.path)
                if not line.endswith(b"\n"):
                    self.cut_off = True
                    return
                yield line[:-1]
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.cut_off = True
        except OSError as error:
            raise BadRecording(f"{self.path}: {error.strerror or error}") from None

    def read(self, most: float = math.inf) -> bool:
        """Read so many samples more. False once there are none left."""
        read = 0
        while read < most:
            line = next(self._lines, None)
            if line is None:
                return False
            self._number += 1
            if line and not line.isspace():
                where = f"{self.path}: line {self._number}"
                self.samples.add(self._decode_line(line, where), line, where)
                read += 1
        return True

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> OpenRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_format(number: int, ours: int, what: str) -> None:
    """Raises BadRecording for a format that this mltop does not read."""
    if number != ours:
        newer = "of a newer mltop" if number > ours else "of a kind that never was"
        raise BadRecording(f"{what} {newer} (format {number}, this mltop reads {ours})")


class Budget:
    """Unpacked bytes and lines that may still be read, of all files of a capture together."""

    def __init__(self) -> None:
        self.left_bytes = MOST_RECORDING_BYTES
        self.left_lines = 2 * MOST_SAMPLES  # also headers and blank lines

    def take(self, size: int, path: Path) -> None:
        """One line."""
        self.check(size, path)
        self.left_bytes -= size
        self.left_lines -= 1
        if self.left_lines < 0:
            raise BadRecording(f"{path}: holds more than the {MOST_SAMPLES:,} samples that mltop reads")

    def check(self, size: int, path: Path) -> None:
        """Whether so many bytes may still be read."""
        if size > self.left_bytes:
            most = size_words(MOST_RECORDING_BYTES)
            raise BadRecording(f"{path}: holds, unpacked, more than the {most} that mltop reads")
