"""Rules about a job as a whole: its ranks are spread over nodes, and what one rank does means little alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.health.job_facts import RankFacts, facts_of_ranks
from mltop.probes.judge.health.rule import CLEAR_AFTER_HOLDS, EVENT_LISTED_S, Moment
from mltop.probes.model import Finding

JUDGED_EVERY_S = 2.0  # of the samples' time
HISTORIES_EVERY_S = 10.0
STALE_S = 60.0  # ranks of a node that has not been heard of for so long say nothing


@dataclass(frozen=True)
class JobMoment:
    """All ranks of one job that are known, by rank; ``at`` is the time of the newest sample, unix s."""

    job: str
    at: float
    ranks: tuple[RankFacts, ...]

    @property
    def world_size(self) -> int | None:
        return max((facts.world_size for facts in self.ranks if facts.world_size is not None), default=None)


@dataclass(frozen=True)
class JobHit:
    """As ``Hit``, of a job: ``node`` and ``subject`` are those of the rank it is about, or the job's first node."""

    node: str
    subject: str
    message: str
    evidence: tuple[str, ...] = ()
    severity: str = ""
    action: str = ""


@dataclass(frozen=True)
class JobRule:
    """As ``Rule``; it never fires on one sample."""

    id: str
    severity: str
    hold_s: float
    action: str
    check: Callable[[JobMoment], Iterable[JobHit]]
    meaning: str = ""
    threshold: str = ""
    source: str = ""
    needs: tuple[str, ...] = ()


@dataclass
class _Span:
    rule: JobRule
    hit: JobHit
    since: float
    seen: float
    fired: bool = False

    def finding(self, until: float | None) -> Finding:
        rule, hit = self.rule, self.hit
        return Finding(
            id=rule.id,
            severity=hit.severity or rule.severity,
            node=hit.node,
            subject=hit.subject,
            message=hit.message,
            action=hit.action or rule.action,
            evidence=list(hit.evidence),
            since=self.since,
            until=until,
        )


@dataclass
class JobHealth:
    """Keeps the newest facts of every node's ranks and judges the jobs every few seconds."""

    rules: Sequence[JobRule] = ()
    _by_node: dict[str, tuple[RankFacts, ...]] = field(default_factory=dict)
    _spans: dict[tuple[str, str, str, str], _Span] = field(default_factory=dict)
    _ended: list[Finding] = field(default_factory=list)
    _findings: tuple[Finding, ...] = ()
    _judged_at: float = 0.0
    _histories_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from mltop.probes.judge.health.job_rules import JOB_RULES  # its rules are made of what stands above

        self.rules = self.rules or JOB_RULES

    def see(self, moment: Moment) -> None:
        now, node = moment.now.sampled_at, moment.now.node
        fresh = now - self._histories_at.get(node, float("-inf")) >= HISTORIES_EVERY_S
        known = None if fresh else {one.pid: one.history for one in self._by_node.get(node, ())}
        facts = facts_of_ranks(moment, known)
        if facts or node in self._by_node:
            self._by_node[node] = facts
        if fresh:
            self._histories_at[node] = now
        if self._by_node and abs(now - self._judged_at) >= JUDGED_EVERY_S:
            self._judge(max(now, self._judged_at))

    def forget(self, node: str) -> None:
        self._by_node.pop(node, None)
        self._histories_at.pop(node, None)

    def findings(self) -> tuple[Finding, ...]:
        """Firing and ended within the hour."""
        return self._findings

    def _judge(self, now: float) -> None:
        self._judged_at = now
        jobs: dict[str, list[RankFacts]] = {}
        for facts in self._by_node.values():
            for one in facts:
                if now - one.at < STALE_S:
                    jobs.setdefault(one.job, []).append(one)
        for job, ranks in jobs.items():
            moment = JobMoment(job, now, tuple(sorted(ranks, key=lambda one: (one.rank is None, one.rank or 0))))
            for rule in self.rules:
                for hit in rule.check(moment):
                    self._take(rule, job, hit, now)
        self._close(now)
        firing = [span.finding(None) for span in self._spans.values() if span.fired]
        found = (*firing, *self._ended)
        if found != self._findings:
            self._findings = found

    def _take(self, rule: JobRule, job: str, hit: JobHit, now: float) -> None:
        span = self._spans.setdefault((rule.id, job, hit.node, hit.subject), _Span(rule, hit, now, now))
        span.hit, span.seen = hit, now
        span.fired = span.fired or now - span.since >= rule.hold_s

    def _close(self, now: float) -> None:
        for key, span in list(self._spans.items()):
            patience_s = CLEAR_AFTER_HOLDS * span.rule.hold_s if span.fired else 0.0
            if span.seen < now and now - span.seen >= patience_s:
                del self._spans[key]
                if span.fired:
                    self._ended.append(span.finding(span.seen))
        self._ended = [one for one in self._ended if one.until is None or one.until > now - EVENT_LISTED_S]
