"""Whether two ranks of a group are in the same operation: by its name, the elements that must agree, and their type."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from mltop.probes.model.evidence.collectives import Operation

# Of which tensors all ranks have as many elements. Of others they differ by the rank's part (the root of a scatter), or
# as the program likes (all_to_all), and of several operations at once only the last is told.
_IN = frozenset({"allreduce", "broadcast", "reduce", "allgather", "allgatherintotensor", "allgatherbase", "gather"})
_OUT = frozenset({"reducescatter", "reducescattertensor", "reducescatterbase", "scatter"})
# What ends on no rank before all have entered it.
OF_ALL = frozenset({"allreduce", "allgather", "reducescatter", "alltoall", "barrier"})
_NOT_LETTERS = re.compile(r"[^a-z0-9]+")
# One operation by several names: what the caller called, and what its backend runs.
_SAME = {
    "allgatherbase": "allgather",
    "allgatherintotensor": "allgather",
    "allgatherintotensorcoalesced": "allgather",
    "reducescattertensor": "reducescatter",
    "reducescatterbase": "reducescatter",
    "alltoallbase": "alltoall",
    "alltoallsingle": "alltoall",
    "allreducebarrier": "barrier",
}
_PEERS = re.compile(r"(send|recv) (\d+)\s*(->|<-)\s*(\d+)")
Signature = tuple[str, tuple[int, ...], tuple[str, ...]]


def kind_of(name: str) -> str:
    """``allreduce`` of "all_reduce", "ALLREDUCE", "AllReduce"; "" where it is not known, or says nothing."""
    letters = _NOT_LETTERS.sub("", name.lower())
    return "" if letters in ("coalesced", "undefined", "unknown") else _SAME.get(letters, letters)


def signature(operation: Operation) -> Signature:
    """What must be equal on all ranks. Elements and types that need not be, or are not known, are left out."""
    kind = kind_of(operation.name)
    tensors = operation.sizes_in if kind in _IN else operation.sizes_out if kind in _OUT else ()
    sizes = (sum(map(_elements, tensors)),) if tensors else ()
    return kind, sizes, operation.dtypes[:1] if sizes else ()


def _elements(tensor: Iterable[int]) -> int:
    return math.prod(tensor)


def agree(signatures: Iterable[Signature]) -> bool:
    """Whether they may be of one operation: what one does not tell contradicts no other."""
    told = list(signatures)
    return all(len({each[part] for each in told if each[part]}) <= 1 for part in range(3))


def peers(operation: Operation) -> tuple[str, int, int] | None:
    """("send", 1, 2) of "send 1->2": what it does, its own and the other's number in the group."""
    match = _PEERS.fullmatch(operation.name)
    return (match[1], int(match[2]), int(match[4])) if match is not None else None
