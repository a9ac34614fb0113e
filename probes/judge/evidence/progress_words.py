"""What the counters of collectives say, as lines of evidence."""

from __future__ import annotations

from mltop.probes.judge.evidence.cases import signature
from mltop.probes.model import Evidence
from mltop.probes.model.evidence.collectives import Group, Operation, ProgressVerdict, Side
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.units import clock_time, counted

MOST_SIDES = 4
_LIBRARY = "torch/"


def progress_evidence(told: ProgressVerdict) -> list[Evidence]:
    """A line or two; ``at`` when the group began to wait, ``where`` the record that shows it best."""
    shown = next((each for each in told.counters if each.rank in (told.culprits or told.waiting)), None)
    where = shown.file or shown.node if shown is not None else ""
    lines = [_line(told)]
    if shown is not None and shown.at is not None:  # the job may have gone on since
        lines[0] += f" (recorded at {clock_time(shown.at)})"
    frames = told.operation.frames if told.operation is not None else ()
    place = next((frame for frame in frames if f"({_LIBRARY}" not in frame), "")  # the first line of the user's
    if place:
        lines.append(f"{_here(told)} was launched at {place}")
    return [Evidence(told.source, text, told.since, where) for text in lines]


def _here(told: ProgressVerdict) -> str:
    return f"{operation_text(told.operation, told.sequence)} of {group_text(told.group)}"


def _line(told: ProgressVerdict) -> str:
    here, group, is_one = _here(told), group_text(told.group), len(told.culprits) == 1
    culprits, waiting = ranks_text(told.culprits), ranks_text(told.waiting)
    wait_in, are = f"{waiting} {'waits' if len(told.waiting) == 1 else 'wait'} in", _are(told.waiting)
    others = ", ".join(group_text(each) for each in told.blocked[:MOST_SIDES])
    mismatch = f"in operation {told.sequence} of {group} {_sides(told.sides)}"
    if not told.sides:
        who = f": {culprits} of others than the rest" if told.culprits else ""
        mismatch = f"ranks of {group} have launched {told.sequence} operations of different kinds{who}"
    unrecorded = (
        f"; of {ranks_text(told.missing)} there is no record" if told.missing else ", as far as there are records"
    )
    return {
        "never_entered": f"{culprits} {'has' if is_one else 'have'} not entered {here}{_launched(told)}; {wait_in} it",
        "unresponsive": (
            f"{culprits if told.culprits else 'some ranks'} of {group} {'does' if is_one else 'do'} not answer "
            "NCCL's RAS: stopped or gone, or the node is"
        ),
        "init": f"{group} is being made: {waiting} {are} there{f', {culprits} not' if told.culprits else ''}",
        "mismatch": mismatch,
        "not_started": f"{here} has not begun on the GPU of {culprits}; it runs on {waiting}",
        "all_launched": (
            f"all {counted(len(told.waiting), 'rank')} have launched {here}: "
            "what keeps it is below the hosts (a GPU, a link, the network)"
        ),
        "uneven": f"only {waiting} {are} in {here}: ahead, or the others have not reached it",
        "circle": f"{wait_in} {here} for ranks that wait in {others}, and the other way round",
        "unrecorded": f"{wait_in} {here}{unrecorded}",
    }.get(told.kind, f"{wait_in} {here}; the records of the others are too old to show who is missing")


def group_text(group: Group) -> str:
    """``default_pg``, ``mesh_tp (ranks 0-3)``."""
    name = group.description if group.description not in ("", "undefined") else f"group {group.name}"
    return name if group.ranks is None or name == "default_pg" else f"{name} ({ranks_text(group.ranks)})"


def operation_text(operation: Operation | None, sequence: int | None) -> str:
    """ "all_reduce 41"."""
    name = operation.name if operation is not None and operation.name else "operation"
    return name if sequence is None else f"{name} {sequence}"


def _launched(told: ProgressVerdict) -> str:
    last = {record.enqueued for record in told.counters if record.rank in told.culprits}
    if len(last) != 1:
        return ""
    number = last.pop()
    return " (none was launched yet)" if number == -1 else f" (the last one launched was {number})"


def _are(ranks: tuple[int, ...]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _sides(sides: tuple[Side, ...]) -> str:
    """ "rank 3 is in broadcast, ranks 0-2 are in all_reduce": the few first; sizes and types where names are alike."""
    same_name = len({side.operation.name for side in sides}) == 1
    parts = [f"{ranks_text(side.ranks)} {_are(side.ranks)} in {_what(side.operation, same_name)}" for side in sides]
    more = f", {len(parts) - MOST_SIDES} more groups of ranks in others" if len(parts) > MOST_SIDES else ""
    return ", ".join(reversed(parts[:MOST_SIDES])) + more


def _what(operation: Operation, with_size: bool) -> str:
    _, sizes, types = signature(operation)
    if not with_size or not sizes:
        return operation.name
    return f"{operation.name} of {counted(sizes[0], 'element')}{f' of {types[0]}' if types else ''}"
