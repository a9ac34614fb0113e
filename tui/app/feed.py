"""From the session to the screen: a daemon thread that turns changes into pictures, a few a second.

A picture has what the health rules find wrong: they run here, within a share of a core, and so never delay a key.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING

from mltop.probes.model import Finding, KernelEvent, Sample
from mltop.probes.model.vocabulary import gravity
from mltop.probes.reach.view import FleetView, NodeView, SampleSummary
from mltop.probes.system.paths import proc
from mltop.tui.render.findings import state_findings
from mltop.tui.render.guarded import guarded

if TYPE_CHECKING:
    from mltop.probes.judge.health import Health
    from mltop.tui.app.session import Session

SETTLING_S = 15.0  # of a node that has just answered for the first time: pauses mean nothing yet
AWAKE_S = 3.0  # mltop itself has run for as long, else nobody could have heard the node
HEARTBEAT_S = 1.5  # a node that went silent causes no change, but its age grows
SWITCH_S = 0.0005  # while the feed computes, a key waits for the interpreter lock at most this long, not 5 ms
# (up to how many nodes, seconds between frames): many answer at different moments, their changes are drawn together.
FRAMES = ((4, 0.1), (64, 0.5), (math.inf, 1.0))
MOST_OF_A_CORE = 0.03
BURST_S = 2.0  # of work saved up at most: a whole fleet that has just connected is judged within seconds …
EVENTS_S = 24 * 3600.0
ONE_CALL_S = 0.4  # … but the picture does not wait for all of it


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
        """Returns the findings, of several nodes also those of their states: one node's is on its screen already."""
        self._look(view)
        if len(view.nodes) < 2:
            return health
        # A finding keeps its ``since``: ages are rounded by when the view was taken.
        made: dict[tuple[str, str, str], Finding] = {}
        for finding in state_findings([node for node in view.nodes if not self._is_starting(node)], view.taken_at):
            key = finding.node, finding.id, finding.message
            made[key] = self._made.get(key, finding)
        if health is not self._health or made.keys() != self._made.keys():
            self._findings = (*made.values(), *health)
        self._made, self._health = made, health
        return self._findings

    def _look(self, view: FleetView) -> None:
        now = self._clock()
        if now - self._looked_at > HEARTBEAT_S + AWAKE_S:
            self._awake_since = now
        self._looked_at = now
        answered = (node.node for node in view.nodes if node.state.age_s is not None)
        self._answered_at = {node: self._answered_at.get(node, now) for node in answered}

    def _is_starting(self, node: NodeView) -> bool:
        """Whether a node is silent only since it, or mltop, began."""
        silent_s = min(node.state.age_s or 0.0, self._looked_at - self._awake_since)
        known_s = self._looked_at - self._answered_at.get(node.node, self._looked_at)
        return node.state.state == "stale" and silent_s < (AWAKE_S if known_s >= SETTLING_S else SETTLING_S)


@dataclass
class _Turn:
    """``judged_at``: the time of the newest sample that the rules have seen, ``gpu_states``: its GPUs'."""

    judged_at: float = 0.0
    gpu_states: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    events: tuple[KernelEvent, ...] = ()


class HealthWatch:
    """Call ``findings`` with every view, from one thread.

    The nodes take turns: first those with a GPU that is in another state than when the node was judged, then those
    judged longest ago, as many as the time saved up allows. A rule that has to hold for a while is looked at less
    often on a large fleet, and fires as late as its node's next turn. ``clock``: monotonic, s.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._health: Health | None = None
        self.ended: tuple[Finding, ...] = ()  # findings that are over since less than an hour, the newest first
        self.events: tuple[tuple[str, KernelEvent], ...] = ()  # of the last 24 hours, with the node's name
        self._no_lemons = ""  # why the list cannot be read
        self._turns: dict[str, _Turn] = {}
        self._of_jobs: tuple[Finding, ...] = ()
        self._firing: tuple[Finding, ...] = ()
        self._allowed_s = BURST_S
        self._asked_at = clock()

    def findings(self, view: FleetView) -> tuple[Finding, ...]:
        """All findings that hold now, the gravest first; the same tuple as before when nothing changed."""
        health = self._health = self._health or self._begin()
        self._save_up()
        changed = self._forget(health, {node.node for node in view.nodes})
        least_s = max(0.0, self._allowed_s - ONE_CALL_S)
        for node in self._due(view):
            if self._allowed_s <= least_s:
                break
            began = time.thread_time()  # what others do meanwhile is not this thread's share
            newest = node.sample_in_turn()
            if newest is not None:
                take_skew(node, newest)
                judge = partial(self._judge, health, node.node, newest)
                changed = guarded(f"judging {node.node}", judge, False) or changed
            self._allowed_s -= time.thread_time() - began
        lemons_unsaid = bool(self._no_lemons) and not self._firing
        if changed or lemons_unsaid or health.of_jobs() is not self._of_jobs:
            self._of_jobs = health.of_jobs()
            self._gather()
        return self._firing

    def not_judged(self) -> frozenset[str]:
        """The nodes of the last view that have a sample, of which the rules have seen none so far."""
        return frozenset([name for name, turn in self._turns.items() if not turn.judged_at])

    def _begin(self) -> Health:
        """Imported here: in the feed's thread, so that loading the rules delays no key."""
        from mltop.probes.judge.health import Expectations, Health
        from mltop.tui.state import BadState
        from mltop.tui.state.lists import known_lemons

        try:
            lemons = known_lemons()
        except BadState as problem:
            lemons, self._no_lemons = {}, str(problem)
        return Health(Expectations(lemons=lemons), eager=True)

    def _not_judged_because(self, name: str, error: Exception, now: float) -> tuple[Finding, ...]:
        from mltop.probes.judge.health import FAILED

        text = f"this node cannot be judged: {type(error).__name__}: {error}"
        before = self._turns[name].findings
        again = tuple(finding for finding in before if (finding.id, finding.message) == (FAILED, text))
        return again or (Finding(FAILED, "warning", name, "health rules", text, "please report this", since=now),)

    def _without_lemons(self) -> list[Finding]:
        """That the list of bad GPUs cannot be used is a finding of the first node."""
        if not self._no_lemons or not self._turns:
            return []
        text = f"known bad GPUs cannot be told: {self._no_lemons}"
        return [Finding("state.lemons", "warning", next(iter(self._turns)), "lemon list", text, "mltop lemon")]

    def _gather(self) -> None:
        findings = [finding for turn in self._turns.values() for finding in turn.findings]
        findings += [*self._of_jobs, *self._without_lemons()]
        self.events = tuple((name, event) for name, turn in self._turns.items() for event in turn.events)
        self._firing = tuple(sorted([finding for finding in findings if finding.until is None], key=_gravest_first))
        ended = [finding for finding in findings if finding.until is not None]
        self.ended = tuple(sorted(ended, key=lambda finding: -(finding.until or 0.0)))

    def _save_up(self) -> None:
        now = self._clock()
        self._allowed_s = min(BURST_S, self._allowed_s + (now - self._asked_at) * MOST_OF_A_CORE)
        self._asked_at = now

    def _forget(self, health: Health, present: set[str]) -> bool:
        """Drop nodes that are not ``present``; True when one of them had findings or events."""
        gone = {name: self._turns.pop(name) for name in self._turns.keys() - present}
        for name in gone:
            health.forget(name)
        return any(turn.findings or turn.events for turn in gone.values())

    def _due(self, view: FleetView) -> list[NodeView]:
        """The nodes with a sample not yet judged, in the order of their turns."""
        due: list[tuple[bool, float, NodeView]] = []
        for node in view.nodes:
            if (summary := node.summary) is None:
                continue
            turn = self._turns.setdefault(node.node, _Turn())
            if summary.sampled_at != turn.judged_at:
                due.append((not _other_states(turn, summary), turn.judged_at, node))
        return [node for _, _, node in sorted(due, key=itemgetter(0, 1))]

    def _judge(self, health: Health, name: str, newest: Sample) -> bool:
        """Judge a node anew; returns whether its findings or events are others than before."""
        turn = self._turns[name]
        try:
            health.see(newest)
            findings = health.of(name)
            events = tuple([event for event in newest.kernel_events if event.at > newest.sampled_at - EVENTS_S])
        except Exception as error:  # noqa: BLE001 - said as a finding, and the other nodes' rules go on
            findings, events = self._not_judged_because(name, error, newest.sampled_at), turn.events
        turn.judged_at = newest.sampled_at
        turn.gpu_states = tuple([gpu.state for gpu in newest.gpus])
        changed = findings != turn.findings or events != turn.events
        turn.findings, turn.events = findings, events
        return changed


def take_skew(view: NodeView, sample: Sample) -> None:
    """Tell the rules how far off the node's clock is. This machine's own clock cannot be off: what is seen of it is how
    long its samples took.
    """
    is_ours = view.connection.via == "local" or (sample.boot_id != "" and sample.boot_id == own_boot_id())
    sample.clock_skew_s = None if is_ours else view.connection.clock_skew_s


@lru_cache(maxsize=1)
def own_boot_id() -> str:
    try:
        with open(proc("sys/kernel/random/boot_id"), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _other_states(turn: _Turn, summary: SampleSummary) -> bool:
    """Whether a GPU is in another state than when the node was judged; at first: whether one is not well."""
    now = [gpu.state for gpu in summary.gpus]
    return list(turn.gpu_states) != now if turn.judged_at else any(state != "ok" for state in now)


def _gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    return gravity(finding.severity), finding.node, finding.subject, finding.id


class Feed:
    """Takes views outside the UI loop and has them judged there, so that neither delays a key."""

    def __init__(self, session: Session, post: Callable[[Picture], object]) -> None:
        self._session = session
        self._post = post
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._health = HealthWatch()
        self._states = StateWatch()
        self._judged: tuple[Finding, ...] = ()  # by the health rules, when they last did not fail

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
            picture = guarded("taking a view", self._picture, None)
            if picture is not None:
                nodes = len(picture.view.nodes)
                self._post(picture)
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
        self._judged = guarded("the health rules", lambda: self._health.findings(view), self._judged)
        findings = guarded("the nodes' states", lambda: self._states.with_states(view, self._judged), self._judged)
        return Picture(view, findings, self._health.not_judged(), self._health.ended, self._health.events)


def frame_s(nodes: int) -> float:
    """How long a picture stands at least, in seconds."""
    return next(seconds for most, seconds in FRAMES if nodes <= most)
