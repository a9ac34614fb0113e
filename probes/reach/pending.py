"""A request on its way to several nodes, and their answers as they come."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mltop.probes.agent.protocol import Message
from mltop.probes.model import NodeState
from mltop.probes.model.text import plain_text

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
