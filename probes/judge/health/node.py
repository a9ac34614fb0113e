"""What one node's samples say. All of it runs on the node: Python 3.9, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from mltop.probes.judge.health.job.ranks import pasts_of_ranks
from mltop.probes.judge.health.moment import EVENT_LISTED_S, FleetMoment, Moment
from mltop.probes.judge.health.names import is_of_nvml, slot
from mltop.probes.judge.health.peers import MOST_FACTS, Facts, Peers
from mltop.probes.judge.health.registry import READERS, RULES, Readers
from mltop.probes.judge.health.rule import NO_EXPECTATIONS, Expectations, Rule
from mltop.probes.judge.health.spans import Spans
from mltop.probes.judge.health.trails import MOST_TRAILS, Trails
from mltop.probes.judge.health.unknowns import touches
from mltop.probes.model import Finding, GpuSample, Sample
from mltop.probes.model.news.judged import Fact, Judged, RankPast
from mltop.probes.model.sample import Reads

LOOKED_BACK_EVERY_S = 10.0  # over the last minutes
_OF_NVML = ("gpu.", "nvlink.", "fabric.", "pcie.", "nvml.")


class NodeJudge:
    """Rules over one node's samples, on the node or elsewhere. A rule that raises an exception is reported once.

    ``eager``: see ``Rule.eager``; ``keep_s``: for how long after its end a finding is kept, None: for ever.
    """

    def __init__(
        self,
        node: str,
        rules: Sequence[Rule] = RULES,
        *,
        expectations: Expectations = NO_EXPECTATIONS,
        eager: bool = False,
        keep_s: float | None = EVENT_LISTED_S,
        readers: Readers = READERS,
    ) -> None:
        self.node, self._readers = node, readers
        self._rules = [rule.at(expectations.thresholds) for rule in rules]
        self._expectations, self._eager = expectations, eager
        self.newest: Sample | None = None
        self.reads = Reads()
        self._spans = Spans(node, keep_s=keep_s)
        self._trails = Trails()
        self._known_gpus: dict[int, GpuSample] = {}
        self._facts: list[Fact] = []
        self._pasts: list[RankPast] = []
        self._looked_back_at = float("-inf")

    def see(self, sample: Sample, peers: Peers | None = None) -> None:
        """The next sample, in the order of time. ``peers``: for rules that compare nodes, who need no ranks."""
        before, now = self.newest, sample.sampled_at
        if before is not None and sample.boot_id != before.boot_id:
            # A reboot starts all counters and the list of GPUs anew.
            self._known_gpus, self._trails, self.reads, before = {}, Trails(), Reads(), None
        self._facts, failed = read_facts(sample, self._readers.facts)
        for read, error in failed:
            self._spans.fail(f"what {_module_of(read)} compares", error, now)
        self.reads.see(sample)
        # What the readers of the rules' modules name is remembered. One that fails costs the rules that need it.
        self._trails.see(sample, *self._readers[:4])
        for read, error in self._trails.failed:
            self._spans.fail(f"what {_module_of(read)} remembers", error, now)
        if self._trails.is_full:
            why = f"the node names more than {MOST_TRAILS:,} counters or gauges: the growth of others is not judged"
            self._spans.fail("what it counts", why, now)
        seen = (sample, before, self._known_gpus, self._trails, self._expectations)
        moment = Moment(*seen) if peers is None else FleetMoment(*seen, peers)
        for rule in self._rules:
            self._check(rule, moment)
        if peers is None:
            self._look_back(moment)
        self._spans.close(now)
        self._know(sample)
        self.newest = sample

    def judged(self) -> Judged:
        """What the newest sample comes to."""
        at = self.newest.sampled_at if self.newest is not None else 0.0
        found = self.findings()
        acts = [finding.act for finding in found]
        return Judged(self.node, at, [replace(one, act="") for one in found], acts, self._facts, self._pasts)

    def findings(self) -> list[Finding]:
        """What fires, what could not be judged, and what has ended; not folded."""
        return [*self._spans.firing(), *self._spans.ended]

    @property
    def any_open(self) -> bool:
        """Whether a rule holds, or may fire soon: the next sample is to be judged before long."""
        return self._spans.any_open

    def _check(self, rule: Rule, moment: Moment) -> None:
        now = moment.now.sampled_at
        hits = self._spans.hits(rule, moment, now)
        if hits:
            first = self.newest is None or _was_starting(rule, self.newest)
            for hit in self._spans.first(rule, hits):
                key = (rule.id, hit.subject, hit.key)
                self._spans.take(key, rule, hit, now, first=first, eager=self._eager)

    def _know(self, sample: Sample) -> None:
        """The newest that was seen of each GPU. A board that takes another one's slot takes its place, too."""
        working = {gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"}
        if not working.keys() >= self._known_gpus.keys():  # rarely
            by_slot = {slot(gpu.pci_bus_id): index for index, gpu in working.items() if gpu.pci_bus_id}
            for index, gpu in list(self._known_gpus.items()):
                if gpu.pci_bus_id and by_slot.get(slot(gpu.pci_bus_id), index) != index:
                    del self._known_gpus[index]
        self._known_gpus.update(working)

    def _look_back(self, moment: Moment) -> None:
        now = moment.now.sampled_at
        fresh = abs(now - self._looked_back_at) >= LOOKED_BACK_EVERY_S
        known = None if fresh else {past.pid: past for past in self._pasts}
        try:
            self._pasts = pasts_of_ranks(moment, known)
        except Exception as error:  # noqa: BLE001 - said as a finding, and everything else is judged
            self._spans.fail("what jobs are judged by", error, now)
            self._pasts = []
        if fresh:
            self._looked_back_at = now


def read_facts(sample: Sample, readers: Iterable[Facts]) -> tuple[list[Fact], list[tuple[Facts, Exception]]]:
    """What nodes are compared by, and the readers that raised an exception."""
    facts: list[Fact] = []
    failed = []
    for read in readers:
        try:
            facts.extend(islice(read(sample), MOST_FACTS - len(facts)))
        except Exception as error:  # noqa: BLE001 - said of the node, and the other readers go on
            failed.append((read, error))
    return facts, failed


def _module_of(read: object) -> str:
    return getattr(read, "__module__", "").rpartition(".")[2]


def _was_starting(rule: Rule, sample: Sample) -> bool:
    """Whether the sample could not yet tell what the rule needs: then it is seen for the first time only now."""
    if rule.id.startswith(_OF_NVML) and any(is_of_nvml(gap, "starting") for gap in sample.gaps):
        return True
    starting = [gap for gap in sample.gaps if gap.kind == "starting"]
    return any(touches(gap, need) for gap in starting for need in rule.needs)
