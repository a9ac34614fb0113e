"""What was told over time: findings, incidents, motions, states of nodes, kernel events, from when to when."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from mltop.probes.model import Finding, Incident, JobKey, JobMotion, JobReport, KernelEvent, NodeState, RankDeath
from mltop.probes.model.vocabulary import gravity
from mltop.tui.app.feed import Picture
from mltop.tui.render.findings import Happening, happenings, severity_cell

MOST_OVER = 10_000  # of each kind: some 15 MB
MOST_REPORTS = 4  # what stacks said: they may be of thousands of ranks
ANEW_S = 60.0  # what says something else more often is kept as it was last in so long
ENDED_S = 3600.0  # for so long findings and incidents are shown that are over
EVENTS_S = 24 * 3600.0

Thing = TypeVar("Thing")


@dataclass(slots=True)
class _Version(Generic[Thing]):
    """``thing`` was told of ``key`` from ``told_at`` up to ``until`` (the watcher's), and held since ``begin``."""

    key: Hashable
    thing: Thing
    told_at: float
    begin: float
    until: float = math.inf


class Versions(Generic[Thing]):
    """What was told of each key, version by version. That a job has stopped is told when it has stood for a while: of
    the moments since it stopped it is known later. ``always``: so with every version, not only the first of a key.

    ``whole_from``: from then on all is there that was told; of moments before it some had to be forgotten.
    """

    def __init__(self, since: Callable[[Thing], float | None], always: bool = False, most: int = MOST_OVER) -> None:
        self._since, self._always, self._most = since, always, most
        self._now: dict[Hashable, _Version[Thing]] = {}
        self._over: deque[_Version[Thing]] = deque()
        self.whole_from = -math.inf

    def see(self, told: Iterable[tuple[Hashable, Hashable, Thing]], at: float) -> None:
        """All that is told now: (key, what makes another version of it at once, the thing)."""
        before, self._now = self._now, {}
        known = {version.key for version in before.values()}
        for key, mark, thing in told:
            version = before.pop((key, mark), None)
            if version is None:
                since = self._since(thing) if self._always or key not in known else at
                version = _Version(key, thing, at, at if since is None else min(at, since))
            elif version.thing is not thing:
                if at - version.told_at >= ANEW_S:
                    self._end(version, at)
                    version = _Version(key, thing, at, at)
                else:
                    version.thing = thing
            self._now[key, mark] = version
        for version in before.values():
            self._end(version, at)

    def _end(self, version: _Version[Thing], at: float) -> None:
        version.until = at
        self._over.append(version)
        if len(self._over) > self._most:
            self.whole_from = max(self.whole_from, self._over.popleft().until)

    def at(self, moment: float) -> list[Thing]:
        """What held then, as far as it was ever told: of several versions the last one that was."""
        held: dict[Hashable, Thing] = {}
        for version in (*self._over, *self._now.values()):
            if version.begin <= moment < version.until:
                held[version.key] = version.thing
        return list(held.values())

    def now(self) -> list[Thing]:
        """What is told now."""
        return [version.thing for version in self._now.values()]

    def all(self) -> list[Thing]:
        """All that ever was told, the newest last."""
        return [*(version.thing for version in self._over), *self.now()]


class States:
    """Of one node: since when it was live, stale, lost …"""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: deque[tuple[float, NodeState]] = deque(maxlen=1000)

    def see(self, state: NodeState, at: float) -> None:
        if not self._states or self._states[-1][1].state != state.state:
            self._states.append((at, state))

    def at(self, moment: float) -> NodeState | None:
        """Its state then, None before it was ever seen; the age in it is of when it was first told."""
        return next((state for at, state in reversed(self._states) if at <= moment), None)


class Told:
    """Fed with every picture, by one thread under its caller's lock."""

    def __init__(self) -> None:
        self._findings: Versions[Finding] = Versions(lambda finding: finding.since)
        self._incidents: Versions[Incident] = Versions(lambda incident: incident.since)
        self._motions: Versions[JobMotion] = Versions(lambda motion: motion.since, always=True)
        self._not_judged: Versions[str] = Versions(lambda _: None)
        self._not_judged_now: frozenset[str] = frozenset()
        self._reports: deque[tuple[float, tuple[JobReport, ...]]] = deque(maxlen=MOST_REPORTS)
        self._ended: dict[Hashable, Finding] = {}
        self._events: dict[Hashable, tuple[str, KernelEvent | RankDeath]] = {}
        self._states: dict[str, States] = {}
        self._seen: tuple[object, ...] = ()

    def see(self, picture: Picture) -> None:
        at = picture.view.taken_at
        for node in picture.view.nodes:
            if node.node not in self._states:
                self._states[node.node] = States()
            self._states[node.node].see(node.state, at)
        if picture.not_judged != self._not_judged_now:
            self._not_judged_now = picture.not_judged
            self._not_judged.see(((node, "", node) for node in picture.not_judged), at)
        if picture.reports != (self._reports[-1][1] if self._reports else ()):
            self._reports.append((at, picture.reports))
        before, seen = self._seen, (picture.findings, picture.incidents, picture.motions, picture.ended, picture.events)
        same = [a is b for a, b in zip(before, seen, strict=True)] if before else [False] * len(seen)
        self._seen = seen
        if not same[0]:
            self._findings.see(((_of(finding), finding.severity, finding) for finding in picture.findings), at)
        if not same[1]:
            told = ((incident.id, (incident.severity, incident.until), incident) for incident in picture.incidents)
            self._incidents.see(told, at)
        if not same[2]:
            self._motions.see(((motion.placed, (motion.phase, motion.since), motion) for motion in picture.motions), at)
        if not same[3]:
            _remember(self._ended, ((finding.identity, finding) for finding in picture.ended))
        if not same[4]:
            _remember(self._events, ((_of_event(*told), told) for told in picture.events))

    def forget(self, node: str) -> None:
        self._states.pop(node, None)

    def state(self, node: str, moment: float) -> NodeState | None:
        """Its state then; None before it was ever seen."""
        states = self._states.get(node)
        return None if states is None else states.at(moment)

    def not_judged(self, moment: float, nodes: Iterable[str]) -> frozenset[str]:
        """Those of these nodes of which it is not known what was wrong with them then."""
        whole_from = max(told.whole_from for told in (self._findings, self._incidents, self._motions, self._not_judged))
        return frozenset(nodes if moment < whole_from else self._not_judged.at(moment))

    def reports(self, moment: float) -> tuple[JobReport, ...]:
        """What the last stacks before that moment said of the jobs, as far as they are kept."""
        return next((reports for at, reports in reversed(self._reports) if at <= moment), ())

    def findings(self, moment: float) -> tuple[Finding, ...]:
        """Those that held then, the gravest first."""
        return tuple(sorted(self._findings.at(moment), key=_gravest_first))

    def incidents(self, moment: float) -> tuple[Incident, ...]:
        """Those that were told then, the gravest first, what was over at the end."""
        return tuple(sorted(self._incidents.at(moment), key=_worst_first))

    def motions(self, moment: float) -> tuple[JobMotion, ...]:
        """How the jobs got on then; of one whose phase lasts, its time is that moment."""
        return tuple(
            replace(motion, at=max(motion.at, moment)) if motion.phase in ("quiet", "stalled") else motion
            for motion in self._motions.at(moment)
        )

    def ended(self, moment: float) -> tuple[Finding, ...]:
        """Those that were over then since less than an hour, the newest first."""
        over = [one for one in self._ended.values() if moment - ENDED_S < (one.until or math.inf) <= moment]
        return tuple(sorted(over, key=lambda finding: -(finding.until or 0.0)))

    def events(self, moment: float = math.inf) -> tuple[tuple[str, KernelEvent | RankDeath], ...]:
        """What kernels had reported by then, and which ranks had ended, of the last 24 hours."""
        least = moment - EVENTS_S if moment < math.inf else -math.inf
        return tuple([told for told in self._events.values() if least < (told[1].at or 0.0) <= moment])

    def happened(self) -> list[Happening]:
        """All that ever began or ended, the newest first."""
        ended = list(self._ended.values())
        listed = happenings(self._findings.now(), ended, self._events.values())
        return sorted([*listed, *self._begun()], key=lambda happening: -happening.at)

    def _begun(self) -> Iterable[Happening]:
        """Of incidents."""
        for incident in {incident.id: incident for incident in self._incidents.all()}.values():
            node = incident.culprits[0].node if incident.culprits else ""
            if incident.since is not None:
                word = severity_cell(incident.severity)
                key = f"i{incident.id}/{incident.since}"
                yield Happening(incident.since, node, word.text, word.style, incident.job, incident.headline, key)


def trouble_of(picture: Picture) -> dict[str, object]:
    """By node in trouble what it is in, by findings that are a warning or worse and by incidents."""
    troubles: dict[str, list[str]] = {}
    for finding in picture.findings:
        if finding.severity != "info":
            troubles.setdefault(finding.node, []).append(finding.id)
    nodes_of = {motion.job_key: motion.nodes for motion in picture.motions}
    for incident in picture.incidents:
        if incident.until is None:
            named = [culprit.node for culprit in incident.culprits]
            for node in (*named, *nodes_of.get(JobKey(incident.job, incident.uid), ())):
                troubles.setdefault(node, []).append(incident.id)
    return {node: tuple(sorted(set(what))) for node, what in troubles.items()}


def _of(finding: Finding) -> Hashable:
    if finding.subject == "node":  # that it does not answer: in other words every time
        return finding.node, finding.id, finding.subject
    return finding.node, finding.id, finding.subject, finding.key, finding.job, finding.uid


def _of_event(node: str, event: KernelEvent | RankDeath) -> Hashable:
    if isinstance(event, RankDeath):
        return node, "death", event.pid, event.started_at
    return node, event.kind, event.subject, event.code, event.at, event.pid


def _remember(known: dict[Hashable, Thing], told: Iterable[tuple[Hashable, Thing]]) -> None:
    known.update(told)
    for key in list(known)[: max(0, len(known) - MOST_OVER)]:
        del known[key]


def _gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    return gravity(finding.severity), finding.node, finding.subject, finding.id


def _worst_first(incident: Incident) -> tuple[bool, int, float]:
    return incident.until is not None, gravity(incident.severity), incident.since or 0.0
