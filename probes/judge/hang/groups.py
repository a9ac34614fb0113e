"""Who waits for whom, where ranks wait in groups or for a neighbour: stages of a pipeline, rows of a tensor.

Proven are only: the peer that a send or a receive names, and the other members of a group whose axis (tp, pp, dp …) and
sizes are known and that are not at the same place. Of what cannot be proven nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

from mltop.probes.judge.hang.frames import is_internal, key_of
from mltop.probes.judge.hang.view import BACKWARD, RankView
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Frame

RECEIVES, SENDS = ("recv", "irecv", "recv_object_list"), ("send", "isend", "send_object_list")
POINT_TO_POINT = frozenset({*RECEIVES, *SENDS, "batch_isend_irecv"})
# What is waited for is not known from these: they may hide the same collective.
GENERIC = frozenset({"work.wait", "wait_tensor", "cuda.synchronize", "store.wait", BACKWARD})
# Integer locals that hold the peer's rank, the surest first: torch's own argument, what frameworks call it.
_PEERS = ("peer", "peer_rank", "partner", "neighbor", "neighbour")
_SOURCES = ("src", "src_rank", "from_rank", "source", "prev_rank", "prev", *_PEERS, "left")
_TARGETS = ("dst", "dst_rank", "to_rank", "dest", "next_rank", "next", "nxt", *_PEERS, "right")
BARRIERS = ("barrier", "monitored_barrier")
# Which group a collective is of, by the library that calls it: what functions are called proves nothing.
_AXES = (
    ("tp", re.compile(r"/tensor_parallel/|^torch/distributed/tensor/parallel/")),
    ("pp", re.compile(r"/pipeline_parallel/|^torch/distributed/pipelining/")),
    ("dp", re.compile(r"^torch/distributed/fsdp/|^torch/nn/parallel/|megatron/core/distributed/")),
)
_PLAIN_AXES = frozenset(axis for axis, _ in _AXES)  # others (cp, ep) make groups across these
_MOST_EDGES = 1_000_000  # more are no help to anybody, and take seconds


def axes_of(views: Iterable[RankView]) -> frozenset[str]:
    """The axes along which the job is split in more than one part, as far as its ranks tell."""
    sizes: dict[str, int] = {}
    for view in views:
        for name, size in view.seen.sample.parallel.items():
            if name.endswith("_size"):
                sizes[name[: -len("_size")]] = max(size, sizes.get(name[: -len("_size")], 1))
    return frozenset(axis for axis, size in sizes.items() if size > 1)


def peer_of(view: RankView) -> int | None:
    """The rank that it sends to or receives from; None when no frame tells."""
    names = _SOURCES if view.waiting_in in RECEIVES else _TARGETS if view.waiting_in in SENDS else ()
    for frame in _near(view) if names else ():
        found = next((frame.ints[name] for name in names if name in frame.ints), None)
        if found is not None and found != view.rank:
            return found
    return 1 - view.rank if names and view.seen.sample.world_size == 2 and view.rank in (0, 1) else None


class Waits:
    """Rank → the ranks that it waits for, of all that wait; ``None``: nobody knows. ``others`` wait for nobody."""

    def __init__(self, waiters: Sequence[RankView], others: Sequence[RankView] = ()) -> None:
        everyone = [*waiters, *others]
        self._axes = axes_of(everyone)
        self._by_group: dict[tuple[str, object], list[RankView]] = {}
        self._place = {id(view): (key_of(view.now), view.waiting_in) for view in everyone}
        calls = {place for place in self._place.values() if place[1] is not None and place[1] not in POINT_TO_POINT}
        # Of all ranks: a barrier, and a collective that all stand in that neither send nor receive.
        is_one = len(calls) == 1 and not any(call[1] in GENERIC for call in calls)
        self._of_all = {call for call in calls if call[1] in BARRIERS or is_one}
        self._absent = frozenset(known(view.rank for view in everyone if self._place[id(view)] not in self._of_all))
        for axis in self._axes:
            for group, members in grouped(everyone, lambda view: _group(view, axis, self._axes)).items():  # noqa: B023
                self._by_group[axis, group] = members
        edges = 0
        self.of: dict[int, frozenset[int] | None] = {}
        for view in waiters:
            targets = self._targets(view) if edges < _MOST_EDGES else None
            edges += len(targets or ())
            if view.rank is not None:
                self.of[view.rank] = targets

    def _targets(self, view: RankView) -> frozenset[int] | None:
        peer = peer_of(view)
        if peer is not None:
            return frozenset((peer,))
        place = self._place[id(view)]
        if not self._axes and place in self._of_all:
            return self._absent
        axis = _axis_of(view, self._axes)
        size = view.seen.sample.parallel.get(f"{axis}_size", 0)
        group = _group(view, axis, self._axes) if axis else None
        if axis is None or group is None:
            return None
        here = self._by_group[axis, group]
        away = {other.rank for other in here if other.rank is not None and self._place[id(other)] != place}
        return frozenset(away) if len(here) == size else None

    def reached(self) -> set[int] | None:
        """Everybody whom somebody waits for, directly or not; None where it is not known of all that wait."""
        known = [targets for targets in self.of.values() if targets is not None]
        return set().union(*known) if known and len(known) == len(self.of) else None

    def circles(self) -> list[list[int]]:
        """Ranks that wait for one another in a circle, each for one: none of them can go on."""
        done: set[int] = set()
        found = []
        for start in self.of:
            way: list[int] = []
            at: int | None = start
            while at is not None and at not in done:
                done.add(at)
                way.append(at)
                targets = self.of.get(at)
                at = next(iter(targets)) if targets is not None and len(targets) == 1 else None
            if at is not None and at in way:
                found.append(way[way.index(at) :])
        return found


def narrowed(accused: Sequence[RankView], waiters: Sequence[RankView]) -> list[RankView]:
    """Those of the accused that somebody waits for, where it is known of all that wait whom they wait for."""
    if len(accused) < 2 or not all(peer_of(view) is not None or view.seen.sample.parallel for view in waiters):
        return list(accused)
    reached = Waits(waiters, accused).reached()
    waited_for = [view for view in accused if reached is not None and view.rank in reached]
    return waited_for or list(accused)


def circles_of(waiters: Sequence[RankView]) -> list[dict[int, str]]:
    """What each of the ranks does that wait for one another: rank 1 "recv from rank 2", rank 2 "recv from rank 1"."""
    by_rank = {view.rank: view for view in waiters}
    circles = (circle for circle in Waits(waiters).circles() if not _handed_over([by_rank[rank] for rank in circle]))
    return [
        {rank: _step(by_rank[rank], circle[at + 1 - len(circle)]) for at, rank in enumerate(circle)}
        for circle in circles
    ]


def _handed_over(circle: Sequence[RankView]) -> bool:
    """A sender and its receiver, of one tag: both have come, what they wait for is below Python."""
    ways = {view.waiting_in in SENDS for view in circle if view.waiting_in in (*RECEIVES, *SENDS)}
    tags = {frame.ints["tag"] for view in circle for frame in _near(view) if "tag" in frame.ints}
    return len(circle) == len(ways) == 2 and len(tags) < 2


def _step(view: RankView, peer: int) -> str:
    if view.waiting_in in (*RECEIVES, *SENDS):
        return f"{view.waiting_in} {'from' if view.waiting_in in RECEIVES else 'to'} rank {peer}"
    return f"{view.waiting_in}, which rank {peer} has not come to"


def _group(view: RankView, axis: str, axes: Collection[str]) -> tuple[tuple[str, int | None], ...] | None:
    """What all members of its group along ``axis`` have in common: their places along the other axes."""
    parallel = view.seen.sample.parallel
    if axis not in parallel:
        return None
    others = sorted(other for other in axes if other != axis)
    return tuple((other, parallel.get(other)) for other in others) if all(o in parallel for o in others) else None


def _axis_of(view: RankView, axes: Collection[str]) -> str | None:
    """Along which axis it waits: by the only one that there is, or by one that the frames name."""
    if len(axes) == 1:
        return next(iter(axes))
    named = {axis for frame in _near(view) if (axis := _axis_in(frame.file)) is not None}
    return next(iter(named)) if len(named) == 1 and named <= set(axes) <= _PLAIN_AXES else None


def _near(view: RankView) -> Iterator[Frame]:
    """The frames from the leaf to the user's line, with it."""
    for frame in view.now.frames:
        yield frame
        if not is_internal(frame):
            return


@lru_cache(maxsize=4096)  # asked per frame and rank, while jobs share a few hundred files
def _axis_in(file: str) -> str | None:
    return next((axis for axis, pattern in _AXES if pattern.search(file)), None)
