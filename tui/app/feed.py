"""From the session to the screen: a daemon thread that turns changes into pictures, a few a second.

A picture has what the health rules find wrong: they run here, within a share of a core, and so never delay a key.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

from mltop.probes.judge.states import States
from mltop.probes.model import Finding, Incident, JobMotion, JobReport, KernelEvent, RankDeath
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.judging import HEARTBEAT_S, NO_THRESHOLDS, HealthWatch, StateWatch
from mltop.tui.render.fleet.header import Totals, totals_of
from mltop.tui.render.guarded import guarded

if TYPE_CHECKING:
    from mltop.tui.app.session import Session

SWITCH_S = 0.0005  # while the feed computes, a key waits for the interpreter lock at most this long, not 5 ms
COLLECTED_EVERY_S = 600.0  # cycles among all objects (``session.COLLECT_AFTER``): a pause of 0.4 s at 512 nodes
# (up to how many nodes, seconds between frames): many answer at different moments, their changes are drawn together.
FRAMES = ((4, 0.1), (16, 0.5), (math.inf, 1.0))


@dataclass(frozen=True)
class Picture:
    """One moment, ready to draw: what is known and what is wrong with it.

    ``findings``: of several nodes also that one does not answer. ``not_judged``: nodes of which there is a sample that
    the health rules had no time for yet: that nothing is found of them means nothing. ``ended``: findings that are
    over since less than an hour, the newest first; ``events``: what the nodes' kernels reported, and ends of ranks,
    with the node. ``incidents``: what all of it comes to, the gravest first; ``motions``: how the jobs get on;
    ``states``: what each rank and GPU does; ``reports``: what the newest stacks said, of which that was made.
    """

    view: FleetView
    findings: tuple[Finding, ...] = ()
    not_judged: frozenset[str] = frozenset()
    ended: tuple[Finding, ...] = ()
    events: tuple[tuple[str, KernelEvent | RankDeath], ...] = ()
    incidents: tuple[Incident, ...] = ()
    motions: tuple[JobMotion, ...] = ()
    states: States = field(default_factory=States)
    reports: tuple[JobReport, ...] = ()

    @cached_property
    def totals(self) -> Totals:
        """Of all nodes: for every pane once."""
        return totals_of(self.view)


class Feed:
    """Takes views outside the UI loop and has them judged there, so that neither delays a key."""

    def __init__(
        self,
        session: Session,
        post: Callable[[Picture], object],
        thresholds: Mapping[str, float] = NO_THRESHOLDS,
        keep: Callable[[Picture], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``thresholds``: the user's, of health rules; ``keep`` is given every picture before it is posted. ``clock``:
        monotonic s.
        """
        self._session = session
        self._post, self._keep = post, keep
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self.health = HealthWatch(clock, thresholds=thresholds)
        self._states = StateWatch(clock)
        self._silent: tuple[Finding, ...] = ()  # that nodes do not answer
        self._judged: tuple[Finding, ...] = ()  # by the health rules, when they last did not fail

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._session.subscribe(self._changed.set)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._changed.set()

    def take_stacks(self, reports: Sequence[JobReport]) -> None:
        """What a dump said of the jobs; from any thread."""
        self.health.take_stacks(reports)
        self._changed.set()

    def poke(self) -> None:
        """Take a view now, as if something had changed."""
        self._changed.set()

    def _run(self) -> None:
        before: list[NodeView] = []
        nodes, collected_at = 1, time.monotonic()
        while not self._stopped.is_set():
            self._changed.clear()
            picture = guarded("taking a view", self._picture, None)
            if picture is not None:
                nodes = len(picture.view.nodes)
                guarded("keeping the past", partial(self._keep, picture), None)
                self._post(picture)
            if self._stopped.wait(next(seconds for most, seconds in FRAMES if nodes <= most)):
                return
            # By now the screen shows this picture. Freeing the samples of the one before takes a while: here it
            # delays no key.
            while before:
                before.pop()
            before = list(picture.view.nodes) if picture is not None else []
            del picture
            if time.monotonic() - collected_at > COLLECTED_EVERY_S:
                gc.collect()
                collected_at = time.monotonic()
            self._changed.wait(HEARTBEAT_S)

    def _picture(self) -> Picture:
        picture = self.see(self._session.view())
        guarded("the totals", lambda: picture.totals, None)  # here they delay no key
        return picture

    def see(self, view: FleetView) -> Picture:
        """All that is known once this view has come; from one thread."""
        self._silent = guarded("the nodes' states", lambda: self._states.states(view), self._silent)
        self._judged = guarded("the health rules", lambda: self.health.findings(view, self._silent), self._judged)
        findings = self._states.with_states(self._silent, self._judged)
        health = self.health
        states = guarded("the states of ranks", health.states, States())
        return Picture(
            view,
            findings,
            health.not_judged(),
            health.ended,
            health.events,
            health.incidents,
            health.motions,
            states,
            health.reports,
        )
