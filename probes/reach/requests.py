"""A request on its way to several nodes, and their answers as they come.

Which answer belongs to which request: ids, requests that wait for a node's hello, one-shot channels.

A channel that carries the answers to one request and then ends.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from mltop.probes.agent.protocol import Message, Request, encode
from mltop.probes.model import NodeState
from mltop.probes.model.receipt import MOST_RANKS, Refused, admit_stacks, said
from mltop.probes.model.text import plain_text
from mltop.probes.reach.channel import Channel, Ending
from mltop.probes.reach.poller import Poller
from mltop.probes.reach.receiving import UNREADABLE
from mltop.probes.reach.records import Phase, Records
from mltop.probes.reach.stream import Carrier, Misnamed, Reaper
from mltop.probes.reach.uploads import Files

MOST_ERROR = 800  # characters: it may be why a node was lost, and what would fix that


@dataclass(frozen=True)
class Answer:
    """One frame of an answer, and the node that sent it. ``size_bytes``: of its JSON, 0 of our own."""

    node: str
    message: Message
    size_bytes: int = 0


class Pending:
    """Answers to one request of ``nodes``. ``open_nodes`` have not finished yet; ``failed`` say why they never will."""

    def __init__(self, nodes: tuple[str, ...], cancel: Callable[[], None]) -> None:
        self.nodes = nodes
        self._queue: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._open = set(nodes)
        self._failed: dict[str, str] = {}
        self._lock = threading.Lock()
        self._cancel = cancel

    def put(self, node: str, message: Message, size_bytes: int = 0) -> None:
        """Called by the hub's thread. Its error and fix, a node's own words, are made fit for a terminal."""
        message.error, message.fix = plain_text(message.error, MOST_ERROR), plain_text(message.fix)
        with self._lock:
            if message.kind in ("done", "error"):
                self._open.discard(node)
            if message.kind == "error":
                self._failed[node] = message.error
        self._queue.put(Answer(node, message, size_bytes))

    def fail_all(self, reason: str) -> None:
        """Nobody will answer any more."""
        for node in self.open_nodes:
            self.put(node, Message("error", node=node, error=reason))

    @property
    def open_nodes(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._open))

    @property
    def failed(self) -> dict[str, str]:
        with self._lock:
            return dict(self._failed)

    def answers(self, timeout_s: float) -> Iterator[Answer]:
        """Answers until every node finished or nothing came for ``timeout_s``."""
        while True:
            try:
                yield self._queue.get(timeout=timeout_s if self._open else 0.0)
            except queue.Empty:
                return

    def cancel(self) -> None:
        self._cancel()

    def not_answered(self) -> list[NodeState]:
        states = [NodeState(node, "lost", reason) for node, reason in sorted(self.failed.items())]
        return states + [NodeState(node, "stale", "no answer before the deadline") for node in self.open_nodes]


# Of one node's answer to one request. A round of stacks of 8 ranks with py-spy's own JSON has 2 MB; a probe tells of
# every second of its run.
MOST_ANSWER_BYTES = 64 * 1024 * 1024
MOST_PARTS = 32_768


class Line(Protocol):
    """What the switchboard needs of a link."""

    channel: Channel

    def is_ready(self, node: str) -> bool: ...
    def send(self, data: bytes) -> None: ...


@dataclass
class Ask:
    """One request to one node. ``sent`` False: it waits for the node's hello. ``parts``, ``bytes``: received so far."""

    id: int
    node: str
    pending: Pending
    op: str
    args: dict[str, Any]
    sent: bool = False
    end: Callable[[], None] | None = None  # of its one-shot channel
    parts: int = 0
    bytes: int = 0

    @property
    def is_too_much(self) -> bool:
        return self.parts > MOST_PARTS or self.bytes > MOST_ANSWER_BYTES

    def request(self, kind: str = "request") -> Request:
        if kind == "cancel":
            return Request("cancel", id=self.id, node=self.node)
        return Request("request", id=self.id, op=self.op, node=self.node, args=self.args)


OpenOneShot = Callable[[Channel, dict[str, Ask]], Callable[[], None]]


@dataclass
class Switchboard:
    """Lives in the hub's thread. ``open_one_shot`` starts a channel for some asks and returns how to end it."""

    records: Records
    files: Files
    line_of: Callable[[str], Line]
    open_one_shot: OpenOneShot
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _asks: dict[int, Ask] = field(default_factory=dict)
    _of_node: dict[str, set[int]] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        return bool(self._asks)

    def ask(self, pending: Pending, op: str, args: dict[str, Any]) -> None:
        """One request to each of ``pending.nodes``."""
        apart: dict[Channel, list[Ask]] = {}
        for node in pending.nodes:
            ask = Ask(next(self._ids), node, pending, op, dict(args))
            self._asks[ask.id] = ask
            self._of_node.setdefault(node, set()).add(ask.id)
            if self.records.phase(node) in (Phase.LOST, Phase.REFUSED):
                self._finish(ask, Message("error", error=self.records.reason(node)))
                continue
            line = self.line_of(node)
            if line.channel.takes_requests:
                self._send(ask)
            elif line.channel.one_shot is None:
                self._finish(ask, Message("error", error=f"{line.channel.via} carries no requests to the nodes"))
            else:
                apart.setdefault(line.channel, []).append(ask)
        for channel, asks in apart.items():
            self._ask_apart(channel, asks)

    def node_ready(self, node: str) -> None:
        """Its agent said hello: what waits for that is sent."""
        for number in tuple(self._of_node.get(node, ())):
            if not self._asks[number].sent:
                self._send(self._asks[number])

    def node_lost(self, node: str, reason: str) -> None:
        """Nothing that it was asked on its line will be answered."""
        for number in tuple(self._of_node.get(node, ())):
            if self._asks[number].end is None:
                self._finish(self._asks[number], Message("error", error=reason))

    def answer(self, node: str, message: Message, size_bytes: int = 0) -> None:
        """A part, done or error frame that came from ``node``."""
        ask = self._asks.get(message.id)
        if ask is not None and ask.node == node:
            self.deliver(ask, message, size_bytes)

    def deliver(self, ask: Ask, message: Message, size_bytes: int = 0) -> None:
        ask.parts, ask.bytes = ask.parts + 1, ask.bytes + size_bytes
        try:
            admit_answer(message, ask)
        except Refused as why:
            self._refuse(ask, str(why))
            return
        if message.stacks is not None:
            message.stacks.node = ask.node
            for digest in message.stacks.digests:
                digest.node = ask.node
        if message.kind == "part":
            ask.pending.put(ask.node, message, size_bytes)
        else:
            self._finish(ask, message, size_bytes)

    def _refuse(self, ask: Ask, why: str) -> None:
        """What else it answers is not looked at."""
        self._end(ask)
        self._finish(ask, Message("error", error=f"its answer is refused: {why}"))

    def cancel(self, pending: Pending) -> None:
        for ask in [ask for ask in self._asks.values() if ask.pending is pending]:
            if ask.end is not None or not ask.sent:
                self._finish(ask, Message("error", error="cancelled"))
                if ask.end is not None:
                    ask.end()
            else:
                self._end(ask)

    def _end(self, ask: Ask) -> None:
        """Ask the node to end what it does for this request. A one-shot channel may serve other nodes, too."""
        if ask.end is None and self.line_of(ask.node).is_ready(ask.node):
            self.line_of(ask.node).send(encode(ask.request("cancel")))

    def fail_all(self, reason: str) -> None:
        for ask in tuple(self._asks.values()):
            self._finish(ask, Message("error", error=reason))

    def _send(self, ask: Ask) -> None:
        """Now, or when the node is ready."""
        line = self.line_of(ask.node)
        if not line.is_ready(ask.node):
            return
        ask.sent = True
        boot = self.records.connection(ask.node).boot
        if ask.op == "stacks" and boot is not None:  # its agent has no py-spy but what we send
            self.files.py_spy_sha256(boot.machine, lambda sha256: self._send_stacks(ask, line, sha256))
        else:
            line.send(encode(ask.request()))

    def _send_stacks(self, ask: Ask, line: Line, py_spy_sha256: str | Exception) -> None:
        if isinstance(py_spy_sha256, Exception):
            self._finish(ask, Message("error", error=f"cannot look for py-spy here: {py_spy_sha256}"))
        elif self.is_open(ask) and self.line_of(ask.node) is line and line.is_ready(ask.node):
            ask.args["py_spy"] = py_spy_sha256
            line.send(encode(ask.request()))

    def _ask_apart(self, channel: Channel, asks: list[Ask]) -> None:
        assert channel.one_shot is not None
        request = replace(asks[0].request(), node="")
        by_node = {ask.node: ask for ask in asks}
        end = self.open_one_shot(channel.one_shot(tuple(by_node), request), by_node)
        for ask in asks:
            ask.sent, ask.end = True, end

    def is_open(self, ask: Ask) -> bool:
        return ask.id in self._asks

    def _finish(self, ask: Ask, message: Message, size_bytes: int = 0) -> None:
        if self._asks.pop(ask.id, None) is not None:
            self._of_node[ask.node].discard(ask.id)
            ask.pending.put(ask.node, message, size_bytes)


def admit_answer(message: Message, ask: Ask) -> None:
    """Bring a frame of an answer within bounds. Raises Refused."""
    if ask.is_too_much:
        raise Refused(f"{ask.parts} parts of {ask.bytes / 1e6:.0f} MB in all, and no end")
    if message.stacks is not None:
        admit_stacks(message.stacks)
    if message.expected is not None and not 0 <= message.expected <= MOST_RANKS:
        raise Refused(f"it expects {said(message.expected)} parts")


SILENCE_S = 60.0  # without any frame; whoever asked has usually cancelled long before
_DECODER = msgspec.json.Decoder(Message)


class OneShot:
    """``asks`` by node; those without an answer when the process ends get the reason why it did."""

    def __init__(
        self, channel: Channel, asks: dict[str, Ask], switchboard: Switchboard, poller: Poller, reaper: Reaper
    ) -> None:
        self._channel, self._asks, self._switchboard = channel, asks, switchboard
        self._heard_at = time.monotonic()
        self.ended = False
        self._carrier: Carrier | None = None
        try:
            self._carrier = Carrier(
                channel, poller, reaper, on_frame=self._take, on_end=self._on_end, on_node_end=self._on_node_end
            )
        except OSError as error:
            self.ended = True
            self._fail(f"cannot start {channel.argv[0]}: {error.strerror or error}")

    def end(self) -> None:
        if self._carrier is not None:
            self._carrier.end()

    def tick(self, now: float) -> None:
        if now - self._heard_at > SILENCE_S:
            self._fail(f"no answer within {SILENCE_S:g} s")
            self.end()

    def _take(self, payload: bytes, label: str) -> None:
        try:
            message = _DECODER.decode(payload)
            node = self._node_of(label, message.node)
        except UNREADABLE:
            return
        except Misnamed as forged:
            self._on_node_end(forged.node, Ending(f"{forged}: refused"))
            return
        self._heard_at = time.monotonic()
        ask = self._asks.get(node)
        if ask is None or message.kind not in ("part", "done", "error") or not self._switchboard.is_open(ask):
            return
        self._switchboard.deliver(ask, message, len(payload))
        if not any(self._switchboard.is_open(ask) for ask in self._asks.values()):
            self.end()

    def _node_of(self, label: str, named: str) -> str:
        if self._channel.speakers is not None and self._carrier is not None:
            return self._carrier.speaker(label, named) or ""
        return named if named in self._asks or len(self._asks) != 1 else next(iter(self._asks))

    def _on_end(self, code: int | None, words: str) -> None:
        self.ended = True
        self._fail(str(self._channel.ending(code, words)))

    def _on_node_end(self, node: str, ending: Ending) -> None:
        ask = self._asks.get(node)
        if ask is not None and self._switchboard.is_open(ask):
            self._switchboard.deliver(ask, Message("error", error=str(ending)))

    def _fail(self, reason: str) -> None:
        for ask in self._asks.values():
            if self._switchboard.is_open(ask):
                self._switchboard.deliver(ask, Message("error", error=reason))
