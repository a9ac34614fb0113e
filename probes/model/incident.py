"""What is told of one cause, whatever found it, and how a job gets on as seen from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.model.ranks import Ranges
from mltop.probes.model.sample import JobKey, PlacedJob
from mltop.probes.model.verdict import Culprit, Finding
from mltop.probes.model.vocabulary import (
    Act,
    Confidence,
    EvidenceSource,
    IncidentKind,
    MotionPhase,
    Severity,
    WorkState,
)


@dataclass
class Rhythm:
    """How often a job steps: ``step_s`` seconds, ± ``spread`` (a fraction), learned from ``steps`` steps."""

    step_s: float
    spread: float
    steps: int


@dataclass
class Slowdown:
    """A job that gets on more slowly than it did: a step took ``before_s`` and takes ``now_s``, since ``since``.
    Where no step can be seen, both are of the work that took one second before.

    ``ranks``: those that the others wait for, empty: all alike. ``beside``: what changed at the same time, a line each.
    """

    before_s: float
    now_s: float
    since: float
    ranks: Ranges = field(default_factory=Ranges)
    beside: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """How much longer a step takes, 0.1: a tenth."""
        return self.now_s / self.before_s - 1.0


@dataclass
class JobMotion:
    """How one job gets on, told from its ranks' counters, its GPUs and ports alone: no stack was taken.

    ``at``: the newest sample's time, ``since``: when its phase began (of "quiet" and "stalled" when it last moved),
    unix s. ``patience_s``: standing still for longer than this is "stalled". ``signals``: the independent signals that
    agree, a phrase each. ``ranks``: those that stand still, of ``ranks_seen`` that are watched, of ``world_size``.
    ``odd``: ranks that differ from the others from outside (gone, stopped, in state D, the only idle GPU …).
    ``place``: the node of a job that can be on one only (it meets at a loopback address), else "".
    """

    job: str
    uid: int | None
    user: str = ""
    phase: MotionPhase = "unknown"
    at: float = 0.0
    since: float | None = None
    patience_s: float | None = None
    rhythm: Rhythm | None = None
    signals: list[str] = field(default_factory=list)
    ranks: Ranges = field(default_factory=Ranges)
    ranks_seen: int = 0
    world_size: int | None = None
    nodes: list[str] = field(default_factory=list)
    odd: list[Culprit] = field(default_factory=list)
    slowdown: Slowdown | None = None
    place: str = ""

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.job, self.uid)

    @property
    def placed(self) -> PlacedJob:
        return PlacedJob(self.job, self.uid, self.place)

    @property
    def still_s(self) -> float:
        """For how long nothing has moved."""
        return self.at - self.since if self.phase in ("quiet", "stalled") and self.since is not None else 0.0


@dataclass
class Evidence:
    """One line of what an incident rests on. ``at``: unix s; ``where``: a node, or FILE:LINE."""

    source: EvidenceSource
    text: str
    at: float | None = None
    where: str = ""


@dataclass
class Suffers:
    """Whose work is lost: ``ranks``, how many ``gpus``, and ``gpu_hours`` so far.

    Of these ``waiting`` wait for the culprits, ``waits_in`` a collective ("" not known); ``ended`` are gone.
    """

    ranks: Ranges = field(default_factory=Ranges)
    gpus: int = 0
    gpu_hours: float = 0.0
    waiting: Ranges = field(default_factory=Ranges)
    waits_in: str = ""
    ended: Ranges = field(default_factory=Ranges)


@dataclass
class Incident:
    """One cause and all that is told of it. ``id`` is stable; times are unix s, ``until`` None: still so.

    ``headline``: one line that needs no other. ``causes``: findings, whole, the nearest to the physical cause first;
    ``effects``: findings that it explains. What to do: ``act`` (mltop itself), and ``action`` (of others); what would
    make it surer: ``next_act`` and ``next``.
    """

    id: str
    kind: IncidentKind
    severity: Severity
    headline: str
    job: str = ""
    uid: int | None = None
    since: float | None = None
    until: float | None = None
    culprits: list[Culprit] = field(default_factory=list)
    causes: list[Finding] = field(default_factory=list)
    effects: list[Finding] = field(default_factory=list)
    suffers: Suffers = field(default_factory=Suffers)
    evidence: list[Evidence] = field(default_factory=list)
    confidence: Confidence = "low"
    action: str = ""
    next: str = ""
    act: Act = ""
    next_act: Act = ""

    @property
    def findings(self) -> list[Finding]:
        """All that it is made of, the causes first."""
        return [*self.causes, *self.effects]


@dataclass(frozen=True)
class Doing:
    """``since``: unix s; ``where``: of "waits" the collective, of "throttled" by what, where that is known."""

    state: WorkState
    since: float | None = None
    where: str = ""


UNKNOWN_DOING = Doing("unknown")
WORKS = Doing("works")
NO_PROCESS = Doing("no_process")
IDLE = Doing("idle")
STANDING_STATES: frozenset[WorkState] = frozenset({"waits", "stands", "stalled", "quiet"})
