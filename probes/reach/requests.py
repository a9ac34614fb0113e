"""Requests to nodes: which answer belongs to which, who waits for a node's hello, processes that carry one request."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from mltop.probes.agent.protocol import Message, Request, encode
from mltop.probes.model.evidence.records import admit_records
from mltop.probes.model.receipt import MOST_RANKS, Refused, admit_stacks, admit_told, said
from mltop.probes.model.text import plain_text
from mltop.probes.model.units import duration_words, size_words
from mltop.probes.reach.channel import Channel, Ending
from mltop.probes.reach.receiving import UNREADABLE
from mltop.probes.reach.records import Records
from mltop.probes.reach.stream import Misnamed, Reaper, Stream
from mltop.probes.reach.uploads import Files

MOST_ERROR = 800  # characters: it may be why a node was lost, and what would fix that
# Of one node's answer to one request. A round of stacks of 8 ranks with py-spy's own JSON has 2 MB; a probe tells of
# every second of its run.
MOST_ANSWER_BYTES = 64 * 1024 * 1024
MOST_PARTS = 32_768
ONE_SHOT_SILENCE_S = 60.0  # without any frame; whoever asked has usually cancelled long before
OF_RUNNING_AGENTS = frozenset(("history",))  # what a process that is started to answer it does not have


@dataclass(frozen=True)
class Answer:
    """One frame of an answer, and the node that sent it. ``size_bytes``: of its JSON, 0 for one of our own."""

    node: str
    message: Message
    size_bytes: int = 0


class Pending:
    """The answers of ``nodes`` to what they were asked. ``open_nodes``: whose last answer has not been read yet."""

    def __init__(self, nodes: Iterable[str], cancel: Callable[[], None]) -> None:
        self._queue: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._open = set(nodes)
        self._unfinished = set(self._open)  # in the hub: what it has said may not have been read yet
        self._lock = threading.Lock()
        self.cancel = cancel

    def expect(self, nodes: Iterable[str]) -> None:
        """These nodes are asked, too, or something more."""
        with self._lock:
            names = tuple(nodes)
            self._open.update(names)
            self._unfinished.update(names)

    def put(self, node: str, message: Message, size_bytes: int = 0) -> None:
        """Called by the hub's thread. The node's own words, error and fix, are made fit for a terminal."""
        message.error, message.fix = plain_text(message.error, MOST_ERROR), plain_text(message.fix)
        if message.kind in ("done", "error"):
            with self._lock:
                self._unfinished.discard(node)
        self._queue.put(Answer(node, message, size_bytes))

    def fail_all(self, reason: str) -> None:
        """Ends the wait for every open node."""
        with self._lock:
            unfinished = sorted(self._unfinished)
        for node in unfinished:
            self.put(node, Message("error", node=node, error=reason))

    @property
    def open_nodes(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._open))

    def answers(self, timeout_s: float) -> Iterator[Answer]:
        """Yields answers until every node has finished or nothing came for ``timeout_s``. Their data is plain text and
        possible numbers.
        """
        while True:
            try:
                answer = self._queue.get(timeout=timeout_s if self._open else 0.0)
            except queue.Empty:
                return
            try:
                answer.message.data = admit_told(answer.message.data)
            except (Refused, RecursionError) as why:
                answer = replace(answer, message=Message("error", error=f"its answer is refused: {why}"))
            if answer.message.kind in ("done", "error"):
                with self._lock:
                    self._open.discard(answer.node)
            yield answer


@dataclass
class NodeRequest:
    """One request to one node. ``sent`` False: it waits for the node's hello. ``parts``, ``bytes``: received so far."""

    id: int
    node: str
    pending: Pending
    op: str
    args: dict[str, Any]
    sent: bool = False
    one_shot: OneShot | None = None
    parts: int = 0
    bytes: int = 0

    def request(self) -> Request:
        return Request("request", id=self.id, op=self.op, node=self.node, args=self.args)

    def admit(self, message: Message) -> None:
        """Brings a frame of the answer within bounds. Raises Refused."""
        if self.parts > MOST_PARTS or self.bytes > MOST_ANSWER_BYTES:
            raise Refused(f"{self.parts} parts of {size_words(self.bytes)} in all, and no end")
        if message.stacks is not None:
            admit_stacks(message.stacks)
            message.stacks.node = self.node
            for digest in message.stacks.digests:
                digest.node = self.node
        if message.records is not None:
            admit_records(message.records)
            message.records.node = self.node
        if message.expected is not None and not 0 <= message.expected <= MOST_RANKS:
            raise Refused(f"it expects {said(message.expected)} parts")


class NodeLink(Protocol):
    """A link, as far as requests need it (a link needs them, too)."""

    channel: Channel

    def is_ready(self, node: str) -> bool: ...
    def send(self, data: bytes) -> None: ...


@dataclass
class Requests:
    """All requests that are on their way, in the hub's thread."""

    records: Records
    files: Files
    reaper: Reaper
    link_of: Mapping[str, NodeLink]
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _asks: dict[int, NodeRequest] = field(default_factory=dict)
    _of_node: dict[str, set[int]] = field(default_factory=dict)
    _one_shots: list[OneShot] = field(default_factory=list)

    @property
    def is_busy(self) -> bool:
        return bool(self._asks)

    def ask(self, pending: Pending, nodes: Iterable[str], op: str, args: dict[str, Any]) -> None:
        """Sends one request to each of these nodes, now or when it is ready."""
        apart: dict[Channel, list[NodeRequest]] = {}
        for node in nodes:
            ask = NodeRequest(next(self._ids), node, pending, op, dict(args))
            self._asks[ask.id] = ask
            self._of_node.setdefault(node, set()).add(ask.id)
            if self.records.phase(node) in ("lost", "refused"):
                self.fail(ask, self.records.reason(node))
                continue
            channel = self.link_of[node].channel
            if channel.takes_requests:
                self._send(ask)
            elif channel.one_shot is None or op in OF_RUNNING_AGENTS:
                self.fail(ask, f"{channel.via} carries no requests to the nodes")
            else:
                apart.setdefault(channel, []).append(ask)
        for channel, asks in apart.items():
            self._ask_apart(channel, asks)

    def node_ready(self, node: str) -> None:
        """Sends what waits for the node: its agent said hello."""
        for number in tuple(self._of_node.get(node, ())):
            if not self._asks[number].sent:
                self._send(self._asks[number])

    def node_lost(self, node: str, reason: str) -> None:
        """Fails everything that the node was asked over its link."""
        for number in tuple(self._of_node.get(node, ())):
            if self._asks[number].one_shot is None:
                self.fail(self._asks[number], reason)

    def answer(self, node: str, message: Message, size_bytes: int = 0) -> None:
        """Takes in a part, done or error frame that came from ``node``."""
        ask = self._asks.get(message.id)
        if ask is not None and ask.node == node:
            self.deliver(ask, message, size_bytes)

    def deliver(self, ask: NodeRequest, message: Message, size_bytes: int = 0) -> None:
        ask.parts, ask.bytes = ask.parts + 1, ask.bytes + size_bytes
        try:
            ask.admit(message)
        except Refused as why:  # what else it answers is not looked at
            self._end(ask)
            self.fail(ask, f"its answer is refused: {why}")
            return
        if message.kind == "part":
            ask.pending.put(ask.node, message, size_bytes)
        else:
            self._finish(ask, message, size_bytes)

    def cancel(self, pending: Pending) -> None:
        for ask in [ask for ask in self._asks.values() if ask.pending is pending]:
            if ask.one_shot is not None or not ask.sent:
                self.fail(ask, "cancelled")
                if ask.one_shot is not None:
                    ask.one_shot.end()
            else:
                self._end(ask)

    def fail(self, ask: NodeRequest, reason: str) -> None:
        self._finish(ask, Message("error", error=reason))

    def is_open(self, ask: NodeRequest) -> bool:
        return ask.id in self._asks

    def tick(self, now: float) -> None:
        """Looks at deadlines; called a few times a second."""
        for one_shot in self._one_shots:
            one_shot.tick(now)
        self._one_shots = [one_shot for one_shot in self._one_shots if not one_shot.ended]

    def end_all(self, reason: str) -> None:
        for ask in tuple(self._asks.values()):
            self.fail(ask, reason)
        for one_shot in self._one_shots:
            one_shot.end()

    def _end(self, ask: NodeRequest) -> None:
        """Asks the node to end what it does for this request. A one-shot process may serve other nodes, too."""
        if ask.one_shot is None and self.link_of[ask.node].is_ready(ask.node):
            self.link_of[ask.node].send(encode(Request("cancel", id=ask.id, node=ask.node)))

    def _send(self, ask: NodeRequest) -> None:
        """Sends a request now, or leaves it until the node is ready."""
        link = self.link_of[ask.node]
        if not link.is_ready(ask.node):
            return
        ask.sent = True
        boot = self.records.connection(ask.node).boot
        if ask.op == "stacks" and boot is not None:  # its agent has no py-spy but what we send
            self.files.py_spy_sha256(boot.machine, lambda sha256: self._send_stacks(ask, link, sha256))
        else:
            link.send(encode(ask.request()))

    def _send_stacks(self, ask: NodeRequest, link: NodeLink, py_spy_sha256: str | Exception) -> None:
        if isinstance(py_spy_sha256, Exception):
            self.fail(ask, f"cannot look for py-spy here: {py_spy_sha256}")
        elif self.is_open(ask) and self.link_of[ask.node] is link and link.is_ready(ask.node):
            ask.args["py_spy"] = py_spy_sha256
            link.send(encode(ask.request()))

    def _ask_apart(self, channel: Channel, asks: list[NodeRequest]) -> None:
        """Asks by a process of its own, which carries the answers and then ends."""
        assert channel.one_shot is not None
        by_node = {ask.node: ask for ask in asks}
        one_shot = OneShot(channel.one_shot(tuple(by_node), replace(asks[0].request(), node="")), by_node, self)
        self._one_shots.append(one_shot)
        for ask in asks:
            ask.sent, ask.one_shot = True, one_shot

    def _finish(self, ask: NodeRequest, message: Message, size_bytes: int = 0) -> None:
        if self._asks.pop(ask.id, None) is not None:
            self._of_node[ask.node].discard(ask.id)
            ask.pending.put(ask.node, message, size_bytes)


class OneShot:
    """A process that carries the answers to ``asks`` (by node) and then ends: those without one get the reason then."""

    def __init__(self, channel: Channel, asks: dict[str, NodeRequest], requests: Requests) -> None:
        self._asks, self._requests = asks, requests
        self._messages = msgspec.json.Decoder(Message)
        self._heard_at = time.monotonic()
        self.ended = False
        self._stream: Stream | None = None
        try:
            self._stream = Stream(
                channel, requests.reaper, on_frame=self._take, on_end=self._on_end, on_node_end=self._on_node_end
            )
        except OSError as error:
            self.ended = True
            self._fail(f"cannot start {channel.argv[0]}: {error.strerror or error}")

    def end(self) -> None:
        if self._stream is not None:
            self._stream.end()

    def tick(self, now: float) -> None:
        if now - self._heard_at > ONE_SHOT_SILENCE_S:
            self._fail(f"no answer within {duration_words(ONE_SHOT_SILENCE_S)}")
            self.end()

    def _take(self, payload: bytes, label: str) -> None:
        try:
            message = self._messages.decode(payload)
            assert self._stream is not None
            node = self._stream.node_of(label, message.node, self._asks)
        except UNREADABLE:
            return
        except Misnamed as forged:
            self._on_node_end(forged.node, Ending(f"{forged}: refused"))
            return
        self._heard_at = time.monotonic()
        if (
            node is None
            or message.kind not in ("part", "done", "error")
            or not self._requests.is_open(self._asks[node])
        ):
            return
        self._requests.deliver(self._asks[node], message, len(payload))
        if not any(self._requests.is_open(ask) for ask in self._asks.values()):
            self.end()

    def _on_end(self, code: int | None) -> None:
        assert self._stream is not None
        self.ended = True
        self._fail(str(self._stream.channel.ending(code, self._stream.last_output())))

    def _on_node_end(self, node: str, ending: Ending) -> None:
        if node in self._asks:
            self._requests.fail(self._asks[node], str(ending))

    def _fail(self, reason: str) -> None:
        for ask in self._asks.values():
            self._requests.fail(ask, reason)
