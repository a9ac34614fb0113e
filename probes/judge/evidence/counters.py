"""Which collective a job stands in, from what each rank has launched and seen completed in each process group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from mltop.probes.judge.evidence.scene import Attempt
from mltop.probes.judge.evidence.silence import would_have_spoken
from mltop.probes.model.evidence.logs import LogEvent
from mltop.probes.model.vocabulary import Confidence

_SAME_SIZES = ("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST", "ALLREDUCE_COALESCED", "REDUCE")
_LEAST_ALIKE = 3  # ranks in one operation, beside one in another
_PAIRWISE = ("SEND", "RECV", "P2P", "COALESCED", "UNKNOWN")


@dataclass
class Standing:
    """``how``: "behind": these ranks never launched what the others wait in; "differs": launched something else there;
    "sides": neither side is the smaller; "launched": all have; "elsewhere": of a group whose members are not known;
    "": nothing is counted. ``known``: whose counters are told; ``group``: not the default one.
    """

    how: Literal["behind", "differs", "sides", "launched", "elsewhere", ""] = ""
    ranks: tuple[int, ...] = ()
    sides: tuple[tuple[int, ...], ...] = ()
    sequence: int | None = None
    op: str = ""
    group: str = ""
    events: list[LogEvent] = field(default_factory=list)
    known: frozenset[int | None] = frozenset()
    confidence: Confidence = "high"


@dataclass
class _Counts:
    """Of one rank in one group: the highest that was told."""

    enqueued: int = -1
    completed: int = -1
    started: int | None = None
    is_told: bool = False
    events: list[LogEvent] = field(default_factory=list)
    sequence: int | None = None  # that it timed out in
    op: str = ""
    sizes: tuple[int, int] | None = None
    start: float | None = None


def judge_counters(attempt: Attempt) -> Standing:
    groups = _groups(attempt)
    waited = {group for group, ranks in groups.items() if any(each.sequence is not None for each in ranks.values())}
    if not waited:
        return Standing()
    others = {group for group in {event.group for event in attempt.of_kind("collective_timeout", "counters")} if group}
    ordered = sorted(waited, key=lambda group: _began(groups[group]))
    expected: set[int] = set()  # in the groups that began to wait first
    for group in ordered:
        found = _of_group(attempt, group, groups, expected, has_others=bool(others - {group}))
        if found is not None:
            if group:
                found.group = next((each.group_name for each in found.events if each.group == group), "") or group
            return found
        expected |= set(_absent(groups[group]))
    return _elsewhere(ordered[0], groups[ordered[0]])


def _elsewhere(group: str, ranks: dict[int, _Counts]) -> Standing:
    events = [event for each in ranks.values() for event in each.events]
    name = next((event.group_name for event in events if event.group_name), group)
    waits = [each for each in ranks.values() if each.sequence is not None]
    sequence, op = (waits[0].sequence, waits[0].op) if waits else (None, "")
    return Standing("elsewhere", sequence=sequence, op=op, group=name or group, events=events[:4])


def _groups(attempt: Attempt) -> dict[str, dict[int, _Counts]]:
    groups: dict[str, dict[int, _Counts]] = {}
    for event in attempt.of_kind("collective_timeout", "counters", "dump_signal"):
        if event.rank is None:
            continue
        counts = groups.setdefault(event.group, {}).setdefault(event.rank, _Counts())
        counts.events.append(event)
        if event.enqueued is not None and event.completed is not None:
            counts.is_told = True
            counts.enqueued = max(counts.enqueued, event.enqueued)
            counts.completed = max(counts.completed, event.completed)
            counts.started = event.started if event.started is not None else counts.started
        if event.kind == "collective_timeout" and (counts.sequence is None or (event.sequence or 0) < counts.sequence):
            counts.sequence, counts.op, counts.sizes = event.sequence, event.op, event.sizes
            if event.at is not None and event.ran_s is not None:
                counts.start = event.at - event.ran_s
    for record in attempt.progress:
        if record.rank is None or record.enqueued is None or record.completed is None:
            continue
        is_default = record.group.description.startswith("default") or record.group.name in ("", "0")
        key = "" if is_default else record.group.name
        counts = groups.setdefault(key, {}).setdefault(record.rank, _Counts())
        counts.is_told = True
        counts.enqueued = max(counts.enqueued, record.enqueued)
        counts.completed = max(counts.completed, record.completed)
        counts.started = record.started if record.started is not None else counts.started
        for operation in record.operations:
            if counts.sequence is None and operation.sequence == record.completed + 1:
                counts.sequence, counts.op = operation.sequence, operation.name
    return groups


def _began(ranks: dict[int, _Counts]) -> float:
    return min((each.start for each in ranks.values() if each.start is not None), default=float("inf"))


def _absent(ranks: dict[int, _Counts]) -> list[int]:
    """Members of a group that are not heard of in it: in a mesh a member's rank follows from its number in the group.

    Only those between others: how many members there are nobody says.
    """
    pairs = {(event.group_rank, rank) for rank, each in ranks.items() for event in each.events}
    places = sorted((place, rank) for place, rank in pairs if place is not None)
    if len(places) < 2:
        return []
    (first, first_rank), (last, last_rank) = places[0], places[-1]
    stride, rest = divmod(last_rank - first_rank, last - first) if last > first else (0, 1)
    if rest or stride < 1 or any(rank - first_rank != stride * (place - first) for place, rank in places):
        return []
    start = first_rank - first * stride
    members = [start + place * stride for place in range(last + 1)] if start >= 0 else []
    return [rank for rank in members if rank not in ranks]


def _of_sub_group(attempt: Attempt, group: str, groups: dict[str, dict[int, _Counts]]) -> Standing | None:
    """All that are heard of have launched it: the one member between them that is not heard of, if there is one."""
    ranks = groups[group]
    absent = [rank for rank in _absent(ranks) if not _waits_elsewhere(rank, group, groups)]
    if len(absent) != 1 or len(_absent(ranks)) != 1 or not would_have_spoken(attempt, absent[0]):
        return None
    told = next(each for each in ranks.values() if each.sequence is not None)
    heard = groups.get("", {}).get(absent[0])
    events = [
        *(heard.events[:1] if heard is not None else []),
        *(event for each in ranks.values() for event in each.events[:1]),
    ]
    return Standing(
        "behind", (absent[0],), sequence=told.sequence, op=told.op, events=events[:6], known=frozenset(ranks),
        confidence="medium",
    )  # fmt: skip


def _of_group(
    attempt: Attempt, group: str, groups: dict[str, dict[int, _Counts]], expected: set[int], *, has_others: bool
) -> Standing | None:
    """None: who is behind here waits in another group itself, or it is not known who belongs to it."""
    ranks = groups[group]
    known = {rank: each for rank, each in ranks.items() if each.is_told}
    if known:  # who waits in a collective has launched it, and has not seen it end
        known.update({rank: _as_it_waits(each) for rank, each in ranks.items() if not each.is_told and each.sizes})
    if group.startswith("id "):  # the number of a group within its own process
        return None
    if not known:
        return _by_operation(ranks) or _uncounted(ranks)
    at = max(0, min(each.completed for each in known.values())) + 1  # -1: none yet; the first collective is #1
    op = next((each.op for each in ranks.values() if each.sequence == at and each.op), "")
    behind = {rank for rank, each in known.items() if each.enqueued < at}
    if behind:
        return _behind(_Wave(group, at, op, behind, known), groups, expected, has_others=has_others)
    found = _all_launched(ranks, known, at, op)
    return found if not group or found.how != "launched" else _of_sub_group(attempt, group, groups)


@dataclass(frozen=True)
class _Wave:
    """The first collective of a group that not all have completed, and who has not launched it."""

    group: str
    at: int
    op: str
    behind: set[int]
    known: dict[int, _Counts]


def _behind(
    wave: _Wave, groups: dict[str, dict[int, _Counts]], expected: set[int], *, has_others: bool
) -> Standing | None:
    """``expected``: ranks that a group waited for before."""
    ranks = groups[wave.group]
    waiting = [rank for rank, each in ranks.items() if each.sequence is not None and rank not in wave.behind]
    left = tuple(sorted(rank for rank in wave.behind if not _waits_elsewhere(rank, wave.group, groups)))
    if not waiting or not left:
        return None
    events = [event for rank in sorted(wave.behind) for event in wave.known[rank].events[:1]]
    events += [event for rank in sorted(waiting)[:2] for event in ranks[rank].events[:2]]
    if len(left) > 1 and expected & set(left):
        left = tuple(sorted(expected & set(left)))
    ahead = tuple(sorted(rank for rank in wave.known if rank not in wave.behind))
    # Of several one may wait for another in a group of theirs, whose timer has not run out.
    unclear = len(left) > 1 and (has_others or bool(wave.group))
    if unclear or len(wave.behind) > len(ahead):
        return Standing("sides", sides=(left, ahead), sequence=wave.at, op=wave.op, events=events[:6])
    known = frozenset(wave.known)
    return Standing("behind", left, sequence=wave.at, op=wave.op, events=events[:6], known=known)


def _as_it_waits(counts: _Counts) -> _Counts:
    sequence = counts.sequence or 0
    return replace(counts, enqueued=sequence, completed=sequence - 1, is_told=True)


def _uncounted(ranks: dict[int, _Counts]) -> Standing:
    waits = [each for each in ranks.values() if each.sequence is not None]
    sequences, ops = {each.sequence for each in waits}, {each.op for each in waits}
    return Standing(
        sequence=sequences.pop() if len(sequences) == 1 else None, op=ops.pop() if len(ops) == 1 else ""
    )  # they may be of several groups


def _waits_elsewhere(rank: int, group: str, groups: dict[str, dict[int, _Counts]]) -> bool:
    return any(name != group and rank in ranks and ranks[rank].sequence is not None for name, ranks in groups.items())


def _all_launched(ranks: dict[int, _Counts], known: dict[int, _Counts], at: int, op: str) -> Standing:
    stopped = [rank for rank, each in known.items() if each.started is not None and each.started < at]
    told = [rank for rank, each in known.items() if each.started is not None]
    if stopped and len(stopped) * 2 < len(told):
        events = [event for rank in stopped for event in known[rank].events[:2]]
        return Standing("behind", tuple(sorted(stopped)), sequence=at, op=op, events=events, confidence="medium")
    differs = _by_operation({rank: each for rank, each in ranks.items() if each.sequence == at})
    if differs is not None:
        return differs
    events = [event for each in known.values() for event in each.events[:1]]
    return Standing("launched", sequence=at, op=op, events=events[:4], known=frozenset(known))


def _by_operation(ranks: dict[int, _Counts]) -> Standing | None:
    """Ranks whose collective of one number is another than the others': the fewer of them."""
    sequences = {each.sequence for each in ranks.values() if each.sequence is not None}
    if len(sequences) != 1 or len(ranks) < 2:
        return None
    kinds: dict[object, list[int]] = {}
    without_sizes = any(each.sizes is None for each in ranks.values())
    for rank, each in ranks.items():
        if each.op in _PAIRWISE or not each.op:
            return None
        sizes = each.sizes if each.op in _SAME_SIZES and each.op != "REDUCE" and not without_sizes else None
        kinds.setdefault((each.op, sizes), []).append(rank)
    if len(kinds) < 2:
        return None
    camps = sorted((tuple(sorted(camp)) for camp in kinds.values()), key=len)
    events = [event for camp in camps for rank in camp[:2] for event in ranks[rank].events[:1]]
    (sequence,) = sequences
    op = ranks[camps[-1][0]].op
    # Releases that print no sizes number the collectives of all groups together: a rank may be in a group of its own.
    if without_sizes and (len(camps) != 2 or len(camps[0]) != 1 or len(camps[1]) < _LEAST_ALIKE):
        return None
    if len(camps) == 2 and len(camps[0]) * 2 < len(camps[1]) + len(camps[0]) and len(camps[0]) < len(camps[1]):
        confidence: Confidence = "medium" if without_sizes else "high"
        return Standing("differs", camps[0], sequence=sequence, op=op, events=events[:6], confidence=confidence)
    return Standing("sides", sides=tuple(camps), sequence=sequence, op=op, events=events[:6])
