"""What probes measured before, kept for comparison: one JSON line per result, behind a header line.

``PastResult.uuid`` is a GPU's UUID, wherever the GPU is put; processors and groups of nodes have none and are named by
``judge.active.past``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mltop.probes.model.probe import PastResult
from mltop.tui.state.place import BadState, state_file, write_state

FILE = "probe-results.jsonl"
MOST_PER_KEY = 50  # of each uuid and key
MOST = 200_000  # of all: about 50 MB
LOCK_S = 10.0  # most that is waited for another mltop which writes; without the lock a result may miss a new file
_RETRY_S = 0.02
_GROWN_BYTES = 256 * 1024  # the file is written anew when it is this much more than twice of what was kept


@dataclass
class History:
    """``results``, the oldest first. ``damaged``: lines that could not be read and were skipped."""

    results: list[PastResult] = field(default_factory=list)
    damaged: int = 0


def read_past(uuids: Collection[str] | None = None, path: Path | None = None) -> list[PastResult]:
    """Earlier results of these devices (None: of all), the oldest first. Raises BadState."""
    return read_history(uuids, path).results


def read_history(uuids: Collection[str] | None = None, path: Path | None = None) -> History:
    """As ``read_past``, with the number of damaged lines. Raises BadState for a file that cannot be read."""
    wanted = None if uuids is None else frozenset(uuids)
    path = path or state_file(FILE)
    _require_file(path)
    history = _read(path)
    if wanted is not None:
        history.results = [past for past in history.results if past.uuid in wanted]
    return history


def remember(past: Sequence[PastResult], path: Path | None = None) -> None:
    """Add these results; several mltops may do so at once. Values that are no finite numbers are left out.

    Raises BadState when they cannot be written.
    """
    lines = "".join(_line(one) for one in past if math.isfinite(one.value) and math.isfinite(one.at))
    if not lines:
        return
    path = path or state_file(FILE)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path) as alone:
            size = _append(path, lines.encode())
            if alone and size > 2 * _kept_bytes(path) + _GROWN_BYTES:
                with contextlib.suppress(BadState):  # the results are written; the next one tries again
                    _compact(path)
    except OSError as error:
        raise BadState(f"{path}: cannot be written: {error.strerror}") from None


def _require_file(path: Path) -> None:
    """A pipe or a device would block, or take everything. Raises BadState."""
    if path.exists() and not path.is_file():
        raise BadState(f"{path}: not a regular file")


def _line(past: PastResult) -> str:
    return json.dumps(asdict(past), separators=(",", ":"), allow_nan=False) + "\n"


def _append(path: Path, data: bytes) -> int:
    """In one write at the end, so that lines of two processes never mix. Returns the file's new size."""
    _require_file(path)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size == 0:
            data = _header(0).encode() + data
        elif os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data  # somebody was killed while writing: only that line is lost
        while data:
            data = data[os.write(handle, data) :]
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether nobody else writes meanwhile. On False the file may be added to, but not be written anew.

    The lock is on a file of its own, as the file itself is replaced when it is written anew. On a file server without
    locks everybody only adds.
    """
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _locked(handle, time.monotonic() + LOCK_S)
    finally:
        os.close(handle)


def _locked(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_RETRY_S)
        except OSError:
            return False
        else:
            return True


def _header(kept_bytes: int) -> str:
    return json.dumps({"mltop_probe_results": 1, "kept_bytes": kept_bytes}) + "\n"


def _kept_bytes(path: Path) -> int:
    """How large the file was when it was last written anew."""
    with path.open("rb") as file:
        try:
            return max(0, int(json.loads(file.readline(200))["kept_bytes"]))
        except (ValueError, TypeError, KeyError, OverflowError):
            return 0


def _compact(path: Path) -> None:
    text = "".join(_line(past) for past in newest(_read(path).results))
    write_state(path, _header(len(text)) + text)


def newest(results: Iterable[PastResult]) -> list[PastResult]:
    """The last MOST_PER_KEY of each uuid and key, at most MOST in all; the oldest first."""
    kept: list[PastResult] = []
    counts: dict[tuple[str, str], int] = {}
    # Of equal times the last one in the file is the newest.
    by_time = sorted(results, key=lambda one: one.at)
    for past in by_time[::-1]:
        count = counts[past.uuid, past.key] = counts.get((past.uuid, past.key), 0) + 1
        if count <= MOST_PER_KEY:
            kept.append(past)
    return kept[:MOST][::-1]


def _read(path: Path) -> History:
    """Raises BadState. The first line is skipped when it is a header, and counts as damaged when it is neither."""
    import msgspec

    decoder = msgspec.json.Decoder(PastResult)
    history = History()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    history.results.append(decoder.decode(line))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    history.damaged += not (number == 0 and b'"mltop_probe_results"' in line)
    except FileNotFoundError:
        return history
    except OSError as error:
        raise BadState(f"{path}: {error.strerror}") from None
    history.results.sort(key=lambda past: past.at)
    return history
