"""What the feed makes of views: states of nodes, findings, the motion of jobs, incidents. Nothing here draws."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from mltop.probes.investigate.advice import advice_of_rules, with_known_advice
from mltop.probes.judge.states import States, states_of
from mltop.probes.model import Finding, Incident, JobKey, JobMotion, JobReport, KernelEvent, RankDeath, Sample
from mltop.probes.model.vocabulary import gravity
from mltop.probes.reach.view import FleetView, NodeView, Received
from mltop.probes.system.paths import proc
from mltop.tui.render.findings import state_findings
from mltop.tui.render.guarded import guarded

if TYPE_CHECKING:
    from mltop.probes.judge.health.fleet import Health
    from mltop.probes.model.news.judged import Judged

NO_THRESHOLDS: Mapping[str, float] = MappingProxyType({})  # all rules as they are
SETTLING_S = 15.0  # of a node that has just answered for the first time: pauses mean nothing yet
HEARTBEAT_S = 1.5  # a node that went silent causes no change, but its age grows
AWAKE_S = 3.0  # mltop itself has run for as long, else nobody could have heard the node
EVENTS_S = 24 * 3600.0
JOIN_SHARE = 400.0  # between two joins, times what one costs …
HASTY_SHARE = 50.0  # … and when a job has just fallen still, or goes on
# With other nodes, where nothing else has changed than what a row says; and while the node differs from them.
COMPARED_EVERY_S, UNLIKE_COMPARED_EVERY_S = 30.0, 10.0


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
        self._states: tuple[Finding, ...] = ()
        self._both: tuple[tuple[Finding, ...], tuple[Finding, ...]] = ((), ())
        self._findings: tuple[Finding, ...] = ()

    def states(self, view: FleetView) -> tuple[Finding, ...]:
        """That nodes do not answer, where there are several: one node's state is on its screen already."""
        self._look(view)
        if len(view.nodes) < 2:
            return ()
        # A finding keeps its ``since``: ages are rounded by when the view was taken.
        made: dict[tuple[str, str, str], Finding] = {}
        for finding in state_findings([node for node in view.nodes if not self._is_starting(node)], view.taken_at):
            key = finding.node, finding.id, finding.message
            made[key] = self._made.get(key, finding)
        if made.keys() != self._made.keys():
            self._states = tuple(made.values())
        self._made = made
        return self._states

    def with_states(self, states: tuple[Finding, ...], health: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Both; the same tuple while both are."""
        if not states:
            return health
        if self._both[0] is not states or self._both[1] is not health:
            self._both, self._findings = (states, health), (*states, *health)
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
class _Node:
    """What is remembered of one node. ``at``: the time of its newest row. ``compared``: the sample that was compared
    with those of other nodes last. ``is_judged``: by the rules, once at least.
    """

    whole: Sample | None = None
    judged: Judged | None = None
    at: float = -math.inf
    compared: Sample | None = None
    is_judged: bool = False
    findings: tuple[Finding, ...] = ()
    events: tuple[KernelEvent | RankDeath, ...] = ()


class HealthWatch:
    """Joins what the nodes say of themselves, compares them and judges whole jobs. Call ``findings`` with every view,
    from one thread. Samples of nodes that do not judge themselves are judged here.

    ``clock``: monotonic, s. ``thresholds``: the user's.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, thresholds: Mapping[str, float] = NO_THRESHOLDS
    ) -> None:
        self._clock, self._thresholds = clock, thresholds
        self._health: Health | None = None
        self._advice: frozenset[str] = frozenset()  # of all rules
        self.ended: tuple[Finding, ...] = ()  # findings that are over since less than an hour, the newest first
        self.events: tuple[tuple[str, KernelEvent | RankDeath], ...] = ()  # of the last 24 hours, with the node's name
        self._no_lemons = ""  # why the list cannot be read
        self._nodes: dict[str, _Node] = {}
        self._of_jobs: tuple[Finding, ...] = ()
        self._firing: tuple[Finding, ...] = ()
        self._joined: IncidentJoin | None = None
        self._reports: deque[Sequence[JobReport]] = deque()  # not yet joined
        self._of_stacks: dict[JobKey, JobReport] = {}  # the newest of each job
        self._states: tuple[tuple[object, ...], States] = ((), States())
        self.reports: tuple[JobReport, ...] = ()  # the newest of each job that there is, as of the last ``states``

    def findings(self, view: FleetView, states: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
        """All findings that hold now, the gravest first; the same tuple as before when nothing changed.

        ``states``: that nodes do not answer, for the incidents.
        """
        health = self._health = self._health or self._begin()
        assert self._joined is not None
        changed = self._forget(health, {node.node for node in view.nodes})
        now = self._clock()
        for node in view.nodes:
            if node.newest is not None:
                take = partial(self._take, health, self._joined, node)
                changed = guarded(f"judging {node.node}", take, False) or changed
        lemons_unsaid = bool(self._no_lemons) and not self._firing
        if changed or lemons_unsaid or health.of_jobs() is not self._of_jobs:
            self._of_jobs = health.of_jobs()
            self._gather()
        reports = [report for _ in range(len(self._reports)) for report in self._reports.popleft()]
        self._of_stacks.update((report.job_key, report) for report in reports)
        self._joined.join(self._of_jobs, reports, now, states)
        return self._firing

    def _take(self, health: Health, joined: IncidentJoin, view: NodeView) -> bool:
        """A node's newest row, and what came with it; whether its findings or events are others than before."""
        newest, node = view.newest, self._nodes.setdefault(view.node, _Node())
        at = view.sampled_at
        if newest is None or at is None or at == node.at:
            return False
        node.at = at
        if not isinstance(newest, Received) or not newest.lanes:
            return self._take_sample(health, joined, node, view)
        whole = newest.whole
        take_skew(view, whole)
        if whole is not node.whole:
            joined.take_whole(whole)
        joined.take(view.node, at, whole.clock_skew_s or 0.0, newest)
        if newest.judged is None:
            return False
        sample = node.compared
        every_s = UNLIKE_COMPARED_EVERY_S if health.is_unlike(view.node) else COMPARED_EVERY_S
        if whole is not node.whole or sample is None or not 0 <= at - sample.sampled_at < every_s:
            sample = node.compared = view.sample or whole
            sample.clock_skew_s = whole.clock_skew_s
        elif newest.judged is node.judged:
            return False
        node.whole, node.judged = whole, newest.judged
        judged = with_known_advice(newest.judged, self._advice)
        return self._judge(health, joined, node, sample, lambda sample: health.take(judged, sample, at))

    def _take_sample(self, health: Health, joined: IncidentJoin, node: _Node, view: NodeView) -> bool:
        """Of a node that does not judge itself."""
        if (sample := view.sample) is None:
            return False
        take_skew(view, sample)
        joined.see(sample)
        return self._judge(health, joined, node, sample, health.see)

    def _judge(
        self, health: Health, joined: IncidentJoin, node: _Node, sample: Sample, judge: Callable[[Sample], None]
    ) -> bool:
        node.is_judged = True
        try:
            judge(sample)
            findings = health.of(sample.node)
            happened = happened_by(sample, node.events)
            events = tuple([event for event in happened if (event.at or 0.0) > sample.sampled_at - EVENTS_S])
        except Exception as error:  # noqa: BLE001 - said as a finding, and the other nodes' rules go on
            findings, events = _not_judged_because(sample.node, error, node), node.events
        joined.take_findings(sample, findings)
        changed = findings != node.findings or events != node.events
        node.findings, node.events = findings, events
        return changed

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Those that hold now and those that are over since less than an hour; the same tuple while nothing changed."""
        return self._joined.incidents if self._joined is not None else ()

    @property
    def motions(self) -> tuple[JobMotion, ...]:
        """How the jobs get on."""
        return self._joined.motions if self._joined is not None else ()

    def states(self) -> States:
        """What each rank and GPU does; the same object while nothing changed."""
        present = {motion.job_key for motion in self.motions}
        for gone in self._of_stacks.keys() - present:
            del self._of_stacks[gone]
        reports = tuple(self._of_stacks.values())
        if len(reports) != len(self.reports) or any(a is not b for a, b in zip(reports, self.reports, strict=True)):
            self.reports = reports
        of = (self.motions, self.incidents, *reports)
        if len(of) != len(self._states[0]) or any(new is not old for new, old in zip(of, self._states[0], strict=True)):
            self._states = of, states_of(self.motions, self.incidents, reports)
        return self._states[1]

    def joined_with(self, reports: Sequence[JobReport]) -> Sequence[Incident]:
        """What all comes to with these stacks; from any thread."""
        return self._joined.joined_with(reports, self._of_jobs) if self._joined is not None else ()

    def take_stacks(self, reports: Sequence[JobReport]) -> None:
        """What a dump said of the jobs; from any thread."""
        self._reports.append(reports)

    def not_judged(self) -> frozenset[str]:
        """The nodes of the last view that have a sample, of which the rules have seen none so far."""
        return frozenset([name for name, node in self._nodes.items() if not node.is_judged])

    def _begin(self) -> Health:
        """Imported here: in the feed's thread, so that loading the rules delays no key."""
        from mltop.probes.judge.health.fleet import Health
        from mltop.probes.judge.health.rule import Expectations
        from mltop.tui.state import BadState
        from mltop.tui.state.lists import known_lemons

        try:
            lemons = known_lemons()
        except BadState as problem:
            lemons, self._no_lemons = {}, str(problem)
        self._joined = IncidentJoin()
        self._advice = advice_of_rules()
        return Health(Expectations(lemons=lemons, thresholds=self._thresholds), eager=True)

    def _gather(self) -> None:
        findings = [finding for node in self._nodes.values() for finding in node.findings]
        findings += self._of_jobs
        if self._no_lemons and self._nodes:  # a finding of the first node
            text = f"known bad GPUs are not available: {self._no_lemons}"
            findings.append(
                Finding("state.lemons", "warning", next(iter(self._nodes)), "lemon list", text, "mltop lemon")
            )
        self.events = tuple((name, event) for name, node in self._nodes.items() for event in node.events)
        self._firing = tuple(sorted([finding for finding in findings if finding.until is None], key=gravest_first))
        ended = [finding for finding in findings if finding.until is not None]
        self.ended = tuple(sorted(ended, key=lambda finding: -(finding.until or 0.0)))

    def _forget(self, health: Health, present: set[str]) -> bool:
        """Drop nodes that are not ``present``; True when one of them had findings or events."""
        gone = {name: self._nodes.pop(name) for name in self._nodes.keys() - present}
        for name in gone:
            health.forget(name)
            if self._joined is not None:
                self._joined.forget(name)
        return any(node.findings or node.events for node in gone.values())


def _not_judged_because(name: str, error: Exception, node: _Node) -> tuple[Finding, ...]:
    from mltop.probes.judge.health.rule import FAILED

    text = f"this node cannot be judged: {type(error).__name__}: {error}"
    again = tuple(finding for finding in node.findings if (finding.id, finding.message) == (FAILED, text))
    return again or (Finding(FAILED, "warning", name, "health rules", text, "please report this", since=node.at),)


def happened_by(newest: Sample, before: Sequence[KernelEvent | RankDeath]) -> list[KernelEvent | RankDeath]:
    """What the kernel reported, and which ranks ended. An end that nobody has dated was seen with the first sample that
    tells it, at the latest. ``before``: what an earlier sample told.
    """
    seen = {(one.pid, one.started_at): one.at for one in before if isinstance(one, RankDeath)}
    deaths = [
        death if death.at is not None else replace(death, at=seen.get((death.pid, death.started_at), newest.sampled_at))
        for death in newest.deaths
    ]
    return [*newest.kernel_events, *deaths]


class IncidentJoin:
    """Joins what the rules, counters and stacks say to incidents: as often as it costs next to nothing of a core."""

    def __init__(self) -> None:
        from mltop.probes.judge.incidents.watch import IncidentWatch
        from mltop.probes.judge.stall.motions import JobMotions

        self._watch, self._motions = IncidentWatch(), JobMotions()
        self._joined_at, self._cost_s = float("-inf"), 0.0
        self._changed = False
        self._turned = 0
        self.motions: tuple[JobMotion, ...] = ()
        self.incidents: tuple[Incident, ...] = ()

    def see(self, sample: Sample) -> None:
        """A sample of a node that does not judge itself."""
        self._motions.see(sample)

    def take(self, node: str, at: float, skew_s: float, newest: Received) -> None:
        """What a node's ranks did until its newest row."""
        self._motions.take(node, at, skew_s, newest.parts, newest.numbers)
        self._watch.see_at(node, at - skew_s)
        self._changed = True

    def take_whole(self, sample: Sample) -> None:
        self._motions.take_whole(sample)

    def take_findings(self, sample: Sample, findings: tuple[Finding, ...]) -> None:
        self._watch.see(sample, findings)
        self._changed = True

    def forget(self, node: str) -> None:
        self._motions.forget(node)
        self._watch.forget(node)
        self._changed = True

    def joined_with(self, reports: Sequence[JobReport], of_jobs: Sequence[Finding]) -> list[Incident]:
        return self._watch.incidents_with(reports, of_jobs, self.motions)

    def join(
        self,
        of_jobs: Sequence[Finding],
        reports: Sequence[JobReport],
        now: float,
        states: tuple[Finding, ...] = (),
    ) -> None:
        """``now``: monotonic s. New stacks are joined at once."""
        self._watch.take_stacks(reports)
        self._changed = self._watch.take_states(states) or self._changed
        share = JOIN_SHARE if self._motions.turned == self._turned else HASTY_SHARE
        if not reports and (not self._changed or now < self._joined_at + share * self._cost_s):
            return
        began = time.thread_time()
        self.motions = self._motions.motions()
        incidents = (*self._watch.incidents(of_jobs, self.motions), *reversed(self._watch.ended))
        self.incidents = self.incidents if incidents == self.incidents else incidents
        self._changed, self._turned = False, self._motions.turned
        self._joined_at, self._cost_s = now, time.thread_time() - began


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


def gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    return gravity(finding.severity), finding.node, finding.subject, finding.id
