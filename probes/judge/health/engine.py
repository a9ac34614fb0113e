"""Runs the rules over samples: when each one fired, and since when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mltop.probes.judge.health import gpu_state, gpu_throttle, nvml
from mltop.probes.judge.health.folding import fold_findings
from mltop.probes.judge.health.rule import Hit, Moment, Rule
from mltop.probes.model import Finding, GpuSample, Sample

# One file per subject; a new subject is a new file with RULES and one entry here.
RULES: tuple[Rule, ...] = (*gpu_state.RULES, *gpu_throttle.RULES, *nvml.RULES)
CLEAR_AFTER_HOLDS = 3.0
_SEVERITIES = ("critical", "warning", "info")


def evaluate(samples: Sequence[Sample], rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Every finding that fired in ``samples`` (any nodes, any order), the gravest first.

    ``until`` None: still firing at the node's last sample. A single sample of a node does not tell how long a
    rule holds: it fires at once and its evidence says so. Pure; O(samples × rules).
    """
    by_node: dict[str, list[Sample]] = {}
    for sample in samples:
        by_node.setdefault(sample.node, []).append(sample)
    findings: list[Finding] = []
    for own in by_node.values():
        own.sort(key=lambda sample: sample.sampled_at)
        findings += _of_one_node(own, rules)
    counts = {node: sum(gpu.state == "ok" for gpu in own[-1].gpus) for node, own in by_node.items()}
    folded = fold_findings(findings, counts)
    return sorted(folded, key=lambda one: (_SEVERITIES.index(one.severity), one.node, one.subject, one.id))


@dataclass
class _Span:
    """One rule on one subject: since when it holds, when it fired, when it was last seen."""

    rule: Rule
    hit: Hit
    since: float
    seen: float
    fired: bool = False


def _of_one_node(samples: list[Sample], rules: Sequence[Rule]) -> list[Finding]:
    open_spans: dict[tuple[str, str], _Span] = {}
    findings: list[Finding] = []
    alone = len(samples) == 1
    for moment in _moments(samples):
        now = moment.now.sampled_at
        for rule in rules:
            for hit in rule.check(moment):
                span = open_spans.setdefault((rule.id, hit.subject), _Span(rule, hit, now, now))
                span.hit, span.seen = hit, now
                span.fired = span.fired or alone or now - span.since >= rule.hold_s
        for key, span in list(open_spans.items()):
            # A span that never fired has no right to bridge a pause.
            patience_s = CLEAR_AFTER_HOLDS * span.rule.hold_s if span.fired else 0.0
            if span.seen < now and now - span.seen >= patience_s:
                del open_spans[key]
                if span.fired:
                    findings.append(_finding(span, moment.now.node, span.seen, alone))
    node = samples[-1].node
    return findings + [_finding(span, node, None, alone) for span in open_spans.values() if span.fired]


def _moments(samples: list[Sample]) -> Iterator[Moment]:
    known: dict[int, GpuSample] = {}
    before: Sample | None = None
    for sample in samples:
        if before is not None and sample.boot_id != before.boot_id:
            known, before = {}, None  # a reboot starts all counters and the list of GPUs anew
        yield Moment(sample, before, dict(known))
        known.update({gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"})
        before = sample


def _finding(span: _Span, node: str, until: float | None, alone: bool) -> Finding:
    evidence = list(span.hit.evidence)
    if alone and span.rule.hold_s:
        evidence.append("seen in one sample: how long it holds is unknown")
    rule = span.rule
    return Finding(
        id=rule.id,
        severity=rule.severity,
        node=node,
        subject=span.hit.subject,
        message=span.hit.message,
        action=rule.action,
        evidence=evidence,
        since=span.since,
        until=until,
    )
