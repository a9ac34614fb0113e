"""Rules about a job as a whole: its ranks are spread over nodes, and what one rank does means little alone.

A job is what one user calls by one name: two users' jobs of one name are two jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.health.job.facts import History, RankFacts, facts_of_ranks
from mltop.probes.judge.health.rule import CLEAR_AFTER_HOLDS, EVENT_LISTED_S, FAILED, SEVERITIES, Moment
from mltop.probes.judge.health.spans import MOST_HITS, Ended, first_of_each
from mltop.probes.model import Finding

JUDGED_EVERY_S = 2.0  # of the samples' time
HISTORIES_EVERY_S = 10.0
STALE_S = 60.0  # ranks of a node that has not been heard of for so long say nothing …
STALE_TURNS = 3  # … or for so many of its turns, on a fleet so large that they take longer

Job = tuple["int | None", str]  # whose it is, and its name


@dataclass(frozen=True)
class JobMoment:
    """All ranks of one job that are known, by rank; ``at`` is the time of the newest sample, unix s.

    ``owner``: " of ada" where another user has a job of the same name.
    """

    job: str
    at: float
    ranks: tuple[RankFacts, ...]
    owner: str = ""

    @property
    def name(self) -> str:
        return f"job {self.job}{self.owner}"

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
    decisive: tuple[str, ...] = ()


@dataclass
class _Span:
    rule: JobRule
    hit: JobHit
    since: float
    seen: float
    fired: bool = False
    worst: JobHit | None = None

    def see(self, hit: JobHit, now: float) -> None:
        self.hit, self.seen = hit, now
        known = self.worst
        if known is None or _grade(self.rule, hit) <= _grade(self.rule, known):
            self.worst = hit

    def finding(self, until: float | None) -> Finding:
        rule = self.rule
        hit = self.hit if until is None or self.worst is None else self.worst
        return Finding(
            id=rule.id,
            severity=hit.severity or rule.severity,  # type: ignore[arg-type]
            node=hit.node,
            subject=hit.subject,
            message=hit.message,
            action=hit.action or rule.action,
            evidence=list(hit.evidence),
            since=self.since,
            until=until,
        )


def _grade(rule: JobRule, hit: JobHit) -> int:
    return SEVERITIES.index(hit.severity or rule.severity)


@dataclass
class JobHealth:
    """Keeps the newest facts of every node's ranks and judges the jobs every few seconds.

    A rule that raises an exception costs its own answer about that job, which is said once.
    """

    rules: Sequence[JobRule] = ()
    keep_s: float | None = EVENT_LISTED_S  # after its end; None: for ever
    _by_node: dict[str, tuple[RankFacts, ...]] = field(default_factory=dict)
    _spans: dict[tuple[str, Job, str, str], _Span] = field(default_factory=dict)
    _ended: dict[str, Ended] = field(default_factory=dict)
    _failed: dict[tuple[str, str], Finding] = field(default_factory=dict)
    _findings: tuple[Finding, ...] = ()
    _judged_at: float = 0.0
    _histories_at: dict[str, float] = field(default_factory=dict)
    _turns: dict[str, tuple[float, float]] = field(
        default_factory=dict
    )  # node → (newest, seconds since the one before)

    def __post_init__(self) -> None:
        from mltop.probes.judge.health.job.whole_job import JOB_RULES  # its rules are made of what stands above

        self.rules = self.rules or JOB_RULES

    def see(self, moment: Moment) -> None:
        # The nodes' clocks differ: by the watcher's, as far as it is known.
        now, node = moment.now.sampled_at - (moment.now.clock_skew_s or 0.0), moment.now.node
        last_at, _ = self._turns.get(node, (now, 0.0))
        self._turns[node] = (now, now - last_at)
        fresh = now - self._histories_at.get(node, float("-inf")) >= HISTORIES_EVERY_S
        known = None if fresh else {one.pid: one.history for one in self._by_node.get(node, ())}
        facts = self._facts(moment, known)
        if facts or node in self._by_node:
            self._by_node[node] = facts
        if fresh:
            self._histories_at[node] = now
        if now < self._judged_at - STALE_S:
            self._judged_at = 0.0  # a clock was set back
        if self._by_node and abs(now - self._judged_at) >= JUDGED_EVERY_S:
            self._judge(max(now, self._judged_at))

    def forget(self, node: str) -> None:
        self._by_node.pop(node, None)
        self._histories_at.pop(node, None)
        self._turns.pop(node, None)

    def findings(self) -> tuple[Finding, ...]:
        """Firing and ended within the hour."""
        return self._findings

    def _facts(self, moment: Moment, known: dict[int, History] | None) -> tuple[RankFacts, ...]:
        try:
            return facts_of_ranks(moment, known)
        except Exception as error:  # noqa: BLE001 - said as a finding, and the other nodes' ranks are judged
            self._fails("what jobs are judged by", moment.now.node, error, moment.now.sampled_at)
            return ()

    def _fails(self, what: str, node: str, error: Exception, now: float) -> None:
        text = f"{what} failed: {type(error).__name__}: {error}"
        made = Finding(FAILED, "warning", node, what, text, "please report this", since=now)
        if len(self._failed) < MOST_HITS:
            self._failed.setdefault((what, node), made)

    def _stale_s(self, node: str) -> float:
        return max(STALE_S, STALE_TURNS * self._turns[node][1])

    def _judge(self, now: float) -> None:
        self._judged_at = now
        jobs: dict[Job, list[RankFacts]] = {}
        for node, facts in self._by_node.items():
            if now - self._turns[node][0] < self._stale_s(node):
                for one in facts:
                    jobs.setdefault((one.uid, one.job), []).append(one)
        namesakes = Counter(name for _, name in jobs)
        failed, self._failed = self._failed, {}
        for job, ranks in jobs.items():
            owner = f" of {ranks[0].user or ranks[0].uid}" if namesakes[job[1]] > 1 else ""
            ordered = tuple(sorted(ranks, key=lambda one: (one.rank is None, one.rank or 0)))
            moment = JobMoment(job[1], now, ordered, owner)
            for rule in self.rules:
                self._check(rule, job, moment)
        self._failed = {what: failed.get(what, finding) for what, finding in self._failed.items()}
        self._close(now)
        firing = [span.finding(None) for span in self._spans.values() if span.fired]
        ended = (finding for of_rule in self._ended.values() for finding in of_rule.all())
        found = (*first_of_each(firing), *self._failed.values(), *ended)
        if found != self._findings:
            self._findings = found

    def _check(self, rule: JobRule, job: Job, moment: JobMoment) -> None:
        try:
            hits = list(rule.check(moment))
        except Exception as error:  # noqa: BLE001 - said as a finding, and the other rules and jobs are judged
            self._fails(f"rule {rule.id}", moment.ranks[0].node, error, moment.at)
            return
        for hit in hits[:MOST_HITS]:
            self._take(rule, job, hit, moment.at)

    def _take(self, rule: JobRule, job: Job, hit: JobHit, now: float) -> None:
        span = self._spans.setdefault((rule.id, job, hit.node, hit.subject), _Span(rule, hit, now, now))
        span.see(hit, now)
        span.fired = span.fired or now - span.since >= rule.hold_s

    def _close(self, now: float) -> None:
        for key, span in list(self._spans.items()):
            patience_s = CLEAR_AFTER_HOLDS * span.rule.hold_s if span.fired else 0.0
            if span.seen < now and now - span.seen >= patience_s:
                del self._spans[key]
                if span.fired:
                    self._ended.setdefault(key[0], Ended()).add(span.finding(span.seen))
        if self.keep_s is not None:
            for of_rule in self._ended.values():
                of_rule.forget(now - self.keep_s)
