"""What a health rule is: words, a hold time, and a pure function from one moment of a node to hits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mltop.probes.judge.health.peers import NO_PEERS, Peers
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
