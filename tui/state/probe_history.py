"""What probes measured before, kept for comparison: one JSON line per result, behind a header line.

``PastResult.uuid`` is a GPU's UUID, wherever the GPU is put; processors and groups of nodes have none and are named by
``judge.probes.compare``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mltop.probes.model.probe import PastResult
from mltop.probes.system.files import BadFile, Folder, blocks, ensure_own, write_all
from mltop.tui.state import BadState, NotOurs, bad_state, closing, create_file, locked, open_lock, reading, state_file

FILE = "probe-results.jsonl"
MOST_PER_KEY = 50  # of each uuid and key
MOST = 200_000  # of all: about 50 MB
MOST_BYTES = 256 << 20  # on a file server without locks everybody only adds
MOST_LINE_BYTES = 64 << 10
_MOST_LATE_BYTES = 16 << 20
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
        return _read(_lines(file, path)) if file is not None else History()


def remember(past: Sequence[PastResult], path: Path | None = None) -> None:
    """Add these results; several mltops may do so at once. Values that are no finite numbers are left out.

    Raises BadState when they cannot be written.
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
        size = _append(folder, path.name, lines.encode(), is_locked)
        if is_locked:
            # What fails here, the next one tries again: the results are written.
            with contextlib.suppress(BadState, BadFile, OSError):
                _write_anew(folder, path.name, size)


def _line(past: PastResult) -> str:
    return json.dumps(asdict(past), separators=(",", ":"), allow_nan=False) + "\n"


def _append(folder: Folder, name: str, data: bytes, is_locked: bool) -> int:
    """Add ``data`` at the end, in one write, so that lines of two processes never mix. Returns the file's new size.

    Without the lock, somebody may have written the file anew meanwhile: then what was added to the old one is added to
    the new one. Whoever wrote it anew takes over what came before (``_take_over``), so that it may stand there twice.
    """
    while True:
        with closing(_open_for_adding(folder, name)) as file:
            added = data
            size = os.fstat(file).st_size
            if size == 0:
                added = _header(0).encode() + data
            elif os.pread(file, 1, size - 1) != b"\n":
                added = b"\n" + data  # somebody was killed while writing: only that line is lost
            write_all(file, added)
            written = os.fstat(file)
        if is_locked or _is_named(folder, name, written):
            return written.st_size


def _open_for_adding(folder: Folder, name: str) -> int:
    return create_file(folder, name, os.O_APPEND)


def _is_named(folder: Folder, name: str, file: os.stat_result) -> bool:
    """Whether the name still stands for this file."""
    try:
        now = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (file.st_dev, file.st_ino)


def _header(kept_bytes: int) -> str:
    return json.dumps({"mltop_probe_results": 1, "kept_bytes": kept_bytes}) + "\n"


def _kept_bytes(file: int) -> int:
    """How large the file was when it was last written anew."""
    try:
        return max(0, int(json.loads(os.pread(file, 200, 0).partition(b"\n")[0])["kept_bytes"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0


def _write_anew(folder: Folder, name: str, size: int) -> None:
    """Keep the newest results only, once much was added. Who adds meanwhile has given up the lock."""
    with closing(_open_for_adding(folder, name)) as old:
        if size <= 2 * _kept_bytes(old) + _GROWN_BYTES:
            return
        text = "".join(_line(past) for past in newest(_read(_lines(old, folder.path / name)).results))
        read_bytes = _whole_lines(old, os.lseek(old, 0, os.SEEK_CUR))
        folder.write(name, (_header(len(text)) + text).encode())
        _take_over(folder, name, old, read_bytes)


def _whole_lines(file: int, end: int) -> int:
    """Where the last line ends that is whole: of another one the rest may just be coming."""
    start = max(0, end - MOST_LINE_BYTES)
    newline = os.pread(file, end - start, start).rfind(b"\n")
    return end if newline < 0 else start + newline + 1


def _take_over(folder: Folder, name: str, old: int, read_bytes: int) -> None:
    """Add the whole lines that came to the old file after it was read; later writers see that it has no name."""
    late = os.pread(old, _MOST_LATE_BYTES, read_bytes)
    late = late[: late.rfind(b"\n") + 1]
    if late:
        with closing(_open_for_adding(folder, name)) as new:
            write_all(new, late)


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


def _read(lines: Iterable[bytes]) -> History:
    """Headers are skipped: who makes the file at the same moment as somebody else adds a second one."""
    import msgspec

    decoder = msgspec.json.Decoder(PastResult)
    history = History()
    seen: set[tuple[str, str, float, float]] = set()
    for line in lines:
        try:
            past = decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            history.damaged += bool(line) and b'"mltop_probe_results"' not in line
            continue
        if _identity(past) in seen:
            continue
        seen.add(_identity(past))
        history.results.append(past)
        if len(history.results) > 2 * MOST:
            history.results = newest(history.results)
            seen = set(map(_identity, history.results))
    history.results.sort(key=lambda past: past.at)
    return history


def _identity(past: PastResult) -> tuple[str, str, float, float]:
    return past.uuid, past.key, past.at, past.value


def _lines(file: int, path: Path) -> Iterator[bytes]:
    """All lines of a file. One that is too long is cut off, and so damaged. Raises BadFile for too much."""
    rest = b""
    os.lseek(file, 0, os.SEEK_SET)
    for block in blocks(file, MOST_BYTES, path):
        *whole, last = block.split(b"\n")
        for line in whole:
            yield rest + line
            rest = b""
        rest = (rest + last)[:MOST_LINE_BYTES]
    if rest:
        yield rest


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
