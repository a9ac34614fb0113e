"""Jobs whose ranks go through collectives of a mesh of groups until one of them does something else: which records the
recorders of all ranks would hold then, with watchdogs that are late and files that are missing. Everything is made up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.model.evidence.collectives import GroupProgress
from tests.builders.flight_records import operation, progress_of, record

Group = tuple[str, tuple[int, ...]]
STEP = ("tp", "tp", "dp", "tp", "world")


@dataclass
class Simulated:
    """``fault``: "stops" or "differs" (``culprit`` enters another operation at that place)."""

    tp: int
    dp: int
    culprit: int
    fault: str
    launched: list[list[Group]] = field(default_factory=list)  # of each rank, in order
    ended: list[int] = field(default_factory=list)  # of each rank, so many of these
    odd_at: int | None = None

    @property
    def size(self) -> int:
        return self.tp * self.dp

    def group(self, kind: str, rank: int) -> Group:
        row, column = divmod(rank, self.tp)
        if kind == "tp":
            return f"tp{row}", tuple(range(row * self.tp, (row + 1) * self.tp))
        if kind == "dp":
            return f"dp{column}", tuple(range(column, self.size, self.tp))
        return "0", tuple(range(self.size))


def simulate(seed: int) -> tuple[Simulated, list[GroupProgress]]:
    dice = random.Random(seed)
    job = Simulated(dice.choice([1, 2, 4]), dice.choice([1, 2, 3, 4]), 0, dice.choice(["stops", "stops", "differs"]))
    if job.size < 3:
        job.dp = 3
    job.culprit = dice.randrange(job.size)
    _run(job, stop_at=dice.randrange(3, 5 * len(STEP)), ahead=[dice.choice([1, 2, 4, 8]) for _ in range(job.size)])
    return job, _records(job, dice)


def _run(job: Simulated, stop_at: int, ahead: Sequence[int]) -> None:
    """Until nothing moves. A rank launches at most ``ahead`` operations that have not ended; they end in order."""
    job.launched, job.ended = [[] for _ in range(job.size)], [0] * job.size
    job.odd_at = stop_at if job.fault == "differs" else None
    moved = True
    while moved:
        moved = False
        for rank in range(job.size):
            mine = job.launched[rank]
            stops = rank == job.culprit and job.fault == "stops" and len(mine) >= stop_at
            if not stops and len(mine) - job.ended[rank] < ahead[rank] and len(mine) < 8 * len(STEP):
                mine.append(job.group(STEP[len(mine) % len(STEP)], rank))
                moved = True
            if job.ended[rank] < len(mine) and _all_are_there(job, rank):
                job.ended[rank] += 1
                moved = True


def _number(launched: Sequence[Group], place: int) -> int:
    """Of an operation within its group, from 1 on."""
    return sum(each == launched[place] for each in launched[: place + 1])


def _all_are_there(job: Simulated, rank: int) -> bool:
    """Whether the operation that this rank's stream is at has come to the front of all members' streams."""
    at = job.ended[rank]
    group = job.launched[rank][at]
    number = _number(job.launched[rank], at)
    for member in group[1]:
        mine = job.launched[member]
        places = [place for place, each in enumerate(mine) if each == group]
        if len(places) < number or places[number - 1] > job.ended[member]:
            return False
        if member == job.culprit and places[number - 1] == job.odd_at:
            return False
    return True


def _records(job: Simulated, dice: random.Random) -> list[GroupProgress]:
    members = {group: ranks for each in job.launched for group, ranks in each}
    told: dict[int, dict[str, Any]] = {}
    for rank, launched in enumerate(job.launched):
        late = dice.choice([0, 0, 0, 1, 2, 3])
        ended = max(0, job.ended[rank] - late)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(group for group, _ in launched))}
        entries, status = [], {number: [-1, -1, -1] for number in numbers.values()}
        for place, group in enumerate(launched):
            sequence = _number(launched, place)
            odd = rank == job.culprit and place == job.odd_at
            state = "completed" if place < ended else "scheduled"
            entries.append(
                operation(sequence, "broadcast" if odd else "all_reduce", state, group=(group[0], group[0]),
                          pg_id=numbers[group[0]], at_s=float(place))
            )  # fmt: skip
            status[numbers[group[0]]][0] = sequence
            if place < ended:
                status[numbers[group[0]]][2] = sequence
        told[rank] = record(entries, status={key: tuple(value) for key, value in status.items()}, members=members)  # type: ignore[misc]
    for rank in dice.sample(range(job.size), dice.choice([0, 0, 0, 1, job.size // 2])):
        del told[rank]
    return progress_of(told)
