"""What probes measured before, kept for comparison: one JSON line per result, behind a header line.

``PastResult.uuid`` is a GPU's UUID, wherever the GPU is put; processors and groups of nodes have none and are named
otherwise (``DeviceResult.subject``, ``judge.probes.compare``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mltop.probes.model.probe import PastResult
from mltop.probes.system.files import BadFile, blocks, ensure_own, write_all
from mltop.tui.state import BadState, NotOurs, bad_state, closing, create_file, locked, open_lock, reading, state_file

FILE = "probe-results.jsonl"
MOST_PER_KEY = 50  # of each uuid and key
MOST = 200_000  # of all: about 50 MB
MOST_BYTES = 256 << 20  # on a file server without locks everybody only adds
_GROWN_BYTES = 256 * 1024  # the file is written anew when it is this much more than twice of what was kept


@dataclass
class History:
    """``results``, the oldest first. ``damaged``: lines that could not be read and were skipped."""

    results: list[PastResult] = field(default_factory=list)
    damaged: int = 0


def read_history(path: Path | None = None) -> History:
    """All earlier results. Raises BadState for a file that cannot be read."""
    path = path or state_file(FILE)
    with reading(path) as file:
        return _read(file, path) if file is not None else History()


def remember(past: Sequence[PastResult], path: Path | None = None) -> None:
    """Add these results; several mltops may do so at once. Values that are no finite numbers are left out.

    Whoever has the lock also leaves out old results, once much was added. Raises BadState when they cannot be written.
    """
    lines = "".join(_line(result) for result in past if math.isfinite(result.value) and math.isfinite(result.at))
    if not lines:
        return
    path = path or state_file(FILE)
    with (
        bad_state(path, "cannot be written: "),
        ensure_own(path.parent) as folder,
        closing(open_lock(folder, path.name)) as lock,
    ):
        is_locked = locked(lock)
        with closing(create_file(folder, path.name, os.O_APPEND)) as file:
            size = os.fstat(file).st_size
            # Somebody may have been killed while writing: only that line is lost.
            begin = _header(0) if size == 0 else "" if os.pread(file, 1, size - 1) == b"\n" else "\n"
            write_all(file, (begin + lines).encode())  # in one write: lines of two processes never mix
            if is_locked and os.fstat(file).st_size > 2 * _kept_bytes(file) + _GROWN_BYTES:
                # What fails here, the next one tries again: the results are written.
                with contextlib.suppress(BadState, BadFile, OSError):
                    text = "".join(map(_line, newest(_read(file, path).results)))
                    folder.write(path.name, (_header(len(text)) + text).encode())


def _line(past: PastResult) -> str:
    return json.dumps(asdict(past), separators=(",", ":"), allow_nan=False) + "\n"


def _header(kept_bytes: int) -> str:
    """``kept_bytes``: how large the file was when it was last written anew."""
    return json.dumps({"mltop_probe_results": 1, "kept_bytes": kept_bytes}) + "\n"


def _kept_bytes(file: int) -> int:
    try:
        return max(0, int(json.loads(os.pread(file, 200, 0).partition(b"\n")[0])["kept_bytes"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0


def newest(results: Iterable[PastResult]) -> list[PastResult]:
    """The last MOST_PER_KEY of each uuid and key, at most MOST in all; the oldest first."""
    last: list[PastResult] = []
    counts: Counter[tuple[str, str]] = Counter()
    # Of equal times the last one in the file is the newest.
    by_time = sorted(results, key=lambda result: result.at)
    for past in by_time[::-1]:
        counts[past.uuid, past.key] += 1
        if counts[past.uuid, past.key] <= MOST_PER_KEY:
            last.append(past)
    return last[:MOST][::-1]


def _read(file: int, path: Path) -> History:
    """Headers are skipped: who makes the file at the same moment as somebody else adds a second one. Raises BadFile for
    a file that is too large.
    """
    import msgspec

    decoder = msgspec.json.Decoder(PastResult)
    history = History()
    os.lseek(file, 0, os.SEEK_SET)
    for line in b"".join(blocks(file, MOST_BYTES, path)).split(b"\n"):
        try:
            history.results.append(decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            history.damaged += bool(line) and b'"mltop_probe_results"' not in line
        if len(history.results) > 2 * MOST:
            history.results = newest(history.results)
    history.results.sort(key=lambda past: past.at)
    return history


class HistoryFile:
    """The file as a probe run uses it: what goes wrong stops nothing.

    ``problems``: sentences for the user. ``before``: what the newest run was compared with.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.before: Sequence[PastResult] = ()
        self._not_ours = ""

    def past(self) -> Sequence[PastResult]:
        self.before = ()
        try:
            history = read_history()
            self.before = history.results
            if history.damaged:
                self.problems.append(f"{history.damaged} damaged lines of the earlier results are passed over")
        except NotOurs as problem:
            self._not_ours = str(problem)  # said when the results are not kept either
        except BadState as problem:
            self.problems.append(f"earlier results are not compared: {problem}")
        return self.before

    def keep(self, results: Sequence[PastResult]) -> None:
        try:
            remember(results)
        except BadState as problem:
            compared = "earlier results are not compared, and " if str(problem) == self._not_ours else ""
            self.problems.append(f"{compared}the results are not kept: {problem}")
