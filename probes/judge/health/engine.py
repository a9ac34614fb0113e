"""Runs the rules over the samples of a fleet, live or from a recording: each node's, and those about whole jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from mltop.probes.judge.health.folding import fold_findings
from mltop.probes.judge.health.job.whole_job import History, JobMoment, RankFacts, facts_of_ranks
from mltop.probes.judge.health.names import cards_of, is_of_nvml, slot
from mltop.probes.judge.health.peers import NO_PEERS, PeerBook, Peers
from mltop.probes.judge.health.registry import COUNTERS, FACTS, GAUGES, JOB_RULES, RULES, VALUES
from mltop.probes.judge.health.rule import EVENT_LISTED_S, NO_EXPECTATIONS, Expectations, Hit, Moment, Rule
from mltop.probes.judge.health.spans import MOST_HITS, Spans, first_hits, first_of_each
from mltop.probes.judge.health.trails import MOST_TRAILS, Counters, Gauges, Trails, Values
from mltop.probes.judge.health.unknowns import growth_unknown, touches, unknowns_of
from mltop.probes.judge.values import grouped
from mltop.probes.model import Finding, GpuSample, Sample, Unknown
from mltop.probes.model.sample import Reads
from mltop.probes.model.vocabulary import gravity

_OF_NVML = ("gpu.", "nvlink.", "fabric.", "pcie.", "nvml.")
JOBS_JUDGED_EVERY_S = 2.0  # of the samples' time …
RANKS_JUDGED_PER_S = 500.0  # … less often where there are many: of thousands a few are news each second …
JOBS_JUDGED_AT_LATEST_S = 10.0  # … but often enough for what is to be said within a minute
HISTORIES_EVERY_S = 10.0
STALE_S = 60.0  # ranks of a node that has not been heard of for so long say nothing …
STALE_TURNS = 3  # … or for so many of its turns, on a fleet so large that they take longer

Job = tuple["int | None", str]  # whose it is, and its name


class NodeHealth:
    """One node's rules over its samples. ``eager``: see ``Rule.eager``.

    A rule that raises an exception costs its own answer, which is said once.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        counters: Sequence[Counters] = (),
        gauges: Sequence[Gauges] = (),
        values: Sequence[Values] = (),
        *,
        expectations: Expectations = NO_EXPECTATIONS,
        eager: bool = False,
        node: str = "",
    ) -> None:
        self._rules, self._counters, self._gauges, self._values = rules, counters, gauges, values
        self._expectations, self._eager = expectations, eager
        self.spans = Spans(node)
        self.newest: Sample | None = None
        self.reads = Reads()
        self._trails = Trails()
        self._known_gpus: dict[int, GpuSample] = {}

    def see(self, sample: Sample, peers: Peers = NO_PEERS) -> Moment:
        """Judge one sample, in the order of time; returns the moment that the rules saw."""
        before = self.newest
        if before is not None and sample.boot_id != before.boot_id:
            # A reboot starts all counters and the list of GPUs anew.
            self._known_gpus, self._trails, self.reads, before = {}, Trails(), Reads(), None
        self.reads.see(sample)
        self._remember(sample)
        moment = Moment(sample, before, self._known_gpus, self._trails, peers, self._expectations)
        for rule in self._rules:
            self._check(rule, moment)
        self.spans.close(sample.sampled_at)
        self._know(sample)
        self.newest = sample
        return moment

    def findings(self) -> list[Finding]:
        """What fires now, not folded, and what could not be judged."""
        return self.spans.firing()

    def _remember(self, sample: Sample) -> None:
        """What the readers of the rules' modules name. One that fails costs the rules that need it."""
        self._trails.see(sample, self._counters, self._gauges, self._values)
        for read, error in self._trails.failed:
            self.spans.fail(f"what {_module_of(read)} remembers", error, sample.sampled_at)
        if self._trails.is_full:
            why = f"the node names more than {MOST_TRAILS:,} counters or gauges: the growth of others is not judged"
            self.spans.fail("what it counts", why, sample.sampled_at)

    def _check(self, rule: Rule, moment: Moment) -> None:
        now = moment.now.sampled_at
        hits = _hits(rule, moment, self.spans, now)
        if hits:
            first = self.newest is None or _was_starting(rule, self.newest)
            for hit in first_hits(rule, hits, lambda hit: self.spans.is_open((rule.id, hit.subject, hit.key))):
                key = (rule.id, hit.subject, hit.key)
                self.spans.take(key, rule, hit, now, first=first, eager=self._eager)

    def _know(self, sample: Sample) -> None:
        """The newest that was seen of each GPU. A board that takes another one's slot takes its place, too."""
        working = {gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"}
        if not working.keys() >= self._known_gpus.keys():  # rarely
            by_slot = {slot(gpu.pci_bus_id): index for index, gpu in working.items() if gpu.pci_bus_id}
            for index, gpu in list(self._known_gpus.items()):
                if gpu.pci_bus_id and by_slot.get(slot(gpu.pci_bus_id), index) != index:
                    del self._known_gpus[index]
        self._known_gpus.update(working)


def _hits(rule: Rule, moment: Moment | JobMoment, spans: Spans, now: float, node: str = "") -> list[Hit]:
    try:
        return list(rule.hits(moment))
    except Exception as error:  # noqa: BLE001 - said as a finding, and the other rules and jobs are judged
        spans.fail(f"rule {rule.id}", error, now, node)
        return []


def _module_of(read: object) -> str:
    return getattr(read, "__module__", "").rpartition(".")[2]


def _was_starting(rule: Rule, sample: Sample) -> bool:
    """Whether the sample could not yet tell what the rule needs: then it is seen for the first time only now."""
    if rule.id.startswith(_OF_NVML) and any(is_of_nvml(gap, "starting") for gap in sample.gaps):
        return True
    starting = [gap for gap in sample.gaps if gap.kind == "starting"]
    return any(touches(gap, need) for gap in starting for need in rule.needs)


class JobHealth:
    """Keeps the newest facts of every node's ranks and judges the jobs as a whole every few seconds: the ranks of one
    are spread over nodes, and what one of them does means little alone.

    A job is what one user calls by one name: two users' jobs of one name are two jobs. A rule that raises an exception
    costs its own answer about that job, which is said once. ``keep_s``: as of ``Health``.
    """

    def __init__(self, rules: Sequence[Rule] = JOB_RULES, keep_s: float | None = EVENT_LISTED_S) -> None:
        self.rules, self._keep_s = rules, keep_s
        self._spans = Spans(most_open=float("inf"))
        self._by_node: dict[str, tuple[RankFacts, ...]] = {}
        self._findings: tuple[Finding, ...] = ()
        self._judged_at = 0.0
        self._judged_every_s = JOBS_JUDGED_EVERY_S
        self._histories_at: dict[str, float] = {}
        self._turns: dict[str, tuple[float, float]] = {}  # node → (newest, seconds since the one before)
        self._checked: dict[str, tuple[float, int]] = {}  # rule → (when, of how many ranks)

    def see(self, moment: Moment) -> None:
        # The nodes' clocks differ: by the watcher's, as far as it is known.
        now, node = moment.now.sampled_at - (moment.now.clock_skew_s or 0.0), moment.now.node
        last_at, _ = self._turns.get(node, (now, 0.0))
        self._turns[node] = (now, now - last_at)
        fresh = now - self._histories_at.get(node, float("-inf")) >= HISTORIES_EVERY_S
        histories = None if fresh else {facts.rank.pid: facts.history for facts in self._by_node.get(node, ())}
        facts = self._facts(moment, histories)
        if facts or node in self._by_node:
            self._by_node[node] = facts
        if fresh:
            self._histories_at[node] = now
        if now < self._judged_at - STALE_S:
            self._judged_at = 0.0  # a clock was set back
        if self._by_node and abs(now - self._judged_at) >= self._judged_every_s:
            self._judge(max(now, self._judged_at))

    def settle(self) -> None:
        """No sample comes after those that were seen: judge the jobs as they stand."""
        newest = max((at for at, _ in self._turns.values()), default=0.0)
        if self._by_node and newest >= self._judged_at:
            self._judge(newest)

    def forget(self, node: str) -> None:
        for of_nodes in (self._by_node, self._histories_at, self._turns):
            of_nodes.pop(node, None)

    def findings(self) -> tuple[Finding, ...]:
        """Firing and ended within the hour."""
        return self._findings

    def _facts(self, moment: Moment, histories: dict[int, History] | None) -> tuple[RankFacts, ...]:
        try:
            return facts_of_ranks(moment, histories)
        except Exception as error:  # noqa: BLE001 - said as a finding, and the other nodes' ranks are judged
            self._spans.fail("what jobs are judged by", error, moment.now.sampled_at, moment.now.node)
            return ()

    def _judge(self, now: float) -> None:
        self._judged_at = now
        fresh = {node for node, (at, turn_s) in self._turns.items() if now - at < max(STALE_S, STALE_TURNS * turn_s)}
        every = [facts for node in self._by_node if node in fresh for facts in self._by_node[node]]
        self._judged_every_s = jobs_judged_every_s(len(every))
        due = [rule for rule in self.rules if self._is_due(rule, now, len(every))]
        jobs: dict[Job, list[RankFacts]] = grouped(every, lambda facts: (facts.rank.uid, facts.rank.job))
        namesakes = Counter(name for _, name in jobs)
        for job, of_job in jobs.items():
            owner = f" of {of_job[0].rank.user or of_job[0].rank.uid}" if namesakes[job[1]] > 1 else ""
            ordered = tuple(sorted(of_job, key=lambda facts: (facts.rank.rank is None, facts.rank.rank or 0)))
            moment = JobMoment(job[1], now, ordered, owner)
            for rule in due:
                self._check(rule, job, moment)
        self._spans.close(now)
        if self._keep_s is not None:
            self._spans.forget_ended(now - self._keep_s)
        findings = (*first_of_each(self._spans.firing()), *self._spans.ended)
        if findings != self._findings:
            self._findings = findings

    def _is_due(self, rule: Rule, now: float, ranks: int) -> bool:
        at, of_ranks = self._checked.get(rule.id, (float("-inf"), -1))
        due = abs(now - at) >= rule.every_s or ranks != of_ranks
        if due:
            self._checked[rule.id] = now, ranks
        return due

    def _check(self, rule: Rule, job: Job, moment: JobMoment) -> None:
        for hit in _hits(rule, moment, self._spans, moment.at, moment.ranks[0].node)[:MOST_HITS]:
            self._spans.take((rule.id, job, hit.node, hit.subject), rule, hit, moment.at)


def jobs_judged_every_s(ranks: int) -> float:
    """Judging all jobs costs as much as judging dozens of nodes: done too often it would take these nodes' time."""
    return min(JOBS_JUDGED_AT_LATEST_S, max(JOBS_JUDGED_EVERY_S, ranks / RANKS_JUDGED_PER_S))


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
        self._expectations, self._eager, self._keep_s = expectations, eager, keep_s
        self._rules = [rule.at(expectations.thresholds) for rule in rules]
        self._nodes: dict[str, NodeHealth] = {}
        self._book = PeerBook(FACTS)
        self._jobs = JobHealth([rule.at(expectations.thresholds) for rule in JOB_RULES], keep_s=keep_s)
        self._folded: dict[str, tuple[Finding, ...] | None] = {}  # None: to be made when somebody asks

    def compare(self, samples: Iterable[Sample]) -> None:
        """Let these be known as what is usual before the first of them is judged."""
        self._book.learn(samples)

    def see(self, sample: Sample) -> None:
        node, name = self._nodes.get(sample.node), sample.node
        if node is None:
            eager = self._eager if isinstance(self._eager, bool) else name in self._eager
            node = NodeHealth(
                self._rules, COUNTERS, GAUGES, VALUES, expectations=self._expectations, eager=eager, node=name
            )
            self._nodes[name] = node
        peers = self._book.see(sample)
        for read, error in self._book.failed:
            node.spans.fail(f"what {_module_of(read)} compares", error, sample.sampled_at)
        self._jobs.see(node.see(sample, peers))
        if self._keep_s is not None:
            node.spans.forget_ended(sample.sampled_at - self._keep_s)
        self._folded[sample.node] = None

    def forget(self, name: str) -> None:
        """A node that is not watched any more."""
        self._nodes.pop(name, None)
        self._folded.pop(name, None)
        self._book.forget(name)
        self._jobs.forget(name)

    def settle(self) -> None:
        """No sample comes after those that were seen."""
        self._jobs.settle()

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
        of_nodes = (finding for name in self._nodes for finding in self.of(name))
        return sorted([*of_nodes, *self.of_jobs()], key=gravest_first)

    def unknowns(self, at_the_end: bool = False) -> list[Unknown]:
        """What could not be judged at each node's newest sample. ``at_the_end``: none comes after it, so what is still
        starting, and what has not been seen to grow or not to, is not known either.
        """
        unknown: list[Unknown] = []
        rules = (*self._rules, *self._jobs.rules)
        for node in self._nodes.values():
            if node.newest is not None:
                unknown += unknowns_of(node.newest, rules, at_the_end)
                if at_the_end:
                    unknown += growth_unknown(node.newest, rules, node.reads)
        return unknown


def evaluate(
    samples: Iterable[Sample], rules: Sequence[Rule] = RULES, expectations: Expectations = NO_EXPECTATIONS
) -> list[Finding]:
    """Every finding that fired in ``samples`` (any nodes, any order), the gravest first.

    ``until`` None: still firing at the node's last sample. A single sample of a node does not tell how long a
    rule holds: it fires at once and its evidence says so. Pure.
    """
    return evaluated(samples, rules, expectations).findings()


def evaluated(
    samples: Iterable[Sample], rules: Sequence[Rule] = RULES, expectations: Expectations = NO_EXPECTATIONS
) -> Health:
    """The state behind ``evaluate``, for callers that also ask what is unknown."""
    ordered = sorted(samples, key=lambda sample: sample.sampled_at)
    counts = Counter(sample.node for sample in ordered)
    alone = frozenset(node for node, count in counts.items() if count == 1)
    health = Health(expectations, rules, eager=alone, keep_s=None)
    health.compare({sample.node: sample for sample in reversed(ordered)}.values())
    for sample in ordered:
        health.see(sample)
    health.settle()
    return health


def gravest_first(finding: Finding) -> tuple[int, str, str, str]:
    return gravity(finding.severity), finding.node, finding.subject, finding.id


def _folded(node: NodeHealth) -> tuple[Finding, ...]:
    firing, ended = node.spans.firing(), node.spans.ended
    if not firing and not ended:
        return ()
    assert node.newest is not None
    gpus = node.newest.gpus
    working = sum(gpu.state == "ok" for gpu in gpus)
    cards = partial(cards_of, node.newest)
    folded = fold_findings([*firing, *ended], working, listed_gpus=len(gpus), cards=cards)
    return tuple(sorted(folded, key=gravest_first))
