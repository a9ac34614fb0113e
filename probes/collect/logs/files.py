"""One file of a job, opened and read: plain or compressed, a log or torchelastic's error file, and what its path says.

A file is a stranger's: only plain files are opened, what is no text or cannot be unpacked is said, never guessed at.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, Callable

from mltop.probes.collect.logs.edges import EDGE, read_beginning, read_end
from mltop.probes.collect.logs.parser import LogParser, pattern_of, quoted
from mltop.probes.collect.logs.prefixes import Clock
from mltop.probes.collect.logs.scanning import Scanner, blocks
from mltop.probes.collect.logs.tracebacks import FRAME, event_of_exception, place_of
from mltop.probes.collect.records.files import error_json
from mltop.probes.model.evidence.logs import LogEvent, LogFile
from mltop.probes.model.gap import Gap
from mltop.probes.system.files import BadFile, open_regular

Progress = Callable[[int], None]

# What is read of a packed file at most, where it is small, and as a multiple of its size: logs that say one thing all
# the time pack a thousandfold.
_MOST_UNPACKED, _MOST_TIMES = 4 << 30, 100
_MOST_XZ = 192 << 20  # bytes of memory that an xz file may ask for: xz -9 needs 65 MiB
_MOST_PARTS = 200_000  # of a packed file: bgzip makes one for each 64 KiB
_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)
_LOOKED_AT = 16  # lines, to see whether it is text
_MOST_ERROR_FILE = 4 << 20
_RANK_FOLDER = re.compile(
    r"(?:^|/)([^/]+)/attempt_(\d{1,6})/(\d{1,6})/(?:stdout\.log|stderr\.log|error\.json)(?:\.\w{2,4})?$"
)
_MPI_FOLDER = re.compile(r"(?:^|/)([^/]+)/rank[._-]?(\d{1,8})/std(?:out|err)$")  # mpirun --output-filename
_RANK_NAME = re.compile(r"(?:^|[^a-z])rank[_.-]?(\d{1,8})(?!\d)", re.IGNORECASE)
_SLURM_NAME = re.compile(r"(?:^|/)(?:slurm|job)[-_](\d{1,12})(?:_\d+)?(?=[^\d/]*[^/]*$)")
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_NUMBER = re.compile(r"(\d{1,8})(?!.*\d)")


def described(path: str) -> LogFile:
    """What a path says, before the file is opened."""
    file = LogFile(path)
    match = _RANK_FOLDER.search(path)
    if match is not None:
        file.run, file.attempt, file.local_rank = match[1], int(match[2]), int(match[3])
        file.run_parent = path[: match.start(1)].rstrip("/")
        file.is_error_file = "/error.json" in path
    of_mpi = _MPI_FOLDER.search(path)
    if of_mpi is not None:
        file.run, file.rank = path[: of_mpi.end(1)], int(of_mpi[2])
        file.run_parent = path[: of_mpi.start(1)].rstrip("/")
    name = path.rpartition("/")[2]
    rank = _RANK_NAME.search(name) if match is None else None
    file.rank = int(rank[1]) if rank else file.rank
    stem = name
    while stem.endswith((*_PACKED, ".log", ".out", ".err", ".txt")):
        stem = stem.rpartition(".")[0]
    number = _NUMBER.search(stem)
    file.number = int(number[1]) if number else None
    file.series = f"{path[: len(path) - len(name)]}{stem[: number.start(1)] if number else stem}"
    job = _SLURM_NAME.search(path)
    file.slurm_job = job[1] if job else ""
    return file


def read_log(path: str, progress: Progress | None = None) -> LogFile:
    """Everything that the file tells. What cannot be read is a gap of it."""
    file = described(path)
    try:
        with opened(path) as (stream, written_at, size_bytes):
            file.size_bytes = size_bytes
            most = None if isinstance(stream, io.FileIO) else max(_MOST_UNPACKED, _MOST_TIMES * size_bytes)
            _read(file, stream, written_at, progress, most)
    except _UNREADABLE as error:
        file.gaps.append(_unread(path, error))
    return file


def _unread(path: str, error: Exception) -> Gap:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Gap.about("log", item=path, why=f"cannot be read to its end: {why}")


def read_stream(name: str, stream: BinaryIO, written_at: float, progress: Progress | None = None) -> LogFile:
    """Of standard input."""
    file = LogFile(name)
    _read(file, stream, written_at, progress)
    return file


def _read(
    file: LogFile, stream: BinaryIO, written_at: float, progress: Progress | None, most: int | None = None
) -> None:
    clock = Clock(written_at)
    if file.path.endswith((".json", ".json.gz")) and ("error" in file.path.rpartition("/")[2] or file.is_error_file):
        data = stream.read(_MOST_ERROR_FILE)
        if _error_file(file, data, written_at):
            return
        stream = io.BytesIO(data)
    parser = LogParser(file, clock)
    scanner = Scanner(parser)
    last, before = b"", b""
    for block in _readable(file, blocks(stream, progress, most)):
        unfit = _why_no_text(block) if scanner.lines < _LOOKED_AT else ""
        if unfit:
            file.gaps.append(Gap.about("log", item=file.path, why=unfit))
            return
        if not last:
            parser.by_host = read_beginning(file, block[:EDGE], clock)
        scanner.feed(block)
        before, last = last, block
    file.lines = scanner.lines + (1 if last and not last.endswith(b"\n") else 0)
    file.is_cut = bool(last) and (bool(file.gaps) or not last.endswith((b"\n", b"\r")))
    parser.finish()
    read_end(file, (before[-EDGE:] + last)[-EDGE:], clock, by_host=parser.by_host)


def _readable(file: LogFile, found: Iterator[bytes]) -> Iterator[bytes]:
    """As far as the file can be read: what was read by then is judged."""
    try:
        yield from found
    except _UNREADABLE as error:
        file.gaps.append(_unread(file.path, error))


_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf": "a 7z archive", b"Rar!": "a rar archive"}
_PICKLES = (b"\x80\x02", b"\x80\x04", b"\x80\x05")


def _why_no_text(block: bytes) -> str:
    """More than a stray NUL: a pickle, an archive, a picture; "" of text."""
    head = block[:4096]
    packed = _ARCHIVES.get(head[:4]) or ("a tar archive" if head[257:262] == b"ustar" else "")
    if packed:
        return f"is {packed}: unpack it first"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)"
    return "is no text" if head.startswith(_PICKLES) or head.count(b"\0") > len(head) // 10 else ""


def _error_file(file: LogFile, data: bytes, written_at: float) -> bool:
    """torchelastic's ``error.json``; False when it is something else."""
    raised = error_json(data)
    if raised is None:
        return False
    text, raised_at, more = raised
    at = written_at if raised_at is None else float(raised_at)
    first, _, rest = text.partition("\n")
    first = f"{first} {rest[:300]}".replace("\n", " ").strip()
    name, _, words = first.partition(": ")
    kind, fields = event_of_exception(name if re.fullmatch(r"[\w.]+", name) else "DistError", words)
    place = place_of([match.groups() for match in map(FRAME.match, str(more.get("py_callstack")).split("\n")) if match])
    event = LogEvent(kind, file.path, 1, quoted(first), at=at, is_dated=True, attempt=file.attempt or 0, place=place)
    file.events.append(replace(event, pattern=pattern_of(first), **fields))
    file.is_error_file, file.lines, file.last_at = True, 1, at
    return True


@contextmanager
def opened(path: str) -> Iterator[tuple[BinaryIO, float, int]]:
    """The unpacked bytes, when the file was last written, and its size on disk."""
    try:
        place = open_regular(path)
    except BadFile:
        raise OSError(0, "is no plain file") from None
    with os.fdopen(place, "rb", buffering=0) as raw:
        found = os.fstat(raw.fileno())
        head = raw.read(6) or b""
        raw.seek(0)
        if head.startswith(b"\x28\xb5\x2f\xfd"):
            with _by_zstd(raw) as stream:
                yield stream, found.st_mtime, found.st_size
            return
        yield _unpacking(raw, head), found.st_mtime, found.st_size


def _unpacking(raw: BinaryIO, head: bytes) -> BinaryIO:
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(_Unpacked(raw, partial(zlib.decompressobj, wbits=31)))
    if head.startswith(b"BZh"):
        return io.BufferedReader(_Unpacked(raw, bz2.BZ2Decompressor))
    if head.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_Unpacked(raw, partial(lzma.LZMADecompressor, memlimit=_MOST_XZ)))
    return raw


class _Unpacked(io.RawIOBase):
    """A packed file unpacked. Python's own classes know no limit of memory (xz), and read the name that a gzip file may
    hold byte by byte.
    """

    def __init__(self, packed: BinaryIO, make: Callable[[], Any]) -> None:
        self._packed, self._make = packed, make
        self._unpacker = make()
        self._rest, self._parts = b"", 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._unpacker.eof:  # several one after the other, and NULs between them, are one file
                self._rest = self._unpacker.unused_data.lstrip(b"\0") or self._packed.read(_PACKED_PIECE).lstrip(b"\0")
                if not self._rest:
                    return 0
                self._parts += 1
                if self._parts > _MOST_PARTS:
                    raise ValueError(f"it is more than {_MOST_PARTS:,} packed files one after the other")
                self._unpacker = self._make()
            needs_input = not self._rest and getattr(self._unpacker, "needs_input", True)
            data = self._packed.read(_PACKED_PIECE) if needs_input else self._rest
            found = self._unpacker.decompress(data, len(buffer))
            self._rest = getattr(self._unpacker, "unconsumed_tail", b"")  # zlib keeps no input itself
            if found:
                buffer[: len(found)] = found
                return len(found)
            if needs_input and not data and not self._unpacker.eof:
                raise EOFError("it ends in the middle")


_PACKED_PIECE = 64 * 1024


@contextmanager
def _by_zstd(raw: BinaryIO) -> Iterator[BinaryIO]:
    """Python's own module (3.14), or the program of that name."""
    own: Any = None
    if sys.version_info >= (3, 14):
        with suppress(ImportError):  # it may be built without
            own = importlib.import_module("compression.zstd")
    if own is not None:
        yield own.ZstdFile(raw)
        return
    program = shutil.which("zstd")
    if program is None:
        raise OSError(0, "zstd is not on this machine: unpack it first")
    with subprocess.Popen([program, "-dc"], stdin=raw, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            assert child.stdout is not None
            yield child.stdout  # type: ignore[misc]
            is_read = not child.stdout.read(1)  # else nobody wanted the rest, and the child waits for a reader
            if is_read and child.wait() != 0:
                raise OSError(0, "is no whole zstd file")
        finally:
            child.kill()
