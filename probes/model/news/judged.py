"""What a node's agent judges by itself, and what only its own samples tell of its ranks: sent on change. Python 3.9."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Union

from mltop.probes.model.verdict import Finding
from mltop.probes.model.vocabulary import Act

# What nodes are compared by: topic, group of like things, value. E.g. ("gpu.driver", "NVIDIA H100", "570").
Fact = tuple[str, str, Union[bool, int, float, str]]


@dataclass(frozen=True)
class RankPast:
    """What one rank did since the sample before, and it and its GPU over the last five minutes. ``is_watched``: over
    most of them; before, the figures say little.

    ``moves``: it read or wrote ("io") or took a core ("cpu"); "" neither. ``idle_share`` (GPU busy < 20 %), ``dips``
    (how often that began), ``power_spread`` (standard deviation over mean), ``pauses``: dips while the rank's own
    thread took a whole core and no worker ran.
    """

    pid: int
    moves: str = ""
    is_watched: bool = False
    idle_share: float = 0.0
    dips: int = 0
    power_spread: float | None = None
    pauses: int = 0


@dataclass
class Judged:
    """At ``at`` (unix s, the node's clock). ``findings``: not folded; firing, ended, and rules or readers that failed.

    ``acts``: of each finding, which has none itself: JSON would put its command before the action. ``ranks``: those of
    jobs.
    """

    node: str
    at: float
    findings: list[Finding] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    ranks: list[RankPast] = field(default_factory=list)


# What ranks do.


@dataclass
class RankMotion:
    """One rank by its node's newest sample. ``level``, ``flat`` and ``gpu_state`` are those of stall/activity.py."""

    pid: int
    rank: int | None = None
    gpu: int | None = None
    started_at: float | None = None
    state: str = ""
    state_since: float = 0.0
    wchan: str | None = None
    level: int = 0
    flat: int = 0
    gpu_state: int = 0


@dataclass
class Gone:
    """A rank whose process is not there any more. ``reported``: only by its death; nobody saw it alive."""

    rank: int | None
    pid: int
    gpu: int | None
    node: str
    at: float
    zombie: bool = False
    reported: bool = False


@dataclass
class JobPart:
    """What one node has of a job. ``is_here_only``: it meets at a loopback address, so its name is this node's alone.
    ``oldest_start``: of its processes. ``gone``: those of the last minute.
    """

    job: str
    uid: int | None = None
    is_here_only: bool = False
    user: str = ""
    world_size: int | None = None
    oldest_start: float | None = None
    ranks: list[RankMotion] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)


class PartNumbers(NamedTuple):
    """What the ranks of a part did until one sample: a row has one for each part that the node has named last.

    ``recent``: how many worked within the window; ``stepped``: did not just load; ``computed``: on their GPUs;
    ``on_gpus``: have GPUs that can be read; ``spinning``: only spun; ``facts``: are in states that are worth a look.
    ``worked_ago_s``: since any of them last worked, before the sample; None: not yet. Then what the first and the last
    of them did together in the ``seconds`` since the sample before (0.0: there was none); None where it is unknown.
    """

    recent: int = 0
    stepped: int = 0
    computed: int = 0
    on_gpus: int = 0
    spinning: int = 0
    facts: int = 0
    worked_ago_s: float | None = None
    seconds: float = 0.0
    switches: float = 0.0
    calls: float = 0.0
    main_cpu_s: float = 0.0
    power_share: float | None = None
    sm: float | None = None
    link_bytes: float | None = None
