"""From hits to findings: how long each has been holding, when it fires, when it has ended, and what failed.

Of very many alike a few are told one by one, and the others as one: a node may have any number of anything.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mltop.probes.judge.health.rule import FAILED, Hit, Rule
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Finding
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.vocabulary import gravity

MOST_HITS = 64  # of one rule on one node, or job, …
MOST_ENDED = 256  # … and of those that have ended
MORE = "more"  # the subject of what stands for the others
FIRST_SIGHT = "already so in the first sample; for how long is unknown"

NO_RANKS = Ranges()

Key = tuple[object, ...]  # the rule's id first, then what it is about


@dataclass
class Span:
    """One rule on one subject: since when it holds, whether it fired, when it was last seen."""

    rule: Rule
    hit: Hit
    worst: Hit  # of those seen: what an ended finding is told by
    since: float
    seen: float
    at_first_sight: bool = False
    fired: bool = False

    @property
    def hold_s(self) -> float:
        return self.rule.hold_s if self.hit.hold_s is None else self.hit.hold_s

    @property
    def patience_s(self) -> float:
        """A span that never fired has no right to bridge a pause, nor has one that fired at first sight only."""
        return self.rule.patience_s if self.fired and self.seen - self.since >= self.hold_s else 0.0

    def see(self, hit: Hit, now: float, eager: bool) -> None:
        self.hit, self.seen = hit, now
        if _gravity(self.rule, hit) <= _gravity(self.rule, self.worst):
            self.worst = hit
        since = self.since if hit.since is None else min(hit.since, self.since)
        self.fired |= now - since >= self.hold_s or (self.at_first_sight and eager and self.rule.eager)

    def finding(self, node: str, until: float | None) -> Finding:
        rule, hit = self.rule, self.hit if until is None else self.worst
        evidence = list(hit.evidence)
        if self.at_first_sight and self.hold_s and self.seen - self.since < self.hold_s:
            evidence.append(FIRST_SIGHT)
        if rule.others:
            evidence.append(f"threshold set by you: {rule.usual} (default: {rule.others})")
        return Finding(
            id=rule.id,
            severity=hit.severity or rule.severity,
            node=hit.node or node,
            subject=hit.subject,
            message=hit.message,
            action=hit.action or rule.action,
            act=hit.act if hit.action else rule.act,
            evidence=evidence,
            since=self.since if hit.since is None else min(hit.since, self.since),
            until=until,
            remedy=hit.remedy or rule.remedy,
            key=hit.key,
            about=list(hit.about),
            server=hit.server,
            job=hit.job.name if hit.job is not None else "",
            uid=hit.job.uid if hit.job is not None else None,
            ranks=Ranges.of(rank for rank in hit.ranks if rank >= 0) if hit.ranks else NO_RANKS,
            pid=hit.pid,
        )


class Spans:
    """The spans of the rules about one ``node``, or about jobs: ``take`` all hits of one time, then ``close`` it."""

    def __init__(self, node: str = "", most_open: float = 2 * MOST_HITS, keep_s: float | None = None) -> None:
        self._node, self._most_open, self._keep_s = node, most_open, keep_s  # of one rule; of what has ended, None: all
        self._open: dict[Key, Span] = {}
        self._open_of: Counter[str] = Counter()  # how many of each rule
        self._ended: dict[str, Ended] = {}
        self._failures: dict[Key, Finding] = {}
        self._failed_now: set[Key] = set()

    @property
    def any_open(self) -> bool:
        """Whether anything holds, or may fire soon."""
        return bool(self._open)

    def hits(self, rule: Rule, moment: Any, now: float, node: str = "") -> list[Hit]:
        """What a rule says of a moment; [] where it fails."""
        try:
            return list(rule.hits(moment))
        except Exception as error:  # noqa: BLE001 - said as a finding, and the other rules and jobs are judged
            self.fail(f"rule {rule.id}", error, now, node)
            return []

    def first(self, rule: Rule, hits: list[Hit]) -> list[Hit]:
        """At most MOST_HITS of one rule on a node, those that are open before new ones, and all others as one."""
        if len(hits) <= MOST_HITS:
            return hits
        open_first = sorted(hits, key=lambda hit: (rule.id, hit.subject, hit.key) not in self._open)
        chosen, rest = open_first[:MOST_HITS], open_first[MOST_HITS:]
        gravest = min(rest, key=lambda hit: _gravity(rule, hit))
        text, since = f"… and {len(rest):,} more, e.g. {gravest.message}", earliest(rest)
        return [
            *chosen,
            replace(gravest, subject=MORE, key=MORE, message=text, evidence=(), since=since, about=(), ranks=()),
        ]

    def take(self, key: Key, rule: Rule, hit: Hit, now: float, *, first: bool = False, eager: bool = False) -> None:
        """``first``: it is the first time that this could be seen; then an ``eager`` one fires at once."""
        span = self._open.get(key)
        if span is None:
            if self._open_of[rule.id] > self._most_open:
                return  # a node whose subjects change with every sample
            self._open_of[rule.id] += 1
            span = self._open[key] = Span(rule, hit, hit, now, now, first)
        span.see(hit, now, eager)

    def fail(self, what: str, error: Exception | str, now: float, node: str = "") -> None:
        """``what`` could not be judged this time."""
        key, node = (what, node), node or self._node
        since = self._failures[key].since if key in self._failures else now
        text = f"{what} failed: {error if isinstance(error, str) else f'{type(error).__name__}: {error}'}"
        self._failures[key] = Finding(FAILED, "warning", node, what, text, "please report this", since=since)
        self._failed_now.add(key)

    def close(self, now: float) -> None:
        """What was not taken for longer than its rule has patience for has ended; what did not fail again is judged."""
        for key, span in list(self._open.items()):
            if span.seen == now or now - span.seen < span.patience_s:
                continue
            del self._open[key]
            self._open_of[span.rule.id] -= 1
            if span.fired:
                self._ended.setdefault(span.rule.id, Ended()).add(span.finding(self._node, span.seen))
        if self._keep_s is not None:
            for of_rule in self._ended.values():
                of_rule.forget(now - self._keep_s)
        self._failures = {key: finding for key, finding in self._failures.items() if key in self._failed_now}
        self._failed_now = set()

    def firing(self) -> list[Finding]:
        """What fires now, and what could not be judged."""
        fired = [span.finding(self._node, None) for span in self._open.values() if span.fired]
        return [*fired, *self._failures.values()]

    @property
    def ended(self) -> list[Finding]:
        return [finding for of_rule in self._ended.values() for finding in of_rule.all()]


@dataclass
class Ended:
    """What has ended of one rule, the oldest first; ``more`` stands for the ``count`` that came before."""

    newest: deque[Finding] = field(default_factory=deque)
    more: Finding | None = None
    count: int = 0

    def add(self, finding: Finding) -> None:
        self.newest.append(finding)
        if len(self.newest) <= MOST_ENDED:
            return
        oldest = self.newest.popleft()
        before, self.count = self.more or oldest, self.count + 1
        until = max(before.until or 0.0, oldest.until or 0.0)
        self.more = replace(one_for_all([before, oldest], f"{self.count:,} more that have ended"), until=until)

    def forget(self, oldest: float) -> None:
        self.newest = deque(finding for finding in self.newest if (finding.until or 0.0) >= oldest)
        if self.more is not None and (self.more.until or 0.0) < oldest:
            self.more, self.count = None, 0

    def all(self) -> list[Finding]:
        return [*known((self.more,)), *self.newest]


def one_for_all(rest: Sequence[Finding], text: str = "") -> Finding:
    """The gravest of many, that stands for them all."""
    gravest = min(rest, key=lambda finding: gravity(finding.severity))
    text = text or f"{len(rest):,} more, e.g. {gravest.message}"
    alone = replace(gravest, evidence=[], folded=[], explains=[], about=[], ranks=NO_RANKS)
    return replace(alone, subject=MORE, message=f"… and {text}", since=earliest(rest))


def earliest(all_of: Iterable[Finding] | Iterable[Hit]) -> float | None:
    return min(known(entry.since for entry in all_of), default=None)


def first_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """At most MOST_HITS of each rule that fire, and one that stands for the rest of it; all that have ended."""
    single = (finding for finding in findings if finding.until is None and finding.subject != MORE)
    firing = grouped(single, lambda finding: finding.id)
    rest = [of_rule[MOST_HITS:] for of_rule in firing.values() if len(of_rule) > MOST_HITS]
    left_out = {id(finding) for of_rule in rest for finding in of_rule}
    return [*(finding for finding in findings if id(finding) not in left_out), *map(one_for_all, rest)]


def _gravity(rule: Rule, hit: Hit) -> int:
    return gravity(hit.severity or rule.severity)
