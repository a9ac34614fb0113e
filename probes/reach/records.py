"""What the hub knows of all nodes: written by its thread, read by any.

A node goes from connecting to live, stale, and lost or refused, and back.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mltop.probes.model import NodePhase, NodeState, Sample, Via
from mltop.probes.model.news.judged import Fact, JobPart, Judged
from mltop.probes.model.receipt import Refused
from mltop.probes.model.units import duration_words
from mltop.probes.reach.receiving import (
    RowFrame,
    facts_of_frame,
    judged_of_frame,
    parts_of_frame,
    plausible_lanes,
    sample_of_frame,
    why_unreadable,
)
from mltop.probes.reach.sharing import Sharing
from mltop.probes.reach.view import Connection, FleetView, NodeView, Received

STALE_INTERVALS = 3.0  # this many intervals without a sample (at least STALE_MIN_S) make a node stale
STALE_MIN_S = 3.0
SKEW_PRECISION_S = 0.005
SKEW_FORGETS = 0.02  # per sample: the clocks may drift apart or be set
NEWEST = "its newest sample"
PACKING = 1  # level of zlib: more takes longer than it saves


NEWS = ("sample", "parts", "judged", "facts")  # kinds of frames: rows are about them


@dataclass
class NodeRecord:
    """Everything the hub keeps of one node. Times are monotonic seconds.

    ``phase`` is what its channel does: whether a live node is stale depends on its newest row's age.
    ``received`` is what a view made last of the ``row`` that was the newest then (``looked_at``) and of the frames
    before it. ``unread``: those that came since, by kind. While newest samples are ``refused``, the last good one
    stays, and ages.
    """

    node: str
    interval_s: float = 1.0
    phase: NodePhase = "connecting"
    why: str = "waiting for a slot"
    fix: str = ""
    connection: Connection = field(default_factory=Connection)
    received_at: float | None = None
    skew_s: float | None = None
    row: RowFrame | None = None
    unread: dict[str, bytes] = field(default_factory=dict)
    whole: Sample | None = None  # the newest that could be decoded
    packed: bytes = b""  # its frame
    parts: Sequence[JobPart] = ()
    judged: Judged | None = None
    facts: list[Fact] = field(default_factory=list)
    looked_at: RowFrame | None = None
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
        self._sharing = Sharing()
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
            record.row, record.received_at = row, now
            record.phase, record.why, record.fix = "live", "", ""

    def take_news(self, node: str, kind: str, payload: bytes) -> None:
        """Keeps a frame of one of the kinds NEWS, for the rows that follow."""
        with self._lock:
            self._nodes[node].unread[kind] = payload

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
                unseen = []
                for record in records:
                    if record.row is not None and record.row is not record.looked_at:
                        unseen.append((record, record.row, record.unread, record.received_at))
                        record.unread = {}
            for record, row, frames, received_at in unseen:
                received = self._received(record, row, frames)
                with self._lock:
                    record.looked_at = row
                    if isinstance(received, str):
                        record.refused = received
                        record.unread = {**frames, **record.unread}  # it stays refused until a better one comes
                    else:
                        record.received, record.taken_at, record.refused = received, received_at, ""

    def _received(self, record: NodeRecord, row: RowFrame, frames: dict[str, bytes]) -> Received | str:
        """What views take of a node's newest row and of the frames before it, or why it cannot be taken. ``frames``:
        those that could be read are removed.
        """
        try:
            row.check()
            for kind in NEWS:
                if kind in frames:
                    self._read(record, kind, frames[kind])
                    del frames[kind]
            if record.judged is not None and record.judged.facts is not record.facts:
                record.judged = replace(record.judged, facts=record.facts)
            if record.whole is None:
                raise Refused("a row came before the first sample")
        except Exception as error:  # noqa: BLE001 - whatever a sample finds costs its own node
            return f"{NEWEST} is {why_unreadable(error)}"
        return Received(
            record.whole,
            row.at,
            plausible_lanes(row.lanes),
            packed=record.packed,
            parts=record.parts,
            numbers=row.numbers,
            judged=record.judged,
        )

    def _read(self, record: NodeRecord, kind: str, payload: bytes) -> None:
        """Raises UNREADABLE."""
        if kind == "sample":
            whole = sample_of_frame(payload)
            whole.node = record.node
            self._sharing.sample(whole)
            record.whole, record.packed = whole, zlib.compress(payload, PACKING)
        elif kind == "parts":
            record.parts = parts_of_frame(payload)
        elif kind == "facts":
            record.facts = facts_of_frame(payload)
        else:
            record.judged = judged_of_frame(payload, record.node)


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
