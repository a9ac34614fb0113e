"""Runs the rules over the samples of a fleet, live or from a recording."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mltop.probes.judge.health.folding import fold_findings
from mltop.probes.judge.health.jobs import JobHealth
from mltop.probes.judge.health.node import NodeHealth
from mltop.probes.judge.health.peers import PeerBook
from mltop.probes.judge.health.registry import COUNTERS, FACTS, GAUGES, RULES, VALUES
from mltop.probes.judge.health.rule import EVENT_LISTED_S, NOTHING_ASKED, SEVERITIES, Asked, Rule
from mltop.probes.judge.health.unknowns import AnyRule, growth_unknown, unknowns_of
from mltop.probes.model import Finding, Sample, Unknown


class Health:
    """What is wrong with the nodes whose samples ``see`` has taken, each node's in the order of time.

    ``eager``: what a node's first sample shows fires at once, unless only time can tell (a live view; or the names of
    the nodes that this holds for). ``keep_s``: for how long after its end a finding is kept; None: for ever.
    """

    def __init__(
        self,
        asked: Asked = NOTHING_ASKED,
        rules: Sequence[Rule] = RULES,
        eager: bool | Collection[str] = False,
        keep_s: float | None = EVENT_LISTED_S,
    ) -> None:
        self._asked, self._rules, self._eager, self._keep_s = asked, rules, eager, keep_s
        self._nodes: dict[str, NodeHealth] = {}
        self._book = PeerBook(FACTS)
        self._jobs = JobHealth(keep_s=keep_s)
        self._folded: dict[str, tuple[Finding, ...] | None] = {}  # None: to be made when somebody asks

    def compare(self, samples: Iterable[Sample]) -> None:
        """Let these be known as what is usual before the first of them is judged."""
        self._book.learn(samples)

    def see(self, sample: Sample) -> None:
        node = self._nodes.get(sample.node)
        if node is None:
            eager = self._eager if isinstance(self._eager, bool) else sample.node in self._eager
            node = NodeHealth(self._rules, COUNTERS, GAUGES, self._asked, eager, VALUES)
            self._nodes[sample.node] = node
        moment = node.see(sample, self._book.see(sample))
        for what, why in self._book.failed.items():
            node.failed(what, why, sample.sampled_at)
        self._jobs.see(moment)
        if self._keep_s is not None:
            node.forget_ended(sample.sampled_at - self._keep_s)
        self._folded[sample.node] = None

    def forget(self, name: str) -> None:
        """A node that is not watched any more."""
        for known in (self._nodes, self._folded):
            known.pop(name, None)
        self._book.forget(name)
        self._jobs.forget(name)

    def of(self, name: str) -> tuple[Finding, ...]:
        """One node's own findings, firing and ended, folded; the same tuple until its next sample."""
        folded = self._folded.get(name, ())
        if folded is None:
            folded = self._folded[name] = _folded(self._nodes[name])
        return folded

    def of_jobs(self) -> tuple[Finding, ...]:
        """What concerns a job as a whole; the same tuple until something changes."""
        return self._jobs.findings()

    def findings(self) -> list[Finding]:
        """All findings, firing (``until`` None) and ended, the gravest first."""
        found = [finding for name in self._nodes for finding in self.of(name)]
        return sorted([*found, *self.of_jobs()], key=gravest_first)

    def unknowns(self, at_the_end: bool = False) -> list[Unknown]:
        """What could not be judged at each node's newest sample. ``at_the_end``: none comes after it, so what is still
        starting, and what has not been seen to grow or not to, is not known either.
        """
        found: list[Unknown] = []
        rules: tuple[AnyRule, ...] = (*self._rules, *self._jobs.rules)
        for node in self._nodes.values():
            if node.newest is not None:
                found += unknowns_of(node.newest, rules, at_the_end)
                if at_the_end:
                    found += growth_unknown(node.newest, rules, node.reads)
        return found


def evaluate(samples: Iterable[Sample], rules: Sequence[Rule] = RULES, asked: Asked = NOTHING_ASKED) -> list[Finding]:
    """Every finding that fired in ``samples`` (any nodes, any order), the gravest first.

    ``until`` None: still firing at the node's last sample. A single sample of a node does not tell how long a
    rule holds: it fires at once and its evidence says so. Pure.
    """
    return evaluated(samples, rules, asked).findings()


def evaluated(samples: Iterable[Sample], rules: Sequence[Rule] = RULES, asked: Asked = NOTHING_ASKED) -> Health:
    """As ``evaluate``: for who also asks what is unknown."""
    ordered = sorted(samples, key=lambda sample: sample.sampled_at)
    counts: dict[str, int] = {}
    for sample in ordered:
        counts[sample.node] = counts.get(sample.node, 0) + 1
    alone = frozenset(node for node, count in counts.items() if count == 1)
    health = Health(asked, rules, eager=alone, keep_s=None)
    health.compare({sample.node: sample for sample in reversed(ordered)}.values())
    for sample in ordered:
        health.see(sample)
    return health


def gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    known = finding.severity in SEVERITIES
    return SEVERITIES.index(finding.severity) if known else len(SEVERITIES), finding.node, finding.subject, finding.id


def _folded(node: NodeHealth) -> tuple[Finding, ...]:
    told, ended = node.told(), node.ended
    if not told and not ended:
        return ()
    assert node.newest is not None
    gpus = node.newest.gpus
    working = sum(gpu.state == "ok" for gpu in gpus)
    found = fold_findings([*(one for one, _ in told), *ended], working, listed_gpus=len(gpus), about=told)
    return tuple(sorted(found, key=gravest_first))
