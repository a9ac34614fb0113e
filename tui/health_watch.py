"""Findings of a live view: the health rules over a short, thinned history, within a share of a core."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from operator import itemgetter

from mltop.probes.model import Finding, Sample
from mltop.probes.reach.view import FleetView, NodeView

HISTORY_S = 60.0
SAMPLES_KEPT = 240  # of all nodes together: a sample of 8 GPUs takes about 40 KB
WARM_UP_S = 15.0  # before that a rule cannot tell how long something holds, and says what it sees
MOST_OF_A_CORE = 0.005  # 25 samples a second, decoding included
BURST_S = 0.3  # of work saved up at most: a whole fleet that has just connected is judged at once
_SEVERITIES = ("critical", "warning", "info")


@dataclass
class _Node:
    """``judged_at``: the time of the newest sample that the rules have seen."""

    history: deque[Sample] = field(default_factory=deque)
    judged_at: float = 0.0
    findings: tuple[Finding, ...] = ()


class HealthWatch:
    """Call ``findings`` with every view, from one thread. ``since``: when a finding first appeared.

    Rules look at one node at a time, so the nodes take turns: those judged longest ago come first, as many as
    the time saved up allows.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._findings: tuple[Finding, ...] = ()
        self._allowed_s = BURST_S
        self._asked_at = time.monotonic()

    def findings(self, view: FleetView) -> tuple[Finding, ...]:
        """What holds now, the gravest first; the same tuple as before when nothing changed."""
        self._save_up()
        changed = self._forget({node.node for node in view.nodes})
        for due in self._due(view):
            if self._allowed_s <= 0:
                break
            began = time.monotonic()
            newest = due.sample_in_turn()
            changed = (newest is not None and self._judge(due.node, newest, len(view.nodes))) or changed
            self._allowed_s -= time.monotonic() - began
        if changed:
            found = (finding for node in self._nodes.values() for finding in node.findings)
            self._findings = tuple(sorted(found, key=_gravest_first))
        return self._findings

    def _save_up(self) -> None:
        now = time.monotonic()
        self._allowed_s = min(BURST_S, self._allowed_s + (now - self._asked_at) * MOST_OF_A_CORE)
        self._asked_at = now

    def _forget(self, present: set[str]) -> bool:
        """Drop nodes that are not ``present``; True when one of them had findings."""
        gone = [self._nodes.pop(name) for name in self._nodes.keys() - present]
        return any(node.findings for node in gone)

    def _due(self, view: FleetView) -> list[NodeView]:
        """Nodes with a sample not yet judged, those judged longest ago first."""
        due: list[tuple[float, NodeView]] = []
        for view_of_node in view.nodes:
            glance = view_of_node.glance
            if glance is None:
                continue
            node = self._nodes.setdefault(view_of_node.node, _Node())
            if glance.sampled_at != node.judged_at:
                due.append((node.judged_at, view_of_node))
        return [view_of_node for _, view_of_node in sorted(due, key=itemgetter(0))]

    def _judge(self, name: str, newest: Sample, nodes: int) -> bool:
        """Whether the findings of this node are other ones now."""
        from mltop.probes.judge.health import evaluate

        node = self._nodes[name]
        considered = _with_history(node, newest, nodes)
        before = {_key(finding): finding.since for finding in node.findings}
        found = tuple(
            _with_since(finding, before.get(_key(finding))) for finding in evaluate(considered) if finding.until is None
        )
        node.judged_at = newest.sampled_at
        changed = found != node.findings
        node.findings = found
        return changed


def _with_history(node: _Node, newest: Sample, nodes: int) -> list[Sample]:
    length = max(1, min(int(HISTORY_S), SAMPLES_KEPT // nodes))
    if node.history.maxlen != length:
        node.history = deque(node.history, maxlen=length)
    history = node.history
    earlier = [sample for sample in history if sample.sampled_at < newest.sampled_at]
    if not history or newest.sampled_at - history[-1].sampled_at >= HISTORY_S / length:
        history.append(newest)
    warm = bool(earlier) and newest.sampled_at - earlier[0].sampled_at >= WARM_UP_S
    return [*earlier, newest] if warm else [newest]


def _with_since(finding: Finding, before: float | None) -> Finding:
    if before is None or finding.since is None or before >= finding.since:
        return finding
    return replace(finding, since=before)


def _key(finding: Finding) -> tuple[str, str]:
    return finding.id, finding.subject


def _gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    place = _SEVERITIES.index(finding.severity) if finding.severity in _SEVERITIES else len(_SEVERITIES)
    return place, finding.node, finding.subject, finding.id
