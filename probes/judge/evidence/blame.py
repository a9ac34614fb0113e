"""The answer for one attempt of a job: who failed first, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mltop.probes.model.evidence.logs import LogEvent
from mltop.probes.model.vocabulary import Confidence

# "alike": several failed in the same way, none of them for another. "program": half of them or more did, so it is no
# rank's. "stalled": the watchdogs of several report no progress. "unordered": several failed, each of its own; which
# was first is not known. "behind": these ranks never launched what the others wait in; "differs": launched something
# else there; "launched": all have launched it; "sides": neither of two camps is the smaller; "elsewhere": it is of a
# group whose members are not known.
How = Literal[
    "failed", "alike", "named", "behind", "differs", "silent", "sick", "network",
    "program", "stopped", "unordered", "contradicted", "cut off", "stalled",
    "launched", "sides", "no data", "elsewhere", "only victims", "nothing",
]  # fmt: skip
NAMING = ("failed", "alike", "program", "named", "behind", "differs", "silent", "sick", "network")


@dataclass
class First:
    """What is known of who failed first, or why that cannot be told.

    ``ranks``: the culprits; ``nodes``: where a node is all that is known. ``events``: what it rests on, the best
    first; ``lacking``: ranks without whose word it cannot be told; ``sides``: camps that differ, the smaller first; of
    "program" those that failed. ``sequence``, ``op``, ``group``: of the collective, "" the default one; ``known``: with
    counters. ``xids``: the driver's, shortly before the CUDA errors among ``events``.
    """

    how: How
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    events: list[LogEvent] = field(default_factory=list)
    confidence: Confidence = "medium"
    lacking: tuple[int, ...] = ()
    sides: tuple[tuple[int, ...], ...] = ()
    sequence: int | None = None
    op: str = ""
    group: str = ""
    known: frozenset[int | None] = frozenset()
    xids: list[LogEvent] = field(default_factory=list)

    @property
    def best(self) -> LogEvent | None:
        return self.events[0] if self.events else None

    @property
    def pid(self) -> int | None:
        """Of the only process that it rests on."""
        pids = {event.pid or event.speaker.pid for event in self.events} - {None}
        return pids.pop() if len(pids) == 1 else None

    @property
    def is_told(self) -> bool:
        return self.how in NAMING
