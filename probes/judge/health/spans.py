"""Of very many alike a few are told one by one, and the others as one: a node may have any number of anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.judge.health.rule import SEVERITIES
from mltop.probes.model import Finding

MOST_HITS = 64  # of one rule on one node, or job, …
MOST_ENDED = 256  # … and of those that have ended
MORE = "more"  # the subject of what stands for the others


@dataclass
class Ended:
    """What has ended of one rule, the oldest first; ``more`` stands for the ``count`` that came before."""

    found: deque[Finding] = field(default_factory=deque)
    more: Finding | None = None
    count: int = 0

    def add(self, finding: Finding) -> None:
        self.found.append(finding)
        if len(self.found) > MOST_ENDED:
            self._merge(self.found.popleft())

    def forget(self, oldest: float) -> None:
        self.found = deque(one for one in self.found if (one.until or 0.0) >= oldest)
        if self.more is not None and (self.more.until or 0.0) < oldest:
            self.more, self.count = None, 0

    def all(self) -> list[Finding]:
        return [*([self.more] if self.more is not None else []), *self.found]

    def _merge(self, finding: Finding) -> None:
        before, self.count = self.more or finding, self.count + 1
        self.more = replace(
            min(before, finding, key=lambda one: SEVERITIES.index(one.severity)),
            subject=MORE,
            message=f"… and {self.count:,} more that have ended",
            evidence=[],
            since=min((one.since for one in (before, finding) if one.since is not None), default=None),
            until=max(before.until or 0.0, finding.until or 0.0),
        )


def first_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """At most MOST_HITS of each rule that fire, and one that stands for the rest of it; all that have ended."""
    counts: dict[str, int] = {}
    others: dict[str, list[Finding]] = {}
    found = []
    for one in findings:
        if one.until is None and one.subject != MORE:
            count = counts[one.id] = counts.get(one.id, 0) + 1
            if count > MOST_HITS:
                others.setdefault(one.id, []).append(one)
                continue
        found.append(one)
    for rest in others.values():
        gravest = min(rest, key=lambda one: SEVERITIES.index(one.severity))
        text = f"… and {len(rest):,} more, e.g. {gravest.message}"
        since = min((one.since for one in rest if one.since is not None), default=None)
        found.append(replace(gravest, subject=MORE, message=text, evidence=[], folded=[], since=since))
    return found
