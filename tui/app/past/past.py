"""The past as the screen asks for it: tracks of GPUs, sums of jobs, a picture of any moment, what happened when.

The feed's thread writes, any other reads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from functools import partial

from mltop.probes.judge.states import States, states_of
from mltop.probes.model import JobKey, NodeState
from mltop.probes.reach.view import Connection, FleetView, NodeView, Received, SampleSummary
from mltop.tui.app.feed import Picture
from mltop.tui.app.past.node import NodePast
from mltop.tui.app.past.rebuilt import near_sample, sample_then, summary_then
from mltop.tui.app.past.sums import JobSums, Sums
from mltop.tui.app.past.told import Told, trouble_of
from mltop.tui.app.past.track import SPAN_S, Track
from mltop.tui.app.past.wholes import TROUBLED_EVERY_S, Wholes
from mltop.tui.render.findings import Happening
from mltop.tui.render.guarded import guarded

AHEAD_S = 2.0  # a node's sample is never taken to be of so much later than now
SET_BACK_S = 60.0
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
        if view.taken_at < self.newest_at - SET_BACK_S:
            with self._lock:  # the watcher's own clock was set: what is later has not been yet
                self._sums.forget_after(int(view.taken_at))
        self.feed(view)
        with self._lock:
            self.began = view.taken_at if self.began is None else min(self.began, view.taken_at)
            self.newest_at = view.taken_at
            guarded("what was told", partial(self._told.see, picture), None)
            guarded("whole samples", lambda: self._wholes.feed(view.nodes, trouble_of(picture), view.taken_at), None)

    def feed(self, view: FleetView) -> None:
        """Take the values of a view."""
        for node in view.nodes:
            if (summary := node.summary) is not None:
                own = self._nodes.get(node.node)
                if own is None or own.at != summary.sampled_at:
                    guarded("the history of a node", partial(self._take, node, summary, view.taken_at), None)
        with self._lock:
            self._connections = {node.node: node.connection for node in view.nodes}
            self._order = tuple(self._connections)
            for gone in self._nodes.keys() - self._connections.keys():
                del self._nodes[gone]
                self._sums.forget(gone)
                self._told.forget(gone)
                self._wholes.forget(gone)

    def _take(self, node: NodeView, summary: SampleSummary, now: float) -> None:
        with self._lock:
            own = self._nodes.get(node.node)
            if own is None:
                own = self._nodes[node.node] = NodePast(summary.interval_s)
            row = own.take(summary)
            if row is None:
                return
            at = summary.sampled_at - _skew_s(node.connection)
            self._sums.add(node.node, summary, min(at, now + AHEAD_S), row, own.holds_s(summary))

    # Pictures.

    def picture(self, moment: float) -> Picture:
        """All that is known of a moment: the nodes with their samples then, and what was told. What is not kept is
        unknown, and the samples' gaps say so.
        """
        with self._lock:
            nodes = tuple(self._node_then(name, moment) for name in self._order)
            told = self._told
            incidents, motions, reports = told.incidents(moment), told.motions(moment), told.reports(moment)
            return Picture(
                FleetView(moment, nodes, int(moment * 1000)),
                told.findings(moment),
                told.not_judged(moment, self._order),
                told.ended(moment),
                told.events(moment),
                incidents,
                motions,
                guarded("the states of ranks", lambda: states_of(motions, incidents, reports), States()),
                reports,
            )

    def events(self) -> list[tuple[float, Happening]]:
        """What happened since ``began``, the oldest first."""
        began = self.began
        if began is None:
            return []
        with self._lock:
            return [(one.at, one) for one in reversed(self._told.happened()) if began <= one.at <= self.newest_at]

    def _node_then(self, name: str, moment: float) -> NodeView:
        connection = self._connections[name]
        at = moment + _skew_s(connection)
        state = self._told.state(name, moment)
        newest = self._newest_then(name, at)
        if state is None or (newest is None and state.state in ("live", "stale")):
            state = NodeState.because(name, "connecting", "nothing is kept of this moment")
        age_s = None if newest is None else max(0.0, at - newest.summary.sampled_at)
        then = NodeState.because(name, state.state, state.why, state.fix, age_s)
        return NodeView(then, newest, connection)

    def _newest_then(self, name: str, at: float) -> Received | None:
        """The node's newest sample then: whole where that one is kept."""
        base = self._wholes.newest(name, at)
        own = self._nodes.get(name)
        found = own.row(at) if own is not None else None
        if found is None:
            return None
        taken_at, step_s, row = found
        whole = self._wholes.newest_whole(name, at)
        if whole is not None and whole is base and whole.at > taken_at - 1.0:
            return Received(b"", whole.summary, lambda *_: whole.sample())
        is_near = whole is not None and whole is base and whole.at > taken_at - TROUBLED_EVERY_S
        interval_s = own.interval_s if own is not None else 1.0
        summary = summary_then(base.summary if base is not None else None, name, taken_at, row, interval_s)
        make = near_sample if is_near else sample_then
        return Received(
            b"", summary, lambda *_: guarded("a sample of the past", lambda: make(summary, whole, step_s), None)
        )

    # Values.
    def of(self, node: str) -> NodePast | None:
        """The values of a node; None where no sample has come so far."""
        return self._nodes.get(node)

    def track(self, node: str, gpu: int, until: float, span_s: float = SPAN_S) -> Track | None:
        """One GPU's values over ``span_s`` up to ``until``: a value a second within the last twenty minutes and for
        spans up to ten minutes, else one every ten seconds, at most four hours back. None for a GPU never seen.
        """
        own = self._nodes.get(node)
        if own is None:
            return None
        with self._lock:
            return own.track(gpu, until, span_s)

    def tracks(self, node: str, gpus: Iterable[int], until: float, span_s: float = SPAN_S) -> dict[int, Track]:
        """The same of several GPUs of a node, without those never seen."""
        tracks = ((gpu, self.track(node, gpu, until, span_s)) for gpu in gpus)
        return {gpu: track for gpu, track in tracks if track is not None}

    def of_job(self, job: JobKey, columns: int, until: float | None = None, span_s: float = SPAN_S) -> Sums | None:
        """What a job's GPUs and nodes did together, in ``columns`` columns; None for a job never seen. ``until``: by
        the watcher's clock; None: up to the newest second that all nodes have told. Takes well below a millisecond.
        """
        with self._lock:
            return self._sums.of_job(job, until, columns, span_s)

    def of_nodes(self, columns: int, until: float | None = None, span_s: float = SPAN_S) -> Sums:
        """The same of all nodes together."""
        with self._lock:
            return self._sums.of_all(until, columns, span_s)

    def is_settled(self, moment: float) -> bool:  # noqa: ARG002 - of what is watched live all is known at once
        """Whether no more will be known of what was up to this moment."""
        return True

    @property
    def packed_bytes(self) -> tuple[int, int]:
        """What the values take, and the whole samples."""
        return sum(own.packed_bytes for own in self._nodes.values()), self._wholes.size_bytes


def _skew_s(connection: Connection) -> float:
    """How far the node's clock is ahead of the watcher's, where that matters."""
    skew_s = connection.clock_skew_s or 0.0
    return skew_s if abs(skew_s) > SKEW_COUNTS_S else 0.0
