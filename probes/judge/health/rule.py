"""What a health rule is: words, a hold time, and a pure function from one moment of a node to hits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mltop.probes.judge.health.peers import NO_PEERS, Peers
from mltop.probes.judge.health.trails import Increase, Series, Trails
from mltop.probes.model import GpuSample, Sample

CLEAR_AFTER_HOLDS = 3.0
EVENT_LISTED_S = 3600.0  # what the kernel log said is listed for so long

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
        for old in self.before.gpus if self.before else ():
            if old.index == gpu.index:
                return old if old.uuid == gpu.uuid else None
        return None

    def increase(self, subject: str, name: str, over_s: float) -> Increase | None:
        """How much a counter (see COUNTERS of the rules' modules) has grown in the last ``over_s``."""
        return self.trails.increase(subject, name, self.now.sampled_at, over_s)

    def series(self, subject: str, name: str) -> Series | None:
        """The recent values of a gauge (see GAUGES)."""
        return self.trails.series(subject, name)


@dataclass(frozen=True)
class Hit:
    """The rule holds for ``subject`` (``GPU 3``, ``NVML``, ``mlx5_4``, ``host``, ``/ckpt``) at one moment.

    ``severity`` and ``action`` replace the rule's. ``since`` (unix s): it is known to hold since then. ``key`` tells
    several hits on one subject apart (two different Xids).
    """

    subject: str
    message: str
    evidence: tuple[str, ...] = ()
    severity: str = ""
    action: str = ""
    since: float | None = None
    key: str = ""


@dataclass(frozen=True)
class Rule:
    """``hold_s``: it fires after holding for so long, and clears after being false for ``clear_s`` (None: three times
    that). ``eager``: where nothing tells how long it has been holding (the first sample of a live view) it fires at
    once; False for what only time can tell. A rule without a hold whose value may flicker around a threshold has a
    ``clear_s``.

    ``severity``: info | warning | critical. ``action``: what to do, in a few words. ``needs``: what of a sample it is
    made of, as gaps name it with ``*`` for indexes: where one of these is unknown, so is the rule's answer.
    ``explains``: ids (or "prefix.") on the same subject that this one is the cause of; ``explains_node``: on the whole
    node. ``whole_node``: (message, action) where every GPU of the node has it ({count} in the message).
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
    eager: bool = True
    clear_s: float | None = None
    precedence: int = SYMPTOM
    explains: tuple[str, ...] = ()
    explains_node: tuple[str, ...] = ()
    whole_node: tuple[str, str] | None = None

    @property
    def patience_s(self) -> float:
        """For so long it may be false before it has ended."""
        return CLEAR_AFTER_HOLDS * self.hold_s if self.clear_s is None else self.clear_s
