"""What a health rule is: words, a hold time, and a pure function from one moment of a node to hits.

Many rules ask the same of one sample or one set of peers, one right after the other: the newest answer is kept.

How fast counters of links grow, without being fooled by pauses between samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Generic, TypeVar

from mltop.probes.judge.health.peers import NO_PEERS, Peers, Typical
from mltop.probes.judge.health.trails import Increase, Series, Trails
from mltop.probes.model import CounterKind, GpuSample, Remedy, Sample

CLEAR_AFTER_HOLDS = 3.0
EVENT_LISTED_S = 3600.0  # what the kernel log said is listed for so long
FAILED = "health.failed"  # the id of what is said when a rule raises an exception
SEVERITIES = ("critical", "warning", "info")  # the gravest first

# One cause, one line: of findings that explain each other the one with the lowest number is told.
GPU_LOST, DRIVER, FABRIC, LINK_DOWN, MEMORY_ERRORS, THROTTLE, SYMPTOM = range(1, 8)


@dataclass(frozen=True)
class Asked:
    """What the user told us to expect. ``lemons``: UUID or serial of a GPU known to be bad → why; ``vacated``: nothing
    of a job may be left on GPUs that do nothing (`mltop check`, which runs in prologs and epilogs).
    """

    expect_gpus: int | None = None
    lemons: Mapping[str, str] = field(default_factory=dict)
    vacated: bool = False


NOTHING_ASKED = Asked()


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
    asked: Asked = NOTHING_ASKED

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

    def increase(self, subject: str, name: str, over_s: float) -> Increase | None:
        """How much a counter (see COUNTERS of the rules' modules) has grown in the last ``over_s``."""
        return self.trails.increase(subject, name, self.now.sampled_at, over_s)

    def series(self, subject: str, name: str) -> Series | None:
        """The recent values of a gauge (see GAUGES)."""
        return self.trails.series(subject, name)

    def was(self, subject: str, name: str, ago_s: float) -> Any:
        """What something (see VALUES) was so long ago, or when it was first seen since; None of what never was."""
        return self.trails.was(subject, name, self.now.sampled_at - ago_s)


@dataclass(frozen=True)
class Hit:
    """The rule holds for ``subject`` (``GPU 3``, ``NVML``, ``mlx5_4``, ``host``, ``/ckpt``) at one moment.

    ``severity``, ``action``, ``remedy`` and ``hold_s`` replace the rule's. ``since`` (unix s): it is known to hold
    since then. ``key`` tells several hits on one subject apart (two different Xids). ``about``: other names of what it
    is about, by which other rules may speak of it (the PCI addresses of missing GPUs).
    """

    subject: str
    message: str
    evidence: tuple[str, ...] = ()
    severity: str = ""
    action: str = ""
    since: float | None = None
    key: str = ""
    remedy: Remedy | None = None
    hold_s: float | None = None
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """``hold_s``: it fires after holding for so long, and clears after being false for ``clear_s`` (None: three times
    that). ``eager``: where nothing tells how long it has been holding (the first sample of a live view) it fires at
    once; False for what only time can tell. A rule without a hold whose value may flicker around a threshold has a
    ``clear_s``.

    ``severity``: info | warning | critical. ``action``: what to do, in a few words, and ``remedy`` what that comes to.
    ``needs``: what of a sample it is made of, as gaps name it with ``*`` for indexes: where one of these is unknown, so
    is the rule's answer (needs.py). ``decisive``: needs without which it is unknown even where the hardware tells no
    such thing. ``grows``: the kinds of counters that it has to see twice.
    ``explains``: ids (or "prefix.") on the same subject that this one is the cause of; ``explains_node``: on the whole
    node. ``whole_node``: (message, action) where every GPU of the node has it ({count} in the message), and
    ``whole_node_by`` where their remedy is another one than the rule's.
    ``meaning``, ``threshold``, ``source``: for the table of all rules.
    """

    id: str
    severity: str
    hold_s: float
    action: str
    check: Callable[[Moment], Iterable[Hit]]
    meaning: str = ""
    threshold: str = ""
    source: str = ""
    needs: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    grows: tuple[CounterKind, ...] = ()
    remedy: Remedy = "none"
    eager: bool = True
    clear_s: float | None = None
    precedence: int = SYMPTOM
    explains: tuple[str, ...] = ()
    explains_node: tuple[str, ...] = ()
    whole_node: tuple[str, str] | None = None
    whole_node_by: Mapping[Remedy, tuple[str, str]] = field(default_factory=dict, hash=False)

    def words_of_all(self, remedy: Remedy) -> tuple[str, str] | None:
        """(message, action) where every GPU of the node has it with this remedy; None: each is told."""
        return self.whole_node if remedy == self.remedy else self.whole_node_by.get(remedy)

    @property
    def patience_s(self) -> float:
        """For so long it may be false before it has ended."""
        return CLEAR_AFTER_HOLDS * self.hold_s if self.clear_s is None else self.clear_s


T = TypeVar("T")


def once_per_moment(function: Callable[[Moment], T]) -> Callable[[Moment], T]:
    """Several rules ask the same of one moment, one after the other: the newest answer is kept, and never changed."""
    kept: list[tuple[Moment, T]] = []

    @wraps(function)
    def remembered(moment: Moment) -> T:
        newest = kept[0] if kept else None
        if newest is None or newest[0] is not moment:
            newest = (moment, function(moment))
            kept[:] = [newest]
        return newest[1]

    return remembered


class OfNewest(Generic[T]):
    """``read`` of the sample that was last asked about. ``afresh`` is for who sees a sample first: it may have been
    changed in place since it was last judged.
    """

    def __init__(self, read: Callable[[Sample], T]) -> None:
        self._read = read
        self._kept: tuple[Sample, T] | None = None

    def __call__(self, sample: Sample) -> T:
        kept = self._kept  # one look: another thread may put another sample there
        return kept[1] if kept is not None and kept[0] is sample else self.afresh(sample)

    def afresh(self, sample: Sample) -> T:
        found = self._read(sample)
        self._kept = sample, found
        return found


class _Usual:
    def __init__(self) -> None:
        self._kept: tuple[Peers, dict[tuple[str, str], Typical | None]] = Peers(), {}

    def __call__(self, peers: Peers, topic: str, group: str) -> Typical | None:
        """``peers.common``, which finds the majority anew each time: peers stay the same for seconds."""
        if not peers.nodes:
            return None
        if self._kept[0] is not peers:
            self._kept = peers, {}
        known, key = self._kept[1], (topic, group)
        if key not in known:
            known[key] = peers.common(topic, group)
        return known[key]


usual = _Usual()


RATE_S = 10.0  # rates per second are taken over so long: a single burst is not a rate
MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0

_WATCH, _CLOCK = "links", "clock"
_EXACT_S = 120.0
NOTHING = Increase(0.0, HOUR_S)


def clock(sample: Sample) -> Iterator[tuple[str, str, float]]:
    """A counter of seconds. What grew while nobody looked is seen all at once; the clock then grew as much."""
    yield _WATCH, _CLOCK, sample.sampled_at


def grown(moment: Moment, subject: str, name: str, over_s: float) -> Increase:
    """What came in the last ``over_s``. Its ``over_s`` is never less than asked for, so that no burst right after the
    start is made into a rate, and longer where the samples are further apart. Nothing of a counter never seen.
    """
    increase = moment.increase(subject, name, over_s)
    if increase is None or not increase.amount:
        return NOTHING
    watched = moment.increase(_WATCH, _CLOCK, over_s)
    covered_s = (moment.passed_s or 0.0) if watched is None else watched.amount
    if over_s > _EXACT_S and covered_s < 2 * over_s:
        covered_s = over_s  # the clock's older points are thinned out
    return Increase(increase.amount, max(over_s, covered_s))


def per_second(moment: Moment, subject: str, name: str) -> float:
    return grown(moment, subject, name, RATE_S).per(1.0)


def has_grown(moment: Moment, subject: str, name: str, over_s: float) -> bool:
    """The cheap question before the others."""
    increase = moment.increase(subject, name, over_s)
    return increase is not None and increase.amount > 0


def rate_text(per_s: float) -> str:
    """``140/s``, or ``12/min`` below one a second."""
    return f"{per_s:.0f}/s" if per_s >= 1 else f"{per_s * 60:.0f}/min"
