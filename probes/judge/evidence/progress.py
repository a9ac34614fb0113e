"""Who holds a job up, told by the counters of its collectives: of each rank in each group the last operation that it
launched and the last that has ended there.

A group stands at the first operation that has not ended everywhere. Who has not launched that one is waited for, unless
he waits in another group himself: then the one there is looked for, and of those who wait for one another in a circle
nobody is accused. Where all have launched it, they may be in different operations (the few are accused, of equally many
nobody), and where they are in the same, what keeps it is below the hosts: nobody is.

A record tells of its time only: one that was written before the others began to wait accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mltop.probes.judge.evidence.cases import GLOO, Case, cases_of, pair_cases
from mltop.probes.judge.values import known
from mltop.probes.model import Confidence
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation, ProgressVerdict, Side
from mltop.probes.model.vocabulary import PROGRESS_KINDS, ProgressKind

LATE_S = 2.0  # so much later than the others a rank may come to an operation: clocks differ, and so do ranks


def judge_progress(progress: Iterable[GroupProgress], world_size: int | None = None) -> tuple[ProgressVerdict, ...]:
    """What keeps the job, the surest first; empty where no group waits, or none tells of it.

    ``world_size``: of the job, by which members without a record are known.
    """
    records = list(progress)
    cases = [case for case in cases_of(records, world_size) if case.sequence is not None]
    cases += pair_cases(records)
    waits = _Waits(cases, records)
    verdicts = [verdict for case in cases if (verdict := _verdict(case, waits)) is not None]
    if not verdicts and (circle := _circle(cases)) is not None:
        verdicts = [circle]
    if any(case.absent for case in cases):  # or a watchdog is late, and who is waited for waits for nothing
        verdicts = [replace(each, confidence="low") if each.kind == "all_launched" else each for each in verdicts]
    return tuple(sorted(verdicts, key=surest_first))


def surest_first(verdict: ProgressVerdict) -> tuple[bool, int, float, int]:
    since = float("inf") if verdict.since is None else verdict.since
    return not verdict.culprits, PROGRESS_KINDS.index(verdict.kind), since, -len(verdict.waiting)


class _Waits:
    """Who waits where: in the group in which the oldest of his operations stands that have not ended."""

    def __init__(self, cases: Sequence[Case], records: Sequence[GroupProgress]) -> None:
        self.cases, self.records = cases, records
        waiting: dict[int, list[tuple[Case, float | None]]] = {}
        for case in cases:
            for record in case.waiting:
                if record.rank is not None:
                    waiting.setdefault(record.rank, []).append((case, case.began_at(record)))
        self._of: dict[int, list[Case]] = {}
        for rank, own in waiting.items():
            times = known(time for _, time in own)
            first = min(times) if len(times) == len(own) else None
            self._of[rank] = [case for case, time in own if first is None or time == first]

    def elsewhere(self, rank: int, case: Case) -> bool:
        """Whether this rank waits in another group, or may: where nobody knows which of several was first."""
        return any(other is not case for other in self._of.get(rank, ()))

    def is_busy(self, rank: int, case: Case) -> bool:
        """Whether this rank has launched anything in another group that has not ended."""
        return any(rank in other.busy for other in self.cases if other is not case)


def _ranks(records: Iterable[GroupProgress]) -> tuple[int, ...]:
    return tuple(sorted(known(record.rank for record in records)))


def _verdict(case: Case, waits: _Waits) -> ProgressVerdict | None:
    """None where it stands because of another group, or nothing speaks of its standing."""
    if case.absent:
        return _of_absent(case, waits)
    sides = case.sides()
    if len(sides) > 1:
        return _of_sides(case, sides)
    if not case.waiting:  # gloo's last operation, which all have been in alike
        return _said(case, "unrecorded") if case.missing and _may_have_failed(case) else None
    if any(waits.elsewhere(rank, case) for rank in _ranks(case.waiting)):
        return None  # these have launched it behind what they wait in
    return _of_launched(case)


def _of_launched(case: Case) -> ProgressVerdict:
    """All that tell are in the same operation."""
    late = _not_started(case)
    if late:
        return _said(case, "not_started", culprits=_ranks(late), confidence="medium" if case.is_whole else "low")
    if not case.is_whole:
        return _said(case, "unrecorded")
    if any(_is_too_old(record, case) for record in case.passed):
        return _said(case, "unsure")
    return _said(case, "all_launched", confidence="medium" if _are_from_one_time(case) else "low")


def _of_absent(case: Case, waits: _Waits) -> ProgressVerdict | None:
    free = [record for record in case.absent if not waits.is_busy(_rank(record), case)]
    if not free:
        return None
    if any(
        _is_too_old(record, case)
        or case.is_contradicted(record)
        or case.is_stuck_before(record)
        or _failed_elsewhere(record, waits)
        for record in free
    ):
        return _said(case, "unsure")
    entered = len(case.entered)
    if len(case.absent) > entered:
        return _said(case, "uneven", sides=_sides_of(case.sides()))
    culprits = _ranks(free)
    is_sure = len(case.absent) < entered and case.is_whole and not any(each.source == "log" for each in free)
    timed = case.since is not None and all(record.at is not None for record in free)
    confidence: Confidence = "high" if is_sure and timed else "medium"
    # The other groups in which somebody is waited for who is accused, or waits in this group.
    held = {*culprits, *_ranks(case.waiting)}
    others = (other for other in waits.cases if other is not case)
    blocked = tuple(other.group for other in others if held.intersection(_ranks(other.absent)))
    return _said(case, "never_entered", culprits=culprits, confidence=confidence, blocked=blocked)


def _rank(record: GroupProgress) -> int:
    assert record.rank is not None  # those without one are in no case
    return record.rank


def _is_too_old(record: GroupProgress, case: Case) -> bool:
    """Whether this rank may have come to the operation after its record was written."""
    return record.at is not None and case.since is not None and record.at < case.since + LATE_S


def _failed_elsewhere(record: GroupProgress, waits: _Waits) -> bool:
    """Whether a rank on gloo may have come out of an operation of another group with an error: gloo counts these as
    ended. Its newest operation tells, where it is of another group and others of that one are not known to be past it.
    """
    if record.group.backend != GLOO:
        return False
    own = max(known(operation.created_at for operation in record.operations), default=0.0)
    for other in (each for each in waits.records if each.rank == record.rank):
        newest = max(other.operations, key=lambda operation: operation.created_at or 0.0, default=None)
        if other.group == record.group or newest is None or (newest.created_at or own) < own:
            continue
        name = other.group.name, other.group.description
        alike = [each for each in waits.records if (each.group.name, each.group.description) == name]
        others = [each.enqueued for each in alike if each.rank != record.rank]
        if not others or any(enqueued is None or enqueued < newest.sequence for enqueued in others):
            return True
    return False


def _of_sides(case: Case, sides: Sequence[tuple[Operation, list[GroupProgress]]]) -> ProgressVerdict:
    """The few are accused where the others are more than half of all: of equally many nobody can tell. A record of an
    earlier start of the job, left where the others' are, tells of another operation.
    """
    told = sum(len(records) for _, records in sides)
    has_majority = 2 * len(sides[0][1]) > told
    culprits = [record for _, records in sides[1:] for record in records] if has_majority else []
    began = [operation.created_at for record in case.entered if (operation := case.operation_of(record)) is not None]
    newest = max(known(began), default=0.0)
    if any(record.at is not None and record.at < newest for _, records in sides for record in records):
        return _said(case, "unsure")
    confidence: Confidence = "high" if has_majority and case.is_whole else "medium"
    return _said(case, "mismatch", culprits=_ranks(culprits), sides=_sides_of(sides), confidence=confidence)


def _sides_of(sides: Sequence[tuple[Operation, list[GroupProgress]]]) -> tuple[Side, ...]:
    return tuple(Side(_ranks(records), operation) for operation, records in sides)


def _not_started(case: Case) -> list[GroupProgress]:
    """Those on whom the operation's kernel has not begun, where it runs on more ranks than that. Of a rank whose
    watchdog is late nobody knows.
    """
    if case.lagging:
        return []
    states = [(record, op.state) for record in case.waiting if (op := case.operation_of(record)) is not None]
    started = [record for record, state in states if state == "started"]
    scheduled = [record for record, state in states if state == "scheduled"]
    is_told_of_all = len(started) + len(scheduled) == len(case.waiting)
    return scheduled if is_told_of_all and len(scheduled) < len(started) and _are_from_one_time(case) else []


def _are_from_one_time(case: Case) -> bool:
    """Whether every record was written when the others had waited for long."""
    return case.since is not None and all(not _is_too_old(record, case) for record in case.entered)


def _may_have_failed(case: Case) -> bool:
    operation = case.operation
    return operation is not None and all(
        (own := case.operation_of(record)) is not None and own.retired and own.state != "completed"
        for record in case.passed
    )


def _circle(cases: Sequence[Case]) -> ProgressVerdict | None:
    """Where everybody who is waited for waits himself: for one another, each in another group."""
    held = [case for case in cases if case.absent and case.waiting]
    if not held:
        return None
    case = min(held, key=lambda each: (each.since is None, each.since or 0.0))
    others = tuple(other.group for other in held if other is not case)
    return _said(case, "circle", sides=_sides_of(case.sides()), blocked=others)


def _said(
    case: Case,
    kind: ProgressKind,
    *,
    culprits: tuple[int, ...] = (),
    sides: tuple[Side, ...] = (),
    confidence: Confidence = "low",
    blocked: tuple[Group, ...] = (),
) -> ProgressVerdict:
    waiting = tuple(rank for rank in _ranks(case.waiting or case.passed) if rank not in culprits)
    return ProgressVerdict(
        kind,
        case.group,
        case.sequence,
        case.operation,
        culprits,
        waiting,
        case.missing,
        sides,
        tuple(replace(record, operations=tuple(known((case.operation_of(record),)))) for record in case.records),
        blocked,
        confidence,
        case.since,
    )
