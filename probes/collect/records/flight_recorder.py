"""What torch's flight recorder and its kin wrote, as the progress of one rank in each of its process groups.

Versions 2.x of torch's schema, as a pickle (files) or as JSON (functions, HTTP handlers, torchcomms, NVRx' collector,
Ray, Ascend); keys that are not known are passed over. Of the many operations those around what is not completed are
kept. Source: torch/csrc/distributed/c10d/FlightRecorder*, ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp. Python 3.9.

Two traps: ``pg_id`` counts the groups of a process, so it says nothing in another one; groups are told apart by
``process_group``. And ``pg_status`` counts operations of two ranks (p2p) in the same fields as those of all, each by
their own sequence: of a group that has such operations it says nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Optional

from mltop.probes.collect.records.files import MOST_BYTES, Unusable, rank_of_name, read_of
from mltop.probes.collect.records.pickles import CutOff, Malformed, read_pickle
from mltop.probes.collect.records.values import (
    counted,
    entries_of,
    name_text,
    place_text,
    rank_number,
    read_json,
    seconds_of_ns,
    table_of,
    whole,
)
from mltop.probes.model import Gap
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation, OperationState
from mltop.probes.model.text import plain_text
from mltop.probes.system.files import BadFile, open_regular

MOST_ENTRIES = 20_000  # ten times as many as torch keeps unless told otherwise
MOST_GROUPS = 1_024
MOST_TENSORS, MOST_DIMENSIONS = 16, 8  # of one operation
MOST_FRAMES = 12
MOST_MEMBERS = 65_536
MOST_MEMBER_CHARS = 4 << 20  # of different lists of members, of all records that are read together
# Operations that are kept of a group: the last completed ones, the first and the last of the others.
KEPT_COMPLETED, KEPT_FIRST, KEPT_LAST = 8, 16, 4
MOST_CPU_S = 3.0  # for one record; 2,000 operations with 25 frames each take 0.7
WRITING_S = 5.0  # a file that ends in the middle and was written to so lately is not finished
DEFAULT_GROUP = "default_pg"
_STATES: dict[object, OperationState] = {"scheduled": "scheduled", "started": "started", "completed": "completed"}
_HEAD_BYTES = 4096
_MARKS = (b'"entries"', b'"pg_status"', b'"pg_config"', b'"comm_lib_version"', b'"ray_train_dump_error"')
RAY_ERROR = "ray_train_dump_error"


class MemberLists(dict[str, Optional[tuple[int, ...]]]):
    """Members of groups by the text that lists them: most ranks' records have the same. ``left``: characters."""

    left = MOST_MEMBER_CHARS


@dataclass(frozen=True)
class FlightRecord:
    """One file. ``progress``: of each group of the rank; empty with a ``gap`` that says why, where it cannot be used.

    ``at``: unix s when it was written. ``version``: of the schema, "" where it says none.
    """

    file: str
    rank: int | None
    progress: tuple[GroupProgress, ...] = ()
    at: float | None = None
    version: str = ""
    gap: Gap | None = None


def read_flight_record(
    path: Path | str,
    *,
    rank: int | None = None,
    started_at: float | None = None,
    uid: int | None = None,
    shown: str = "",
    members: MemberLists | None = None,
) -> FlightRecord:
    """The record in a file. ``rank``: whose it is, else its name says so.

    ``started_at``: when the rank's process began, unix s: an older file is of an earlier job. ``uid``: whose the file
    must be. ``shown``: its name for people. ``members``: as other records list them.
    """
    shown = shown or str(path)
    rank = rank_of_name(Path(path).name) if rank is None else rank
    try:
        content, at = read_of(path, MOST_BYTES, started_at=started_at, uid=uid)
    except Unusable as why:
        return _unread(shown, rank, str(why))
    try:
        return parse_flight_record(content, rank=rank, at=at, shown=shown, members=members)
    except CutOff:
        is_new = at is not None and abs(time.time() - at) < WRITING_S
        return _unread(shown, rank, "it is still being written" if is_new else "it is cut off in the middle", at)
    except Malformed as why:
        return _unread(shown, rank, str(why), at)


def may_be_flight_record(path: Path | str) -> bool:
    """Whether a file's name and first bytes are those of a record, told without reading more of it: for who looks for
    records among logs. What it then is ``read_flight_record`` says.
    """
    if rank_of_name(Path(path).name) is None:
        return False
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            head = (file.read(_HEAD_BYTES) or b"").lstrip()
    except (BadFile, OSError):
        return False
    return head.startswith(b"\x80") or (head.startswith(b"{") and any(name in head for name in _MARKS))


def _unread(shown: str, rank: int | None, why: str, at: float | None = None) -> FlightRecord:
    item = "" if rank is None else str(rank)
    return FlightRecord(
        shown, rank, (), at, gap=Gap.about("flight_recorder", item=item, why=plain_text(f"{shown}: {why}"))
    )


def parse_flight_record(
    content: bytes, *, rank: int | None, at: float | None, shown: str, members: MemberLists | None = None
) -> FlightRecord:
    """Raises Malformed for what is no record, CutOff for one that ends in the middle."""
    until_s = time.thread_time() + MOST_CPU_S
    head = content[:64].lstrip()
    if not head:
        raise CutOff("it is empty")
    top = read_json(content) if head[:1] in (b"{", b"[") else read_pickle(content)
    if not isinstance(top, dict):
        raise Malformed("it is no flight record: no table")
    if isinstance(top.get(RAY_ERROR), str):
        raise Malformed(f"the job could not write it: {name_text(top[RAY_ERROR], 200)}")
    if not any(name in top for name in ("entries", "pg_status", "pg_config")):
        raise Malformed("it is no flight record: neither entries nor the groups' states are in it")
    version = name_text(top.get("version"), 20)
    if version and not version.startswith("2."):
        raise Malformed(f"its version is {version}, and only 2.x is known")
    owner = rank_number(top.get("rank")) if rank is None else rank
    lists = MemberLists() if members is None else members
    return FlightRecord(shown, owner, tuple(_progress(top, owner, at, shown, lists, until_s=until_s)), at, version)


@dataclass
class _Told:
    """What one record says of one group. ``number``: its ``pg_id``."""

    name: str
    description: str
    number: int | None
    entries: list[dict[str, Any]] = field(default_factory=list)


def _progress(
    top: dict[Any, Any], rank: int | None, at: float | None, shown: str, lists: MemberLists, *, until_s: float
) -> Iterable[GroupProgress]:
    configs, states = table_of(top.get("pg_config")), table_of(top.get("pg_status"))
    for told in _groups(top, states):
        config = table_of(configs.get(told.name))
        group = _group(told, config, lists)
        operations = []
        for entry in told.entries:
            operations.append(_operation(entry))
            if time.thread_time() > until_s:
                raise Malformed(f"reading it takes more than {MOST_CPU_S:.0f} s of processor time")
        status = table_of(states.get(str(told.number), states.get(told.number)))
        if any(operation.p2p for operation in operations):
            status = {}
        enqueued, completed = _counters(status, operations, group.backend)
        members = group.ranks or ()
        yield GroupProgress(
            group,
            rank,
            members.index(rank) if rank is not None and rank in members else None,
            enqueued=enqueued,
            started=counted(status.get("last_started_collective")),
            completed=completed,
            operations=_kept(operations, told.entries, completed),
            at=at,
            file=shown,
            source="flight_recorder",
        )


def _groups(top: dict[Any, Any], states: dict[Any, Any]) -> list[_Told]:
    groups: dict[tuple[str, str], _Told] = {}
    newest = islice(reversed(entries), MOST_ENTRIES) if isinstance(entries := top.get("entries"), list) else ()
    for entry in newest:
        if not isinstance(entry, dict):
            continue
        told = entry.get("process_group")
        parts = [name_text(part) for part in entries_of(told, 2)] or [name_text(told)]  # the first versions: a text
        name, description = key = parts[0], parts[1] if len(parts) > 1 else ""
        if key not in groups and len(groups) >= MOST_GROUPS:
            continue
        groups.setdefault(key, _Told(name, description, whole(entry.get("pg_id")))).entries.append(entry)
    for told in groups.values():
        told.entries.reverse()
    # A rank that has launched nothing in the group of all yet, or whose buffer was emptied.
    if not any(told.number == 0 for told in groups.values()) and ("0" in states or 0 in states):
        groups["0", DEFAULT_GROUP] = _Told("0", DEFAULT_GROUP, 0)
    return list(groups.values())


def _group(told: _Told, config: dict[Any, Any], lists: MemberLists) -> Group:
    backends = [
        text.partition(":")[0] for entry in told.entries[-1:] if (text := name_text(entry.get("profiling_name")))
    ]
    description = told.description or name_text(config.get("desc"))
    return Group(told.name, description, _members(config.get("ranks"), lists), backend=next(iter(backends), ""))


def _members(value: object, lists: MemberLists) -> tuple[int, ...] | None:
    """``"[0, 1]"``, a text in every version so far."""
    if isinstance(value, str) and value in lists:
        return lists[value]
    lists.left -= len(value) if isinstance(value, (str, list, tuple)) else 0
    if lists.left < 0:
        raise Malformed("with those read before it lists more members of groups than mltop keeps")
    listed = value
    if isinstance(value, str):
        inner = value.strip()
        is_list = len(inner) <= 16 * MOST_MEMBERS and inner.startswith("[") and inner.endswith("]")
        listed = inner[1:-1].split(",") if is_list else ()
    members = [rank_number(member) for member in entries_of(listed, MOST_MEMBERS)]
    known = tuple(member for member in members if member is not None)
    result = known if known and len(known) == len(members) == len(set(known)) else None
    if isinstance(value, str):
        lists[value] = result
    return result


def _operation(entry: dict[str, Any]) -> Operation:
    name = name_text(entry.get("profiling_name"))
    is_p2p = entry.get("is_p2p") is True
    sequence = whole(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id")))
    timeout_ms = whole(entry.get("timeout_ms"))
    return Operation(
        sequence=sequence if sequence is not None and sequence >= 0 else -1,
        name=name.partition(":")[2] or name,
        sizes_in=_sizes(entry.get("input_sizes")),
        sizes_out=_sizes(entry.get("output_sizes")),
        dtypes=tuple(name_text(entry_type, 20) for entry_type in entries_of(entry.get("input_dtypes"), MOST_TENSORS)),
        state=_STATES.get(state) if isinstance(state := entry.get("state"), str) else None,
        created_at=seconds_of_ns(entry.get("time_created_ns")),
        timeout_s=timeout_ms / 1e3 if timeout_ms is not None and timeout_ms > 0 else None,
        retired=entry.get("retired") is True,
        p2p=is_p2p,
    )


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    tensors = (entries_of(tensor, MOST_DIMENSIONS) for tensor in entries_of(value, MOST_TENSORS))
    return tuple(tuple(size for size in map(whole, tensor) if size is not None) for tensor in tensors)


def is_open(operation: Operation, backend: str) -> bool:
    """Whether it has not ended. Gloo's recorder never says "completed": there, what is retired has ended or failed."""
    return not (operation.retired if backend == "gloo" else operation.state == "completed")


def _counters(status: dict[Any, Any], operations: list[Operation], backend: str) -> tuple[int | None, int | None]:
    """The number of the last operation that was launched, and of the last that has ended.

    An operation is recorded before it is handed to NCCL, and counted as enqueued afterwards: who stands in between has
    entered it. So a count beyond what is recorded is of something else, or of a record of open operations only: then
    nothing is open but what the record says.
    """
    collectives = [operation for operation in operations if not operation.p2p and operation.sequence >= 0]
    enqueued = counted(status.get("last_enqueued_collective"))
    completed = counted(status.get("last_completed_collective"))
    if not collectives:
        return enqueued, completed
    newest = max(operation.sequence for operation in collectives)
    if completed is None or enqueued is None or enqueued > newest:
        unfinished = [operation.sequence for operation in collectives if is_open(operation, backend)]
        completed = min(unfinished) - 1 if unfinished else max(newest, -1 if enqueued is None else enqueued)
    return max(newest, -1 if enqueued is None else enqueued), completed


def _kept(operations: list[Operation], entries: list[dict[str, Any]], completed: int | None) -> tuple[Operation, ...]:
    """Those around what has not completed, with the places where these were launched."""
    done_to = -1 if completed is None else completed
    done = [at for at, operation in enumerate(operations) if not operation.p2p and operation.sequence <= done_to]
    rest = [at for at, operation in enumerate(operations) if operation.p2p or operation.sequence > done_to]
    if len(rest) > KEPT_FIRST + KEPT_LAST:
        rest = rest[:KEPT_FIRST] + rest[-KEPT_LAST:]
    told = {*rest, *done[-1:]}
    return tuple(
        _with_frames(operations[at], entries[at]) if at in told else operations[at]
        for at in sorted([*done[-KEPT_COMPLETED:], *rest])
    )


def _with_frames(operation: Operation, entry: dict[str, Any]) -> Operation:
    frames = (table_of(frame) for frame in entries_of(entry.get("frames"), 4 * MOST_FRAMES))
    places = (place_text(frame.get("name"), frame.get("filename"), frame.get("line")) for frame in frames)
    return Operation(**{**vars(operation), "frames": tuple(islice(filter(None, places), MOST_FRAMES))})
