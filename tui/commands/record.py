"""`mltop record`: samples into a file as they come, until Ctrl-C or for some time; `mltop replay` shows it."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from mltop.probes.model import to_json
from mltop.probes.model.units import duration_words, size_words
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.probes.reach.view import NodeView
from mltop.probes.record import header_line
from mltop.probes.record.decoding import MOST_LINE_BYTES, MOST_PACKED_BYTES, MOST_RECORDING_BYTES, MOST_SAMPLES
from mltop.probes.system.files import new_file
from mltop.tui.app.output import say
from mltop.tui.commands.live import (
    LOOK_S,
    Machines,
    interrupt_on_signals,
    live_targets,
    refuse_name,
    refuse_read_only,
)
from mltop.tui.exits import EXIT_INCOMPLETE, EXIT_UNREACHABLE

MOST_PER_S = 64.0  # samples of all nodes: one takes a millisecond to write, and some 60 KB before it is packed
FLUSHED_EVERY_S = 5.0  # what is cut off by then can be read
_BLOCK_BYTES = 1 << 20  # a reader counts whole blocks
_SURELY = 0.8  # how well samples can be packed is measured of some only
_MEASURED_EVERY = 64
_MOST_TAKEN = 1000  # names


def run(options: TargetOptions, path: str, duration_s: float | None) -> int:
    """Exit 0: written; 1: some nodes did not say anything; 3: none did, or nothing could be written, or a
    file was removed meanwhile.
    """
    refuse_read_only(options, "record")
    targets = live_targets(options, "is a recording already", "mltop replay PATH")
    refuse_name(path)
    interrupt_on_signals()
    try:
        with Recorder(Path(path)) as recorder, Machines(targets, options, "record") as machines:
            return record(machines, recorder, duration_s)
    except FileExistsError:
        raise UsageProblem(f"-o {path}", "exists already", "a new name") from None
    except OSError as error:
        say(f"record: cannot write {error.filename or path}: {error.strerror}")
        return EXIT_UNREACHABLE


@contextlib.contextmanager
def new_recording(path: Path) -> Iterator[IO[bytes]]:
    """A new file of 0600, packed where its name ends in .gz. Raises OSError."""
    with new_file(path) as plain:
        if path.suffix != ".gz":
            yield plain
            return
        with gzip.GzipFile("", "wb", 6, plain) as packed:
            yield packed  # type: ignore[misc]


def record(machines: Machines, recorder: Recorder, duration_s: float | None) -> int:
    machines.session.watch(None)
    nodes = machines.session.view().nodes
    recorder.every_s = len(nodes) / MOST_PER_S
    until = time.monotonic() + duration_s if duration_s is not None else float("inf")
    began = flushed_at = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while (now := time.monotonic()) < until:
            nodes = machines.session.view().nodes
            machines.stderr.failures(nodes)
            full = recorder.write(nodes)
            if now - flushed_at >= FLUSHED_EVERY_S:
                flushed_at = now
                recorder.flush()
            for path in full:
                machines.stderr.note(f"{path} is as large as mltop reads: the recording goes on in {recorder.path}")
            lasted = duration_words(round(now - began))
            count = f"{len(recorder.written_at)} of {len(nodes)} nodes, {recorder.samples} samples in {lasted}"
            machines.stderr.show(f"recording {recorder.path.name}: {count} (Ctrl-C ends it)")
            time.sleep(min(LOOK_S, max(0.0, until - now)))
    machines.stderr.clear()
    silent = [node.state for node in nodes if node.node not in recorder.written_at]
    machines.stderr.last_failures([state for state in silent if state.state != "connecting"])
    written = (
        f"{recorder.samples} samples of {len(recorder.written_at)} nodes, {size_words(recorder.size_bytes)} unpacked"
    )
    gone = recorder.gone()
    if len(gone) < len(recorder.paths):
        say(f"{', '.join(str(path) for path in recorder.paths if path not in gone)}: {written}")
    for path in gone:
        say(f"record: {path} was removed or replaced while it was written: what went into it is lost")
    if gone or not recorder.written_at:
        return EXIT_UNREACHABLE
    return EXIT_INCOMPLETE if silent else 0


@dataclass(frozen=True)
class Fits:
    """What one file may hold, so that it can be read: ``packed_bytes`` as samples are kept in memory."""

    samples: int = MOST_SAMPLES
    size_bytes: int = MOST_RECORDING_BYTES
    packed_bytes: int = MOST_PACKED_BYTES


class Recorder:
    """Writes each node's samples, at most one in ``every_s``, into a new file, and into another one beside it before
    that is larger than what mltop reads. Raises OSError. ``written_at``: by node the newest's time; ``paths``: of all
    files.
    """

    def __init__(self, path: Path, every_s: float = 0.0, fits: Fits | None = None) -> None:
        self.every_s, self._fits = every_s, fits or Fits()
        self.paths = [path]
        self._files: dict[Path, tuple[int, int]] = {}  # which file each was when it was made: device and inode
        self.written_at: dict[str, float] = {}
        self.samples = self.size_bytes = 0
        self._packed_share = self._packed_bytes = 0.0
        self._open()

    @property
    def path(self) -> Path:
        """The file that is being written."""
        return self.paths[-1]

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def gone(self) -> list[Path]:
        """Files that somebody has removed or replaced since."""
        return [path for path, own in self._files.items() if _identity(path) != own]

    def flush(self) -> None:
        self._file.flush()

    def write(self, nodes: Sequence[NodeView]) -> list[Path]:
        """Returns the files that this has filled."""
        before = len(self.paths)
        for node in nodes:
            sampled_at = node.sampled_at
            newest_at = self.written_at.get(node.node, float("-inf"))
            if sampled_at is None or 0.0 <= sampled_at - newest_at < self.every_s or sampled_at == newest_at:
                continue
            sample = node.sample
            if sample is not None:
                # Of many nodes not every sample is written: the next one is due later than the node says.
                written = replace(sample, interval_s=max(sample.interval_s, self.every_s))
                self._write(f"{to_json(written)}\n".encode())
                self.written_at[node.node] = sample.sampled_at
        return self.paths[before - 1 : -1]

    def _write(self, line: bytes) -> None:
        if len(line) > MOST_LINE_BYTES:
            return  # no agent's frame is as long
        fits, left_free = self._fits, MOST_LINE_BYTES + _BLOCK_BYTES
        if (
            self._in_file >= fits.samples
            or self._file_bytes + len(line) > max(fits.size_bytes - left_free, fits.size_bytes // 2)
            or self._packed_bytes > fits.packed_bytes * _SURELY
        ):
            self._go_on()
        if self._in_file % _MEASURED_EVERY == 0:
            self._packed_share = max(self._packed_share, len(zlib.compress(line, 1)) / len(line))
        self._file.write(line)
        self._in_file += 1
        self._file_bytes += len(line)
        self._packed_bytes += len(line) * self._packed_share
        self.samples, self.size_bytes = self.samples + 1, self.size_bytes + len(line)

    def _go_on(self) -> None:
        """In a new file: "run.jsonl.gz", "run-2.jsonl.gz"."""
        self._opened.close()
        first = self.paths[0]
        kind = Path(first.name.removesuffix(".gz")).suffix + ".gz" * first.name.endswith(".gz")
        stem = first.name.removesuffix(kind)
        for number in range(len(self.paths) + 1, len(self.paths) + _MOST_TAKEN):
            self.paths.append(first.with_name(f"{stem}-{number}{kind}"))
            with contextlib.suppress(FileExistsError):
                self._open()
                return
            self.paths.pop()
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(first))

    def _open(self) -> None:
        self._opened = contextlib.ExitStack()
        self._file = self._opened.enter_context(new_recording(self.path))
        if (own := _identity(self.path)) is not None:
            self._files[self.path] = own
        header = f"{header_line(time.time())}\n".encode()
        self._file.write(header)
        self._in_file, self._file_bytes = 0, len(header)
        self._packed_bytes = self._packed_share = 0.0


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is now, by device and inode; None: there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
