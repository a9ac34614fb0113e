"""A recording: JSON lines, plain or gzip: a header, then one Sample per line, of any nodes."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltop.probes.files import BadFile, blocks, open_regular, size_words
from mltop.probes.model import Sample, to_json
from mltop.probes.record.decoding import BadRecording, decode, decode_sample
from mltop.probes.record.limits import MOST_LINE_BYTES, MOST_RECORDING_BYTES, MOST_SAMPLES
from mltop.probes.record.stored import StoredSamples
from mltop.probes.version import __version__

FORMAT = 1
_GZIP = b"\x1f\x8b"
_MOST_MEMBERS = 10_000  # gzip files put together with cat
_UNPACK_BYTES = 1 << 20  # at a time: 1 KB may hold 1 MB


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


def read_recording(path: Path) -> Recording:
    """All samples of a recording; one that was cut off in the middle gives what is whole. Raises BadRecording."""
    try:
        fd = open_regular(path)
    except (OSError, BadFile) as error:
        raise BadRecording(sentence(error)) from None
    made = Recording()
    try:
        made.cut_off = read_samples(fd, path, made.samples)
    finally:
        os.close(fd)
    made.samples.finish(str(path))
    return made


def sentence(error: OSError | BadFile) -> str:
    """ "PATH: No such file or directory"."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


def read_samples(fd: int, path: Path, into: StoredSamples, budget: Budget | None = None) -> bool:
    """Whether the file, which begins at ``fd``, is cut off. Raises BadRecording."""
    lines = _Lines(fd, path, budget or Budget())
    header = next(iter(lines), b"")
    try:
        made_by = decode(header, _Header, "its first line", 100).mltop_recording
    except BadRecording as problem:
        raise BadRecording(f"{path} is not an mltop recording ({problem})") from None
    check_format(made_by, FORMAT, f"{path} is a recording")
    for number, line in enumerate(lines, 2):
        if line.isspace() or not line:
            continue
        where = f"{path}: line {number}"
        into.add(decode_sample(line, where), line, where)
    return lines.cut_off


def check_format(found: int, known: int, what: str) -> None:
    """Raises BadRecording."""
    if found != known:
        newer = "of a newer mltop" if found > known else "of a kind that never was"
        raise BadRecording(f"{what} {newer} (format {found}, this mltop reads {known})")


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
                found = self._member.decompress(block, _UNPACK_BYTES)
            except zlib.error:
                yield from _up_to_the_damage(before, block)
                raise
            yield found
            block = self._member.unconsumed_tail or self._member.unused_data


def _up_to_the_damage(member: Any, block: bytes) -> Iterator[bytes]:
    """zlib gives nothing of a block that is damaged somewhere."""
    with contextlib.suppress(zlib.error):
        for place in range(len(block)):
            yield member.decompress(block[place : place + 1])
