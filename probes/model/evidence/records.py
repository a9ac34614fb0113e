"""What a node's ranks have on record of their collectives, as it travels, and what is taken of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from mltop.probes.model.evidence.collectives import GroupProgress
from mltop.probes.model.gap import Gap
from mltop.probes.model.receipt import (
    LONGEST_TEXT,
    MOST_NUMBER,
    MOST_PIDS,
    MOST_RANK_NUMBERS,
    MOST_TIME_S,
    Refused,
    said,
)

MOST_GROUPS = 1_024
MOST_OPERATIONS = 64  # of one group
MOST_MEMBERS = 65_536
MOST_PARTS = 64  # tensors, dimensions, frames
MOST_GAPS = 64


@dataclass
class RankRecords:
    """Of one rank. ``progress``: of each of its groups; ``gaps``: records that are there and cannot be used.

    ``pipe``: by which it would write a record at once when asked, "" for none.
    """

    pid: int
    rank: int | None
    job: str = ""
    uid: int | None = None
    node: str = ""
    progress: list[GroupProgress] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    pipe: str = ""


def admit_records(records: RankRecords) -> None:
    """Looks through what has just been decoded. Raises Refused: no recorder writes what cannot be."""
    if not 0 < records.pid < MOST_PIDS:
        raise Refused(f"it says that pid {said(records.pid)} has records")
    if records.rank is not None and not 0 <= records.rank <= MOST_RANK_NUMBERS:
        raise Refused(f"it says rank is {said(records.rank)}")
    if len(records.progress) > MOST_GROUPS or len(records.gaps) > MOST_GAPS:
        raise Refused(f"pid {records.pid} has {len(records.progress)} groups and {len(records.gaps)} gaps")
    for progress in records.progress:
        _admit_progress(progress)
    for name in ("job", "pipe"):
        _admit(getattr(records, name), name)
    for gap in records.gaps:
        _admit(gap, "gap")


def _admit_progress(progress: GroupProgress) -> None:
    if len(progress.operations) > MOST_OPERATIONS or len(progress.group.ranks or ()) > MOST_MEMBERS:
        raise Refused(f"a group has {len(progress.operations)} operations")
    for member in (progress.rank, progress.group_rank, *(progress.group.ranks or ())):
        if member is not None and not 0 <= member <= MOST_RANK_NUMBERS:
            raise Refused(f"it says rank is {said(member)}")
    for at in (progress.at, *(operation.created_at for operation in progress.operations)):
        if at is not None and not 0 <= at <= MOST_TIME_S:
            raise Refused(f"it says a time is {said(at)}")
    _admit(progress, "progress", most=MOST_MEMBERS)


def _admit(value: Any, name: str, most: int = MOST_PARTS) -> None:
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise Refused(f"{name} has {len(value)} characters")
    elif isinstance(value, (int, float)):
        if not -MOST_NUMBER <= value <= MOST_NUMBER:
            raise Refused(f"it says {name} is {said(value)}")
    elif isinstance(value, (list, tuple)):
        if len(value) > most:
            raise Refused(f"{name} has {len(value)} entries")
        for entry in value:
            _admit(entry, name)
    elif is_dataclass(value):
        for item in fields(value):
            _admit(getattr(value, item.name), item.name, most if item.name in ("group", "ranks") else MOST_PARTS)
