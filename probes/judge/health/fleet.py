"""Joins what the nodes say of themselves, compares them, and judges whole jobs, live or from a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mltop.probes.judge.health.folding import fold_findings
from mltop.probes.judge.health.job.whole_job import JobMoment, RankFacts, facts_of_ranks
from mltop.probes.judge.health.moment import EVENT_LISTED_S
from mltop.probes.judge.health.names import cards_of
from mltop.probes.judge.health.node import NodeJudge, read_facts
from mltop.probes.judge.health.peers import PeerBook
from mltop.probes.judge.health.registry import JOB_RULES, READERS, READERS_TO_COMPARE, RULES
from mltop.probes.judge.health.rule import NO_EXPECTATIONS, Expectations, Rule
from mltop.probes.judge.health.spans import MOST_HITS, Spans, first_of_each
from mltop.probes.judge.health.unknowns import growth_unknown, unknowns_of
from mltop.probes.judge.values import grouped
from mltop.probes.model import Finding, Sample, Unknown
from mltop.probes.model.news.judged import Judged, RankPast
from mltop.probes.model.vocabulary import gravity

JOBS_JUDGED_EVERY_S = 2.0  # of the samples' time …
RANKS_JUDGED_PER_S = 500.0  # … less often where there are many: of thousands a few are news each second …
JOBS_JUDGED_AT_LATEST_S = 10.0  # … but often enough for what is to be said within a minute
STALE_S = 60.0  # ranks of a node that has not been heard of for so long say nothing …
STALE_TURNS = 3  # … or for so many of its turns, on a fleet so large that they take longer

_ORDER = {rule.id: number for number, rule in enumerate(RULES, 1)}

Job = tuple["int | None", str]  # whose it is, and its name


class JobHealth:
    """Keeps the newest facts of every node's ranks and judges the jobs as a whole every few seconds.

    Two users' jobs of one name are two jobs. A rule that raises an exception is reported once for each job.
    """

    def __init__(self, rules: Sequence[Rule] = JOB_RULES, keep_s: float | None = EVENT_LISTED_S) -> None:
        self.rules = rules
        self._spans = Spans(most_open=float("inf"), keep_s=keep_s)
        self._by_node: dict[str, tuple[RankFacts, ...]] = {}
        self._made_of: dict[str, tuple[Sample, Sequence[RankPast]]] = {}  # what these were read from
        self._findings: tuple[Finding, ...] = ()
        self._judged_at = 0.0
        self._judged_every_s = JOBS_JUDGED_EVERY_S
        self._turns: dict[str, tuple[float, float]] = {}  # node → (newest, seconds since the one before)
        self._checked: dict[str, tuple[float, int]] = {}  # rule → (when, of how many ranks)

    def see(self, sample: Sample, pasts: Sequence[RankPast], now: float) -> None:
        """``pasts``: the newest that the node sent, which it does when they change. ``now``: as ``Health.take`` has it,
        by the watcher's clock: the nodes' differ.
        """
        node = sample.node
        last_at, _ = self._turns.get(node, (now, 0.0))
        self._turns[node] = (now, now - last_at)
        made_of = self._made_of.pop(node, None)
        if made_of is None or made_of[0] is not sample or made_of[1] != pasts:
            made_of = sample, pasts
            facts: tuple[RankFacts, ...] = ()
            try:
                facts = facts_of_ranks(sample, pasts)
            except Exception as error:  # noqa: BLE001 - said as a finding, and the other nodes' ranks are judged
                made_of = None
                self._spans.fail("what jobs are judged by", error, now, node)
            if facts or node in self._by_node:
                self._by_node[node] = facts
        if made_of is not None:
            self._made_of[node] = made_of
        if now < self._judged_at - STALE_S:
            self._judged_at = 0.0  # a clock was set back
        if self._by_node and now - self._judged_at >= self._judged_every_s:
            self._judge(now)

    def settle(self) -> None:
        """No sample comes after those that were seen: judge the jobs as they stand."""
        newest = max((at for at, _ in self._turns.values()), default=0.0)
        if self._by_node and newest >= self._judged_at:
            self._judge(newest)

    def forget(self, node: str) -> None:
        for of_nodes in (self._by_node, self._made_of, self._turns):
            of_nodes.pop(node, None)

    def findings(self) -> tuple[Finding, ...]:
        """Firing and ended within the hour."""
        return self._findings

    def _judge(self, now: float) -> None:
        self._judged_at = now
        fresh = {node for node, (at, turn_s) in self._turns.items() if now - at < max(STALE_S, STALE_TURNS * turn_s)}
        every = [facts for node in self._by_node if node in fresh for facts in self._by_node[node]]
        # All jobs cost as much as dozens of nodes: judged too often they would take these nodes' time.
        self._judged_every_s = min(JOBS_JUDGED_AT_LATEST_S, max(JOBS_JUDGED_EVERY_S, len(every) / RANKS_JUDGED_PER_S))
        due = []
        for rule in self.rules:
            at, of_ranks = self._checked.get(rule.id, (float("-inf"), -1))
            if abs(now - at) >= rule.every_s or len(every) != of_ranks:
                self._checked[rule.id] = now, len(every)
                due.append(rule)
        jobs: dict[Job, list[RankFacts]] = grouped(every, lambda facts: (facts.rank.uid, facts.rank.job))
        namesakes = Counter(name for _, name in jobs)
        for job, of_job in jobs.items():
            owner = f" of {of_job[0].rank.user or of_job[0].rank.uid}" if namesakes[job[1]] > 1 else ""
            ordered = tuple(sorted(of_job, key=lambda facts: (facts.rank.rank is None, facts.rank.rank or 0)))
            moment = JobMoment(job[1], now, ordered, owner)
            for rule in due:
                for hit in self._spans.hits(rule, moment, now, ordered[0].node)[:MOST_HITS]:
                    self._spans.take((rule.id, job, hit.node, hit.subject), rule, hit, now)
        self._spans.close(now)
        findings = (*first_of_each(self._spans.firing()), *self._spans.ended)
        if findings != self._findings:
            self._findings = findings


@dataclass
class _Node:
    """``own``: what it says of itself; ``compared``: beside others; ``folded``: None until somebody asks."""

    compared: NodeJudge
    own: Sequence[Finding] = ()
    folded: tuple[Finding, ...] | None = None

    def fold(self) -> tuple[Finding, ...]:
        compared = self.compared.findings()
        # What shows beside other nodes replaces what the same rule says of the node alone.
        said = {(one.id, one.subject, one.key) for one in compared if one.until is None}
        found = [*compared, *[one for one in self.own if (one.id, one.subject, one.key) not in said]]
        newest = self.compared.newest
        if not found or newest is None:
            return ()
        found.sort(key=lambda finding: (finding.until is not None, finding.since or 0.0, _ORDER.get(finding.id, 0)))
        working = sum(gpu.state == "ok" for gpu in newest.gpus)
        folded = fold_findings(found, working, listed_gpus=len(newest.gpus), cards=partial(cards_of, newest))
        return tuple(sorted(folded, key=gravest_first))


class Health:
    """What is wrong with the nodes whose samples ``see`` has taken, each node's in the order of time.

    ``eager``: what a node's first sample shows fires at once, unless only time can tell (a live view; or the names of
    the nodes that this holds for). ``keep_s``: for how long after its end a finding is kept; None: for ever.
    """

    def __init__(
        self,
        expectations: Expectations = NO_EXPECTATIONS,
        rules: Sequence[Rule] = RULES,
        eager: bool | Collection[str] = False,
        keep_s: float | None = EVENT_LISTED_S,
    ) -> None:
        self._judge = partial(NodeJudge, expectations=expectations, keep_s=keep_s)
        self._eager, self._rules = eager, [rule.at(expectations.thresholds) for rule in rules]
        self._to_compare = [replace(rule, check=rule.compare) for rule in rules if rule.compare is not None]
        self._judges: dict[str, NodeJudge] = {}  # of nodes that do not judge themselves
        self._nodes: dict[str, _Node] = {}
        self._book = PeerBook()
        self._jobs = JobHealth([rule.at(expectations.thresholds) for rule in JOB_RULES], keep_s=keep_s)

    def compare(self, samples: Iterable[Sample]) -> None:
        """Let these be known as what is usual before the first of them is judged."""
        self._book.learn({sample.node: read_facts(sample, READERS.facts)[0] for sample in samples})

    def see(self, sample: Sample) -> None:
        """The next sample of a node that does not judge itself."""
        name = sample.node
        if name not in self._judges:
            self._judges[name] = self._judge(name, self._rules, eager=self._is_eager(name))
        self._judges[name].see(sample)
        self.take(self._judges[name].judged(), sample, sample.sampled_at)

    def take(self, judged: Judged, sample: Sample, at: float) -> None:
        """What a node judged, and what is known of it until ``at``, by its clock. ``sample``: to be compared with those
        of other nodes; the same object as before where it need not be.
        """
        name, now = judged.node, at - (sample.clock_skew_s or 0.0)
        peers = self._book.take(name, judged.facts, now)
        if name not in self._nodes:
            compared = self._judge(name, self._to_compare, eager=self._is_eager(name), readers=READERS_TO_COMPARE)
            self._nodes[name] = _Node(compared)
        node = self._nodes[name]
        if sample is not node.compared.newest:
            node.compared.see(sample, peers)
        node.own = [replace(finding, act=act) for finding, act in zip(judged.findings, judged.acts)]
        node.folded = None
        self._jobs.see(sample, judged.ranks, now)

    def is_unlike(self, name: str) -> bool:
        """Whether a node differs from others now, or did a moment ago: it is to be compared more often."""
        node = self._nodes.get(name)
        return node is not None and node.compared.any_open

    def _is_eager(self, name: str) -> bool:
        return self._eager if isinstance(self._eager, bool) else name in self._eager

    def forget(self, name: str) -> None:
        """A node that is not watched any more."""
        self._judges.pop(name, None)
        self._nodes.pop(name, None)
        self._book.forget(name)
        self._jobs.forget(name)

    def settle(self) -> None:
        """No sample comes after those that were seen."""
        self._jobs.settle()

    def of(self, name: str) -> tuple[Finding, ...]:
        """One node's own findings, firing and ended, folded; the same tuple until its next sample."""
        node = self._nodes.get(name)
        if node is None:
            return ()
        if node.folded is None:
            node.folded = node.fold()
        return node.folded

    def of_jobs(self) -> tuple[Finding, ...]:
        """What concerns a job as a whole; the same tuple until something changes."""
        return self._jobs.findings()

    def findings(self) -> list[Finding]:
        """All findings, firing (``until`` None) and ended, the gravest first."""
        of_nodes = (finding for name in self._nodes for finding in self.of(name))
        return sorted([*of_nodes, *self.of_jobs()], key=gravest_first)

    def unknowns(self, at_the_end: bool = False) -> list[Unknown]:
        """What could not be judged at each node's newest sample. ``at_the_end``: no sample comes after it."""
        unknown: list[Unknown] = []
        rules = (*self._rules, *self._jobs.rules)
        for node in self._nodes.values():
            newest = node.compared.newest
            assert newest is not None
            unknown += unknowns_of(newest, rules, at_the_end)
            if at_the_end:
                unknown += growth_unknown(newest, rules, node.compared.reads)
        return unknown


def gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    return gravity(finding.severity), finding.node, finding.subject, finding.id
