"""One process group, as the counters of its members tell of it: the operation that it stands at, and who is there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.judge.values import grouped, in_slices, known
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation

# Of which tensors all ranks have as many elements. Of others they differ by the rank's part (the root of a scatter), or
# as the program likes (all_to_all), and of several operations at once only the last is told.
_IN = frozenset({"allreduce", "broadcast", "reduce", "allgather", "allgatherintotensor", "allgatherbase", "gather"})
_OUT = frozenset({"reducescatter", "reducescattertensor", "reducescatterbase", "scatter"})
# What ends on no rank before all have entered it.
OF_ALL = frozenset({"allreduce", "allgather", "reducescatter", "alltoall", "barrier"})
_NOT_LETTERS = re.compile(r"[^a-z0-9]+")
# One operation by several names: what the caller called, and what its backend runs.
_SAME = {
    "allgatherbase": "allgather",
    "allgatherintotensor": "allgather",
    "allgatherintotensorcoalesced": "allgather",
    "reducescattertensor": "reducescatter",
    "reducescatterbase": "reducescatter",
    "alltoallbase": "alltoall",
    "alltoallsingle": "alltoall",
    "allreducebarrier": "barrier",
}
_PEERS = re.compile(r"(send|recv) (\d+)\s*(->|<-)\s*(\d+)")
Signature = tuple[str, tuple[int, ...], tuple[str, ...]]


def kind_of(name: str) -> str:
    """``allreduce`` of "all_reduce", "ALLREDUCE", "AllReduce"; "" where it is not known, or says nothing."""
    letters = _NOT_LETTERS.sub("", name.lower())
    return "" if letters in ("coalesced", "undefined", "unknown") else _SAME.get(letters, letters)


def signature(operation: Operation) -> Signature:
    """What must be equal on all ranks. Elements and types that need not be, or are not known, are left out."""
    kind = kind_of(operation.name)
    tensors = operation.sizes_in if kind in _IN else operation.sizes_out if kind in _OUT else ()
    sizes = (sum(map(math.prod, tensors)),) if tensors else ()
    return kind, sizes, operation.dtypes[:1] if sizes else ()


def agree(signatures: Iterable[Signature]) -> bool:
    """Whether they may be of one operation: what one does not tell contradicts no other."""
    told = list(signatures)
    return all(len({each[part] for each in told if each[part]}) <= 1 for part in range(3))


def peers(operation: Operation) -> tuple[str, int, int] | None:
    """("send", 1, 2) of "send 1->2": what it does, its own and the other's number in the group."""
    match = _PEERS.fullmatch(operation.name)
    return (match[1], int(match[2]), int(match[4])) if match is not None else None


DEFAULT_DESCRIPTION, DEFAULT_NAME = "default_pg", "0"
GLOO = "gloo"
# Ranks leave their records within seconds of one another, or a minute where one is slow.
SAME_EVENT_S = 300.0
MOST_LATE = 64  # operations that a watchdog is late by
# The surest of several that count one rank: a recorder writes an operation down before it is handed over.
_SUREST = ("flight_recorder", "ras", "log")


@dataclass
class Case:
    """``sequence``: the operation that the group stands at, None: none is waited in.

    ``waiting``: who has launched it, and it has not ended there; ``absent``: who has not launched it; ``passed``: where
    it has ended; ``lagging``: who is told to wait in what has ended for the others: mostly his watchdog is late.
    ``busy``: who has launched anything here that has not ended. ``missing``: members without a record, by their
    numbers; ``is_whole``: all members are known to have one.
    """

    group: Group
    records: list[GroupProgress]
    sequence: int | None = None
    waiting: list[GroupProgress] = field(default_factory=list)
    absent: list[GroupProgress] = field(default_factory=list)
    passed: list[GroupProgress] = field(default_factory=list)
    lagging: list[GroupProgress] = field(default_factory=list)
    busy: frozenset[int | None] = frozenset()
    missing: tuple[int, ...] = ()
    is_whole: bool = False

    @property
    def entered(self) -> list[GroupProgress]:
        return [*self.waiting, *self.passed]

    def operation_of(self, record: GroupProgress) -> Operation | None:
        """What this rank has launched under the number that the group stands at."""
        return next((each for each in record.operations if each.sequence == self.sequence and not each.p2p), None)

    def began_at(self, record: GroupProgress) -> float | None:
        operation = self.operation_of(record)
        return operation.created_at if operation is not None else None

    def is_stuck_before(self, record: GroupProgress) -> bool:
        """Whether a lagging rank may be in an operation that has ended elsewhere, and can there without him."""
        if record not in self.lagging or record.completed is None or record.enqueued is None:
            return False
        first, last = record.completed + 1, min(record.enqueued, record.completed + MOST_LATE)
        return not all(_ends_for_all(at, (record, *self.entered)) for at in range(first, last + 1))

    def is_contradicted(self, record: GroupProgress) -> bool:
        """Whether others came out of what cannot end without this rank, which has not launched it by its own record:
        that one is older, or of an earlier start.
        """
        launched = -1 if record.enqueued is None else record.enqueued
        between = (each for other in self.entered for each in other.operations if not each.p2p)
        return any(launched < each.sequence < (self.sequence or 0) and kind_of(each.name) in OF_ALL for each in between)

    @property
    def since(self) -> float | None:
        """When the first of those that wait launched it."""
        return min(known(map(self.began_at, self.waiting)), default=None)

    def sides(self) -> list[tuple[Operation, list[GroupProgress]]]:
        """Ranks that are in the same operation together, the most first: one side where nothing contradicts."""
        told = [(record, op) for record in self.entered if (op := self.operation_of(record)) is not None]
        if agree(signature(operation) for _, operation in told):
            return [(told[0][1], [record for record, _ in told])] if told else []
        sides = grouped(told, lambda pair: signature(pair[1]))
        joined: list[tuple[Signature, list[tuple[GroupProgress, Operation]]]] = []
        for own, side in sorted(sides.items(), key=lambda each: (-sum(map(bool, each[0])), -len(each[1]))):
            fitting = [other for other in joined if agree((own, other[0]))]
            if not own[0] or len(fitting) > 1:
                continue  # it may be on either side: it is on none
            if fitting:
                fitting[0][1].extend(side)
            else:
                joined.append((own, side))
        joined.sort(key=lambda each: -len(each[1]))
        return [(side[0][1], [record for record, _ in side]) for _, side in joined]

    @property
    def operation(self) -> Operation | None:
        """What most are in."""
        return next((operation for operation, _ in self.sides()), None)


def cases_of(progress: Iterable[GroupProgress], world_size: int | None = None) -> list[Case]:
    """A case for each group of several. ``world_size``: of the job, by which members without a record are known."""
    records = list(progress)
    # A rank that has left no record now has one of an earlier start there, from long before the others'.
    newest = max(known(record.at for record in records), default=0.0)
    told = [record for record in records if record.at is None or record.at >= newest - SAME_EVENT_S]
    # Who is alone in a group waits for nobody there: he is only late in telling.
    groups = (
        (group, own) for group, own in _by_group(told) if (group.size if group.ranks is None else len(group.ranks)) != 1
    )
    return [_case(group, own, world_size) for group, own in in_slices(groups)]


def _by_group(progress: Iterable[GroupProgress]) -> Iterator[tuple[Group, list[GroupProgress]]]:
    """A group has one name in its job; where two sets of ranks have the same name, these are two groups."""
    by_name = grouped(
        progress, lambda each: (each.group.name, "" if is_default(each.group) else each.group.description)
    )
    for alike in by_name.values():
        members = list(dict.fromkeys(known(record.group.ranks for record in alike)))
        for ranks in (*members, *(() if members else (None,))):
            own = [record for record in alike if _may_be_of(record, ranks, members)]
            group = next((record.group for record in own if record.group.ranks == ranks), alike[0].group)
            backend = next((record.group.backend for record in own if record.group.backend), "")
            yield replace(group, backend=backend), _newest_of_each(own)


def is_default(group: Group) -> bool:
    """Whether it is the group of all ranks of its job."""
    return group.description == DEFAULT_DESCRIPTION or (group.name == DEFAULT_NAME and not group.description)


def _may_be_of(record: GroupProgress, ranks: tuple[int, ...] | None, all_members: Sequence[tuple[int, ...]]) -> bool:
    if record.group.ranks is not None or ranks is None:
        return record.group.ranks == ranks
    return len(all_members) == 1 or record.rank in ranks


def _newest_of_each(records: Iterable[GroupProgress]) -> list[GroupProgress]:
    """One record of each rank, in the order of their numbers in the job. Where the members of a group are known, these
    follow from the numbers in the group. Those of ranks without any number are left out.
    """
    best: dict[int, GroupProgress] = {}
    for told in records:
        ranks, place, record = told.group.ranks, told.group_rank, told
        if told.rank is None and ranks is not None and place is not None and 0 <= place < len(ranks):
            record = replace(told, rank=ranks[place])
        if record.rank is None or record.enqueued is None:
            continue
        other = best.get(record.rank)
        if other is None or _worth(record) > _worth(other):
            best[record.rank] = record
    return [best[rank] for rank in sorted(best)]


def _worth(record: GroupProgress) -> tuple[int, float, int]:
    order = _SUREST.index(record.source) if record.source in _SUREST else len(_SUREST)
    return -order, record.at or 0.0, record.enqueued or 0


def _case(group: Group, records: list[GroupProgress], world_size: int | None) -> Case:
    case = Case(group, records)
    members = group.ranks
    if members is None and is_default(group) and world_size:
        members = tuple(range(world_size))
    have = {record.rank for record in records}
    case.missing = tuple(sorted(rank for rank in members or () if rank not in have))
    size = len(members) if members is not None else group.size
    case.is_whole = size is not None and len(records) >= size and not case.missing
    _place(case, records)
    return case


def _place(case: Case, records: Sequence[GroupProgress]) -> None:
    """At the first operation that has not ended everywhere. Who is told to wait in what has ended for others is late
    in telling: he counts as being as far as they are, or as he has launched.
    """
    done = {id(record): max(0, record.completed or 0) for record in records}  # the first operation is number 1
    while True:
        open_at = [done[id(record)] + 1 for record in records if _waits(record, done)]
        if not open_at:
            case.sequence = _last_of_gloo(case, records)
            return
        at = min(open_at)
        entered = [record for record in records if _entered(record, at)]
        waiting = [record for record in entered if done[id(record)] < at]
        passed = [record for record in entered if done[id(record)] >= at]
        absent = [record for record in records if not _entered(record, at)]
        is_late = len(waiting) < len(passed) or _ends_for_all(at, records)
        if absent or not passed or not is_late:
            case.sequence, case.waiting, case.passed, case.absent = at, waiting, passed, absent
            case.busy = frozenset(record.rank for record in records if _waits(record, done))
            return
        furthest = min(done[id(record)] for record in passed)
        for record in waiting:
            case.lagging += [] if record in case.lagging else [record]
            done[id(record)] = max(at, min(record.enqueued or 0, furthest))


def _ends_for_all(sequence: int, records: Iterable[GroupProgress]) -> bool:
    """Whether this operation cannot end anywhere before all have entered it, as far as that is known."""
    told = [each for record in records for each in record.operations if each.sequence == sequence and not each.p2p]
    return bool(told) and all(kind_of(each.name) in OF_ALL for each in told)


def _last_of_gloo(case: Case, records: Sequence[GroupProgress]) -> int | None:
    """Gloo counts what took too long as ended: the last operation may be one that nobody came out of.

    Who has not launched what others have, and what cannot end without him, is who they waited for.
    """
    if len(records) < 2 or any(record.group.backend != GLOO for record in records if record.operations):
        return None
    at = case.sequence = max(known(record.enqueued for record in records), default=-1)
    if at < 0:
        return None
    case.passed = [record for record in records if _entered(record, at)]
    absent = [record for record in records if not _entered(record, at)]
    if absent and case.operation is not None and kind_of(case.operation.name) in OF_ALL:
        case.waiting, case.absent, case.passed = case.passed, absent, []
    return None if absent and not case.absent else at


def _waits(record: GroupProgress, done: Mapping[int, int]) -> bool:
    """Whether it has launched what has not ended."""
    return record.completed is not None and record.enqueued is not None and record.enqueued > done[id(record)]


def _entered(record: GroupProgress, sequence: int) -> bool:
    return record.enqueued is not None and record.enqueued >= sequence


# Operations of two ranks (send and receive): a case for each pair of which one has launched his part alone. Numbers in
# a send's name are the group's: they are told only where its members are known. Of several that are launched together
# (coalesced, as pipelines do) single states are not kept: of such a group nothing is said here.

SLACK_S = 5.0
_OTHER_PART = {"send": "recv", "recv": "send"}


def pair_cases(progress: Iterable[GroupProgress]) -> list[Case]:
    """Of every group that has such operations."""
    by_group: dict[Group, dict[int, GroupProgress]] = {}
    for record in progress:
        if record.group.ranks is not None and record.rank in record.group.ranks:
            by_group.setdefault(replace(record.group, backend=""), {})[record.rank] = record
    return [case for group, records in by_group.items() for case in _pair_cases(group, records)]


def _pair_cases(group: Group, records: dict[int, GroupProgress]) -> Iterator[Case]:
    members = group.ranks or ()
    told = [operation for record in records.values() for operation in record.operations if operation.p2p]
    if not told or any(not kind_of(operation.name) or peers(operation) is None for operation in told):
        return
    for rank, record in records.items():
        waits = (each for each in record.operations if each.p2p and each.state != "completed")
        operation = next(waits, None)
        parts = peers(operation) if operation is not None else None
        if operation is None or parts is None or parts[2] >= len(members) or members[parts[2]] == rank:
            continue
        other = records.get(members[parts[2]])
        if other is None or _has_part(other, parts, operation):
            continue
        waiting = replace(record, operations=(replace(operation, p2p=False),))
        absent = replace(other, operations=())
        busy = frozenset((waiting.rank,))
        yield Case(group, [waiting, absent], operation.sequence, [waiting], [absent], busy=busy, is_whole=True)


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
