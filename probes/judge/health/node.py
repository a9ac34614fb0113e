"""One node's rules over its samples, one after the other: what holds, since when, and what has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.health.peers import NO_PEERS, Peers
from mltop.probes.judge.health.rule import NOTHING_ASKED, Asked, Hit, Moment, Rule
from mltop.probes.judge.health.trails import Counters, Gauges, Trails
from mltop.probes.judge.health.unknowns import touches
from mltop.probes.model import Finding, GpuSample, Sample

_SEVERITIES = ("critical", "warning", "info")
_OF_NVML = ("gpu.", "nvlink.", "fabric.", "pcie.", "nvml.")
FIRST_SIGHT = "so in the first sample: for how long is unknown"


@dataclass
class Span:
    """One rule on one subject: since when it holds, whether it fired, when it was last seen."""

    rule: Rule
    hit: Hit
    since: float
    seen: float
    fired: bool = False
    at_first_sight: bool = False
    worst: Hit | None = None  # of those seen: what an ended finding is told by

    def see(self, hit: Hit, now: float) -> None:
        self.hit, self.seen = hit, now
        if self.worst is None or _grade(self.rule, hit) <= _grade(self.rule, self.worst):
            self.worst = hit

    def finding(self, node: str, until: float | None) -> Finding:
        rule = self.rule
        hit = self.hit if until is None or self.worst is None else self.worst
        evidence = list(hit.evidence)
        if self.at_first_sight and rule.hold_s and self.seen - self.since < rule.hold_s:
            evidence.append(FIRST_SIGHT)
        return Finding(
            id=rule.id,
            severity=hit.severity or rule.severity,
            node=node,
            subject=hit.subject,
            message=hit.message,
            action=hit.action or rule.action,
            evidence=evidence,
            since=self.since if hit.since is None else min(hit.since, self.since),
            until=until,
        )


@dataclass
class NodeHealth:
    """``see`` takes the node's samples in the order of time. ``eager``: see ``Rule.eager``."""

    rules: Sequence[Rule]
    counters: Sequence[Counters] = ()
    gauges: Sequence[Gauges] = ()
    asked: Asked = NOTHING_ASKED
    eager: bool = False
    newest: Sample | None = None
    firing: dict[tuple[str, str, str], Span] = field(default_factory=dict)
    ended: list[Finding] = field(default_factory=list)
    _trails: Trails = field(default_factory=Trails)
    _known: dict[int, GpuSample] = field(default_factory=dict)
    _open: dict[tuple[str, str, str], Span] = field(default_factory=dict)

    def see(self, sample: Sample, peers: Peers = NO_PEERS) -> Moment:
        """Judge one sample; returns the moment that the rules saw."""
        before = self.newest
        if before is not None and sample.boot_id != before.boot_id:
            # A reboot starts all counters and the list of GPUs anew.
            self._known, self._trails, before = {}, Trails(), None
        self._trails.see(sample, self.counters, self.gauges)
        moment = Moment(sample, before, self._known, self._trails, peers, self.asked)
        newest = self.newest
        for rule in self.rules:
            for hit in rule.check(moment):
                self._take(rule, hit, sample.sampled_at, newest is None or _was_starting(rule, newest))
        self._close(sample)
        self._known.update({gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"})
        self.newest = sample
        return moment

    def findings(self) -> list[Finding]:
        """What fires now, not folded."""
        assert self.newest is not None
        return [span.finding(self.newest.node, None) for span in self.firing.values()]

    def _take(self, rule: Rule, hit: Hit, now: float, first: bool) -> None:
        key = (rule.id, hit.subject, hit.key)
        span = self._open.get(key)
        if span is None:
            span = self._open[key] = Span(rule, hit, now, now, at_first_sight=first)
        span.see(hit, now)
        if not span.fired:
            held_s = now - (span.since if hit.since is None else min(hit.since, span.since))
            span.fired = held_s >= rule.hold_s or (span.at_first_sight and self.eager and rule.eager)
            if span.fired:
                self.firing[key] = span

    def _close(self, sample: Sample) -> None:
        now = sample.sampled_at
        for key, span in list(self._open.items()):
            if span.seen == now or now - span.seen < _patience(span):
                continue
            del self._open[key]
            if self.firing.pop(key, None) is not None:
                self.ended.append(span.finding(sample.node, span.seen))


def _was_starting(rule: Rule, sample: Sample) -> bool:
    """Whether the sample could not yet tell what the rule needs: then it is seen for the first time only now."""
    starting = [gap for gap in sample.gaps if gap.kind == "starting" or gap.what == "nvml.starting"]
    if not starting:
        return False
    if any(gap.what == "nvml.starting" for gap in starting) and rule.id.startswith(_OF_NVML):
        return True
    return any(touches(gap, need) for gap in starting for need in rule.needs)


def _grade(rule: Rule, hit: Hit) -> int:
    return _SEVERITIES.index(hit.severity or rule.severity)


def _patience(span: Span) -> float:
    """A span that never fired has no right to bridge a pause, nor has one that fired at first sight only."""
    held = span.seen - span.since >= span.rule.hold_s
    return span.rule.patience_s if span.fired and held else 0.0
