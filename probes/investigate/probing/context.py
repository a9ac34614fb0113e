"""What every part of one probe run works with: what is wanted of which nodes, until when, and requests to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mltop.probes.agent.protocol import Message
from mltop.probes.investigate.probing.board import Board, event_of
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.investigate.progress import Stop
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.model.probe_kinds import PROBE_OF
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.requests import Pending


@dataclass
class Setting:
    """``nodes``: those that are asked, in order; ``key``: names this run on every node."""

    hub: Hub
    wanted: ProbeWanted
    nodes: tuple[str, ...]
    stop: Stop
    key: str
    board: Board = field(default_factory=Board)

    def args(self, options: dict[str, object]) -> dict[str, object]:
        """Of the request "probe"."""
        return {
            "key": self.key,
            "kind": PROBE_OF[self.wanted.kind].child,
            "gpus": list(self.wanted.gpus),
            "force": self.wanted.force,
            "python": self.wanted.python,
            "options": options,
            "total_s": self.stop.deadline_s,
        }


WAIT_S = 0.02
END_S = 4.0  # for what was cancelled to be gone: SIGTERM, 2 s, SIGKILL

OnEvent = Callable[[str, ProbeEvent], None]
OnEnd = Callable[[str, str, str], None]  # node, why ("" when it ended by itself), fix


@dataclass
class _Request:
    """``open``: its nodes whose last frame we have not read yet."""

    pending: Pending
    open: set[str]


class Asking:
    """Requests to several nodes: what comes goes to one function, whichever request it answers.

    ``on_end`` is told once of every node whose request is over."""

    def __init__(self, hub: Hub, on_event: OnEvent, on_end: OnEnd) -> None:
        self._hub, self._on_event, self._on_end = hub, on_event, on_end
        self._requests: list[_Request] = []

    @property
    def open_nodes(self) -> set[str]:
        return {node for request in self._requests for node in request.open}

    def ask(self, args: dict[str, object], nodes: Iterable[str]) -> None:
        wanted = tuple(nodes)
        if wanted:
            self._requests.append(_Request(self._hub.request("probe", args, wanted), set(wanted)))

    def tell(self, key: str, line: dict[str, object], nodes: Iterable[str]) -> None:
        """To the stdin of the running probe; whether it was taken shows in what the probe says next."""
        wanted = tuple(nodes)
        if wanted:
            self._hub.request("probe_tell", {"key": key, "line": line}, wanted)

    def step(self) -> None:
        """Take in what has come; returns within a fraction of a second."""
        for number, request in enumerate(self._requests):
            last = number == len(self._requests) - 1
            for answer in request.pending.answers(WAIT_S if last and request.open else 0.0):
                self._take(request, answer.node, answer.message)
        if not self._requests:
            time.sleep(WAIT_S)
        self._requests = [request for request in self._requests if request.open]

    def cancel(self, most_s: float) -> None:
        """End them, and take in their last words for at most ``most_s``."""
        for request in self._requests:
            request.pending.cancel()
        until = time.monotonic() + most_s
        while self._requests and time.monotonic() < until:
            self.step()

    def _take(self, request: _Request, node: str, message: Message) -> None:
        if node not in request.open:
            return  # its words could not be read before: it takes no part any more
        if message.kind == "part":
            try:
                event = event_of(message.data)
                if event is not None:
                    self._on_event(node, event)
            except Exception as error:  # noqa: BLE001 - what a node says costs itself, not the others' probe
                request.open.discard(node)
                why = f"what it says of its probe cannot be read: {type(error).__name__}: {error}"
                self._on_end(node, why, "the same version of mltop on all nodes")
        elif message.kind in ("done", "error"):
            request.open.discard(node)
            why = "" if message.kind == "done" else message.error or "it did not say why"
            self._on_end(node, why, message.fix)
