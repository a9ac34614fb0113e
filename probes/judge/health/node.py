"""One node's rules over its samples, one after the other: what holds, since when, and what has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.judge.health.names import bus_key
from mltop.probes.judge.health.peers import NO_PEERS, Peers
from mltop.probes.judge.health.rule import FAILED, NOTHING_ASKED, SEVERITIES, Asked, Hit, Moment, Rule
from mltop.probes.judge.health.spans import MORE, MOST_HITS, Ended
from mltop.probes.judge.health.trails import MOST_TRAILS, Counters, Gauges, Trails, Values
from mltop.probes.judge.health.unknowns import touches
from mltop.probes.model import Finding, GpuSample, Sample
from mltop.probes.model.sample import Reads

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

    @property
    def hold_s(self) -> float:
        return self.rule.hold_s if self.hit.hold_s is None else self.hit.hold_s

    def see(self, hit: Hit, now: float) -> None:
        self.hit, self.seen = hit, now
        if self.worst is None or _grade(self.rule, hit) <= _grade(self.rule, self.worst):
            self.worst = hit

    def finding(self, node: str, until: float | None) -> Finding:
        rule = self.rule
        hit = self.hit if until is None or self.worst is None else self.worst
        evidence = list(hit.evidence)
        if self.at_first_sight and self.hold_s and self.seen - self.since < self.hold_s:
            evidence.append(FIRST_SIGHT)
        return Finding(
            id=rule.id,
            severity=hit.severity or rule.severity,  # type: ignore[arg-type]
            node=node,
            subject=hit.subject,
            message=hit.message,
            action=hit.action or rule.action,
            evidence=evidence,
            since=self.since if hit.since is None else min(hit.since, self.since),
            until=until,
            remedy=hit.remedy or rule.remedy,
        )


@dataclass
class _Failure:
    """Why something could not be judged, since when, and when it was seen last."""

    why: str
    since: float
    seen: float


@dataclass
class NodeHealth:
    """``see`` takes the node's samples in the order of time. ``eager``: see ``Rule.eager``.

    A rule that raises an exception costs its own answer, which is said once.
    """

    rules: Sequence[Rule]
    counters: Sequence[Counters] = ()
    gauges: Sequence[Gauges] = ()
    asked: Asked = NOTHING_ASKED
    eager: bool = False
    values: Sequence[Values] = ()
    newest: Sample | None = None
    firing: dict[tuple[str, str, str], Span] = field(default_factory=dict)
    reads: Reads = field(default_factory=Reads)
    _ended: dict[str, Ended] = field(default_factory=dict)
    _failed: dict[str, _Failure] = field(default_factory=dict)
    _trails: Trails = field(default_factory=Trails)
    _known: dict[int, GpuSample] = field(default_factory=dict)
    _open: dict[tuple[str, str, str], Span] = field(default_factory=dict)
    _open_of: Counter[str] = field(default_factory=Counter)  # how many of each rule

    def see(self, sample: Sample, peers: Peers = NO_PEERS) -> Moment:
        """Judge one sample; returns the moment that the rules saw."""
        before = self.newest
        if before is not None and sample.boot_id != before.boot_id:
            # A reboot starts all counters and the list of GPUs anew.
            self._known, self._trails, self.reads, before = {}, Trails(), Reads(), None
        self.reads.see(sample)
        self._remember(sample)
        moment = Moment(sample, before, self._known, self._trails, peers, self.asked)
        newest = self.newest
        for rule in self.rules:
            try:
                hits = list(rule.check(moment))
            except Exception as error:  # noqa: BLE001 - said as a finding, and the other rules go on
                self.failed(f"rule {rule.id}", error_text(error), sample.sampled_at)
                continue
            for hit in hits if len(hits) <= MOST_HITS else self._merged(rule, hits):
                self._take(rule, hit, sample.sampled_at, newest is None or _was_starting(rule, newest))
        self._close(sample)
        self._know(sample)
        self.newest = sample
        return moment

    def findings(self) -> list[Finding]:
        """What fires now, not folded, and what could not be judged."""
        return [finding for finding, _ in self.told()]

    def told(self) -> list[tuple[Finding, Hit]]:
        """As ``findings``, with the hits that they were made of."""
        assert self.newest is not None
        node, now = self.newest.node, self.newest.sampled_at
        found = [(span.finding(node, None), span.hit) for span in self.firing.values()]
        for what, failure in self._failed.items():
            if failure.seen == now:
                text = f"{what} failed: {failure.why}"
                finding = Finding(FAILED, "warning", node, what, text, "please report this", since=failure.since)
                found.append((finding, Hit(what, text)))
        return found

    @property
    def ended(self) -> list[Finding]:
        return [finding for of_rule in self._ended.values() for finding in of_rule.all()]

    def forget_ended(self, oldest: float) -> None:
        """What ended before ``oldest`` (unix s)."""
        for of_rule in self._ended.values():
            of_rule.forget(oldest)

    def failed(self, what: str, why: str, at: float) -> None:
        """``what`` could not be judged in the sample of ``at``."""
        failure = self._failed.setdefault(what, _Failure(why, at, at))
        failure.why, failure.seen = why, at

    def _remember(self, sample: Sample) -> None:
        """What the readers of the rules' modules name. One that fails costs the rules that need it."""
        trails = self._trails
        trails.see(sample, self.counters, self.gauges, self.values)
        for read, error in trails.failed:
            what = f"what {getattr(read, '__module__', '').rpartition('.')[2]} remembers"
            self.failed(what, error_text(error), sample.sampled_at)
        if trails.is_full:
            why = f"the node names more than {MOST_TRAILS:,} counters or gauges: the growth of others is not judged"
            self.failed("what it counts", why, sample.sampled_at)

    def _merged(self, rule: Rule, hits: list[Hit]) -> list[Hit]:
        """Too many of one rule: those that are known before new ones, and all others as one."""
        known = [hit for hit in hits if (rule.id, hit.subject, hit.key) in self._open][:MOST_HITS]
        chosen = {id(hit) for hit in known}
        for hit in hits:
            if len(chosen) >= MOST_HITS:
                break
            chosen.add(id(hit))
        rest = [hit for hit in hits if id(hit) not in chosen]
        gravest = min(rest, key=lambda hit: _grade(rule, hit))
        text = f"… and {len(rest):,} more, e.g. {gravest.message}"
        since = min((hit.since for hit in rest if hit.since is not None), default=None)
        more = replace(gravest, subject=MORE, key=MORE, message=text, evidence=(), since=since, about=())
        return [*(hit for hit in hits if id(hit) in chosen), more]

    def _take(self, rule: Rule, hit: Hit, now: float, first: bool) -> None:
        key = (rule.id, hit.subject, hit.key)
        span = self._open.get(key)
        if span is None:
            if self._open_of[rule.id] > 2 * MOST_HITS:
                return  # a node whose subjects change with every sample
            self._open_of[rule.id] += 1
            span = self._open[key] = Span(rule, hit, now, now, at_first_sight=first)
        span.see(hit, now)
        if not span.fired:
            held_s = now - (span.since if hit.since is None else min(hit.since, span.since))
            span.fired = held_s >= span.hold_s or (span.at_first_sight and self.eager and rule.eager)
            if span.fired:
                self.firing[key] = span

    def _close(self, sample: Sample) -> None:
        now = sample.sampled_at
        for key, span in list(self._open.items()):
            if span.seen == now or now - span.seen < _patience(span):
                continue
            del self._open[key]
            self._open_of[key[0]] -= 1
            if self.firing.pop(key, None) is not None:
                self._ended.setdefault(key[0], Ended()).add(span.finding(sample.node, span.seen))
        self._failed = {what: failure for what, failure in self._failed.items() if failure.seen == now}

    def _know(self, sample: Sample) -> None:
        """The newest that was seen of each GPU. A board that takes another one's slot takes its place, too."""
        working = {gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"}
        if working.keys() >= self._known.keys():  # nearly always
            self._known.update(working)
            return
        slots = {bus_key(gpu.pci_bus_id): index for index, gpu in working.items() if gpu.pci_bus_id}
        for index, gpu in list(self._known.items()):
            if gpu.pci_bus_id and slots.get(bus_key(gpu.pci_bus_id), index) != index:
                del self._known[index]
        self._known.update(working)


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _was_starting(rule: Rule, sample: Sample) -> bool:
    """Whether the sample could not yet tell what the rule needs: then it is seen for the first time only now."""
    starting = [gap for gap in sample.gaps if gap.kind == "starting" or gap.what == "nvml.starting"]
    if not starting:
        return False
    if any(gap.what == "nvml.starting" for gap in starting) and rule.id.startswith(_OF_NVML):
        return True
    return any(touches(gap, need) for gap in starting for need in rule.needs)


def _grade(rule: Rule, hit: Hit) -> int:
    return SEVERITIES.index(hit.severity or rule.severity)


def _patience(span: Span) -> float:
    """A span that never fired has no right to bridge a pause, nor has one that fired at first sight only."""
    held = span.seen - span.since >= span.hold_s
    return span.rule.patience_s if span.fired and held else 0.0
