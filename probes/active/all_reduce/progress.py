"""How far each rank of this node has come, in memory that the ranks and their launcher share.

A rank cannot tell what it waits for while it waits: the launcher reads its two numbers when a deadline passes.
"""

from __future__ import annotations

import mmap
import struct

_SLOT = struct.Struct("=qq")


class Progress:
    """Made before the first fork; one slot per rank of the node."""

    def __init__(self, ranks: int) -> None:
        self._memory = mmap.mmap(-1, max(1, ranks) * _SLOT.size)

    def clear(self, slot: int) -> None:
        _SLOT.pack_into(self._memory, slot * _SLOT.size, 0, 0)

    def begin_stage(self, slot: int) -> None:
        begun, _ = self.read(slot)
        _SLOT.pack_into(self._memory, slot * _SLOT.size, begun + 1, 0)

    def begin(self, slot: int) -> None:
        """One more collective is begun."""
        begun, in_stage = self.read(slot)
        _SLOT.pack_into(self._memory, slot * _SLOT.size, begun + 1, in_stage + 1)

    def read(self, slot: int) -> tuple[int, int]:
        """Steps begun in this round, and how many of them in this stage."""
        begun, in_stage = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
        return begun, in_stage
