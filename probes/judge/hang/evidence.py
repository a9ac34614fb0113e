"""What the hang judge is given: all that was seen of one job, on one machine or many, live or captured."""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.model import Gap, RankSample, RankStacks


@dataclass
class RankSeen:
    """One rank of the roster. ``gone``: it was seen before and its process no longer exists.

    ``quiet_s``: for how long before the dump its counters stood still, from the samples of the last minutes;
    None when there is no such history.
    """

    node: str
    sample: RankSample
    gone: bool = False
    quiet_s: float | None = None


@dataclass
class JobEvidence:
    """One job: its roster, all dumps of all rounds in any order, and what could not be read.

    ``job`` and ``uid`` together say which (JobKey); ``user``: the name of ``uid``.
    ``nodes_missing``: nodes that were asked and did not answer (their ranks are unknown, not gone).
    """

    job: str
    roster: list[RankSeen] = field(default_factory=list)
    dumps: list[RankStacks] = field(default_factory=list)
    nodes_missing: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    uid: int | None = None
    user: str = ""
