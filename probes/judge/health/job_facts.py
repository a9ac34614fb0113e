"""What the rules about jobs need of every rank: a few numbers, so that thousands of ranks can be kept."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.judge.health.rule import Moment


@dataclass(frozen=True)
class RankFacts:
    """One rank at its node's newest sample."""

    node: str
    at: float
    job: str
    rank: int | None
    world_size: int | None
    pid: int


def facts_of_ranks(moment: Moment) -> tuple[RankFacts, ...]:
    now = moment.now
    return tuple(
        RankFacts(now.node, now.sampled_at, rank.job, rank.rank, rank.world_size, rank.pid)
        for rank in now.ranks
        if rank.job
    )
