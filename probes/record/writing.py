"""Writing a capture, piece by piece.

It is reached through its folder's descriptor only: a folder below /tmp that somebody exchanges, or a link that somebody
lays into it, changes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mltop.probes.files import BadFile, Folder
from mltop.probes.model import NodeState, RankStacks, Sample, all_fields, to_json, well_formed
from mltop.probes.model.text import clean
from mltop.probes.reach.view import Connection
from mltop.probes.record.recordings import recording
from mltop.probes.version import __version__

FORMAT = 1
MANIFEST, VERDICT, SAMPLES, DUMPS = "manifest.json", "verdict.json", "samples", "stacks"
_MOST_NAME_BYTES = 200  # of a file: file systems take 255, and there is a suffix


class CaptureWriter:
    """Writes one capture; the manifest says at any moment what is there. From any thread."""

    def __init__(self, directory: Path) -> None:
        """Makes the folder: FileExistsError for anything that is there, a link too."""
        self.directory = directory
        self._folder = Folder.make(directory)
        self._lock = threading.RLock()
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
        """Something that will be missing from this capture."""
        with self._lock:
            self.problems.append(clean(sentence))
            self._write_manifest()

    def nodes(self, states: Iterable[NodeState], connections: Mapping[str, Connection] | None = None) -> None:
        """The state of every node, and how it was reached (``connection``: the fields of `Connection`)."""
        known = connections or {}
        entries = [
            {**vars(state), **({"connection": known[state.node]} if state.node in known else {})} for state in states
        ]
        with self._lock:
            self._manifest["nodes"] = entries
            self._write_manifest()

    def add(self, name: str, data: bytes) -> None:
        """One file, ``name`` relative to the directory; a failure is noted and the rest goes on."""
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
        """One file per process, holding all its rounds."""
        by_process: dict[tuple[str, int], list[RankStacks]] = {}
        for dump in dumps:
            by_process.setdefault((dump.node, dump.pid), []).append(dump)
        for (node, pid), rounds in by_process.items():
            rank = "unknown" if rounds[0].rank is None else str(rounds[0].rank)
            self.add(f"{DUMPS}/{safe_name(node)}/rank-{rank}-pid-{pid}.json", to_json(rounds).encode())

    def finish(self) -> None:
        """Everything that could be written is there."""
        with self._lock:
            self._manifest.update(finished_at=time.time(), complete=not self.problems)
            self._write_manifest()

    def _write(self, name: str, data: bytes) -> None:
        *above, last = name.split("/")
        folder = self._folder
        try:
            for part in above:
                inner = folder.ensure_folder(part)
                if folder is not self._folder:
                    folder.close()
                folder = inner
            folder.write(last, data)
        finally:
            if folder is not self._folder:
                folder.close()

    def _write_manifest(self) -> None:
        text = well_formed(json.dumps(self._manifest, indent=1, default=all_fields))
        self._folder.write(MANIFEST, text.encode())


def safe_name(node: str) -> str:
    """A node's name as a file name; names that would become one are told apart by what they were."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in node).lstrip(".")
    if name == node and 0 < len(name.encode()) <= _MOST_NAME_BYTES:
        return name
    was = hashlib.sha256(node.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name.encode()[:_MOST_NAME_BYTES].decode(errors='ignore')}-{was}"
