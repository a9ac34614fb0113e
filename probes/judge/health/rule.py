"""What a health rule is (words, a hold time, a pure function from one moment of a node to hits), and what it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, Literal, TypeVar

from mltop.probes.judge.health.peers import NO_PEERS, Peers
from mltop.probes.judge.health.trails import Counters, Increase, Series, Trails
from mltop.probes.model import CounterKind, GpuSample, JobKey, KernelEvent, Remedy, Sample
from mltop.probes.model.units import percent_words
from mltop.probes.model.vocabulary import Act, Severity

CLEAR_AFTER_HOLDS = 3.0
EVENT_LISTED_S = 3600.0  # what the kernel log said is listed for so long
FAILED = "health.failed"  # the id of what is said when a rule raises an exception
RATE_S = 10.0  # rates per second are taken over so long: a single burst is not a rate
MINUTE_S, HOUR_S, DAY_S, WEEK_S = 60.0, 3600.0, 86_400.0, 7 * 86_400.0
_EXACT_S = 120.0  # so far back the watching clock's points are all kept
HOLD = "{hold}"  # in a rule's threshold: its hold time …
LIMIT = "{limit}"  # … and its limit
BRIDGE = "PCIe bridge"  # the subject of what has failed above a device that is gone
HOLD_KEY = ".hold_s"  # behind a rule's id: its hold time, among thresholds

# One cause, one line: of findings that explain each other the one with the lowest number is told.
GPU_LOST, DRIVER, FABRIC, LINK_DOWN, MEMORY_ERRORS, LINK_ERRORS, THROTTLE, SYMPTOM = range(1, 9)

# What befalls ranks and is no finding: a process has ended, ranks stand still, a job gets on more slowly than it did.
RANK_ENDED, RANK_STALLED, RANK_SLOWED = "rank.ended", "rank.stalled", "rank.slowed"
OF_RANKS = (RANK_ENDED, RANK_STALLED, RANK_SLOWED)
# What relations to ranks and to peers often name: a fault that stops work, one that only slows it, and what ports on
# other nodes complain of when their peer does not answer, or not in time.
STOPS = (RANK_ENDED, RANK_STALLED, "job.hang", "job.odd_rank")
SLOWS = (RANK_SLOWED, "job.straggler")
SILENT_PEER = ("ib.transport",)
SLOW_PEER = (*SILENT_PEER, "ib.discards", "ib.wait", "roce.slow")

# Which findings of several nodes say the same: those about one subject; about one kind of thing (key and remedy), of
# which every node has several alike, whichever it is; all of a rule: nothing tells one rank or process from the other.
Alike = Literal["subject", "kind", "rule"]

# Of what a finding tells one side: several of one card (GPU, NIC), one disk or one file server are one line.
Part = Literal["card", "disk", "server", ""]

T = TypeVar("T")
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Expectations:
    """What the user told us to expect. ``lemons``: UUID or serial of a GPU known to be bad → why; ``vacated``: nothing
    of a job may be left on GPUs that do nothing (`mltop check`, which runs in prologs and epilogs). ``thresholds``: see
    ``Rule.at``.
    """

    expect_gpus: int | None = None
    lemons: Mapping[str, str] = field(default_factory=dict)
    vacated: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)


NO_EXPECTATIONS = Expectations()


@dataclass(frozen=True)
class Limit:
    """The one number that a rule compares with, and the user may set. ``shown``: it in words; ``unit``: of the number
    itself; ``most``: larger ones make no sense.
    """

    value: float
    shown: Callable[[float], str] = "{:g}".format
    unit: str = ""
    most: float = float("inf")

    def __str__(self) -> str:
        return self.shown(self.value)


def share(value: float) -> Limit:
    """A part of something, 0..1."""
    return Limit(value, percent_words, "0..1", 1.0)


@dataclass(frozen=True)
class Moment:
    """One node's sample, the one before it, and all that its earlier samples and the other nodes have told.

    ``known_gpus``: the newest that was ever seen of each GPU. Everything is forgotten at a reboot.
    """

    now: Sample
    before: Sample | None = None
    known_gpus: Mapping[int, GpuSample] = field(default_factory=dict)
    trails: Trails = field(default_factory=Trails)
    peers: Peers = field(default=NO_PEERS)
    expectations: Expectations = NO_EXPECTATIONS

    @property
    def passed_s(self) -> float | None:
        """Since the sample before; None at the first."""
        return None if self.before is None else self.now.sampled_at - self.before.sampled_at

    def gpu_before(self, gpu: GpuSample) -> GpuSample | None:
        """The same board in the sample before, None when another one stands at its index."""
        old = self._gpus_before.get(gpu.index)
        return old if old is not None and old.uuid == gpu.uuid else None

    @cached_property
    def _gpus_before(self) -> dict[int, GpuSample]:
        return {gpu.index: gpu for gpu in self.before.gpus} if self.before is not None else {}

    def events(self, *kinds: str, within_s: float = EVENT_LISTED_S) -> Iterator[KernelEvent]:
        """What the kernel log said lately, the oldest first."""
        oldest = self.now.sampled_at - within_s
        return (event for event in self.now.kernel_events if event.kind in kinds and event.at >= oldest)

    def after_log(self, action: str) -> str:
        """What to do, after a look at the kernel log where it could not be read: else it is shown, too."""
        unread = any(gap.source == "kernel_log" and gap.kind == "unknown" for gap in self.now.gaps)
        look = "look for Xid lines: sudo dmesg | grep -i xid; "
        return f"{look}{action}" if unread and not any(self.events("xid", "off_bus")) else action

    def increase(self, subject: str, name: str, over_s: float) -> Increase:
        """How much a counter (see ``counters`` of the rules' modules) has grown in the last ``over_s``; nothing of one
        never seen.
        """
        return self.trails.increase(subject, name, self.now.sampled_at, over_s) or Increase(0.0, 0.0)

    def grown(self, subject: str, name: str, over_s: float) -> Increase:
        """What came in the last ``over_s``, without being fooled by pauses between samples. Its ``over_s`` is never
        less than asked for, so that no burst right after the start is made into a rate, and longer where the samples
        are further apart. Nothing of a counter never seen.
        """
        increase = self.increase(subject, name, over_s)
        if not increase.amount:
            return Increase(0.0, over_s)
        covered_s = self.trails.watched_s(self.now.sampled_at, over_s)
        if over_s > _EXACT_S and covered_s < 2 * over_s:
            covered_s = over_s  # the older points are thinned out
        return Increase(increase.amount, max(over_s, covered_s))

    def per_second(self, subject: str, name: str) -> float:
        return self.grown(subject, name, RATE_S).per(1.0)

    def any_grew(self, counters: Counters, over_s: float) -> bool:
        """The cheap question before the others: whether anything of these counters has changed lately."""
        return self.trails.changed_at.get(counters, float("-inf")) > self.now.sampled_at - over_s

    def has_seen(self, subject: str, name: str) -> bool:
        """Whether a counter was ever told: what a port once was is remembered as a counter that exists."""
        return self.trails.increase(subject, name, self.now.sampled_at, 1.0) is not None

    def series(self, subject: str, name: str) -> Series | None:
        """The recent values of a gauge (see ``gauges``)."""
        return self.trails.series(subject, name)

    def was(self, subject: str, name: str, ago_s: float) -> Any:
        """What something (see ``values``) was so long ago, or when it was first seen since; None of what never was."""
        return self.trails.was(subject, name, self.now.sampled_at - ago_s)


@dataclass(frozen=True)
class Hit:
    """The rule holds for ``subject`` (``GPU 3``, ``NVML``, ``mlx5_4``, ``host``, ``/ckpt``) at one moment.

    ``severity``, ``action`` with ``act``, ``remedy`` and ``hold_s`` replace the rule's. ``since`` (unix s): it is known
    to hold since then. ``key`` tells several hits on one subject apart (two different Xids). ``about``: other names of
    what it is about, by which other rules may speak of it (the PCI addresses of missing GPUs). ``node``: whose, where
    the rule is about a job: that of the rank it is about, or the job's first. ``server``, ``job``, ``ranks``, ``pid``:
    as of a Finding.
    """

    subject: str
    message: str
    evidence: tuple[str, ...] = ()
    severity: Severity | None = None
    action: str = ""
    since: float | None = None
    key: str = ""
    remedy: Remedy | None = None
    hold_s: float | None = None
    about: tuple[str, ...] = ()
    node: str = ""
    server: str = ""
    job: JobKey | None = None
    ranks: tuple[int, ...] = ()
    pid: int | None = None
    act: Act = ""


@dataclass(frozen=True)
class Rule:
    """``hold_s``: it fires after holding for so long, and clears after being false for ``clear_s`` (None: three times
    that). ``eager``: where nothing tells how long it has been holding (the first sample of a live view) it fires at
    once; False for what only time can tell. A rule without a hold whose value may flicker around a threshold has a
    ``clear_s``.

    ``check``: takes a Moment, or of a rule about a whole job a JobMoment. ``action``: what to do, in a few words,
    ``act`` what mltop itself does for it, and ``remedy`` what it comes to.
    ``every_s``: a rule about jobs is judged so often, and when ranks come or go.
    ``needs``: what of a sample it is made of, as gaps name it with ``*`` for indexes: where one of these is unknown, so
    is the rule's answer (unknowns.py). ``decisive``: needs without which it is unknown even where the hardware tells no
    such thing. ``grows``: the kinds of counters that it has to see twice.
    ``explains``: ids (or "prefix.") on the same subject that this one is the cause of; ``explains_node``: on the whole
    node. ``explains_ranks``: ids of findings about ranks and jobs, and of OF_RANKS, that it is the cause of: of the
    ranks on its GPU, or where it is not about a GPU of all ranks of its node, or of those that it names.
    ``explains_peers``: on other nodes, of the ports of the same name, or where it is not about a port of any.
    ``follows_ranks``: what of OF_RANKS it comes of itself. ``part_of``: what it tells one side of; where several do and
    none explains the others, the gravest is told, and of equals the one with the lowest precedence. ``as_grave``: it
    explains graver findings, too, and is then as grave as these. ``orders``: what explains it advises what this one
    does. ``adds``: its message follows the message of what explains it. ``together``: one message for several
    {subjects} of a node that have it at one time. ``at_once``: what it says was over as soon as it happened. ``alike``:
    see Alike. ``tells_nvml``: codes of the gap of all of NVML that its critical findings are made of.
    ``whole_node``: (message, action) where every GPU of the node has it ({count} in the message, {example}: what is
    said of one), and ``whole_node_by`` where their remedy is another one than the rule's.
    ``limit``: the number that ``check`` gets beside the moment; None: it takes none.
    ``meaning``, ``threshold`` (HOLD and LIMIT in it are these), ``source``: for the table of all rules.
    ``others``: where a limit or hold was set, those of the rule itself, in words.
    """

    id: str
    severity: Severity
    hold_s: float
    action: str
    check: Callable[..., Iterable[Hit]]
    meaning: str = ""
    threshold: str = ""
    source: str = ""
    limit: Limit | None = None
    others: str = ""
    needs: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    grows: tuple[CounterKind, ...] = ()
    remedy: Remedy = "none"
    eager: bool = True
    clear_s: float | None = None
    every_s: float = 0.0
    precedence: int = SYMPTOM
    explains: tuple[str, ...] = ()
    explains_node: tuple[str, ...] = ()
    explains_ranks: tuple[str, ...] = ()
    explains_peers: tuple[str, ...] = ()
    follows_ranks: tuple[str, ...] = ()
    part_of: Part = ""
    as_grave: bool = False
    orders: bool = False
    adds: bool = False
    together: str = ""
    at_once: bool = False
    alike: Alike = "subject"
    tells_nvml: tuple[str, ...] = ()
    whole_node: tuple[str, str] | None = None
    whole_node_by: Mapping[Remedy, tuple[str, str]] = field(default_factory=dict, hash=False)
    act: Act = ""

    @property
    def fires_when(self) -> str:
        return self.threshold.replace(HOLD, f"{self.hold_s:g} s").replace(LIMIT, str(self.limit))

    def hits(self, moment: Any) -> Iterable[Hit]:
        """What it says of a moment."""
        return self.check(moment) if self.limit is None else self.check(moment, self.limit.value)

    def at(self, thresholds: Mapping[str, float]) -> Rule:
        """This rule with the user's limit (by its id) and hold time (by its id and HOLD_KEY), as far as it has them."""
        limit, hold_s = thresholds.get(self.id), thresholds.get(self.id + HOLD_KEY)
        new_limit = self.limit and replace(self.limit, value=self.limit.value if limit is None else limit)
        new_hold_s = self.hold_s if hold_s is None or not self.hold_s else hold_s
        if (new_limit, new_hold_s) == (self.limit, self.hold_s):
            return self
        return replace(self, limit=new_limit, hold_s=new_hold_s, others=self.usual)

    @property
    def usual(self) -> str:
        """Limit and hold time in words."""
        held = f"for {self.hold_s:g} s" if self.hold_s else ""
        return ", ".join(filter(None, (str(self.limit) if self.limit else "", held)))

    def words_of_all(self, remedy: Remedy) -> tuple[str, str] | None:
        """(message, action) where every GPU of the node has it with this remedy; None: each is told."""
        return self.whole_node if remedy == self.remedy else self.whole_node_by.get(remedy)

    @property
    def patience_s(self) -> float:
        """For so long it may be false before it has ended."""
        return CLEAR_AFTER_HOLDS * self.hold_s if self.clear_s is None else self.clear_s


def rule(
    id: str,  # noqa: A002 - as the field is called
    severity: Severity,
    hold_s: float = 0.0,
    *,
    meaning: str,
    threshold: str,
    source: str,
    action: str,
    needs: tuple[str, ...],
    **more: Any,
) -> Callable[[Callable[..., Iterable[Hit]]], Rule]:
    """Stands above a check and makes it a ``Rule``; ``more``: its other fields."""
    words = partial(Rule, meaning=meaning, threshold=threshold, source=source, needs=needs, **more)
    return partial(words, id, severity, hold_s, action)


def is_named(rule_id: str, patterns: tuple[str, ...]) -> bool:
    """Whether an id is among those that a relation names, whole or by their beginning ("gpu.")."""
    return rule_id in patterns or any(rule_id.startswith(pattern) for pattern in patterns if pattern.endswith("."))


device_rule = partial(rule, alike="kind")  # about GPUs, ports, and what belongs to them
port_rule = partial(device_rule, part_of="card")
rank_rule = partial(rule, alike="rule")  # about ranks and processes


class OfNewest(Generic[Seen, T]):
    """What ``read`` makes of the sample or moment that was last asked about: several rules ask the same, one after the
    other. The answer is never changed. ``afresh`` is for who sees a sample first: it may have been changed in place
    since it was last judged.
    """

    def __init__(self, read: Callable[[Seen], T]) -> None:
        self._read = read
        self._newest: tuple[Seen, T] | None = None

    def __call__(self, seen: Seen) -> T:
        newest = self._newest  # one look: another thread may put another sample there
        return newest[1] if newest is not None and newest[0] is seen else self.afresh(seen)

    def afresh(self, seen: Seen) -> T:
        result = self._read(seen)
        self._newest = seen, result
        return result


once_per_moment = OfNewest
