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
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.requests import Pending


@dataclass
class Context:
    """One probe run. ``nodes``: those that are asked, in order; ``key``: names this run on every node; ``say``: tells
    the user in one line what happens now.
    """

    hub: Hub
    wanted: ProbeWanted
    nodes: tuple[str, ...]
    stop: Stop
    key: str
    say: Callable[[str], None]
    board: Board = field(init=False)

    def __post_init__(self) -> None:
        self.board = Board(self.wanted.kind)

    def args(self, options: dict[str, object]) -> dict[str, object]:
        """The arguments of the request "probe"."""
        return {
            "key": self.key,
            "kind": self.wanted.row.child,
            "gpus": list(self.wanted.gpus),
            "force": self.wanted.force,
            "python": self.wanted.python,
            "trust_python": self.wanted.trust_python,
            "options": options,
            "total_s": self.stop.deadline_s,
        }


WAIT_S = 0.02
END_S = 4.0  # for what was cancelled to be gone: SIGTERM, 2 s, SIGKILL

OnEvent = Callable[[str, ProbeEvent], None]
OnEnd = Callable[[str, str, str], None]  # node, why ("" when it ended by itself), fix


class NodeRequests:
    """Requests to several nodes, one to each: all that comes goes to one function.

    ``on_end`` is called once for every node whose request is over.
    """

    def __init__(self, context: Context, on_event: OnEvent, on_end: OnEnd) -> None:
        self._context, self._on_event, self._on_end = context, on_event, on_end
        self._pending: Pending | None = None
        self._open: set[str] = set()

    @property
    def open_nodes(self) -> set[str]:
        """The nodes whose last frame was not read yet."""
        return set(self._open)

    def ask(self, options: dict[str, object], nodes: Iterable[str]) -> None:
        """Starts the probe on these nodes; ``options`` are those of its kind."""
        names = tuple(nodes)
        if names:
            args = self._context.args(options)
            self._pending = self._context.hub.request("probe", args, names, self._pending)
            self._open.update(names)

    def tell(self, line: dict[str, object], nodes: Iterable[str]) -> None:
        """Writes a line to the stdin of the running probe, whose next events show whether it was taken."""
        names = tuple(nodes)
        if names:
            self._context.hub.request("probe_tell", {"key": self._context.key, "line": line}, names)

    def step(self) -> None:
        """Takes in what has come; returns within a fraction of a second."""
        if self._pending is None or not self._open:
            time.sleep(WAIT_S)
            return
        for answer in self._pending.answers(WAIT_S):
            self._take(answer.node, answer.message)

    def cancel(self, most_s: float) -> None:
        """Ends them, and takes in their last words for at most ``most_s``."""
        if self._pending is not None:
            self._pending.cancel()
        until = time.monotonic() + most_s
        while self._open and time.monotonic() < until:
            self.step()

    def _take(self, node: str, message: Message) -> None:
        if node not in self._open:
            return  # its words could not be read before: it takes no part any more
        if message.kind == "part":
            try:
                event = event_of(message.data)
                if event is not None:
                    self._on_event(node, event)
            except Exception as error:  # noqa: BLE001 - what a node says costs itself, not the others' probe
                self._open.discard(node)
                why = f"what it says of its probe cannot be read: {type(error).__name__}: {error}"
                self._on_end(node, why, "the same version of mltop on all nodes")
        elif message.kind in ("done", "error"):
            self._open.discard(node)
            why = "" if message.kind == "done" else message.error or "it did not say why"
            self._on_end(node, why, message.fix)
