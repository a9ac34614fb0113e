"""What the counters of a job's collectives say of who holds it up."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation
from mltop.probes.model.vocabulary import Confidence, EvidenceSource, ProgressKind


@dataclass(frozen=True)
class Side:
    """Ranks that are in one and the same operation, while others of their group are in another."""

    ranks: tuple[int, ...]
    operation: Operation


@dataclass(frozen=True)
class ProgressVerdict:
    """What the counters of one group say. Ranks are the job's, in order.

    ``sequence``, ``operation``: what the group stands at. ``culprits``: who is accused; ``waiting``: who has launched
    it and waits. ``missing``: members of whom there is no record. ``sides``: who is in what, where that differs (most
    first); of "uneven" and "circle" who has entered. ``counters``: what it rests on, of every member that told, with
    its operation under that number.
    ``blocked``: other groups that stand because of this one. ``since``: unix s.
    """

    kind: ProgressKind
    group: Group
    sequence: int | None = None
    operation: Operation | None = None
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    sides: tuple[Side, ...] = ()
    counters: tuple[GroupProgress, ...] = ()
    blocked: tuple[Group, ...] = ()
    confidence: Confidence = "low"
    since: float | None = None

    @property
    def source(self) -> EvidenceSource:
        """Who told most of it."""
        sources = [record.source for record in self.counters]
        return max(sources, key=sources.count, default="log")
