"""Findings of a live view: the health rules over a short, thinned history, within a share of a core."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from operator import itemgetter

from mltop.probes.model import Finding, Sample
from mltop.probes.reach.glance import Glance
from mltop.probes.reach.view import FleetView, NodeView

HISTORY_S = 60.0
SAMPLES_KEPT = 240  # of all nodes together: a sample of 8 GPUs takes about 40 KB
WARM_UP_S = 15.0  # before that a rule cannot tell how long something holds, and says what it sees
MOST_OF_A_CORE = 0.018  # 512 nodes of 0.3 ms each, decoding included, take nine seconds
BURST_S = 0.3  # of work saved up at most: a whole fleet that has just connected is judged at once
_SEVERITIES = ("critical", "warning", "info")


@dataclass
class _Node:
    """``judged_at``: the time of the newest sample that the rules have seen, ``gpu_states``: its GPUs'."""

    history: deque[Sample] = field(default_factory=deque)
    judged_at: float = 0.0
    gpu_states: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class HealthWatch:
    """Call ``findings`` with every view, from one thread. ``since``: when a finding first appeared.

    Rules look at one node at a time, so the nodes take turns: first those with a GPU that is in another state than
    when the node was judged, then those judged longest ago, as many as the time saved up allows.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._findings: tuple[Finding, ...] = ()
        self._allowed_s = BURST_S
        self._asked_at = time.monotonic()

    def findings(self, view: FleetView) -> tuple[Finding, ...]:
        """What holds now, the gravest first; the same tuple as before when nothing changed."""
        from mltop.probes.judge.health import evaluate as _loaded  # noqa: F401  (loading it is not judging)

        self._save_up()
        changed = self._forget({node.node for node in view.nodes})
        for due in self._due(view):
            if self._allowed_s <= 0:
                break
            began = time.thread_time()  # what others do meanwhile is not this thread's share
            newest = due.sample_in_turn()
            changed = (newest is not None and self._judge(due.node, newest, len(view.nodes))) or changed
            self._allowed_s -= time.thread_time() - began
        if changed:
            found = (finding for node in self._nodes.values() for finding in node.findings)
            self._findings = tuple(sorted(found, key=_gravest_first))
        return self._findings

    def not_judged(self) -> frozenset[str]:
        """Nodes of the last view of which a sample is there that the rules have not seen, nor any before it."""
        return frozenset([name for name, node in self._nodes.items() if not node.judged_at])

    def _save_up(self) -> None:
        now = time.monotonic()
        self._allowed_s = min(BURST_S, self._allowed_s + (now - self._asked_at) * MOST_OF_A_CORE)
        self._asked_at = now

    def _forget(self, present: set[str]) -> bool:
        """Drop nodes that are not ``present``; True when one of them had findings."""
        gone = [self._nodes.pop(name) for name in self._nodes.keys() - present]
        return any(node.findings for node in gone)

    def _due(self, view: FleetView) -> list[NodeView]:
        """Nodes with a sample not yet judged, in the order of their turns."""
        due: list[tuple[bool, float, NodeView]] = []
        for view_of_node in view.nodes:
            glance = view_of_node.glance
            if glance is None:
                continue
            node = self._nodes.setdefault(view_of_node.node, _Node())
            if glance.sampled_at != node.judged_at:
                due.append((not _other_states(node, glance), node.judged_at, view_of_node))
        return [view_of_node for _, _, view_of_node in sorted(due, key=itemgetter(0, 1))]

    def _judge(self, name: str, newest: Sample, nodes: int) -> bool:
        """Whether the findings of this node are other ones now."""
        from mltop.probes.judge.health import evaluate

        node = self._nodes[name]
        considered = _with_history(node, newest, nodes)
        before = {_key(finding): finding.since for finding in node.findings}
        found = tuple(
            _with_since(finding, _earliest(before.get(_key(finding)), _last_seen_at(finding, newest)))
            for finding in evaluate(considered)
            if finding.until is None
        )
        node.judged_at = newest.sampled_at
        node.gpu_states = tuple([gpu.state for gpu in newest.gpus])
        changed = found != node.findings
        node.findings = found
        return changed


def _other_states(node: _Node, glance: Glance) -> bool:
    """Whether a GPU is in another state than when the node was judged; at first: whether one is not well."""
    now = [gpu.state for gpu in glance.gpus]
    return list(node.gpu_states) != now if node.judged_at else any(state != "ok" for state in now)


def _last_seen_at(finding: Finding, newest: Sample) -> float | None:
    """When a lost GPU was last there, unix s; None of any other finding, and when that is not known."""
    if finding.id != "gpu.lost":
        return None
    return next((gpu.last_seen_at for gpu in newest.gpus if finding.subject == f"GPU {gpu.index}"), None)


def _earliest(*times: float | None) -> float | None:
    return min([time for time in times if time is not None], default=None)


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
