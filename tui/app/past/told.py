"""What was told over time: findings, incidents, motions, states of nodes, kernel events."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mltop.probes.judge.states import States, states_of
from mltop.probes.model import Finding, Incident, JobKey, JobMotion, JobReport, KernelEvent, NodeState, RankDeath
from mltop.probes.model.vocabulary import gravity
from mltop.probes.reach.view import FleetView
from mltop.tui.app.feed import Picture
from mltop.tui.app.judging import gravest_first
from mltop.tui.app.past.changes import Changes
from mltop.tui.render.findings import Happening, happenings
from mltop.tui.render.guarded import guarded

MOST_TOLD = 20_000  # findings, incidents and motions: some 30 MB
MOST_STATES = 1000  # of a node
MOST_REPORTS = 4  # what stacks said: they may be of thousands of ranks
ANEW_S = 60.0  # what says the same in other words is kept as it was last in so long
LATE_S = 120.0  # that something holds may be told so much later than it began
ENDED_S = 3600.0  # for so long findings and incidents are shown that are over
EVENTS_S = 24 * 3600.0

Thing = TypeVar("Thing", Finding, Incident, JobMotion)
NOTHING = Picture(FleetView(0.0, ()))


class Told:
    """Fed with every picture, by one thread under its caller's lock."""

    def __init__(self) -> None:
        self._told: Changes[Picture] = Changes(MOST_TOLD)  # without views
        self._marks: tuple[object, ...] = ()
        self._reports: Changes[tuple[JobReport, ...]] = Changes(MOST_REPORTS)
        self._states: defaultdict[str, Changes[NodeState]] = defaultdict(lambda: Changes(MOST_STATES))
        # All that there ever was.
        self._ended: dict[Hashable, Finding] = {}
        self._begun: dict[Hashable, Incident] = {}
        self._events: dict[Hashable, tuple[str, KernelEvent | RankDeath]] = {}
        self._seen: tuple[object, ...] = (None, None, None)

    def see(self, picture: Picture) -> None:
        at = picture.view.taken_at
        for node in picture.view.nodes:
            states = self._states[node.node]
            if states.newest is None or states.newest.state != node.state.state:
                states.add(at, node.state)
        if picture.reports != (self._reports.newest or ()):
            self._reports.add(at, picture.reports)
        self._keep(picture, at)
        seen: tuple[tuple[dict[Hashable, Any], Sequence[Any], Callable[[Any], Hashable]], ...] = (
            (self._ended, picture.ended, lambda finding: finding.identity),
            (self._begun, picture.incidents, lambda incident: incident.id),
            (self._events, picture.events, lambda event: _of_event(*event)),
        )
        for (known, things, key), before in zip(seen, self._seen, strict=True):
            if things is not before:
                known.update((key(one), one) for one in things)
                for oldest in list(known)[: max(0, len(known) - MOST_TOLD)]:
                    del known[oldest]
        self._seen = picture.ended, picture.incidents, picture.events

    def _keep(self, picture: Picture, at: float) -> None:
        """Keep what is told, where that is something else than before."""
        findings, incidents, motions = picture.findings, picture.incidents, picture.motions
        kept = Picture(NOTHING.view, findings, picture.not_judged, incidents=incidents, motions=motions)
        marks = (
            picture.not_judged,
            [(_of(finding), finding.severity) for finding in findings],
            [(incident.id, incident.severity, incident.until) for incident in incidents],
            [(motion.placed, motion.phase, motion.since) for motion in motions],
        )
        before, age_s = self._told.newest or NOTHING, at - self._told.newest_at
        if marks == self._marks and 0 <= age_s < ANEW_S:
            self._told.replace(kept)
        else:
            known = {*map(id, before.findings), *map(id, before.incidents), *map(id, before.motions)}
            fresh = sum(id(one) not in known for one in (*findings, *incidents, *motions))
            self._told.add(at, kept, 1 + fresh)
        self._marks = marks

    def forget(self, node: str) -> None:
        self._states.pop(node, None)

    def state(self, node: str, moment: float) -> tuple[float, NodeState] | None:
        """Since when it was in its state then, and that as it was first told; None before it was ever seen."""
        states = self._states.get(node)
        return None if states is None else states.found(moment)

    def picture(self, view: FleetView) -> Picture:
        """What held at the time of the view, as far as it was told then or soon after."""
        moment = view.taken_at
        then, later = self._told.at(moment) or NOTHING, self._told.after(moment, LATE_S)
        findings = _held(then.findings, [one.findings for one in later], moment, _of)
        incidents = _held(then.incidents, [one.incidents for one in later], moment, lambda incident: incident.id)
        motions = _held(then.motions, [one.motions for one in later], moment, lambda motion: motion.placed, late=True)
        lasting = tuple(
            replace(motion, at=max(motion.at, moment)) if motion.phase in ("quiet", "stalled") else motion
            for motion in motions
        )
        over = [one for one in self._ended.values() if moment - ENDED_S < (one.until or math.inf) <= moment]
        incidents.sort(key=lambda one: (one.until is not None, gravity(one.severity), one.since or 0.0))
        shown = tuple(incidents)
        reports = self._reports.at(moment) or ()
        return Picture(
            view,
            tuple(sorted(findings, key=gravest_first)),
            then.not_judged if moment >= self._told.whole_from else frozenset(node.node for node in view.nodes),
            tuple(sorted(over, key=lambda finding: -(finding.until or 0.0))),
            tuple([one for one in self._events.values() if moment - EVENTS_S < (one[1].at or 0.0) <= moment]),
            shown,
            lasting,
            guarded("the states of ranks", lambda: states_of(lasting, shown, reports), States()),
            reports,
        )

    def happened(self) -> list[Happening]:
        """All that ever began or ended, the newest first."""
        firing = (self._told.newest or NOTHING).findings
        return happenings(firing, self._ended.values(), self._events.values(), incidents=self._begun.values())


def _held(
    then: Sequence[Thing],
    later: Iterable[Sequence[Thing]],
    moment: float,
    key: Callable[[Thing], Hashable],
    *,
    late: bool = False,
) -> list[Thing]:
    """``late``: what is told later takes the place of what was told then."""
    held = {key(one): one for one in then}
    for things in later:
        for one in things:
            if one.since is not None and one.since <= moment and (late or key(one) not in held):
                held[key(one)] = one
    return list(held.values())


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
