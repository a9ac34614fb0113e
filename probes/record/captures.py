"""Writing a capture, piece by piece, and reading one that anybody may have made.

It is reached through its folder's descriptor only: a folder below /tmp that somebody exchanges, or a link that somebody
lays into it, changes nothing. It is read within the limits of `decoding.py`.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from mltop.probes.model import Finding, Gap, NodeState, RankStacks, Sample, all_fields, to_json, well_formed
from mltop.probes.model.evidence.records import RankRecords, admit_records
from mltop.probes.model.incident import Incident
from mltop.probes.model.receipt import admit_stacks
from mltop.probes.model.text import clean
from mltop.probes.reach.view import Connection
from mltop.probes.record import decoding
from mltop.probes.record.archives import capture_folder, empty, pack, stem_of
from mltop.probes.record.decoding import BadRecording, decode, decode_sample, decode_shown, failing_at
from mltop.probes.record.recordings import (
    Budget,
    DecodeLine,
    OpenRecording,
    StoredSamples,
    check_format,
    recording,
    sentence,
)
from mltop.probes.system.files import BadFile, Folder
from mltop.probes.version import __version__

FORMAT = 1
Item = TypeVar("Item")
MANIFEST, VERDICT, SAMPLES, DUMPS = "manifest.json", "verdict.json", "samples", "stacks"
INCIDENTS, FINDINGS, KERNEL_LINES = "incidents.json", "findings.json", "kernel.txt"
RECORDS = "records.json"
_MOST_NAME_BYTES = 200  # of a file: file systems take 255, and there is a suffix
_MOST_CHARS = 500  # of a problem that a manifest tells
_NAMED = 3  # of the files that are missing
_LAST_WRITE_S = 0.5  # what is being written when a capture is given up is waited for so long


class CaptureWriter:
    """Writes one capture; the manifest says at any moment what is there. From any thread."""

    def __init__(self, directory: Path) -> None:
        """Makes the folder: FileExistsError for anything that is there, a link too."""
        self.directory = directory
        self._folder = Folder.make(directory)
        self._lock = threading.RLock()
        self._given_up = threading.Event()
        self._files: set[str] = set()
        self._manifest: dict[str, Any] = {
            "mltop_capture": FORMAT,
            "version": __version__,
            "started_at": time.time(),
            "finished_at": None,
            "complete": False,
            "nodes": [],
            "files": [],
            "problems": [],
        }
        self._write_manifest()

    @property
    def problems(self) -> list[str]:
        problems: list[str] = self._manifest["problems"]
        return problems

    def problem(self, sentence: str) -> None:
        """Notes something that will be missing from this capture."""
        with self._lock:
            self.problems.append(clean(sentence))
            self._write_manifest()

    def nodes(self, states: Iterable[NodeState], connections: Mapping[str, Connection] | None = None) -> None:
        """Writes the state of every node, and how it was reached (``connection``: the fields of `Connection`)."""
        entries: list[dict[str, Any]] = []
        for state in states:
            connection = (connections or {}).get(state.node)
            entries.append({**vars(state), **({"connection": connection} if connection is not None else {})})
        with self._lock:
            self._manifest["nodes"] = entries
            self._write_manifest()

    def add(self, name: str, data: bytes) -> None:
        """Writes one file, ``name`` relative to the directory; a failure is noted and the rest goes on."""
        try:
            self._write(name, data)
        except (OSError, BadFile) as error:
            self.problem(f"{name} could not be written: {getattr(error, 'strerror', None) or error}")
            return
        with self._lock:
            if name not in self._files:
                self._files.add(name)
                self._manifest["files"].append(name)

    def add_samples(self, node: str, samples: list[Sample]) -> None:
        self.add(f"{SAMPLES}/{safe_name(node)}.jsonl.gz", gzip.compress(recording(samples), 6))

    def add_dumps(self, dumps: list[RankStacks]) -> None:
        """Writes one file per process, holding all its rounds."""
        by_process: dict[tuple[str, int], list[RankStacks]] = {}
        for dump in dumps:
            by_process.setdefault((dump.node, dump.pid), []).append(dump)
        for (node, pid), rounds in by_process.items():
            rank = "unknown" if rounds[0].rank is None else str(rounds[0].rank)
            self.add(f"{DUMPS}/{safe_name(node)}/rank-{rank}-pid-{pid}.json", to_json(rounds).encode())

    def add_records(self, records: Iterable[RankRecords]) -> None:
        """Writes what ranks have on record of their collectives, where one has anything."""
        listed = list(records)
        if listed:
            self.add(RECORDS, to_json(listed).encode())

    def finish(self) -> None:
        """Marks the capture as finished: everything that could be written is there."""
        with self._lock:
            self._manifest.update(finished_at=time.time(), complete=not self.problems)
            self._write_manifest()

    def give_up(self) -> None:
        """Write nothing more; the program may end after this, and no file is half there. What is there is kept."""
        self._given_up.set()
        if self._lock.acquire(timeout=_LAST_WRITE_S):
            self._lock.release()

    def pack(self, archive: Path) -> None:
        """Makes one file of it, and removes the folder. Raises OSError and BadFile: the folder stays then."""
        with self._lock:
            pack(self._folder, archive, stem_of(archive), self._given_up.is_set)
            with contextlib.suppress(OSError, BadFile):
                empty(self._folder)
                self.directory.rmdir()
            self.directory = archive

    def _write(self, name: str, data: bytes) -> None:
        *above, last = name.split("/")
        folder = self._folder
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._lock)
            if self._given_up.is_set():
                return
            for part in above:
                folder = opened.enter_context(folder.ensure_folder(part))
            folder.write(last, data)

    def _write_manifest(self) -> None:
        text = well_formed(json.dumps(self._manifest, indent=1, default=all_fields))
        with self._lock:
            if not self._given_up.is_set():
                self._folder.write(MANIFEST, text.encode())


def safe_name(node: str) -> str:
    """A node's name as a file name; names that would become one are distinguished by what they were."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in node).lstrip(".")
    if name == node and 0 < len(name.encode()) <= _MOST_NAME_BYTES:
        return name
    was = hashlib.sha256(node.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name.encode()[:_MOST_NAME_BYTES].decode(errors='ignore')}-{was}"


@dataclass
class Saved:
    """What a capture or a recording (samples only) holds. ``gaps``: what it lacks, by its own manifest and by looking.

    ``dumps`` come without py-spy's JSON (``raw``), which `read_raw` has; ``incidents`` and ``findings`` as they were
    judged then.
    """

    nodes: list[NodeState] = field(default_factory=list)
    samples: StoredSamples = field(default_factory=StoredSamples)
    dumps: list[RankStacks] = field(default_factory=list)
    not_answered: list[NodeState] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    records: list[RankRecords] = field(default_factory=list)

    @property
    def newest(self) -> list[Sample]:
        """The last sample of every node that has one."""
        return self.samples.newest


@dataclass
class _Manifest:
    mltop_capture: int
    finished_at: float | None = None
    nodes: list[NodeState] = field(default_factory=list)
    files: list[str] | None = None
    problems: list[str] | None = None


class _Verdict(msgspec.Struct):
    not_answered: msgspec.Raw = msgspec.Raw(b"[]")


def _without_raw() -> type[Any]:
    """RankStacks as it is read: py-spy's JSON is most of it, and any tree of values."""
    types = get_type_hints(RankStacks)
    return make_dataclass(
        "RankStacks",
        [
            (item.name, types[item.name], field(default=item.default, default_factory=item.default_factory))
            for item in fields(RankStacks)
            if item.name != "raw"
        ],
    )


def read_capture(
    path: Path, share: Callable[[RankStacks], None] = lambda _: None, decode_line: DecodeLine = decode_sample
) -> Saved:
    """A capture, a folder or an archive; BadRecording says why it is none. Fields of newer versions are ignored.

    ``share`` is called with every dump as it is read, to replace parts by equal ones of others. ``decode_line`` as of
    ``read_recording``.
    """
    with _reading(path, decode_line) as reader:
        return reader.read(share)


def read_raw(path: Path) -> Iterator[RankStacks]:
    """Yields every dump as py-spy saw it (``raw``), a file at a time. Raises BadRecording."""
    with _reading(path) as reader:
        reader.manifest()
        for inner, name in reader.dump_files():
            data = inner.read(name, decoding.MOST_DUMP_BYTES)
            yield from decode(data, list[RankStacks], str(inner.path / name), decoding.MOST_DUMP_OBJECTS)


@contextlib.contextmanager
def _reading(path: Path, decode_line: DecodeLine = decode_sample) -> Iterator[_Reader]:
    try:
        with capture_folder(path) as folder:
            yield _Reader(folder, decode_line)
    except (OSError, BadFile) as error:
        raise BadRecording(sentence(error)) from None


class _Reader:
    """One reading of one folder. Everything in it raises OSError, BadFile and BadRecording."""

    def __init__(self, folder: Folder, decode_line: DecodeLine) -> None:
        self._folder, self._decode_line = folder, decode_line
        self._files: set[str] = set()  # that were seen

    def read(self, share: Callable[[RankStacks], None]) -> Saved:
        manifest, samples = self.manifest(), StoredSamples()
        listed = manifest.problems or []
        problems: list[str] = [clean(problem, _MOST_CHARS) for problem in listed[: decoding.MOST_PROBLEMS]]
        if len(listed) > len(problems):
            problems.append(f"and {len(listed) - len(problems):,} more problems are in its {MANIFEST}")
        if manifest.finished_at is None:
            problems.append("the capture was cut off before it was finished")
        self._files.update(self._folder.names(decoding.MOST_FILES))
        cut_off = self._samples(samples)
        dumps = self._dumps(share)
        incidents = self._list(INCIDENTS, Incident, read=decode_shown)
        findings = self._list(FINDINGS, Finding, read=decode_shown)
        problems += _missing([name for name in manifest.files or [] if name not in self._files]) + cut_off
        gaps = [Gap("capture", problem) for problem in problems]
        records = self._list(RECORDS, RankRecords, decoding.MOST_RECORDS)
        for record in records:
            with failing_at(str(self._folder.path / RECORDS)):
                admit_records(record)
        return Saved(manifest.nodes, samples, dumps, self._not_answered(), gaps, incidents, findings, records)

    def manifest(self) -> _Manifest:
        path = self._folder.path / MANIFEST
        try:
            data = self._folder.read(MANIFEST, decoding.MOST_MANIFEST_BYTES)
        except FileNotFoundError:
            raise decoding.NoCapture(f"{path.parent} is not an mltop capture (it has no {MANIFEST})") from None
        manifest = decode(data, _Manifest, str(path), decoding.MOST_MANIFEST_OBJECTS)
        check_format(manifest.mltop_capture, FORMAT, f"{path} is a capture")
        return manifest

    def _samples(self, into: StoredSamples) -> list[str]:
        """Reads all samples. Returns sentences about what is cut off."""
        budget, cut_off = Budget(), []
        for folder, name in self._names(self._folder, SAMPLES, lambda name: ".jsonl" in name):
            path, fd = folder.path / name, folder.open_file(name)
            with OpenRecording(path, self._decode_line, fd=fd, budget=budget, into=into) as recorded:
                recorded.read()
                if recorded.cut_off:
                    cut_off.append(f"{SAMPLES}/{name} is cut off")
            self._files.add(f"{SAMPLES}/{name}")
        return cut_off

    def _dumps(self, share: Callable[[RankStacks], None]) -> list[RankStacks]:
        kind = _without_raw()
        dumps: list[RankStacks] = []
        frames_seen: set[int] = set()
        parts = 0  # kept in memory; equal ones that are shared count once
        for folder, name in self.dump_files():
            where = str(folder.path / name)
            data = folder.read(name, decoding.MOST_DUMP_BYTES)
            for read in decode(data, list[kind], where, decoding.MOST_DUMP_OBJECTS):  # type: ignore[valid-type]
                dump = RankStacks(**vars(read))
                with failing_at(where):
                    admit_stacks(dump)
                share(dump)
                dumps.append(dump)
                parts += 3 + len(dump.digests)
                for frames in (digest.frames for digest in dump.digests if id(digest.frames) not in frames_seen):
                    frames_seen.add(id(frames))
                    parts += len(frames) + sum(len(frame.ints) for frame in frames)
                if parts > decoding.MOST_DUMP_PARTS:
                    raise BadRecording(f"{where}: more stacks than mltop can keep in memory")
        return dumps

    def dump_files(self) -> Iterator[tuple[Folder, str]]:
        """(folder, name) of every rank's file."""
        if self._is_missing(DUMPS):
            return
        with self._folder.folder(DUMPS) as nodes:
            for node, kind in nodes.names(decoding.MOST_FILES).items():
                if kind != stat.S_IFREG and not node.startswith("."):
                    for folder, name in self._names(nodes, node, lambda name: name.endswith(".json")):
                        self._files.add(f"{DUMPS}/{node}/{name}")
                        yield folder, name

    def _names(self, above: Folder, inner: str, is_wanted: Callable[[str], bool]) -> Iterator[tuple[Folder, str]]:
        """The (folder, name) of files in ``above/inner``. A leading dot is a temporary file's, of a capture killed."""
        if above is self._folder and self._is_missing(inner):
            return
        with above.folder(inner) as folder:
            for name in folder.names(decoding.MOST_FILES):
                if len(self._files) > decoding.MOST_FILES:
                    raise BadFile(f"{self._folder.path}: holds more than {decoding.MOST_FILES:,} files")
                if is_wanted(name) and not name.startswith("."):
                    yield folder, name

    def _is_missing(self, name: str) -> bool:
        """Whether it is, as in a capture that was cut off, or whose directory could not be written."""
        return name not in self._folder.names(decoding.MOST_FILES)

    def _list(
        self, name: str, kind: type[Item], most: int = decoding.MOST_TOLD, read: Callable[..., Any] = decode
    ) -> list[Item]:
        """A list of what was judged then; [] in captures of versions that did not write it."""
        try:
            data = self._folder.read(name, decoding.MOST_VERDICT_BYTES)
        except FileNotFoundError:
            return []
        items: list[Item] = read(data, list[kind], str(self._folder.path / name), most)  # type: ignore[valid-type]
        return items

    def _not_answered(self) -> list[NodeState]:
        """The nodes of the saved verdict; [] for a capture that was cut off before its verdict."""
        where = str(self._folder.path / VERDICT)
        try:
            data = self._folder.read(VERDICT, decoding.MOST_VERDICT_BYTES)
        except FileNotFoundError:
            return []
        # The rest of it, which may be large, is passed over.
        silent = bytes(decode(data, _Verdict, where, len(data)).not_answered)
        return decode(silent, list[NodeState], where, decoding.MOST_MANIFEST_OBJECTS)


def _missing(names: Sequence[str]) -> list[str]:
    if len(names) <= _NAMED:
        return [f"{name} is missing" for name in names]
    return [f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED:,} more files are missing"]
