"""The flight records of a node's ranks: found where their own variables say, read beside a dump of their stacks.

Only files that are there by now: nothing is asked of the ranks, and their pipes are not written to. A file server that
is gone holds up one thread of ours for as long as it likes, and no answer. Python 3.9.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.live_environ import Unreadable, read_live_environ
from mltop.probes.collect.records.files import Place, pipe_of, places_of
from mltop.probes.collect.records.flight_recorder import FlightRecord, MemberLists, read_flight_record
from mltop.probes.collect.redaction.values import shown_path
from mltop.probes.collect.sysfile import read_link
from mltop.probes.model import Gap, RankSample
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.system import paths
from mltop.probes.system.writable import in_time

LIMIT_S = 3.0  # of one file, on a file server that is slow; reading the largest takes two
LATE_S = 4.0  # after the stacks are there, at most
_NAMES = (
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("TORCHCOMM_FR_DUMP_TEMP_FILE", "XDG_CACHE_HOME", "HOME"),
)


class RecordReading:
    """Begins at once, in a thread of its own. ``newer_s``: only records that were written within so many seconds."""

    def __init__(self, ranks: list[RankSample], cancelled: threading.Event, newer_s: float | None = None) -> None:
        self._cancelled = cancelled
        self._written_after = None if newer_s is None else time.time() - newer_s
        self._found: list[RankRecords] = []
        self._members = MemberLists()  # of all of them: most list the same
        self._slow: set[str] = set()  # folders of a server that does not answer
        self._ranks = [rank for rank in ranks if rank.rank is not None]
        self._thread = threading.Thread(target=self._read, name="mltop records", daemon=True)
        if self._ranks:
            self._thread.start()

    def finished(self) -> list[RankRecords]:
        """What has been read by now, or a few seconds later."""
        if self._ranks:
            until = time.monotonic() + LATE_S
            while self._thread.is_alive() and time.monotonic() < until and not self._cancelled.is_set():
                self._thread.join(0.1)
        return list(self._found)

    def _read(self) -> None:
        for rank in self._ranks:
            if self._cancelled.is_set():
                return
            told = self._of_rank(rank)
            if told.progress or (self._written_after is None and (told.gaps or told.pipe)):
                self._found.append(told)

    def _of_rank(self, rank: RankSample) -> RankRecords:
        assert rank.rank is not None
        told = RankRecords(rank.pid, rank.rank, rank.job, rank.uid)
        environ = variables_of(rank.pid)
        told.pipe = shown_path(pipe_of(environ, rank.rank))
        for place in places_of(environ, rank.rank, read_link(paths.proc(rank.pid, "cwd")) or ""):
            record = self._record(place, rank)
            if record is None:
                continue
            if record.gap is not None:
                told.gaps.append(record.gap)
            told.progress += record.progress
            break
        return told

    def _record(self, place: Place, rank: RankSample) -> FlightRecord | None:
        """None where there is no such file."""
        folder = os.path.dirname(place.path)
        if folder in self._slow:
            return None
        path, shown = _seen_from_here(place.path, rank.pid), shown_path(place.path) or "its record"

        def read() -> FlightRecord | None:
            if not os.path.lexists(path) or self._is_known(path):
                return FlightRecord("", None)
            return read_flight_record(
                path,
                rank=rank.rank,
                started_at=rank.started_at,
                uid=rank.uid,
                shown=shown,
                members=self._members,
            )

        record = in_time(read, LIMIT_S)
        if record is None:
            self._slow.add(folder)
            why = f"{shown}: it could not be read in time"
            return FlightRecord(shown, rank.rank, gap=Gap.about("flight_recorder", item=str(rank.rank), why=why))
        return record if record.file else None

    def _is_known(self, path: str) -> bool:
        """Whether it is as old as those that have been read before."""
        with suppress(OSError):
            return self._written_after is not None and os.stat(path).st_mtime < self._written_after
        return False


def _seen_from_here(path: str, pid: int) -> str:
    """The path of a process, which may live in another file system than we do (a container)."""
    root = paths.proc(pid, "root")
    with suppress(OSError):
        if not os.path.samestat(os.stat(root), os.stat("/")):
            return root + path
    return path


def variables_of(pid: int, names: Iterable[str] = _NAMES) -> dict[str, str]:
    """These variables of a process as it is now; where that cannot be told, as it was started."""
    root = paths.proc()
    content = b""
    with suppress(OSError):
        content = procfs.read_environ(root, pid)
    with suppress(OSError, Unreadable):
        ticks = procfs.read_stat(root, pid).start_ticks
        content = procfs.from_memory(root, pid, lambda: read_live_environ(root, pid, ticks)) or content
    pairs = (variable.partition(b"=") for variable in content.split(b"\0"))
    wanted = {name.encode(): name for name in names}
    found: dict[str, str] = {}
    for name, _, value in pairs:
        if name in wanted:
            found.setdefault(wanted[name], os.fsdecode(value))
    return found
