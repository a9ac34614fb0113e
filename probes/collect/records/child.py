"""The child process that reads flight records: what is slow or large in a stranger's file delays no sample.

Request, a line of JSON on stdin: ``pid``, ``rank``, ``job``, ``uid``, ``started_at``, ``written_after`` (unix s).
Answers, lines of JSON on stdout: the shown name of each file before it is read, then the rank's records. Python 3.9.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any

from mltop.probes.collect.ranks.live_environ import live_variables
from mltop.probes.collect.records.files import pipe_of, places_of
from mltop.probes.collect.records.flight_recorder import FlightRecord, MemberLists, read_flight_record
from mltop.probes.collect.redaction.values import shown_path
from mltop.probes.collect.sysfile import read_link
from mltop.probes.model import Gap, to_json
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.system import paths

MOST_ANSWER_BYTES = 4 << 20  # of one rank; a world of 65,536 ranks takes half a megabyte in each group of all
_NAMES = (
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("TORCHCOMM_FR_DUMP_TEMP_FILE", "XDG_CACHE_HOME", "HOME"),
)


def main() -> None:
    """Ends at end-of-file on stdin, and when nobody reads its answers."""
    members = MemberLists()  # of all of them: most list the same
    with suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            _say(to_json(_records(json.loads(line), members)))


def _say(answer: str) -> None:
    rest = memoryview(answer.encode() + b"\n")
    while rest:
        rest = rest[os.write(1, rest) :]


def _records(request: dict[str, Any], members: MemberLists) -> RankRecords:
    pid, rank = request["pid"], request["rank"]
    found = RankRecords(pid, rank, request["job"], request["uid"])
    environ = live_variables(pid, _NAMES)
    found.pipe = shown_path(pipe_of(environ, rank))
    for place in places_of(environ, rank, read_link(paths.proc(pid, "cwd")) or ""):
        record = _record(place, request, members)
        if record is None:
            continue
        size = 0
        for progress in record.progress:
            size += len(to_json(progress))
            if size > MOST_ANSWER_BYTES:
                why = f"{record.file}: it says more of its groups than mltop sends"
                found.gaps.append(Gap.about("flight_recorder", item=str(rank), why=why))
                return found
        found.gaps += [record.gap] if record.gap is not None else []
        found.progress += record.progress
        break
    return found


def _record(place: str, request: dict[str, Any], members: MemberLists) -> FlightRecord | None:
    """None where there is no such file, or only one that is as old as those that were read before."""
    shown = shown_path(place) or "its record"
    _say(json.dumps(shown))
    path, after = _seen_from_here(place, request["pid"]), request["written_after"]
    if not os.path.lexists(path):
        return None
    with suppress(OSError):
        if after is not None and os.stat(path).st_mtime < after:
            return None
    return read_flight_record(
        path,
        rank=request["rank"],
        started_at=request["started_at"],
        uid=request["uid"],
        shown=shown,
        members=members,
    )


def _seen_from_here(path: str, pid: int) -> str:
    """The path of a process, which may live in another file system than we do (a container)."""
    root = paths.proc(pid, "root")
    with suppress(OSError):
        if not os.path.samestat(os.stat(root), os.stat("/")):
            return root + path
    return path
