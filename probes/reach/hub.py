"""Keeps one stream per node alive in one thread; others ask it for a view, the history, or send requests."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from mltop.probes.agent.protocol import Message, Request
from mltop.probes.model import Sample
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.node import NodeRecord, share_of_history
from mltop.probes.reach.pending import Pending
from mltop.probes.reach.stream import Stream
from mltop.probes.reach.view import FleetView, NodeView

STATE_TICK_S = 0.5  # how often ages are looked at when nothing arrives
RESTART_FIRST_S, RESTART_MAX_S = 1.0, 60.0


class Hub:
    """Streams of all channels. Start it once, close it once; every method may be called from any thread."""

    def __init__(self, channels: Sequence[Channel], interval_s: float = 1.0) -> None:
        self._channels = list(channels)
        self._nodes = {node: NodeRecord(node, interval_s) for channel in self._channels for node in channel.nodes}
        self._channel_of = {node: channel for channel in self._channels for node in channel.nodes}
        self._streams: dict[Channel, Stream] = {}
        self._restart_at: dict[Channel, float] = {}
        self._failures: dict[Channel, int] = {}
        self._pending: dict[int, tuple[Pending, str]] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._decoder = msgspec.json.Decoder(Message)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._closing = threading.Event()
        self._serial = 0
        self._told: list[str] = []  # the nodes' states at the last notification
        self._thread = threading.Thread(target=self._run, name="mltop-hub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """``listener`` runs in the hub's thread after every change; it must be quick."""
        self._listeners.append(listener)

    def view(self) -> FleetView:
        now = time.monotonic()
        with self._lock:
            return FleetView(time.time(), tuple(node.view(now) for node in self._nodes.values()), self._serial)

    def node(self, name: str) -> NodeView:
        with self._lock:
            return self._nodes[name].view(time.monotonic())

    def history(self, node: str, after: float = 0.0, until: float = math.inf) -> list[Sample]:
        """The samples of the last minutes, oldest first, received ``after`` and up to ``until`` (monotonic s)."""
        with self._lock:
            payloads = [payload for at, payload in self._nodes[node].history if after < at <= until]
        samples = (self._decoder.decode(payload).sample for payload in payloads)
        return [sample for sample in samples if sample is not None]

    def request(self, op: str, args: dict[str, object] | None = None, nodes: Iterable[str] = ()) -> Pending:
        """Ask these nodes (none given: all); the answers come through the returned Pending."""
        wanted = tuple(nodes) or tuple(self._nodes)
        ids: list[tuple[int, str]] = []
        pending = Pending(wanted, lambda: self._cancel(ids))
        for node in wanted:
            request_id = next(self._ids)
            ids.append((request_id, node))
            with self._lock:
                self._pending[request_id] = (pending, node)
            stream = self._stream_of(node)
            request = Request("request", id=request_id, op=op, node=node, args=dict(args or {}))
            if stream is None or not stream.send(request):
                self._finish(request_id, Message("error", error=self._why_unreachable(node)))
        return pending

    def close(self) -> None:
        """End every agent; returns within about a second."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(2.5)

    # Below: the hub's own thread.

    def _run(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        for channel in self._channels:
            self._open(channel)
        while not self._closing.is_set():
            changed = False
            for key, _ in self._selector.select(STATE_TICK_S):
                if key.data is None:
                    os.read(self._wake_read, 4096)
                else:
                    changed |= self._read(*key.data)
            self._restart_due()
            self._notify(changed)
        streams = list(self._streams.values())
        for stream in streams:
            self._forget(stream)
        enders = [threading.Thread(target=stream.end, daemon=True) for stream in streams]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join(2.0)

    def _open(self, channel: Channel) -> None:
        try:
            stream = Stream(channel)
        except OSError as error:
            self._lost(channel, f"cannot start {channel.argv[0]}: {error.strerror or error}")
            return
        self._streams[channel] = stream
        self._selector.register(stream.stdout_fd, selectors.EVENT_READ, (stream, True))
        self._selector.register(stream.stderr_fd, selectors.EVENT_READ, (stream, False))

    def _read(self, stream: Stream, is_stdout: bool) -> bool:
        if not is_stdout:
            if not stream.read_stderr():
                self._selector.unregister(stream.stderr_fd)
            return False
        payloads = stream.read_frames()
        if payloads is None:
            self._ended(stream)
            return True
        for payload in payloads:
            self._take(stream, payload)
        return bool(payloads)

    def _take(self, stream: Stream, payload: bytes) -> None:
        try:
            message = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            self._note(stream, f"its frames are of another version: {error}")
            return
        node = message.node if message.node in self._nodes else stream.channel.nodes[0]
        if message.sample is not None:
            message.sample.node = node
            self._failures.pop(stream.channel, None)
            with self._lock:
                self._serial += 1
                self._nodes[node].take(message.sample, payload, time.monotonic(), share_of_history(len(self._nodes)))
        elif message.kind in ("part", "done", "error"):
            self._answer(message, node)

    def _answer(self, message: Message, node: str) -> None:
        if message.stacks is not None:
            message.stacks.node = node
            for digest in message.stacks.digests:
                digest.node = node
        if message.kind == "part":
            with self._lock:
                entry = self._pending.get(message.id)
            if entry is not None:
                entry[0].put(entry[1], message)
        else:
            self._finish(message.id, message)

    def _ended(self, stream: Stream) -> None:
        stream.read_stderr()
        self._forget(stream)
        self._streams.pop(stream.channel, None)
        stream.end(grace_s=0.2)
        code = stream.process.returncode
        words = stream.last_words()
        self._lost(stream.channel, f"the agent ended ({exit_words(code)})" + (f": {words}" if words else ""))

    def _lost(self, channel: Channel, reason: str) -> None:
        failures = self._failures.get(channel, 0)
        self._failures[channel] = failures + 1
        self._restart_at[channel] = time.monotonic() + min(RESTART_MAX_S, RESTART_FIRST_S * 2**failures)
        with self._lock:
            self._serial += 1
            for node in channel.nodes:
                self._nodes[node].ended, self._nodes[node].reason = True, reason
            waiting = [(i, node) for i, (_, node) in self._pending.items() if node in channel.nodes]
        for request_id, _ in waiting:
            self._finish(request_id, Message("error", error=reason))

    def _restart_due(self) -> None:
        now = time.monotonic()
        for channel in [channel for channel, at in self._restart_at.items() if at <= now]:
            del self._restart_at[channel]
            self._open(channel)

    def _notify(self, changed: bool) -> None:
        now = time.monotonic()
        states = [node.state(now).state for node in self._nodes.values()]
        if changed or states != self._told:
            self._told = states
            for listener in self._listeners:
                listener()

    def _note(self, stream: Stream, reason: str) -> None:
        with self._lock:
            for node in stream.channel.nodes:
                self._nodes[node].reason = reason

    def _forget(self, stream: Stream) -> None:
        for fd in (stream.stdout_fd, stream.stderr_fd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(fd)

    def _finish(self, request_id: int, message: Message) -> None:
        with self._lock:
            entry = self._pending.pop(request_id, None)
        if entry is not None:
            entry[0].put(entry[1], message)

    def _cancel(self, ids: list[tuple[int, str]]) -> None:
        for request_id, node in ids:
            stream = self._stream_of(node)
            if stream is not None:
                stream.send(Request("cancel", id=request_id, node=node))

    def _stream_of(self, node: str) -> Stream | None:
        return self._streams.get(self._channel_of[node])

    def _why_unreachable(self, node: str) -> str:
        state = self.node(node).state
        return state.reason or f"{state.state}, does not take requests"

    def _wake(self) -> None:
        os.write(self._wake_write, b"x")


def exit_words(code: int | None) -> str:
    """A process's end in words: "exit code 1", "killed by signal 9"."""
    if code is None:
        return "closed its output"
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
