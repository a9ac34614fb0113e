"""Findings of a live view: the health rules over a short, thinned history, within a share of a core."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

from mltop.probes.model import Finding, Sample
from mltop.probes.reach.view import FleetView

HISTORY_S = 60.0
SAMPLES_KEPT = 240  # of all nodes together: a sample of 8 GPUs takes about 40 KB
WARM_UP_S = 15.0  # before that a rule cannot tell how long something holds, and says what it sees
MOST_OF_A_CORE = 0.02

_Key = tuple[str, str, str]


class HealthWatch:
    """Call ``findings`` with every view, from one thread. ``since``: when a finding first appeared."""

    def __init__(self) -> None:
        self._history: dict[str, deque[Sample]] = {}
        self._since: dict[_Key, float | None] = {}
        self._findings: tuple[Finding, ...] = ()
        self._not_before = 0.0  # monotonic

    def findings(self, view: FleetView) -> tuple[Finding, ...]:
        """What holds now, the gravest first; of a large fleet the rules run only every few seconds."""
        samples = [node.sample for node in view.nodes if node.sample is not None]
        if not samples or time.monotonic() < self._not_before:
            return self._findings
        from mltop.probes.judge.health import evaluate

        began = time.monotonic()
        considered = [sample for newest in samples for sample in self._with_history(newest, len(view.nodes))]
        found = [finding for finding in evaluate(considered) if finding.until is None]
        self._findings = tuple(map(self._with_since, found))
        self._since = {_key(finding): finding.since for finding in self._findings}
        ended = time.monotonic()
        self._not_before = ended + (ended - began) / MOST_OF_A_CORE - (ended - began)
        return self._findings

    def _with_history(self, newest: Sample, nodes: int) -> list[Sample]:
        length = max(1, min(int(HISTORY_S), SAMPLES_KEPT // nodes))
        history = self._history.setdefault(newest.node, deque(maxlen=length))
        earlier = [sample for sample in history if sample.sampled_at < newest.sampled_at]
        if not history or newest.sampled_at - history[-1].sampled_at >= HISTORY_S / length:
            history.append(newest)
        warm = bool(earlier) and newest.sampled_at - earlier[0].sampled_at >= WARM_UP_S
        return [*earlier, newest] if warm else [newest]

    def _with_since(self, finding: Finding) -> Finding:
        before = self._since.get(_key(finding))
        if before is None or finding.since is None or before >= finding.since:
            return finding
        return replace(finding, since=before)


def _key(finding: Finding) -> _Key:
    return finding.node, finding.id, finding.subject
