"""How far each rank has got in each process group, whoever counted it: torch's log, its flight recorder, NCCL's RAS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mltop.probes.model.vocabulary import EvidenceSource

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
