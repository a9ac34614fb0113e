"""Whole samples of the past, packed: of nodes in trouble every ten seconds, of the others the last few.

What they take is bounded: of too many, every second one goes.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from mltop.probes.model import Sample, to_json
from mltop.probes.reach.receiving import UNREADABLE, sample_of_frame, sample_of_line
from mltop.probes.reach.view import NodeView, Received

TROUBLED_EVERY_S, WELL_EVERY_S, LAST_ONES = 10.0, 30.0, 4
KEPT_S = 4 * 3600.0
MOST_AT_ONCE = 16  # packing one takes half a millisecond
MOST_BYTES = 48 << 20


class Kept(NamedTuple):
    """``packed``: its frame or its JSON. ``in_trouble``: its node was, then.

    ``at``: by the node's clock, which may say anything; ``seen_at``: by the watcher's.
    """

    at: float
    seen_at: float
    packed: bytes
    in_trouble: bool

    def sample(self, node: str) -> Sample | None:
        """None where it cannot be read after all."""
        try:
            text = zlib.decompress(self.packed)
            sample = sample_of_frame(text) if text.startswith(b'{"kind"') else sample_of_line(text)
        except UNREADABLE:
            return None
        sample.node = node
        return sample


class _OfNode:
    """Those of one node, by time. ``worth``: what makes the next one worth keeping at once, when it changes."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.packed_at = -math.inf  # by the watcher's clock
        self.worth: tuple[object, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum([len(one.packed) for one in self.kept])

    def add(self, new: Kept) -> None:
        while self.kept and self.kept[-1].at >= new.at:  # time went back
            self.kept.pop()
        if new.in_trouble and self.kept and not self.kept[-1].in_trouble:  # what was before it is worth as much
            self.kept = [one._replace(in_trouble=True) for one in self.kept]
        self.kept.append(new)
        well = [one for one in self.kept if not one.in_trouble][:-LAST_ONES]
        self.kept = [one for one in self.kept if one not in well and one.seen_at > new.seen_at - KEPT_S]


class Wholes:
    """Fed by one thread, under its caller's lock, with views and with who is in trouble."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_at_once: int = MOST_AT_ONCE) -> None:
        self._most_bytes, self._most_at_once = most_bytes, most_at_once
        self._nodes: defaultdict[str, _OfNode] = defaultdict(_OfNode)
        self.size_bytes = 0

    def feed(self, nodes: Iterable[NodeView], troubles: Mapping[str, object], now: float) -> None:
        """``troubles``: of each node in trouble what it is."""
        due = []
        for node in nodes:
            own, whole, trouble = self._nodes[node.node], node.whole, troubles.get(node.node)
            if whole is None or (own.kept and own.kept[-1].at == whole.sampled_at):
                continue
            worth = trouble, len(whole.ranks), whole.ranks[0].pid if whole.ranks else None
            every_s = WELL_EVERY_S if trouble is None else TROUBLED_EVERY_S
            if worth != own.worth or now - own.packed_at >= every_s:
                due.append((trouble is None, own.packed_at, node.node, worth, node, whole))
        for is_well, _, name, worth, node, whole in sorted(due, key=lambda one: one[:3])[: self._most_at_once]:
            own = self._nodes[name]
            packed = node.newest.packed if isinstance(node.newest, Received) else b""
            packed = packed or zlib.compress(to_json(whole).encode(), 1)
            own.packed_at, own.worth = now, worth
            self.size_bytes -= own.size_bytes
            own.add(Kept(whole.sampled_at, now, packed, not is_well))
            self.size_bytes += own.size_bytes
        while self.size_bytes > self._most_bytes:
            largest = max(self._nodes.values(), key=attrgetter("size_bytes"))
            self.size_bytes -= largest.size_bytes
            kept = largest.kept  # every second one is forgotten, not the first or the last; of one or two the first
            largest.kept = [*kept[:-1:2], *kept[-1:]] if len(kept) > 2 else kept[1:]
            self.size_bytes += largest.size_bytes

    def forget(self, node: str) -> None:
        if (own := self._nodes.pop(node, None)) is not None:
            self.size_bytes -= own.size_bytes

    def nearest(self, node: str, at: float) -> Kept | None:
        """The newest one that is not newer than ``at``, else the first."""
        own = self._nodes.get(node)
        if own is None or not own.kept:
            return None
        return own.kept[max(0, bisect_right(own.kept, at, key=attrgetter("at")) - 1)]
