"""What the counters that watchdogs write into logs say of who holds a job up; `progress.py` judges them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mltop.probes.judge.evidence.blame import First, How
from mltop.probes.judge.evidence.cases import DEFAULT_DESCRIPTION, DEFAULT_NAME
from mltop.probes.judge.evidence.progress import judge_progress
from mltop.probes.judge.evidence.scene import Attempt
from mltop.probes.judge.evidence.silence import would_have_spoken
from mltop.probes.judge.evidence.writers import MOST_RANKS
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation, OperationState, ProgressVerdict
from mltop.probes.model.evidence.logs import LogEvent
from mltop.probes.model.vocabulary import ProgressKind

_LEAST_ALIKE = 3  # ranks in one operation, beside one in another
_PAIRWISE = ("SEND", "RECV", "P2P", "COALESCED", "UNKNOWN")
_OWN_NUMBER = "id "  # of a group, counted by each process on its own


_HOW: dict[ProgressKind, How] = {
    "never_entered": "behind",
    "not_started": "behind",
    "mismatch": "differs",
    "uneven": "sides",
    "circle": "sides",
    "all_launched": "launched",
    "unrecorded": "launched",
}


@dataclass
class _Counts:
    """Of one rank in one group: the highest that it reports, and the first collective that it timed out in."""

    enqueued: int | None = None
    completed: int | None = None
    started: int | None = None
    timeout: LogEvent | None = None
    events: list[LogEvent] = field(default_factory=list)

    def take(self, event: LogEvent) -> None:
        self.events.append(event)
        if event.enqueued is not None and event.completed is not None:
            self.enqueued = max(known((self.enqueued, event.enqueued)))
            self.completed = max(known((self.completed, event.completed)))
            self.started = event.started if event.started is not None else self.started
        if event.kind == "collective_timeout" and (self.sequence is None or (event.sequence or 0) < self.sequence):
            self.timeout = event

    @property
    def sequence(self) -> int | None:
        return self.timeout.sequence if self.timeout is not None else None

    def record(self, group: Group, rank: int) -> GroupProgress:
        """Who waits in a collective has launched it, and has not seen it end. Not dated, as nodes' clocks differ."""
        enqueued, completed = self.enqueued, self.completed
        if enqueued is None and self.timeout is not None and self.timeout.sizes and self.sequence is not None:
            enqueued, completed = self.sequence, self.sequence - 1
        operations = (self._operation(self.timeout),) if self.timeout is not None else ()
        return GroupProgress(
            group, rank, enqueued=enqueued, started=self.started, completed=completed, operations=operations
        )

    def _operation(self, timeout: LogEvent) -> Operation:
        sequence = timeout.sequence or 0
        state: OperationState | None = None
        if self.started is not None:
            state = "started" if self.started >= sequence else "scheduled"
        sizes_in, sizes_out = (((elements,),) for elements in timeout.sizes) if timeout.sizes else ((), ())
        began, is_pairwise = timeout.waited_since, timeout.op in _PAIRWISE
        return Operation(sequence, timeout.op, sizes_in, sizes_out, state=state, created_at=began, p2p=is_pairwise)


_Groups = Mapping[str, Mapping[int, _Counts]]


def judge_counters(attempt: Attempt) -> First:
    groups: dict[str, dict[int, _Counts]] = {}
    for event in attempt.of_kind("collective_timeout", "counters", "dump_signal"):
        if event.rank is not None:
            groups.setdefault(event.group, {}).setdefault(event.rank, _Counts()).take(event)
    waited = {name: ranks for name, ranks in groups.items() if any(each.timeout for each in ranks.values())}
    if not waited:
        return First("no data")
    begun = {name: known(event.waited_since for event in _timeouts(ranks)) for name, ranks in waited.items()}
    first = min(waited, key=lambda name: min(begun[name], default=math.inf))
    counted = {name: ranks for name, ranks in groups.items() if not name.startswith(_OWN_NUMBER)}
    names = {_group(name, ranks): name for name, ranks in counted.items()}
    records = [each.record(group, rank) for group, name in names.items() for rank, each in counted[name].items()]
    if first in counted and all(record.enqueued is None for record in records):
        return _by_operation(waited[first]) or _uncounted(waited[first])
    for verdict in judge_progress(records, attempt.world_size):
        name = next(each for group, each in names.items() if group.name == verdict.group.name)
        found = _first(verdict, name, attempt, groups) if name in waited else None
        if found is not None:
            return found
    return _elsewhere(first, waited[first])


def _first(verdict: ProgressVerdict, name: str, attempt: Attempt, groups: _Groups) -> First | None:
    """None: of a group of which it is not known who belongs to it."""
    ranks, culprits = groups[name], verdict.culprits
    how = _HOW.get(verdict.kind, "no data")
    if how == "launched" and name:
        if len(verdict.missing) != 1 or not would_have_spoken(attempt, verdict.missing[0]):
            return None
        how, culprits = "behind", verdict.missing
    sides = tuple(side.ranks for side in verdict.sides)
    if how == "differs" and not culprits:
        how = "sides"
    elif how == "sides":
        sides = (tuple(sorted(set(ranks) - set(verdict.waiting))), verdict.waiting)
    events = [event for rank in culprits for each in known((ranks.get(rank),)) for event in each.events[:1]]
    events += [event for rank in verdict.waiting[:2] for event in ranks[rank].events[:2]]
    label = next((event.group_name for event in events if name and event.group == name), "") or name
    op = verdict.operation.name if verdict.operation is not None else ""
    found = First(how, culprits, events=events[:6], sides=sides, sequence=verdict.sequence, op=op)
    is_sure = verdict.kind in ("never_entered", "mismatch") and culprits
    return replace(found, confidence="high" if is_sure else "medium", group=label, known=frozenset(ranks))


def _group(name: str, ranks: Mapping[int, _Counts]) -> Group:
    """In a mesh a member's rank follows from its number in the group, where half of them are heard of; of those after
    the last one nobody knows.
    """
    if not name:
        return Group(DEFAULT_NAME, DEFAULT_DESCRIPTION)
    pairs = {(event.group_rank, rank) for rank, each in ranks.items() for event in each.events}
    places = sorted((place, rank) for place, rank in pairs if place is not None and rank < MOST_RANKS)
    if len(places) < 2 or 2 * len(places) <= places[-1][0]:
        return Group(name)
    (first, first_rank), (last, last_rank) = places[0], places[-1]
    stride, rest = divmod(last_rank - first_rank, last - first) if last > first else (0, 1)
    start = first_rank - first * stride
    if rest or stride < 1 or start < 0 or any(rank != start + place * stride for place, rank in places):
        return Group(name)
    return Group(name, ranks=tuple(start + place * stride for place in range(last + 1)))


def _by_operation(ranks: Mapping[int, _Counts]) -> First | None:
    """Of releases that count nothing, and number the collectives of all groups together: who alone is in another
    operation, if it can be no other group's.
    """
    waits = _timeouts(ranks)
    if len({event.sequence for event in waits}) != 1 or any(not each.op or each.op in _PAIRWISE for each in waits):
        return None
    few, *others = sorted(grouped(waits, lambda event: event.op).values(), key=len)
    if len(few) != 1 or len(others) != 1 or len(others[0]) < _LEAST_ALIKE:
        return None
    odd, most = few[0], others[0]
    return First("differs", tuple(known((odd.rank,))), sequence=odd.sequence, op=most[0].op, events=[odd, *most[:3]])


def _timeouts(ranks: Mapping[int, _Counts]) -> list[LogEvent]:
    return known(each.timeout for each in ranks.values())


def _uncounted(ranks: Mapping[int, _Counts]) -> First:
    """What they wait in, unless it may be of several groups."""
    sequences = {event.sequence for event in _timeouts(ranks)}
    ops = {event.op for event in _timeouts(ranks)}
    sequence, op = sequences.pop() if len(sequences) == 1 else None, ops.pop() if len(ops) == 1 else ""
    return First("no data", sequence=sequence, op=op)


def _elsewhere(name: str, ranks: Mapping[int, _Counts]) -> First:
    events = [event for each in ranks.values() for event in each.events]
    label = next((event.group_name for event in events if event.group_name), name)
    timeout = _timeouts(ranks)[0]
    return First("elsewhere", sequence=timeout.sequence, op=timeout.op, group=label or name, events=events[:4])
