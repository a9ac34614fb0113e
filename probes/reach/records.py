"""What the hub knows of all nodes: written by its thread, read by any.

A node goes from connecting to live, stale, and lost or refused, and back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mltop.probes.model import NodePhase, NodeState, Sample, Via
from mltop.probes.model.news.judged import Fact, JobPart, Judged
from mltop.probes.model.units import duration_words
from mltop.probes.reach.receiving import (
    RowFrame,
    facts_of_frame,
    judged_of_frame,
    parts_of_frame,
    sample_of_frame,
    why_unreadable,
)
from mltop.probes.reach.view import Connection, FleetView, NodeView, Received

STALE_INTERVALS = 3.0  # this many intervals without a sample (at least STALE_MIN_S) make a node stale
STALE_MIN_S = 3.0
SKEW_PRECISION_S = 0.005
SKEW_FORGETS = 0.02  # per sample: the clocks may drift apart or be set
NEWEST = "its newest sample"


class Newest(NamedTuple):
    """The newest frames of a node; ``row`` is about the others."""

    sample: bytes = b""
    parts: bytes = b""
    judged: bytes = b""
    facts: bytes = b""
    row: RowFrame | None = None


NEWS = Newest._fields[:-1]  # kinds of frames
_NONE = Newest()


@dataclass
class NodeRecord:
    """Everything the hub keeps of one node. Times are monotonic seconds.

    ``phase`` is what its channel does: whether a live node is stale depends on its newest row's age.
    ``received`` is what a view made of the ``newest`` frames last. While newest samples are ``refused``, the last good
    one stays, and ages.
    """

    node: str
    interval_s: float = 1.0
    phase: NodePhase = "connecting"
    why: str = "waiting for a slot"
    fix: str = ""
    connection: Connection = field(default_factory=Connection)
    received_at: float | None = None
    skew_s: float | None = None
    newest: Newest = _NONE
    whole: Sample | None = None  # the newest that could be decoded, of ``whole_payload``
    whole_payload: bytes = b""
    parts: Sequence[JobPart] = ()
    judged: Judged | None = None
    facts: list[Fact] = field(default_factory=list)
    looked_at: Newest = _NONE
    received: Received | None = None
    refused: str = ""  # why the newest sample could not be taken
    taken_at: float | None = None  # when the last one came that could

    def state(self, now: float) -> NodeState:
        if self.phase == "live" and self.refused:
            age_s = None if self.taken_at is None else max(0.0, now - self.taken_at)
            return NodeState(self.node, "stale", self.refused, age_s)
        age_s = None if self.received_at is None else max(0.0, now - self.received_at)
        if self.phase != "live" or age_s is None:
            return NodeState.because(self.node, self.phase, self.why, self.fix, age_s)
        return state_by_age(self.node, age_s, self.interval_s, self.why)

    def is_stale(self, now: float) -> bool:
        return self.phase == "live" and self.received_at is not None and self.state(now).state == "stale"


def state_by_age(node: str, age_s: float, interval_s: float, why: str = "") -> NodeState:
    """Of a node whose newest sample is so old."""
    if age_s <= max(STALE_MIN_S, STALE_INTERVALS * interval_s):
        return NodeState(node, "live", why, age_s)
    return NodeState(node, "stale", f"no sample for {duration_words(round(age_s))}", age_s)


class Records:
    """What is kept of all nodes: the newest frames as they came. A view decodes what is new, in its caller's thread."""

    def __init__(self, nodes: Iterable[str], interval_s: float) -> None:
        self._nodes = {node: NodeRecord(node, interval_s) for node in nodes}
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._stale: set[str] = set()
        self.serial = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._nodes)

    # For the hub's thread.

    def phase(self, node: str) -> NodePhase:
        return self._nodes[node].phase

    def reason(self, node: str) -> str:
        return self._nodes[node].state(time.monotonic()).reason

    def set_phase(self, node: str, phase: NodePhase, why: str, fix: str = "") -> None:
        record = self._nodes[node]
        if (record.phase, record.why, record.fix) != (phase, why, fix):
            with self._lock:
                record.phase, record.why, record.fix = phase, why, fix
                self.serial += 1

    def note(self, node: str, why: str) -> None:
        self.set_phase(node, self._nodes[node].phase, why)

    def connected(self, node: str, via: Via, connect_s: float, restarts: int) -> None:
        """Notes that its agent said hello."""
        self._nodes[node].skew_s = None
        self.set_connection(node, via=via, connect_s=connect_s, restarts=restarts, clock_skew_s=None)

    def set_connection(self, node: str, **changes: Any) -> None:
        record = self._nodes[node]
        with self._lock:
            record.connection = replace(record.connection, **changes)
            self.serial += 1

    def connection(self, node: str) -> Connection:
        return self._nodes[node].connection

    def take(self, node: str, row: RowFrame, now: float) -> None:
        """Keeps a row that arrived. ``now`` is monotonic."""
        record = self._nodes[node]
        record.skew_s = newer_skew(record.skew_s, row.at - time.time())
        with self._lock:
            self.serial += 1
            record.newest, record.received_at = record.newest._replace(row=row), now
            record.phase, record.why, record.fix = "live", "", ""

    def take_news(self, node: str, kind: str, payload: bytes) -> None:
        """Keeps a frame of one of the kinds NEWS, for the rows that follow."""
        record = self._nodes[node]
        record.newest = record.newest._replace(**{kind: payload})  # type: ignore[arg-type]

    def refuse(self, node: str, why: str) -> None:
        """Notes that a sample arrived that is not even kept: the last good one stands, and ages."""
        record = self._nodes[node]
        with self._lock:
            if record.refused != why:
                record.refused = why
                self.serial += 1

    def tick(self, now: float) -> None:
        """Counts nodes that went stale, which they do by themselves, as a change."""
        stale = {record.node for record in self._nodes.values() if record.is_stale(now)}
        if stale != self._stale:
            self._stale = stale
            self.serial += 1

    # For every thread.

    def view(self) -> FleetView:
        self._look(self._nodes.values())
        now = time.monotonic()
        with self._lock:
            views = [self._view(record, now) for record in self._nodes.values()]
            return FleetView(time.time(), tuple(views), self.serial)

    def node(self, name: str) -> NodeView:
        record = self._nodes[name]
        self._look((record,))
        with self._lock:
            return self._view(record, time.monotonic())

    def _view(self, record: NodeRecord, now: float) -> NodeView:
        return NodeView(record.state(now), record.received, connection_now(record))

    def _look(self, records: Iterable[NodeRecord]) -> None:
        """Decodes what came since the last look, without the hub's thread waiting for that."""
        with self._looking:
            with self._lock:
                unseen = [
                    (record, record.newest, record.received_at)
                    for record in records
                    if record.newest.row is not record.looked_at.row
                ]
            for record, newest, received_at in unseen:
                received = self._received(record, newest)
                with self._lock:
                    record.looked_at = newest
                    if isinstance(received, str):
                        record.refused = received
                    else:
                        record.received, record.taken_at, record.refused = received, received_at, ""

    def _received(self, record: NodeRecord, newest: Newest) -> Received | str:
        """What views take of a node's newest frames, or why it cannot be taken."""
        before, row = record.looked_at, newest.row
        assert row is not None
        try:
            row.check()
            if record.whole is None or record.whole_payload is not newest.sample:
                record.whole, record.whole_payload = _decoded(record.node, newest.sample), newest.sample
            if newest.parts and before.parts is not newest.parts:
                record.parts = parts_of_frame(newest.parts)
            if newest.facts and before.facts is not newest.facts:
                record.facts = facts_of_frame(newest.facts)
            if newest.judged and before[2:4] != newest[2:4]:
                record.judged = judged_of_frame(newest.judged, record.node)
                record.judged.facts = record.facts
        except Exception as error:  # noqa: BLE001 - whatever a sample finds costs its own node
            return f"{NEWEST} is {why_unreadable(error)}"
        return Received(
            record.whole,
            row.at,
            row.lanes,
            payload=newest.sample,
            parts=record.parts,
            numbers=row.numbers,
            judged=record.judged,
        )


def _decoded(node: str, payload: bytes) -> Sample:
    """The whole sample of a frame. Raises UNREADABLE."""
    sample = sample_of_frame(payload)
    sample.node = node
    return sample


def connection_now(record: NodeRecord) -> Connection:
    """The connection with the clock skew of now, to a precision that leaves most connections as they were."""
    shown_s, skew_s = record.connection.clock_skew_s, record.skew_s
    if skew_s is not None and (shown_s is None or abs(skew_s - shown_s) >= SKEW_PRECISION_S):
        record.connection = replace(record.connection, clock_skew_s=skew_s)
    return record.connection


def newer_skew(skew_s: float | None, seen_s: float) -> float:
    """The node's clock minus ours: a sample's way only makes it look smaller, so the largest is nearest."""
    if skew_s is None or seen_s > skew_s:
        return seen_s
    return skew_s + (seen_s - skew_s) * SKEW_FORGETS
