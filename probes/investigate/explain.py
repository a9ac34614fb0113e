"""What became of a job that is dead, from the files that it left: they are found, read one after the other, and judged.

A file is read once, as a stream; what is kept of it are the few lines that tell of an end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mltop.probes.collect.logs.files import read_log, read_stream
from mltop.probes.collect.records.flight_recorder import may_be_flight_record
from mltop.probes.investigate.explained_records import is_capture, jobs_in, join_records, joined, read_records
from mltop.probes.judge.evidence.answer import explained
from mltop.probes.judge.evidence.jobs import jobs_of
from mltop.probes.model.evidence.logs import ExplainedJob, LogFile
from mltop.probes.model.gap import Gap

STANDARD_INPUT = "-"
# What training leaves beside logs: nothing of these is text that somebody wrote line by line.
_NO_LOGS = frozenset((
    ".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npy", ".npz", ".py", ".pyc", ".so", ".png", ".jpg", ".svg",
    ".parquet", ".arrow", ".tfevents", ".yaml", ".yml", ".toml", ".sh", ".md", ".html", ".whl", ".lock",
    ".distcp", ".metadata", ".idx", ".h5", ".db", ".sqlite", ".pkl", ".pickle", ".csv",
))  # fmt: skip
_ARCHIVES = (".tar", ".tgz", ".tbz2", ".txz", ".zip", ".7z", ".rar")
_MOST_DEPTH = 64  # folders within folders
_NO_FOLDERS = frozenset((".git", "__pycache__", "node_modules", ".venv", "wandb", ".cache"))


@dataclass
class Reading:
    """How far it is. ``current``: the file that is being read."""

    files_total: int = 0
    files_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    current: str = ""


@dataclass
class Explained:
    """``is_whole``: everything was read, nobody interrupted it."""

    jobs: list[ExplainedJob] = field(default_factory=list)
    files: list[LogFile] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    is_whole: bool = True

    @property
    def coverage(self) -> float | None:
        """The share of all ranks that have any line; None: it is not known how many there are."""
        told = [(job.coverage, len(job.ranks)) for job in self.jobs if job.coverage is not None]
        total = sum(count for _, count in told)
        return sum(share * count for share, count in told) / total if total else None


@dataclass
class Aside:
    """What is no log: captures of mltop's, and flight records."""

    captures: list[Path] = field(default_factory=list)
    records: list[str] = field(default_factory=list)

    def takes(self, path: str) -> bool:
        if is_capture(Path(path)):
            self.captures.append(Path(path))
        elif may_be_flight_record(path):
            self.records.append(path)
        else:
            return False
        return True


def explain(paths: Sequence[str], progress: Callable[[Reading], None]) -> Explained:
    """Judge what ``paths`` (files, folders, "-") tell. Ctrl-C ends the reading, and what is known by then is judged."""
    found = Explained()
    aside = Aside()
    names = list(files_below(paths, found.gaps, aside))
    sizes = [*(size for _, size in names), *map(_size, aside.records)]
    reading, records = Reading(len(sizes), bytes_total=sum(sizes)), {}
    try:
        for name, _ in names:
            reading.current = name
            progress(reading)
            found.files.append(_read(name, reading, progress))
            reading.files_done += 1
        for path, record in read_records(aside.records, found.gaps):
            records[path] = record
            reading.current = path
            reading.files_done += 1
            reading.bytes_done += _size(path)
            progress(reading)
    except KeyboardInterrupt:
        found.is_whole = False
    for job in jobs_of([file for file in found.files if _tells(file)]):
        found.jobs.append(explained(job))
    join_records(found.jobs, records, found.gaps)
    joined(found.jobs, list(jobs_in(aside.captures, found.gaps)))
    found.jobs.sort(key=lambda job: (job.incident is None, job.incident is not None and job.incident.kind == "stopped"))
    found.gaps += [gap for file in found.files if not _tells(file) for gap in file.gaps]
    return found


def _read(name: str, reading: Reading, progress: Callable[[Reading], None]) -> LogFile:
    def add(count: int) -> None:
        reading.bytes_done += count
        progress(reading)

    if name == STANDARD_INPUT:
        return read_stream("standard input", sys.stdin.buffer, time.time(), add)
    return read_log(name, add)


def _tells(file: LogFile) -> bool:
    """Also an empty file does: a torchrun log of a rank that said nothing."""
    return not (file.gaps and not file.events and not file.lines)


def files_below(paths: Sequence[str], gaps: list[Gap], aside: Aside) -> Iterator[tuple[str, int]]:
    """Names and sizes, each once; captures are put aside. Folders are walked, on their own file system only: a link may
    lead to /proc, where reading changes the system.
    """
    seen: set[str] = set()
    for path in paths:
        if path == STANDARD_INPUT:
            yield path, 0
        elif aside.takes(path):
            continue
        elif Path(path).is_dir():
            yield from _walked(path, seen, gaps, aside)
        else:
            name = os.path.realpath(path)
            if name not in seen:
                seen.add(name)
                yield path, _size(path)


def _walked(folder: str, seen: set[str], gaps: list[Gap], aside: Aside) -> Iterator[tuple[str, int]]:
    def refused(error: OSError) -> None:
        gaps.append(Gap.about("log", item=str(error.filename), why=error.strerror or "cannot be read"))

    device = Path(folder).stat().st_dev
    for place, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if _is_on(device, f"{place}/{name}", gaps)]
        own = {name for name in folders if is_capture(Path(place, name))}
        aside.captures += (Path(place, name) for name in sorted(own))
        folders[:] = sorted(name for name in folders if name not in _NO_FOLDERS and name not in own)
        if folders and place.count("/") - folder.count("/") >= _MOST_DEPTH:
            gaps.append(Gap.about("log", item=place, why=f"is {_MOST_DEPTH} folders deep: those in it are not read"))
            folders.clear()
        for name in sorted(names):
            path = f"{place}/{name}" if place != "/" else f"/{name}"
            if not _is_on(device, path, gaps) or aside.takes(path):
                continue
            whole = os.path.realpath(path)
            if whole in seen or not Path(path).is_file():
                continue
            seen.add(whole)
            ending = _ending(name)
            may_be_log = "error" in name if ending == ".json" else ending not in _NO_LOGS and "tfevents" not in name
            if ending in _ARCHIVES:
                gaps.append(Gap.about("log", item=path, why="is an archive: unpack it first"))
            elif may_be_log:
                yield path, _size(path)


def _is_on(device: int, path: str, gaps: list[Gap]) -> bool:
    try:
        found = Path(path).stat()
    except OSError:
        return False  # a link that leads nowhere
    if found.st_dev != device:
        gaps.append(Gap.about("log", item=path, why="is on another file system than its folder: name it to read it"))
    return found.st_dev == device


def _ending(name: str) -> str:
    """.tar of a.tar.gz."""
    stem, dot, ending = name.rpartition(".")
    if f"{dot}{ending}" in (".gz", ".bz2", ".xz", ".zst"):
        _, dot, ending = stem.rpartition(".")
    return f"{dot}{ending}"


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
