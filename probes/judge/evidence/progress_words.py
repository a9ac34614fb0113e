"""What the counters of collectives say, as lines of evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mltop.probes.judge.evidence.cases import signature
from mltop.probes.model import Evidence
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation, ProgressVerdict, Side
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.units import clock_time, counted

MOST_SIDES = 4
_LIBRARY = "torch/"


def progress_evidence(told: ProgressVerdict) -> list[Evidence]:
    """A line or two; ``at`` when the group began to wait, ``where`` the record that shows it best."""
    shown = next((each for each in told.counters if each.rank in (told.culprits or told.waiting)), None)
    where = shown.file or shown.node if shown is not None else ""
    lines = [*_lines(told)]
    if shown is not None and shown.at is not None:  # the job may have gone on since
        lines[0] += f" (recorded at {clock_time(shown.at)})"
    return [Evidence(told.source, text, told.since, where) for text in lines]


def _lines(told: ProgressVerdict) -> Iterator[str]:
    here = f"{operation_text(told.operation, told.sequence)} of {group_text(told.group)}"
    if told.kind == "never_entered":
        has = "has" if len(told.culprits) == 1 else "have"
        launched = _launched(each for each in told.counters if each.rank in told.culprits)
        yield f"{ranks_text(told.culprits)} {has} not entered {here}{launched}; {_waiting(told)}"
    elif told.kind == "unresponsive":
        who = ranks_text(told.culprits) if told.culprits else "some ranks"
        verb = "does" if len(told.culprits) == 1 else "do"
        yield f"{who} of {group_text(told.group)} {verb} not answer NCCL's RAS: stopped or gone, or the node is"
    elif told.kind == "init":
        missing = f", {ranks_text(told.culprits)} not" if told.culprits else ""
        yield f"{group_text(told.group)} is being made: {ranks_text(told.waiting)} {_is(told.waiting)} there{missing}"
    elif told.kind == "mismatch" and not told.sides:
        who = f": {ranks_text(told.culprits)} of others than the rest" if told.culprits else ""
        yield f"ranks of {group_text(told.group)} have launched {told.sequence} operations of different kinds{who}"
    elif told.kind == "mismatch":
        yield f"in operation {told.sequence} of {group_text(told.group)} {_sides(told.sides)}"
    elif told.kind == "not_started":
        yield f"{here} has not begun on the GPU of {ranks_text(told.culprits)}; it runs on {ranks_text(told.waiting)}"
    elif told.kind == "all_launched":
        all_of = counted(len(told.waiting), "rank")
        yield f"all {all_of} have launched {here}: what keeps it is below the hosts (a GPU, a link, the network)"
    elif told.kind == "uneven":
        yield f"only {ranks_text(told.waiting)} {_is(told.waiting)} in {here}: ahead, or the others stand before it"
    elif told.kind == "circle":
        others = ", ".join(group_text(group) for group in told.blocked[:MOST_SIDES])
        yield f"{_waiting(told, here)} for ranks that wait in {others}, and the other way round"
    elif told.kind == "unrecorded":
        of_others = f"; of {ranks_text(told.missing)} there is no record" if told.missing else ""
        yield f"{_waiting(told, here)}{of_others or ', as far as there are records'}"
    else:
        yield f"{_waiting(told, here)}; the records of the others are too old to tell who is missing"
    place = _place(told.operation)
    if place:
        yield f"{here} was launched at {place}"


def group_text(group: Group) -> str:
    """``default_pg``, ``mesh_tp (ranks 0-3)``."""
    name = group.description if group.description not in ("", "undefined") else f"group {group.name}"
    return name if group.ranks is None or name == "default_pg" else f"{name} ({ranks_text(group.ranks)})"


def operation_text(operation: Operation | None, sequence: int | None) -> str:
    """ "all_reduce 41"."""
    name = operation.name if operation is not None and operation.name else "operation"
    return name if sequence is None else f"{name} {sequence}"


def _launched(records: Iterable[GroupProgress]) -> str:
    last = {record.enqueued for record in records}
    if len(last) != 1:
        return ""
    number = last.pop()
    return " (none was launched yet)" if number == -1 else f" (the last one launched was {number})"


def _is(ranks: tuple[int, ...]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _waiting(told: ProgressVerdict, here: str = "it") -> str:
    return f"{ranks_text(told.waiting)} {'waits' if len(told.waiting) == 1 else 'wait'} in {here}"


def _sides(sides: tuple[Side, ...]) -> str:
    """ "rank 3 is in broadcast, ranks 0-2 are in all_reduce": the few first; sizes and types where names are alike."""
    same_name = len({side.operation.name for side in sides}) == 1
    parts = [f"{ranks_text(side.ranks)} {_is(side.ranks)} in {_what(side.operation, same_name)}" for side in sides]
    more = f", {len(parts) - MOST_SIDES} more groups of ranks in others" if len(parts) > MOST_SIDES else ""
    return ", ".join(reversed(parts[:MOST_SIDES])) + more


def _what(operation: Operation, with_size: bool) -> str:
    _, sizes, types = signature(operation)
    if not with_size or not sizes:
        return operation.name
    return f"{operation.name} of {counted(sizes[0], 'element')}{f' of {types[0]}' if types else ''}"


def _place(operation: Operation | None) -> str:
    """The first line of the user's."""
    frames = operation.frames if operation is not None else ()
    return next((frame for frame in frames if f"({_LIBRARY}" not in frame), "")
