"""`mltop record`: samples into a file as they come, until Ctrl-C or for some time; `mltop replay` shows it."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mltop.probes.model import to_json
from mltop.probes.model.text import clean
from mltop.probes.model.units import duration_words, size_words
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.probes.reach.view import NodeView
from mltop.probes.record import header_line
from mltop.tui.app.output import say
from mltop.tui.commands.capture import raise_interrupt
from mltop.tui.commands.live import EXIT_UNREACHABLE, LOOK_S, Machines, live_targets, refuse_read_only

MOST_PER_S = 64.0  # samples of all nodes: one takes a millisecond to write, and some 60 KB before it is packed
FLUSHED_EVERY_S = 5.0  # what is cut off by then can be read
EXIT_INCOMPLETE = 1


def run(options: TargetOptions, path: str, duration_s: float | None) -> int:
    """Exit 0: written; 1: some nodes did not say anything; 3: none did, or nothing could be written."""
    refuse_read_only(options, "record")
    targets = live_targets(options, "is a recording already", "mltop replay PATH")
    if clean(path) != path or not path:
        raise UsageProblem("-o", "the name is empty, or has characters that cannot be printed", "another name")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup: it goes on
            signal.signal(number, raise_interrupt)
    try:
        with new_recording(Path(path)) as file, Machines(targets, options, "record") as machines:
            return record(machines, file, Path(path), duration_s)
    except FileExistsError:
        raise UsageProblem(f"-o {path}", "exists already", "a new name") from None
    except OSError as error:
        say(f"record: cannot write {path}: {error.strerror}")
        return EXIT_UNREACHABLE


@contextlib.contextmanager
def new_recording(path: Path) -> Iterator[IO[bytes]]:
    """A new file of 0600, packed where its name ends in .gz. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as plain:
        if path.suffix != ".gz":
            yield plain
            return
        with gzip.GzipFile("", "wb", 6, plain) as packed:
            yield packed  # type: ignore[misc]


def record(machines: Machines, file: IO[bytes], path: Path, duration_s: float | None) -> int:
    nodes = machines.session.view().nodes
    every_s = len(nodes) / MOST_PER_S
    file.write(f"{header_line(time.time())}\n".encode())
    until = time.monotonic() + duration_s if duration_s is not None else float("inf")
    writer = Writer(file, every_s)
    began = flushed_at = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while (now := time.monotonic()) < until:
            nodes = machines.session.view().nodes
            machines.stderr.failures(nodes)
            writer.write(nodes)
            if now - flushed_at >= FLUSHED_EVERY_S:
                flushed_at = now
                file.flush()
            lasted = duration_words(round(now - began))
            count = f"{len(writer.written_at)} of {len(nodes)} nodes, {writer.samples} samples in {lasted}"
            machines.stderr.show(f"recording {path.name}: {count} (Ctrl-C ends it)")
            time.sleep(min(LOOK_S, max(0.0, until - now)))
    machines.stderr.clear()
    silent = [node.state for node in nodes if node.node not in writer.written_at]
    machines.stderr.last_failures([state for state in silent if state.state != "connecting"])
    say(f"{path}: {writer.samples} samples of {len(writer.written_at)} nodes, {size_words(writer.size_bytes)} unpacked")
    if not writer.written_at:
        return EXIT_UNREACHABLE
    return EXIT_INCOMPLETE if silent else 0


class Writer:
    """Writes each node's samples, at most one in ``every_s``. ``written_at``: by node the newest's time."""

    def __init__(self, file: IO[bytes], every_s: float) -> None:
        self._file, self._every_s = file, every_s
        self.written_at: dict[str, float] = {}
        self.samples = self.size_bytes = 0

    def write(self, nodes: tuple[NodeView, ...]) -> None:
        for node in nodes:
            summary = node.summary
            before = self.written_at.get(node.node, float("-inf"))
            if summary is None or 0.0 <= summary.sampled_at - before < self._every_s or summary.sampled_at == before:
                continue
            sample = node.sample_in_turn()
            if sample is not None:
                line = f"{to_json(sample)}\n".encode()
                self._file.write(line)
                self.written_at[node.node] = sample.sampled_at
                self.samples, self.size_bytes = self.samples + 1, self.size_bytes + len(line)
