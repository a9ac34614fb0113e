"""Whole samples of the past: of nodes in trouble every ten seconds, of the others one from time to time.

Of those a few of the last two minutes are kept, too, for when they are in trouble: what was before that.

A look at a moment shows the sample of then where there is one, else the values that are kept of every second beside
what hardly changes of the newest one before. What they take is bounded: of too many, every second one goes.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from mltop.probes.agent.light import complete
from mltop.probes.model import Sample, to_json
from mltop.probes.reach.receiving import UNREADABLE, sample_of_frame, sample_of_line
from mltop.probes.reach.view import NodeView, RankSummary, Received, SampleSummary

TROUBLED_EVERY_S, CHANGED_EVERY_S, CHANGED_FOR_S = 10.0, 1.0, 10.0
OTHERS_EVERY_S = 3600.0
KEPT_S = 4 * 3600.0
MOST_PER_S = 8.0  # of all nodes: packing one takes a millisecond
MOST_BYTES = 40 << 20
# Of nodes that are well the last ones stay as they came: that a job stands still is known after a minute or two. The
# hub has the newest of them anyway.
BEFORE, BEFORE_EVERY_S, MOST_BEFORE_BYTES = 4, 30.0, 14 << 20
_RANK_AND_GPU_BYTES = 4000  # of a whole sample in memory
GPU_BYTES, RANK_BYTES = 600, 250  # of a summary in memory
FEW, TURNS = 16, 5  # beyond so many nodes, those that are well are looked at every fifth time


@dataclass(frozen=True, slots=True)
class Whole:
    """``summary``: what is known of it without unpacking. ``packed`` and ``slow``: its frame, and that of what it
    leaves out, or its JSON alone; None: the summary is all that there is.

    ``at``: by the node's clock, which may say anything; ``seen_at``: by the watcher's.
    """

    at: float
    seen_at: float
    summary: SampleSummary
    packed: bytes | None = None
    slow: bytes = b""

    @property
    def size_bytes(self) -> int:
        summary = GPU_BYTES * len(self.summary.gpus) + RANK_BYTES * len(self.summary.ranks)
        return len(self.packed or b"") + len(self.slow) + summary

    def sample(self) -> Sample | None:
        """None where there is none, or it cannot be read after all."""
        if self.packed is None:
            return None
        try:
            return _unpacked(zlib.decompress(self.packed), zlib.decompress(self.slow) if self.slow else b"")
        except UNREADABLE:
            return None


def _unpacked(text: bytes, slow: bytes) -> Sample | None:
    if text.startswith(b'{"kind"'):
        sample, left_out = sample_of_frame(text)
        rest, left_out_of_rest = sample_of_frame(slow) if slow else (None, [])
        if sample is not None:
            if rest is not None:
                complete(sample, rest)
            sample.gaps += left_out + left_out_of_rest
        return sample
    return sample_of_line(text)


def packed_whole(newest: Received | Sample, summary: SampleSummary, seen_at: float) -> Whole:
    """A sample as it is kept."""
    if isinstance(newest, Received) and newest.payload:
        slow = zlib.compress(newest.slow, 1) if newest.slow else b""
        return Whole(summary.sampled_at, seen_at, summary, zlib.compress(newest.payload, 1), slow)
    sample = newest.decoded() if isinstance(newest, Received) else newest
    packed = None if sample is None else zlib.compress(to_json(sample).encode(), 1)
    return Whole(summary.sampled_at, seen_at, summary, packed)


@dataclass(frozen=True, slots=True)
class _Latest:
    """A sample that is whole in memory, as the hub has it; it is packed when it is wanted."""

    seen_at: float
    newest: Received | Sample
    summary: SampleSummary
    size_bytes: int


def _latest(newest: Received | Sample, summary: SampleSummary, now: float) -> _Latest:
    if isinstance(newest, Received) and newest.payload:  # without what was made of it, which is much larger
        bare = Received(newest.payload, summary, lambda *_: None, newest.slow)
        return _Latest(now, bare, summary, len(newest.payload))
    return _Latest(now, newest, summary, _RANK_AND_GPU_BYTES * (len(summary.ranks) + len(summary.gpus) + 1))


class _Kept:
    """Those of one node, by time. ``whole_at``: when the last one was kept (the watcher's clock). ``before``: the last
    ones of a node that is well, for when it is in trouble.
    """

    def __init__(self) -> None:
        self.wholes: list[Whole] = []
        self.size_bytes = 0
        self.changed_until = self.whole_at = -math.inf
        self.trouble: object = None
        self.before: deque[_Latest] = deque(maxlen=BEFORE)

    def add(self, whole: Whole) -> int:
        """Returns by how many bytes it grew."""
        while self.wholes and self.wholes[-1].at >= whole.at:  # time went back
            self.size_bytes -= self.wholes.pop().size_bytes
        self.wholes.append(whole)
        self.size_bytes += whole.size_bytes
        return whole.size_bytes

    def insert(self, whole: Whole) -> None:
        """One of before the last; where it is there already, once."""
        place = bisect_left(self.wholes, whole.at, key=attrgetter("at"))
        for same in self.wholes[place : place + 1]:
            if same.at == whole.at:
                self.size_bytes -= self.wholes.pop(place).size_bytes
        self.wholes.insert(place, whole)
        self.size_bytes += whole.size_bytes

    def thin(self) -> None:
        """Forget every second one, not the first or the last; of one or two the first."""
        self.wholes = [*self.wholes[:-1:2], *self.wholes[-1:]] if len(self.wholes) > 2 else self.wholes[1:]
        self.size_bytes = sum(whole.size_bytes for whole in self.wholes)


class Wholes:
    """Fed by one thread, under its caller's lock, with views and with who is in trouble."""

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        most_per_s: float = MOST_PER_S,
        most_before_bytes: int = MOST_BEFORE_BYTES,
    ) -> None:
        self._most_bytes, self._most_per_s, self._most_before_bytes = most_bytes, most_per_s, most_before_bytes
        self._nodes: dict[str, _Kept] = {}
        self._allowed, self._fed_at = most_per_s, -math.inf
        self._before_left = most_before_bytes
        self._turn = 0

    @property
    def size_bytes(self) -> int:
        """Of what is packed, and of what waits for that."""
        return sum(kept.size_bytes for kept in self._nodes.values()) + self._before_bytes

    @property
    def _before_bytes(self) -> int:
        return sum(one.size_bytes for kept in self._nodes.values() for one in kept.before)

    def feed(self, nodes: Iterable[NodeView], troubles: Mapping[str, object], now: float) -> None:
        """``troubles``: of each node in trouble what it is: one that changes is looked at more closely for a while."""
        self._allowed = min(2 * self._most_per_s, self._allowed + self._most_per_s * max(0.0, now - self._fed_at))
        self._fed_at = now
        self._before_left = self._most_before_bytes - self._before_bytes
        self._turn = (self._turn + 1) % TURNS
        due: list[tuple[float, NodeView, SampleSummary]] = []
        for number, node in enumerate(nodes):
            if number % TURNS != self._turn and number >= FEW and node.node not in troubles:
                continue
            if (summary := node.summary) is not None:
                lateness = self._lateness(node.node, summary, troubles.get(node.node), now)
                if lateness >= 0.0:
                    due.append((lateness, node, summary))
                self._remember(node, summary, now)
        due.sort(key=lambda one: -one[0])
        for _, node, summary in due:
            if self._allowed < 1.0:
                break
            if node.newest is not None:
                self._keep(self._nodes[node.node], node.newest, summary, now)
        self._bound(now)

    def _keep(self, kept: _Kept, newest: Received | Sample, summary: SampleSummary, now: float) -> None:
        """The newest sample, and before it those of before the trouble."""
        if kept.trouble is not None:
            while kept.before:
                one = kept.before.popleft()
                self._allowed -= 1.0
                if one.summary.sampled_at < summary.sampled_at:
                    kept.insert(packed_whole(one.newest, one.summary, one.seen_at))
        self._allowed -= 1.0
        kept.whole_at = now
        kept.add(packed_whole(newest, summary, now))

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    def newest(self, node: str, at: float) -> Whole | None:
        """The newest one that is not newer than ``at``."""
        kept = self._nodes.get(node)
        place = bisect_right(kept.wholes, at, key=attrgetter("at")) if kept is not None else 0
        return kept.wholes[place - 1] if kept is not None and place else None

    def newest_whole(self, node: str, at: float) -> Whole | None:
        """The same, of those that are more than a summary."""
        kept = self._nodes.get(node)
        place = bisect_right(kept.wholes, at, key=attrgetter("at")) if kept is not None else 0
        earlier = reversed(kept.wholes[:place]) if kept is not None else ()
        return next((whole for whole in earlier if whole.packed is not None), None)

    def _lateness(self, name: str, summary: SampleSummary, trouble: object, now: float) -> float:
        """By how many of its periods a node's next sample is late; below 0: it is not due."""
        kept = self._nodes.get(name)
        if kept is None:
            kept = self._nodes[name] = _Kept()
            kept.trouble = trouble
        if not kept.wholes or _others(kept.wholes[-1].summary.ranks, summary.ranks):
            kept.add(Whole(summary.sampled_at, now, summary))
        if trouble != kept.trouble:
            kept.trouble, kept.changed_until = trouble, now + CHANGED_FOR_S
        every_s = CHANGED_EVERY_S if now <= kept.changed_until else OTHERS_EVERY_S
        if trouble is not None and every_s == OTHERS_EVERY_S:
            every_s = TROUBLED_EVERY_S
        if kept.wholes and kept.wholes[-1].packed is not None and kept.wholes[-1].at == summary.sampled_at:
            return -1.0  # this one is there
        since_s = now - kept.whole_at
        return math.inf if since_s == math.inf and trouble is not None else min(1e6, since_s / every_s) - 1.0

    def _remember(self, node: NodeView, summary: SampleSummary, now: float) -> None:
        """Of a node that is well the last samples, from time to time: they are packed once it is in trouble."""
        kept = self._nodes[node.node]
        if kept.trouble is not None or node.newest is None:
            return
        if kept.before and now - kept.before[-1].seen_at < BEFORE_EVERY_S:
            return
        one = _latest(node.newest, summary, now)
        while kept.before and self._before_left < one.size_bytes:
            self._before_left += kept.before.popleft().size_bytes
        if self._before_left >= one.size_bytes:
            kept.before.append(one)
            self._before_left -= one.size_bytes

    def _bound(self, now: float) -> None:
        for kept in list(self._nodes.values())[self._turn :: TURNS]:
            while len(kept.wholes) > 1 and kept.wholes[1].seen_at < now - KEPT_S:
                kept.size_bytes -= kept.wholes.pop(0).size_bytes
        packed_bytes = sum(kept.size_bytes for kept in self._nodes.values())
        while packed_bytes > self._most_bytes:
            largest = max(self._nodes.values(), key=attrgetter("size_bytes"))
            packed_bytes -= largest.size_bytes
            largest.thin()
            packed_bytes += largest.size_bytes


def _others(before: tuple[RankSummary, ...], now: tuple[RankSummary, ...]) -> bool:
    """Whether these are other ranks."""
    if len(before) != len(now):
        return True
    return bool(now) and (before[0].pid, before[-1].pid, before[0].job) != (now[0].pid, now[-1].pid, now[0].job)
