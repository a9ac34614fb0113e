"""The past as the screen asks for it: tracks of GPUs, sums of jobs, a picture of any moment, what happened when.

The feed's thread writes, any other reads.
"""

from __future__ import annotations

import math
import threading
from functools import partial

from mltop.probes.model import JobKey, NodeState, Sample
from mltop.probes.reach.view import Connection, FleetView, NodeView, Received
from mltop.tui.app.feed import Picture
from mltop.tui.app.past.node import NodePast
from mltop.tui.app.past.rebuilt import sample_then
from mltop.tui.app.past.sums import JobSums, Sums
from mltop.tui.app.past.told import Told, trouble_of
from mltop.tui.app.past.track import SPAN_S, Track
from mltop.tui.app.past.wholes import Wholes
from mltop.tui.render.findings import Happening
from mltop.tui.render.guarded import guarded

SKEW_COUNTS_S = 1.0  # a clock that is off by less is taken as right


class Past:
    """Fed with every picture. Moments are unix s by the watcher's clock; ``track`` goes by the node's own, as samples
    do.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, NodePast] = {}
        self._sums = JobSums()
        self._told = Told()
        self._wholes = Wholes()
        self._connections: dict[str, Connection] = {}
        self._order: tuple[str, ...] = ()
        self.began: float | None = None  # the first picture's time; None before it
        self.newest_at = -math.inf
        self.is_complete = True  # False: a recording is still being read, and goes on behind its newest sample

    # What is taken.

    def see(self, picture: Picture) -> None:
        """Take a picture: values, what was told, and whole samples of nodes in trouble."""
        view = picture.view
        self.feed(view)
        with self._lock:
            self.began = view.taken_at if self.began is None else min(self.began, view.taken_at)
            self.newest_at = view.taken_at
            guarded("what was told", partial(self._told.see, picture), None)
            guarded("whole samples", lambda: self._wholes.feed(view.nodes, trouble_of(picture), view.taken_at), None)

    def feed(self, view: FleetView) -> None:
        """Take the values of a view."""
        for node in view.nodes:
            if (whole := node.whole) is not None and (row := node.row) is not None:
                guarded("the history of a node", partial(self._take, node.node, whole, *row), None)
        with self._lock:
            self._connections = {node.node: node.connection for node in view.nodes}
            self._order = tuple(self._connections)
            for gone in self._nodes.keys() - self._connections.keys():
                del self._nodes[gone]
                self._told.forget(gone)
                self._wholes.forget(gone)
            guarded("the sums of jobs", partial(self._add, view), None)

    def _take(self, node: str, whole: Sample, at: float, lanes: bytes) -> None:
        with self._lock:
            own = self._nodes.get(node)
            if own is None:
                own = self._nodes[node] = NodePast(whole.interval_s)
            own.take_whole(whole)
            own.take(at, lanes)

    def _add(self, view: FleetView) -> None:
        live = [node.node for node in view.nodes if node.state.state == "live" and node.node in self._nodes]
        self._sums.add(view.taken_at, [(node, self._nodes[node]) for node in live])

    # Pictures.

    def picture(self, moment: float) -> Picture:
        """All that is known of a moment: the nodes with their samples then, and what was told. What is not kept is
        unknown, and the samples' gaps say so.
        """
        with self._lock:
            nodes = tuple(self._node_then(name, moment) for name in self._order)
            return self._told.picture(FleetView(moment, nodes, int(moment * 1000)))

    def state_since(self, node: str, moment: float) -> float | None:
        """Since when the node was in the state that it was in then; None before it was ever seen."""
        with self._lock:
            found = self._told.state(node, moment)
            return None if found is None else found[0]

    def events(self) -> list[tuple[float, Happening]]:
        """What happened since ``began``, the oldest first."""
        began = self.began
        if began is None:
            return []
        with self._lock:
            return [(one.at, one) for one in reversed(self._told.happened()) if began <= one.at <= self.newest_at]

    def _node_then(self, name: str, moment: float) -> NodeView:
        connection = self._connections[name]
        skew_s = connection.clock_skew_s or 0.0  # how far the node's clock is ahead of the watcher's
        at = moment + (skew_s if abs(skew_s) > SKEW_COUNTS_S else 0.0)
        found, newest = self._told.state(name, moment), self._newest_then(name, at)
        state = found[1] if found is not None else None
        if state is None or (newest is None and state.state in ("live", "stale")):
            state = NodeState.because(name, "connecting", "nothing is kept of this moment")
        age_s = None if newest is None else max(0.0, at - newest.at)
        then = NodeState.because(name, state.state, state.why, state.fix, age_s)
        return NodeView(then, newest, connection)

    def _newest_then(self, name: str, at: float) -> Received | None:
        """The node's newest sample then: whole where that one is kept."""
        own = self._nodes.get(name)
        found = own.row_at(at) if own is not None else None
        if own is None or own.whole is None or found is None:
            return None
        taken_at, step_s, lanes = found
        ranks = own.ranks_at(taken_at)
        base = self._wholes.nearest(name, at)
        make = partial(sample_then, name, taken_at, lanes, ranks, base=base, step_s=step_s)
        return Received(
            own.whole, taken_at, lanes, ranks=ranks, make=lambda: guarded("a sample of the past", make, None)
        )

    # Values.
    def track(self, node: str, gpu: int, until: float, span_s: float = SPAN_S) -> Track | None:
        """One GPU's values over ``span_s`` up to ``until``: a value a second within the last twenty minutes and for
        spans up to ten minutes, else one every ten seconds, at most four hours back. None for a GPU never seen.
        """
        own = self._nodes.get(node)
        if own is None:
            return None
        with self._lock:
            return own.track(gpu, until, span_s)

    def sums(self, job: JobKey | None, columns: int, until: float | None = None, span_s: float = SPAN_S) -> Sums | None:
        """What a job's GPUs and nodes did together, None: all nodes, in ``columns`` columns; None for a job never seen.
        ``until``: by the watcher's clock; None: up to the newest second. Takes well below a millisecond.
        """
        with self._lock:
            return self._sums.over(job, until, columns, span_s)

    def is_settled(self, moment: float) -> bool:  # noqa: ARG002 - of what is watched live all is known at once
        """Whether no more will be known of what was up to this moment."""
        return True

    @property
    def packed_bytes(self) -> tuple[int, int]:
        """What the values take, and the whole samples."""
        return sum(own.packed_bytes for own in self._nodes.values()), self._wholes.size_bytes
