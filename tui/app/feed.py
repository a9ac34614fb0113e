"""From the session to the screen: a daemon thread that turns changes into pictures, a few a second."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from textual.message import Message

from mltop.probes.model import Finding, KernelEvent
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.health_watch import HealthWatch
from mltop.tui.app.mishaps import spared
from mltop.tui.app.session import Session
from mltop.tui.render.findings import state_findings

SETTLING_S = 15.0  # of a node that has just answered for the first time: pauses mean nothing yet
AWAKE_S = 3.0  # mltop itself has run for as long, else nobody could have heard the node
HEARTBEAT_S = 1.5  # a node that went silent causes no change, but its age grows
SWITCH_S = 0.0005  # while the feed computes, a key waits for the interpreter lock at most this long, not 5 ms
# (up to how many nodes, seconds between frames): many answer at different moments, their changes are drawn together.
FRAMES = ((4, 0.1), (64, 0.5), (math.inf, 1.0))


@dataclass(frozen=True)
class Picture:
    """One moment, ready to draw: what is known and what is wrong with it.

    ``findings``: of several nodes also that one does not answer. ``not_judged``: nodes of which there is a sample that
    the health rules had no time for yet: that nothing is found of them means nothing. ``ended``: findings that are
    over since less than an hour, the newest first; ``events``: what the nodes' kernels reported, with the node.
    """

    view: FleetView
    findings: tuple[Finding, ...] = ()
    not_judged: frozenset[str] = frozenset()
    ended: tuple[Finding, ...] = ()
    events: tuple[tuple[str, KernelEvent], ...] = ()


class Fresh(Message):
    """The newest picture; of several that wait, only the last is handled."""

    def __init__(self, picture: Picture) -> None:
        super().__init__()
        self.picture = picture

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Fresh)


class StateWatch:
    """Adds the nodes that do not answer to what the health rules found; call it from one thread.

    The same tuple comes out while nothing changes, so that nobody works it through again. ``clock``: monotonic s.

    A pause between two samples is no problem of the node while it starts or while mltop itself does: agents load
    their libraries, a hundred connections are made at once. Nor is one in which mltop did not run (ctrl-Z, a lid).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = self._awake_since = clock()
        self._answered_at: dict[str, float] = {}  # when a node's first sample was seen
        self._made: dict[tuple[str, str, str], Finding] = {}
        self._health: tuple[Finding, ...] = ()
        self._findings: tuple[Finding, ...] = ()

    def with_states(self, view: FleetView, health: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """A single node's state is on its screen already."""
        self._look(view)
        if len(view.nodes) < 2:
            return health
        # A finding keeps its ``since``: ages are rounded by when the view was taken.
        made = {
            (one.node, one.id, one.message): self._made.get((one.node, one.id, one.message), one)
            for one in state_findings(self._told(view), view.taken_at)
        }
        if health is not self._health or made.keys() != self._made.keys():
            self._findings = (*made.values(), *health)
        self._made, self._health = made, health
        return self._findings

    def _look(self, view: FleetView) -> None:
        now = self._clock()
        if now - self._looked_at > HEARTBEAT_S + AWAKE_S:
            self._awake_since = now
        self._looked_at = now
        answered = (one.node for one in view.nodes if one.state.age_s is not None)
        self._answered_at = {node: self._answered_at.get(node, now) for node in answered}

    def _told(self, view: FleetView) -> Iterator[NodeView]:
        """All but nodes that are silent only since they, or mltop, began."""
        awake_s = self._looked_at - self._awake_since
        for one in view.nodes:
            if one.state.state == "stale":
                silent_s = min(one.state.age_s or 0.0, awake_s)
                if silent_s < (AWAKE_S if self._has_settled(one.node) else SETTLING_S):
                    continue
            yield one

    def _has_settled(self, node: str) -> bool:
        return self._looked_at - self._answered_at.get(node, self._looked_at) >= SETTLING_S


class Feed:
    """Takes views outside the UI loop. Health rules import and run here, so they never delay a key."""

    def __init__(self, session: Session, post: Callable[[Message], object]) -> None:
        self._session = session
        self._post = post
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._health = HealthWatch()
        self._states = StateWatch()
        self._judged: tuple[Finding, ...] = ()

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._session.subscribe(self._changed.set)
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._changed.set()

    def poke(self) -> None:
        """Take a view now, as if something had changed."""
        self._changed.set()

    def _run(self) -> None:
        before: list[NodeView] = []
        nodes = 1
        while not self._stopped.is_set():
            self._changed.clear()
            picture = spared("taking a view", self._picture, None)
            if picture is not None:
                nodes = len(picture.view.nodes)
                self._post(Fresh(picture))
            if self._stopped.wait(frame_s(nodes)):
                return
            # By now the screen shows this picture. Freeing the samples of the one before takes a while: here it
            # delays no key.
            while before:
                before.pop()
            before = list(picture.view.nodes) if picture is not None else []
            del picture
            self._changed.wait(HEARTBEAT_S)

    def _picture(self) -> Picture:
        view = self._session.view()
        self._judged = spared("the health rules", lambda: self._health.findings(view), self._judged)
        findings = spared("the nodes' states", lambda: self._states.with_states(view, self._judged), self._judged)
        return Picture(view, findings, self._health.not_judged(), self._health.ended(), self._health.events())


def frame_s(nodes: int) -> float:
    """How long a picture stands at least."""
    return next(seconds for most, seconds in FRAMES if nodes <= most)
