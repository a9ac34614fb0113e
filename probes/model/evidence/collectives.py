"""How far each rank has got in each process group, whoever counted it (torch's log, its flight recorder, NCCL's RAS),
and what that says of who holds the job up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mltop.probes.model.vocabulary import Confidence, EvidenceSource, ProgressKind

# Of one collective on one rank. "scheduled": handed over by the host, and no kernel of it was seen to run.
OperationState = Literal["scheduled", "started", "completed"]


@dataclass(frozen=True)
class Operation:
    """One collective as one rank launched it: two ranks of a group whose operations of one ``sequence`` differ have
    left each other's path.

    ``name`` as torch spells it ("all_reduce", "send 1->2" of ranks of the group), ``sizes`` in elements, ``timeout_s``
    as it was set. Times are unix s. ``frames``: where it was launched, innermost first, "function (file:line)".
    ``p2p``: of two ranks; these are counted apart (``sequence``). ``retired``: nobody looks at it any more, because it
    has ended or because it took too long.
    """

    sequence: int
    name: str = ""
    sizes_in: tuple[tuple[int, ...], ...] = ()
    sizes_out: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    state: OperationState | None = None
    created_at: float | None = None
    timeout_s: float | None = None
    retired: bool = False
    frames: tuple[str, ...] = ()
    p2p: bool = False


@dataclass(frozen=True)
class Group:
    """A process group. ``name`` is unique in its job, ``description`` is for people ("default_pg", "mesh_tp").

    ``ranks``: its members by their numbers in the whole job, in the group's order; None: not known. ``size``: how many
    there are, where only that is known. ``backend``: "nccl", "gloo" …, as torch calls it, "" not known.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] | None = None
    size: int | None = None
    backend: str = ""


@dataclass(frozen=True)
class GroupProgress:
    """The counters of one rank in one group; -1: none yet, None: not told.

    ``rank`` is the number in the whole job where that is known, ``group_rank`` that in the group. ``operations``: those
    that are told of, by sequence. ``at``: unix s, of the record. ``file``: where it stands. ``source``: who counted.
    """

    group: Group
    rank: int | None
    group_rank: int | None = None
    node: str = ""
    pid: int | None = None
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    operations: tuple[Operation, ...] = field(default_factory=tuple)
    at: float | None = None
    file: str = ""
    source: EvidenceSource = "log"


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
