"""The flight records of a node's ranks, read beside a dump of their stacks by a child process (child.py).

Only files that are there by now: nothing is asked of the ranks, and their pipes are not written to. A record that takes
too long, as on a file server that is gone, puts its user's other ranks last; all of them share a few seconds, and a
rank that is not reached gets a gap. Python 3.9.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator

from mltop.probes.collect.polled_child import PolledChild
from mltop.probes.model import Gap, RankSample
from mltop.probes.model.evidence.records import RankRecords

LIMIT_S = 3.0  # of one rank; the largest record takes two
LATE_S = 4.0  # after the stacks are there, at most
MOST_BYTES = 32 << 20  # of all answers
_STEP_S = 0.1  # how late a cancel may be


class RecordReading:
    """Begins at once, in a thread of its own. ``newer_s``: only records that were written within so many seconds."""

    def __init__(self, ranks: list[RankSample], cancelled: threading.Event, newer_s: float | None = None) -> None:
        self._cancelled = cancelled
        self._over = threading.Event()
        self._written_after = None if newer_s is None else time.time() - newer_s
        self._left = [rank for rank in ranks if rank.rank is not None]
        self._answers: list[bytes] = []
        self._refused: list[RankRecords] = []
        self._child: PolledChild | None = None
        self._thread = threading.Thread(target=self._read, name="mltop records", daemon=True)
        if self._left:
            self._thread.start()

    def finished(self) -> Iterator[RankRecords]:
        """What has been read by now, or a few seconds later. Their progress is as JSON has it: it only travels on."""
        until = time.monotonic() + LATE_S
        while self._thread.is_alive() and time.monotonic() < until and not self._cancelled.is_set():
            self._thread.join(_STEP_S)
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2 * _STEP_S)  # what it has at hand is kept, or said to be missing
        for answer in list(self._answers):
            records = RankRecords(**json.loads(answer))
            if records.progress or (self._written_after is None and (records.gaps or records.pipe)):
                yield records
        if self._written_after is None and not self._cancelled.is_set():
            yield from list(self._refused)
            yield from (_refused(rank, "its record could not be read in time") for rank in list(self._left))

    def _read(self) -> None:
        try:
            while self._left and not self._is_over():
                rank = self._left[0]
                answer, why = self._ask(rank)
                if answer and sum(map(len, self._answers)) + len(answer) > MOST_BYTES:
                    answer, why = b"", "its record is not kept: with those read before it, it is more than mltop sends"
                if self._is_over() and not answer:
                    return
                self._left.remove(rank)
                if answer:
                    self._answers.append(answer)
                else:
                    self._refused.append(_refused(rank, why))
                    self._left = sorted(self._left, key=lambda other, uid=rank.uid: other.uid == uid)  # type: ignore[misc]
        finally:
            self._end_child()

    def _is_over(self) -> bool:
        return self._over.is_set() or self._cancelled.is_set()

    def _ask(self, rank: RankSample) -> tuple[bytes, str]:
        """The answer, or b"" and why there is none."""
        wanted = {name: getattr(rank, name) for name in ("pid", "rank", "job", "uid", "started_at")}
        file, received, until = "its record", b"", time.monotonic() + LIMIT_S
        try:
            if self._child is None:
                self._child = PolledChild("mltop.probes.collect.records.child", stderr=subprocess.DEVNULL, cwd="/")
            self._child.send(json.dumps({**wanted, "written_after": self._written_after}).encode() + b"\n")
        except OSError as error:
            return b"", f"what reads records cannot be started: {error.strerror or error}"
        while time.monotonic() < until and not self._is_over():
            piece = self._child.receive(_STEP_S)
            received += piece
            *lines, received = received.split(b"\n")
            for line in lines:
                if line.startswith(b"{"):
                    return line, ""
                file = json.loads(line)
            if not piece and self._child.exit_code() is not None:
                break
        why = "could not be read in time" if self._child.exit_code() is None else "what read it has ended"
        self._end_child()
        return b"", f"{file}: {why}"

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.has_ended(1.0)
            child.close()


def _refused(rank: RankSample, why: str) -> RankRecords:
    gap = Gap.about("flight_recorder", item=str(rank.rank), why=why)
    return RankRecords(rank.pid, rank.rank, rank.job, rank.uid, gaps=[gap])
