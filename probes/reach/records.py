"""What the hub knows of all nodes: written by its thread, read by any.

A node goes from connecting to live, stale, and lost or refused, and back.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from mltop.probes.agent.light import complete
from mltop.probes.model import Gap, NodePhase, NodeState, Sample, Via
from mltop.probes.model.units import duration_words
from mltop.probes.reach.courtesy import give_way
from mltop.probes.reach.receiving import sample_of_frame, summary_of_frame, why_unreadable
from mltop.probes.reach.view import Connection, FleetView, NodeView, Received

HISTORY_S = 600.0
MOST_KEPT = 2400  # samples: four a second
STALE_INTERVALS = 3.0  # this many intervals without a sample (at least STALE_MIN_S) make a node stale
STALE_MIN_S = 3.0
HISTORY_BYTES = 64 * 1024 * 1024  # over all nodes
# Of one node's samples decoded at a time: ranks and GPUs (ten minutes of 300), and bytes (ten minutes have 20 MB).
MOST_REMEMBERED = 200_000
MOST_REMEMBERED_BYTES = 32 * 1024 * 1024
SKEW_PRECISION_S = 0.005
SKEW_FORGETS = 0.02  # per sample: the clocks may drift apart or be set
NEWEST = "its newest sample"


class HistoryFrame(NamedTuple):
    """A sample's frame as received ``at``, and the "slow" frame that holds the rest of it, which others share."""

    at: float
    payload: bytes
    slow: bytes
    size_bytes: int


@dataclass
class NodeRecord:
    """Everything the hub keeps of one node. Times are monotonic seconds.

    ``phase`` is what its channel does: whether a live node is stale depends on its newest sample's age.
    ``slow``: the newest "slow" frame. ``received`` is what somebody looked at last: ``looked_at``, which may be older
    than ``newest``. While newest samples are ``refused``, the last good one stands, and ages.
    """

    node: str
    interval_s: float = 1.0
    phase: NodePhase = "connecting"
    why: str = "waiting for a slot"
    fix: str = ""
    connection: Connection = field(default_factory=Connection)
    received_at: float | None = None
    skew_s: float | None = None
    newest: bytes = b""
    slow: bytes = b""
    looked_at: bytes = b""
    received: Received | None = None
    refused: str = ""  # why the newest sample could not be taken
    taken_at: float | None = None  # when the last one came that could
    history: deque[HistoryFrame] = field(default_factory=deque)
    history_bytes: int = 0

    def take(self, payload: bytes, now: float, budget_bytes: int) -> None:
        """Keeps a sample that arrived; ``budget_bytes`` is this node's share of the history."""
        self.newest, self.received_at = payload, now
        self.phase, self.why, self.fix = "live", "", ""
        shared = bool(self.history) and self.history[-1].slow is self.slow
        newest = HistoryFrame(now, payload, self.slow, len(payload) + (0 if shared else len(self.slow)))
        self.history.append(newest)
        self.history_bytes += newest.size_bytes
        while self.history and (
            now - self.history[0].at > HISTORY_S
            or len(self.history) > MOST_KEPT
            or (self.history_bytes > budget_bytes and len(self.history) > 2)
        ):
            self.history_bytes -= self.history.popleft().size_bytes

    def state(self, now: float) -> NodeState:
        if self.phase == "live" and self.refused:
            age_s = None if self.taken_at is None else max(0.0, now - self.taken_at)
            return NodeState(self.node, "stale", self.refused, age_s)
        age_s = None if self.received_at is None else max(0.0, now - self.received_at)
        if self.phase != "live" or age_s is None:
            return NodeState.because(self.node, self.phase, self.why, self.fix, age_s)
        if self.is_stale(now):
            return NodeState(self.node, "stale", f"no sample for {duration_words(round(age_s))}", age_s)
        return NodeState(self.node, "live", self.why, age_s)

    def is_stale(self, now: float) -> bool:
        if self.phase != "live" or self.received_at is None:
            return False
        return now - self.received_at > max(STALE_MIN_S, STALE_INTERVALS * self.interval_s)


class Records:
    """What is kept of all nodes. Samples stay as they came; a view decodes summaries of the newest, in its caller's
    thread.

    Whole samples are decoded when somebody asks for them; of a node whose last one was asked for, with the view.
    """

    def __init__(self, nodes: Iterable[str], interval_s: float) -> None:
        self._nodes = {node: NodeRecord(node, interval_s) for node in nodes}
        self._share_bytes = HISTORY_BYTES // max(1, len(self._nodes))
        self._whole = {node: partial(self._decode_whole, record) for node, record in self._nodes.items()}
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._slow_samples: dict[str, tuple[bytes, Sample | None, list[Gap]]] = {}
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

    def take(self, node: str, payload: bytes, sampled_at: float, now: float) -> None:
        """Keeps a sample that arrived: its whole frame. ``now`` is monotonic."""
        record = self._nodes[node]
        record.skew_s = newer_skew(record.skew_s, sampled_at - time.time())
        with self._lock:
            self.serial += 1
            record.take(payload, now, self._share_bytes)

    def refuse(self, node: str, why: str) -> None:
        """Notes that a sample arrived that is not even kept: the last good one stands, and ages."""
        record = self._nodes[node]
        with self._lock:
            if record.refused != why:
                record.refused = why
                self.serial += 1

    def take_slow(self, node: str, payload: bytes) -> None:
        """Keeps what rarely changes, for the samples that follow."""
        self._nodes[node].slow = payload

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

    def history(self, node: str, after: float = 0.0, until: float = math.inf) -> list[Sample]:
        """The samples of the last minutes, oldest first, received ``after`` and up to ``until`` (monotonic s).

        Of a node that shows thousands of ranks, or tells a lot: the newest of them.
        """
        with self._lock:
            frames = [frame for frame in self._nodes[node].history if after < frame.at <= until]
        samples: list[Sample] = []
        remembered = size_bytes = 0
        for frame in reversed(frames):
            give_way()
            with contextlib.suppress(Exception):  # the view says so of the newest one
                sample = self._sample(node, frame.payload, frame.slow)
                if sample is not None:
                    samples.append(sample)
                    remembered += len(sample.ranks) + len(sample.gpus)
            size_bytes += frame.size_bytes
            if remembered > MOST_REMEMBERED or size_bytes > MOST_REMEMBERED_BYTES:
                break
        return samples[::-1]

    def _view(self, record: NodeRecord, now: float) -> NodeView:
        return NodeView(record.state(now), record.received, connection_now(record))

    def _look(self, records: Iterable[NodeRecord]) -> None:
        """Decodes what came since the last look, without the hub's thread waiting for that."""
        with self._looking:
            with self._lock:
                unseen = [
                    (record, record.newest, record.slow, record.received_at)
                    for record in records
                    if record.newest is not record.looked_at
                ]
            decoded = [self._received(record, payload, slow) for record, payload, slow, _ in unseen]
            with self._lock:
                for (record, payload, _, received_at), received in zip(unseen, decoded, strict=True):
                    record.looked_at = payload
                    if isinstance(received, str):
                        record.refused = received
                    else:
                        record.received, record.taken_at, record.refused = received, received_at, ""

    def _received(self, record: NodeRecord, payload: bytes, slow: bytes) -> Received | str:
        """What views take of a sample's frame, or why it cannot be taken."""
        try:
            summary = summary_of_frame(payload)
        except Exception as error:  # noqa: BLE001 - whatever a sample finds costs its own node
            return f"{NEWEST} is {why_unreadable(error)}"
        if summary is None:
            return f"{NEWEST} is empty"
        received = Received(payload, summary, self._whole[record.node], slow)
        is_asked_for = record.received is not None and record.received.asked
        return received if not is_asked_for or received.decoded() is not None else record.refused

    def _decode_whole(self, record: NodeRecord, payload: bytes, slow: bytes) -> Sample | None:
        try:
            return self._sample(record.node, payload, slow)
        except Exception as error:  # noqa: BLE001 - likewise
            with self._lock:
                record.refused = f"{NEWEST} is {why_unreadable(error)}"
                self.serial += 1
            return None

    def _sample(self, node: str, payload: bytes, slow: bytes) -> Sample | None:
        """The whole sample of a frame. Raises UNREADABLE."""
        sample, left_out = sample_of_frame(payload)
        if sample is not None:
            sample.node = node
            rest, left_out_of_rest = self._slow_sample(node, slow) if slow else (None, [])
            if rest is not None:
                complete(sample, rest)
            sample.gaps += left_out + left_out_of_rest
        return sample

    def _slow_sample(self, node: str, slow: bytes) -> tuple[Sample | None, list[Gap]]:
        """Decoded once for all samples that it belongs to: what they share is not to be changed."""
        decoded = self._slow_samples.get(node)
        if decoded is None or decoded[0] is not slow:
            decoded = self._slow_samples[node] = (slow, *sample_of_frame(slow))
        return decoded[1:]


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
