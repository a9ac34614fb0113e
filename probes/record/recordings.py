"""A recording: JSON lines, plain or gzip: a header, then one Sample per line, of any nodes.

Samples are kept packed, 1 GB of them needs about 70 MB, and decoded one by one when they are looked at.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import os
import time
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from mltop.probes.model import Sample, to_json
from mltop.probes.model.units import size_words
from mltop.probes.record.decoding import (
    MOST_DISORDERED_BYTES,
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
from mltop.probes.system.files import BadFile, blocks, open_regular
from mltop.probes.version import __version__

_UNPACKED_BYTES = 64 << 20  # that wait to be packed, or are read at a time, of all nodes together
_PIECE_BYTES = (16 << 10, 128 << 10)  # at least and at most
FORMAT = 1
MOST_RUNS = 128  # of a node whose clock was set back: of each a piece is unpacked at a time
Item = TypeVar("Item")
DecodeLine = Callable[[bytes, str], "Sample | SampleHead"]
_GZIP = b"\x1f\x8b"
_MOST_MEMBERS = 10_000  # gzip files put together with cat
_UNPACK_BYTES = 1 << 20  # at a time: 1 KB may hold 1 MB


class NodeSamples:
    """One node's samples. ``len``, ``newest`` and iteration, which is in the order of time."""

    def __init__(self) -> None:
        self._times = array("d")
        self._pieces: list[tuple[int, bytes]] = []  # (number of lines, packed)
        self._open: list[bytes] = []
        self._newest = 0  # its place
        self._begins = array("L")  # of runs: where time went back
        self.open_bytes = 0
        self.all_bytes = 0
        self._order: Sequence[int] | None = None  # by time
        self._unpacked: tuple[int, list[bytes]] | None = None  # a piece's number, and its lines

    def __len__(self) -> int:
        return len(self._times)

    def add(self, sampled_at: float, line: bytes) -> None:
        if not self._times or sampled_at < self._times[-1]:
            self._begins.append(len(self._times))
        if not self._times or sampled_at >= self._times[self._newest]:
            self._newest = len(self._times)
        self._times.append(sampled_at)
        self._open.append(line)
        self.open_bytes += len(line)
        self.all_bytes += len(line)

    @property
    def in_order(self) -> bool:
        return len(self._begins) <= 1

    @property
    def left_out(self) -> int:
        """How many ``lines`` leaves out: they are too many to be sorted, of a clock that went back again and again."""
        return len(self) - sum(1 for _ in _rising(self._times, float)) if self._order_is_lost else 0

    @property
    def _order_is_lost(self) -> bool:
        return self.all_bytes > MOST_DISORDERED_BYTES and len(self._begins) > MOST_RUNS

    def pack(self) -> int:
        """Packs what is open. Returns the bytes that this takes."""
        if not self._open:
            return 0
        packed = zlib.compress(b"\n".join(self._open), 1)
        self._pieces.append((len(self._open), packed))
        self._open, self.open_bytes = [], 0
        return len(packed)

    @property
    def newest(self) -> Sample:
        """The newest sample; of equal times the last one in the file."""
        when = self._times[self._newest]
        *_, (_, line) = (timed for timed in self._lines(when) if timed[0] == when)
        return decode_sample(line, "sample")

    @property
    def newest_at(self) -> float:
        return self._times[self._newest]

    def __iter__(self) -> Iterator[Sample]:
        return self.since(float("-inf"))

    def since(self, when: float) -> Iterator[Sample]:
        """The samples of ``when`` (unix s) and later, in the order of time."""
        return (decode_sample(line, "sample") for _, line in self.lines(when))

    def lines(self, when: float = float("-inf")) -> Iterator[tuple[float, bytes]]:
        """(time, JSON) of the samples of ``when`` and later, in the order of time. A node's clock may have been set
        back: each run of it is read beside the others. Of too many, what would go back is left out.
        """
        if self.in_order:
            return self._lines(when)
        if self.all_bytes <= MOST_DISORDERED_BYTES:
            return iter(sorted(self._lines(when), key=itemgetter(0)))
        if self._order_is_lost:
            return _rising(self._lines(when), itemgetter(0))
        runs = zip(self._begins, [*self._begins[1:], len(self)], strict=True)
        return heapq.merge(*(self._lines(when, *run) for run in runs), key=itemgetter(0))

    @property
    def oldest_at(self) -> float:
        return min(self._times)

    def at(self, when: float) -> tuple[float, bytes] | None:
        """The newest sample that is not newer than ``when``: its time and its JSON; None before the first."""
        if self._order is None or len(self._order) != len(self._times):
            self._order = range(len(self)) if self.in_order else sorted(range(len(self)), key=self._times.__getitem__)
        place = bisect_right(self._order, when, key=self._times.__getitem__) - 1
        if place < 0:
            return None
        index = self._order[place]
        return self._times[index], self._line(index)

    def _line(self, index: int) -> bytes:
        begin = 0
        for number, (count, packed) in enumerate(self._pieces):
            if index < begin + count:
                if self._unpacked is None or self._unpacked[0] != number:
                    self._unpacked = number, zlib.decompress(packed).split(b"\n")
                return self._unpacked[1][index - begin]
            begin += count
        return self._open[index - begin]

    def _lines(self, when: float, first: int = 0, end: int | None = None) -> Iterator[tuple[float, bytes]]:
        """(time, line) of ``when`` and later, those from ``first`` to ``end`` in the order of the file; pieces that
        have none of them are not unpacked.
        """
        end = len(self) if end is None else end
        begin = 0
        for count, packed in (*self._pieces, (len(self._open), None)):
            inside = range(max(first, begin), min(end, begin + count))
            if any(self._times[at] >= when for at in inside):
                lines = self._open if packed is None else zlib.decompress(packed).split(b"\n")
                yield from ((self._times[at], lines[at - begin]) for at in inside if self._times[at] >= when)
            begin += count


def _rising(items: Iterable[Item], time_of: Callable[[Item], float]) -> Iterator[Item]:
    """Without those that are older than one before them."""
    newest = -math.inf
    for item in items:
        if time_of(item) >= newest:
            newest = time_of(item)
            yield item


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
        if samples.open_bytes > self._piece_bytes():
            self._pack([samples])
        if self._open_bytes > _UNPACKED_BYTES:
            self._pack(self._nodes.values())
        if self._count > MOST_SAMPLES:
            raise BadRecording(f"{where}: more than the {MOST_SAMPLES:,} samples that mltop reads")
        if len(self._nodes) > MOST_RECORDED_NODES:
            raise BadRecording(f"{where}: samples of more than the {MOST_RECORDED_NODES:,} nodes that mltop reads")
        if self._packed_bytes > MOST_PACKED_BYTES:
            raise BadRecording(f"{where}: more samples than mltop can keep in {MOST_PACKED_BYTES >> 20} MiB of memory")

    def _piece_bytes(self) -> int:
        """How large a piece grows: small for many nodes, as reading in the order of time holds a piece of each."""
        least, most = _PIECE_BYTES
        return max(least, min(most, _UNPACKED_BYTES // len(self._nodes)))

    def _pack(self, nodes: Iterable[NodeSamples]) -> None:
        for samples in nodes:
            self._open_bytes -= samples.open_bytes
            self._packed_bytes += samples.pack()

    def lines_by_time(self) -> Iterator[tuple[float, bytes, str]]:
        """(time, JSON, node) of the samples of all nodes, the oldest first."""

        def of_node(node: str, samples: NodeSamples) -> Iterator[tuple[float, bytes, str]]:
            return ((at, line, node) for at, line in samples.lines())

        return heapq.merge(*(of_node(*item) for item in self._nodes.items()), key=itemgetter(0))

    @property
    def left_out(self) -> list[tuple[str, int]]:
        """The nodes whose clock went back too often, and how many samples that costs."""
        return [(node, left_out) for node, samples in self._nodes.items() if (left_out := samples.left_out)]

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


def left_out_words(node: str, count: int) -> str:
    """That samples are missing, in words."""
    return f"{count:,} samples of {node} are left out: its clock went back again and again"


def header_line(started_at: float) -> str:
    """The first line of a recording."""
    return json.dumps({"mltop_recording": FORMAT, "version": __version__, "started_at": started_at})


def recording(samples: list[Sample]) -> bytes:
    """The text of a recording of these samples."""
    started_at = samples[0].sampled_at if samples else time.time()
    return ("\n".join([header_line(started_at), *map(to_json, samples)]) + "\n").encode()


@dataclass
class Recording:
    """``cut_off``: the file ends in the middle, or is damaged from there on; ``samples`` are those that are whole."""

    samples: StoredSamples = field(default_factory=StoredSamples)
    cut_off: bool = False


@dataclass
class _Header:
    mltop_recording: int


def read_recording(path: Path, decode_line: DecodeLine = decode_sample) -> Recording:
    """All samples of a recording; one that was cut off in the middle gives what is whole. Raises BadRecording.

    ``decode_line``: ``decode_head`` leaves it to who looks at a sample to see whether all of it can be read.
    """
    with OpenRecording(path, decode_line) as recording:
        recording.read()
        return Recording(recording.samples, recording.cut_off)


class OpenRecording:
    """A recording that is read bit by bit, from one thread at a time: ``samples`` are those that were read so far.
    Opening and ``read`` raise BadRecording.
    """

    def __init__(self, path: Path, decode_line: DecodeLine = decode_sample) -> None:
        self.path, self.samples = path, StoredSamples()
        try:
            self._fd = open_regular(path)
        except (OSError, BadFile) as error:
            raise BadRecording(sentence(error)) from None
        try:
            self.size_bytes = os.fstat(self._fd).st_size
            self._lines = SampleLines(self._fd, path, decode_line=decode_line)
        except BadRecording:
            self.close()
            raise

    def read(self, most: float = math.inf) -> bool:
        """Read so many samples more. False once there are none left."""
        return self._lines.read(self.samples, most)

    @property
    def cut_off(self) -> bool:
        return self._lines.cut_off

    @property
    def read_share(self) -> float:
        """How much of the file was read."""
        if self._fd < 0 or not self.size_bytes:
            return 1.0
        return min(1.0, os.lseek(self._fd, 0, os.SEEK_CUR) / self.size_bytes)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> OpenRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sentence(error: OSError | BadFile) -> str:
    """The error in one line: "PATH: No such file or directory"."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


def read_samples(
    fd: int, path: Path, into: StoredSamples, budget: Budget | None = None, decode_line: DecodeLine = decode_sample
) -> bool:
    """Adds the samples of a file, which begins at ``fd``. Returns whether it is cut off. Raises BadRecording."""
    lines = SampleLines(fd, path, budget, decode_line)
    lines.read(into)
    return lines.cut_off


class SampleLines:
    """The lines of a file, which begins at ``fd``, one after the other. Raises BadRecording for a wrong header."""

    def __init__(
        self, fd: int, path: Path, budget: Budget | None = None, decode_line: DecodeLine = decode_sample
    ) -> None:
        self._path, self._decode_line = path, decode_line
        self._lines = _Lines(fd, path, budget or Budget())
        header = next(iter(self._lines), b"")
        try:
            number = decode(header, _Header, "its first line", 100).mltop_recording
        except BadRecording as problem:
            raise BadRecording(f"{path} is not an mltop recording ({problem})") from None
        check_format(number, FORMAT, f"{path} is a recording")
        self._number = 1

    @property
    def cut_off(self) -> bool:
        """Whether it ends in the middle, as far as it was read."""
        return self._lines.cut_off

    def read(self, into: StoredSamples, most: float = math.inf) -> bool:
        """Add at most so many samples. False once there are none left. Raises BadRecording."""
        read = 0
        while read < most:
            line = next(self._lines, None)
            if line is None:
                return False
            self._number += 1
            if not line or line.isspace():
                continue
            where = f"{self._path}: line {self._number}"
            into.add(self._decode_line(line, where), line, where)
            read += 1
        return True


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

    def take(self, size: int, lines: int, path: Path) -> None:
        self.left_bytes -= size
        self.left_lines -= lines
        if self.left_bytes < 0:
            most = size_words(MOST_RECORDING_BYTES)
            raise BadRecording(f"{path}: holds, unpacked, more than the {most} that mltop reads")
        if self.left_lines < 0:
            raise BadRecording(f"{path}: holds more than the {MOST_SAMPLES:,} samples that mltop reads")


class _Lines:
    """Iterates over the lines that end in a newline. A gzip stream that breaks off ends them, not the program."""

    def __init__(self, fd: int, path: Path, budget: Budget) -> None:
        self.cut_off = False
        self._path, self._budget = path, budget
        self._lines = self._read(blocks(fd, MOST_RECORDING_BYTES, path))

    def __iter__(self) -> Iterator[bytes]:
        return self._lines

    def __next__(self) -> bytes:
        return next(self._lines)

    def _read(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        rest: list[bytes] = []  # the beginning of a line, in pieces
        rest_bytes = 0
        try:
            for block in self._unpacked(packed):
                *whole, last = block.split(b"\n")
                self._budget.take(len(block), len(whole), self._path)
                for line in whole:
                    yield b"".join([*rest, line]) if rest else line
                    rest, rest_bytes = [], 0
                rest.append(last)
                rest_bytes += len(last)
                if rest_bytes > MOST_LINE_BYTES:
                    raise BadRecording(f"{self._path}: has a line of more than {size_words(MOST_LINE_BYTES)}")
        except zlib.error:
            self.cut_off = True
            return
        except (OSError, BadFile) as error:
            raise BadRecording(sentence(error)) from None
        self.cut_off = self.cut_off or rest_bytes > 0

    def _unpacked(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        first = next(packed, b"")
        if not first.startswith(_GZIP):
            yield first
            yield from packed
            return
        inflate = _Inflate(self._path)
        yield from inflate.read(first)
        for block in packed:
            yield from inflate.read(block)
        self.cut_off = not inflate.ended


class _Inflate:
    """A gzip file of one member or of several, one after the other (`cat a.gz b.gz`). Raises zlib.error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._member = zlib.decompressobj(wbits=31)
        self._members = 1

    @property
    def ended(self) -> bool:
        return self._member.eof

    def read(self, block: bytes) -> Iterator[bytes]:
        while block:
            if self._member.eof:
                block = block.lstrip(b"\0")  # padding of tapes and block devices
                if not block:
                    return
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise BadRecording(f"{self._path}: more than {_MOST_MEMBERS:,} gzip files in one")
                self._member = zlib.decompressobj(wbits=31)
            before = self._member.copy()
            try:
                unpacked = self._member.decompress(block, _UNPACK_BYTES)
            except zlib.error:
                yield from _up_to_the_damage(before, block)
                raise
            yield unpacked
            block = self._member.unconsumed_tail or self._member.unused_data


def _up_to_the_damage(member: Any, block: bytes) -> Iterator[bytes]:
    """Yields what comes before the damage, as zlib gives nothing of a block that is damaged somewhere."""
    with contextlib.suppress(zlib.error):
        for at in range(len(block)):
            yield member.decompress(block[at : at + 1])
