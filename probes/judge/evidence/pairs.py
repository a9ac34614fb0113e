"""Operations of two ranks (send and receive): a case for each pair of which one has launched his part alone.

Numbers in a send's name are the group's: they are told only where its members are known. Of several that are launched
together (coalesced, as pipelines do) single states are not kept: of such a group nothing is said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mltop.probes.judge.evidence.cases import Case
from mltop.probes.judge.evidence.operations import kind_of, peers
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation

SLACK_S = 5.0
_OTHER_PART = {"send": "recv", "recv": "send"}


def pair_cases(progress: Iterable[GroupProgress]) -> list[Case]:
    """Of every group that has such operations."""
    by_group: dict[Group, dict[int, GroupProgress]] = {}
    for record in progress:
        if record.group.ranks is not None and record.rank in record.group.ranks:
            by_group.setdefault(replace(record.group, backend=""), {})[record.rank] = record
    return [case for group, records in by_group.items() for case in _cases(group, records)]


def _cases(group: Group, records: dict[int, GroupProgress]) -> Iterator[Case]:
    members = group.ranks or ()
    told = [operation for record in records.values() for operation in record.operations if operation.p2p]
    if not told or any(not kind_of(operation.name) or peers(operation) is None for operation in told):
        return
    for rank, record in records.items():
        operation = _oldest_open(record.operations)
        parts = peers(operation) if operation is not None else None
        if operation is None or parts is None or parts[2] >= len(members) or members[parts[2]] == rank:
            continue
        other = records.get(members[parts[2]])
        if other is None or _has_part(other, parts, operation) or _has_older(record, operation):
            continue
        waiting = replace(record, operations=(replace(operation, p2p=False),))
        absent = replace(other, operations=())
        yield Case(group, [waiting, absent], operation.sequence, [waiting], [absent], is_whole=True)


def _oldest_open(operations: Sequence[Operation]) -> Operation | None:
    return next((operation for operation in operations if operation.p2p and operation.state != "completed"), None)


def _has_older(record: GroupProgress, operation: Operation) -> bool:
    """Whether it waits in an operation of all of the group that it launched before."""
    return any(
        other.state != "completed" and not other.p2p and (other.created_at or 0.0) <= (operation.created_at or 0.0)
        for other in record.operations
    )


def _has_part(record: GroupProgress, parts: tuple[str, int, int], operation: Operation) -> bool:
    """Whether the other one has launched his part of it, as far as can be told: it is between the two of them then.

    One that has ended counts, too, where it was launched at about that time: the end is noticed late.
    """
    what, own, other = parts
    since = (operation.created_at or 0.0) - SLACK_S
    return any(
        each.p2p
        and peers(each) == (_OTHER_PART[what], other, own)
        and (each.state != "completed" or (each.created_at or since) >= since)
        for each in record.operations
    )
