"""What the feed makes of views: states of nodes, the health rules in turns, the motion of jobs, incidents.

All of it for one thread, within a share of a core; nothing here draws.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from mltop.probes.judge.states import States, states_of
from mltop.probes.model import Finding, Incident, JobKey, JobMotion, JobReport, KernelEvent, RankDeath, Sample
from mltop.probes.model.vocabulary import gravity
from mltop.probes.reach.courtesy import give_way
from mltop.probes.reach.view import FleetView, NodeView, SampleSummary
from mltop.probes.system.paths import proc
from mltop.tui.render.findings import state_findings
from mltop.tui.render.guarded import guarded

if TYPE_CHECKING:
    from mltop.probes.judge.health import Health

NO_THRESHOLDS: Mapping[str, float] = MappingProxyType({})  # all rules as they are
SETTLING_S = 15.0  # of a node that has just answered for the first time: pauses mean nothing yet
HEARTBEAT_S = 1.5  # a node that went silent causes no change, but its age grows
AWAKE_S = 3.0  # mltop itself has run for as long, else nobody could have heard the node
MOST_OF_A_CORE = 0.03
BURST_S = 2.0  # of work saved up at most: a whole fleet that has just connected is judged within seconds …
ONE_CALL_S = 0.4  # … but the picture does not wait for all of it
EVENTS_S = 24 * 3600.0
JOIN_SHARE = 400.0  # between two joins, times what one costs …
HASTY_SHARE = 50.0  # … and when a job has just fallen still, or goes on
# Between the turns of the rules, of what seems to have fallen still or to go on:
PULSE_EVERY_S, GLANCE_EVERY_S, GLANCES_FOR_S = 1.5, 2.0, 15.0
GLANCES_PER_S = 200.0  # of all nodes; each costs some 0.1 ms
FALLEN_STILL = 0.3  # of what its ranks usually do


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
class _Turn:
    """``judged_at``: the time of the newest sample that the rules have seen, ``gpu_states``: its GPUs'. ``seen_at``: of
    the newest that motion has seen.
    """

    judged_at: float = 0.0
    seen_at: float = 0.0
    gpu_states: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    events: tuple[KernelEvent | RankDeath, ...] = ()


class HealthWatch:
    """Call ``findings`` with every view, from one thread.

    The nodes take turns: first those with a GPU that is in another state than when the node was judged, then those
    judged longest ago, as many as the time saved up allows. A rule that has to hold for a while is looked at less
    often on a large fleet, and fires as late as its node's next turn. ``clock``: monotonic, s. ``thresholds``: the
    user's.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, thresholds: Mapping[str, float] = NO_THRESHOLDS
    ) -> None:
        self._clock, self._thresholds = clock, thresholds
        self._health: Health | None = None
        self.ended: tuple[Finding, ...] = ()  # findings that are over since less than an hour, the newest first
        self.events: tuple[tuple[str, KernelEvent | RankDeath], ...] = ()  # of the last 24 hours, with the node's name
        self._no_lemons = ""  # why the list cannot be read
        self._turns: dict[str, _Turn] = {}
        self._of_jobs: tuple[Finding, ...] = ()
        self._firing: tuple[Finding, ...] = ()
        self._allowed_s = BURST_S
        self._asked_at = clock()
        self._joined: IncidentJoin | None = None
        self._glances = Glances(clock)
        self._reports: deque[Sequence[JobReport]] = deque()  # not yet joined
        self._of_stacks: dict[JobKey, JobReport] = {}  # the newest of each job
        self._states: tuple[tuple[object, ...], States] = ((), States())
        self.reports: tuple[JobReport, ...] = ()  # the newest of each job that there is, as of the last ``states``

    def findings(self, view: FleetView, states: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
        """All findings that hold now, the gravest first; the same tuple as before when nothing changed.

        ``states``: that nodes do not answer, for the incidents.
        """
        health = self._health = self._health or self._begin()
        self._save_up()
        changed = self._forget(health, {node.node for node in view.nodes})
        least_s = max(0.0, self._allowed_s - ONE_CALL_S)
        for node in self._due(view):
            if self._allowed_s <= least_s:
                break
            give_way()
            began = time.thread_time()  # what others do meanwhile is not this thread's share
            newest = node.sample_in_turn()
            if newest is not None:
                take_skew(node, newest)
                judge = partial(self._judge, health, node.node, newest)
                changed = guarded(f"judging {node.node}", judge, False) or changed
            self._allowed_s -= time.thread_time() - began
        self._glance(view)
        lemons_unsaid = bool(self._no_lemons) and not self._firing
        if changed or lemons_unsaid or health.of_jobs() is not self._of_jobs:
            self._of_jobs = health.of_jobs()
            self._gather()
        if self._joined is not None:
            reports = [report for _ in range(len(self._reports)) for report in self._reports.popleft()]
            self._of_stacks.update((report.job_key, report) for report in reports)
            self._joined.join(self._of_jobs, reports, self._clock(), states)
        return self._firing

    def _glance(self, view: FleetView) -> None:
        """At what the ranks do where the rules' next turn would come late."""
        seen_at = {name: turn.seen_at for name, turn in self._turns.items()}
        for node in self._glances.due(view.nodes, seen_at):
            newest = node.sample_in_turn()
            if newest is not None and self._joined is not None:
                take_skew(node, newest)
                guarded(f"the motion of {node.node}", partial(self._joined.glance, newest), None)
                self._turns[node.node].seen_at = newest.sampled_at

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
        self._joined = IncidentJoin()
        return Health(Expectations(lemons=lemons, thresholds=self._thresholds), eager=True)

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
            self._glances.forget(name)
            if self._joined is not None:
                self._joined.forget(name)
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
            happened = happened_by(newest, turn.events)
            events = tuple([event for event in happened if (event.at or 0.0) > newest.sampled_at - EVENTS_S])
        except Exception as error:  # noqa: BLE001 - said as a finding, and the other nodes' rules go on
            findings, events = self._not_judged_because(name, error, newest.sampled_at), turn.events
        turn.judged_at = turn.seen_at = newest.sampled_at
        turn.gpu_states = tuple([gpu.state for gpu in newest.gpus])
        if self._joined is not None:
            self._joined.see(newest, findings)
        changed = findings != turn.findings or events != turn.events
        turn.findings, turn.events = findings, events
        return changed


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


@dataclass(slots=True)
class _Pulse:
    """What the first and the last rank of a node did until ``at``: ``counted`` switches and calls, ``usual``: so many
    per second while they work. ``glance_until``: when all is known of their falling still, or going on.
    """

    at: float
    pids: tuple[int, int]
    counted: int
    usual: float = 0.0
    still: bool = False
    glance_until: float = 0.0


class Glances:
    """On a large fleet a node's turn comes every 20 seconds, and a job that falls still is to be told within ten. Which
    nodes' newest samples are to be seen for that, by the little that comes with every view. ``clock``: monotonic s.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pulses: dict[str, _Pulse] = {}
        self._allowed, self._asked_at = GLANCES_PER_S, clock()

    def due(self, nodes: Sequence[NodeView], seen_at: Mapping[str, float]) -> list[NodeView]:
        """Those to look at now, that which was seen longest ago first; each counts as looked at. ``seen_at``: the times
        of the newest samples that were seen.
        """
        now = self._clock()
        self._allowed = min(GLANCES_PER_S, self._allowed + GLANCES_PER_S * (now - self._asked_at))
        self._asked_at = now
        waiting: list[tuple[float, NodeView]] = []
        for node in nodes:
            summary = node.summary
            seen = seen_at.get(node.node)
            if summary is None or not seen or not summary.ranks or 0.0 <= summary.sampled_at - seen < GLANCE_EVERY_S:
                continue
            if summary.sampled_at <= self._felt(node.node, summary).glance_until:
                waiting.append((seen, node))
        waiting.sort(key=itemgetter(0))
        due = [node for _, node in waiting[: int(self._allowed)]]
        self._allowed -= len(due)
        return due

    def forget(self, name: str) -> None:
        self._pulses.pop(name, None)

    def _felt(self, name: str, summary: SampleSummary) -> _Pulse:
        before, at = self._pulses.get(name), summary.sampled_at
        if before is not None and 0.0 <= at - before.at < PULSE_EVERY_S:
            return before
        ends = summary.ranks[0], summary.ranks[-1]
        counts = [
            (rank.voluntary_switches or 0) + (rank.read_syscalls or 0) + (rank.write_syscalls or 0) for rank in ends
        ]
        pulse = self._pulses[name] = _Pulse(at, (ends[0].pid, ends[1].pid), sum(counts))
        if before is None or at < before.at:
            return pulse
        if before.pids != pulse.pids:  # somebody came or went
            pulse.glance_until = at + GLANCES_FOR_S
            return pulse
        rate = (pulse.counted - before.counted) / (at - before.at)
        pulse.still = rate < FALLEN_STILL * before.usual
        moved = before.usual + 0.2 * (rate - before.usual) if before.usual else rate
        pulse.usual = before.usual if pulse.still else moved
        pulse.glance_until = before.glance_until if pulse.still == before.still else at + GLANCES_FOR_S
        return pulse


class IncidentJoin:
    """Joins what the rules, counters and stacks say to incidents: as often as it costs next to nothing of a core."""

    def __init__(self) -> None:
        from mltop.probes.judge.incidents.watch import IncidentWatch
        from mltop.probes.judge.stall import JobMotions

        self._watch, self._motions = IncidentWatch(), JobMotions()
        self._joined_at, self._cost_s = float("-inf"), 0.0
        self._changed = False
        self._turned = 0
        self.motions: tuple[JobMotion, ...] = ()
        self.incidents: tuple[Incident, ...] = ()

    def see(self, sample: Sample, findings: tuple[Finding, ...]) -> None:
        self._motions.see(sample)
        self._watch.see(sample, findings)
        self._changed = True

    def glance(self, sample: Sample) -> None:
        """What its ranks do, of a node that the rules will see later."""
        self._motions.see(sample)
        self._changed = True

    def forget(self, node: str) -> None:
        self._motions.forget(node)
        self._watch.forget(node)
        self._changed = True

    def joined_with(self, reports: Sequence[JobReport], of_jobs: Sequence[Finding]) -> list[Incident]:
        return self._watch.told_with(reports, of_jobs, self.motions)

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


def _other_states(turn: _Turn, summary: SampleSummary) -> bool:
    """Whether a GPU is in another state than when the node was judged; at first: whether one is not well."""
    now = [gpu.state for gpu in summary.gpus]
    return list(turn.gpu_states) != now if turn.judged_at else any(state != "ok" for state in now)


def _gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    return gravity(finding.severity), finding.node, finding.subject, finding.id
