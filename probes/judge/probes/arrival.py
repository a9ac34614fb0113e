"""Who comes last to a collective: who waits least in it. Its victims, who wait longest, have the longest times.

A rank that is delayed by 30 ms makes the collectives of all others 30 ms longer, and its own the shortest. Noise of
the scheduler hits one rank now and another then: late is who comes late far more often than luck would have it, and by
clearly more than the lag that is usual there.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.judge.values import known, median_of
from mltop.probes.model.probe import CollectiveResult, RankArrival, RankTimes

LEAST_GPU_S = 1e-3  # beyond the usual lag; less is no trouble, and events on the GPU have some jitter
LEAST_CPU_S = 5e-3  # a scheduler's slice on processors with more ranks than cores
OF_TIME = 0.05  # of the collective's time
OF_USUAL_LAG = 1.5  # noise: with 8 ranks on 2 cores every rank's lag is 12 ms, and their medians are 4 ms apart
ITERATIONS = 5
SIZES_SHARE = 0.5  # of the sizes at which such a lag shows
CHANCE = 0.01  # that any rank comes late so often by luck, at most
SLOWER_WORK = 1.1  # its own work against the others' median
EXPLAINS = 0.3  # of its lag, at least, that its slower work takes longer: less does not tell why it is late
EARLY_SHARE = 0.1  # of the iterations


@dataclass(frozen=True)
class LateRank:
    """``late_s``: beyond the usual lag of the others; ``work_s``, ``usual_work_s``: its own work and the others'."""

    rank: int
    node: str
    gpu: int | None
    late_s: float
    late_share: float
    work_s: float | None = None
    usual_work_s: float | None = None

    @property
    def slower_at_work(self) -> bool:
        """Its own work between two collectives takes longer than the others'."""
        return bool(self.usual_work_s) and (self.work_s or 0.0) > SLOWER_WORK * (self.usual_work_s or 0.0)

    @property
    def slow_at_work(self) -> bool:
        """Whether its slower work tells why it is late: it takes up much of the lag."""
        return self.slower_at_work and (self.work_s or 0.0) - (self.usual_work_s or 0.0) >= EXPLAINS * self.late_s


def common_iterations(times: Sequence[RankTimes]) -> int:
    return min((len(rank.times_s) for rank in times), default=0)


def arrivals(times: Sequence[RankTimes]) -> list[RankArrival]:
    """How the ranks of one collective of one size arrive, in their order; over the iterations that all of them have.

    With one rank nobody is waited for: its lag is 0.
    """
    count = common_iterations(times)
    if not count:
        return []
    slowest = [max(rank.times_s[turn] for rank in times) for turn in range(count)]
    lags = [[slowest[turn] - rank.times_s[turn] for turn in range(count)] for rank in times]
    greatest = [max(lag[turn] for lag in lags) for turn in range(count)]
    return [
        RankArrival(
            rank.rank,
            rank.node,
            rank.gpu,
            statistics.median(rank.times_s[:count]),
            statistics.median(lag),
            rank.work_s,
            sum(2 * mine > most for mine, most in zip(lag, greatest, strict=True)) / count,
        )
        for rank, lag in zip(times, lags, strict=True)
    ]


def usual_lag_s(result: CollectiveResult) -> float | None:
    """The lower median of its ranks' lags: of two ranks that of the earlier one. None without ranks."""
    lags = sorted(arrival.lag_s for arrival in result.arrivals)
    return lags[(len(lags) - 1) // 2] if lags else None


def find_late(results: Sequence[CollectiveResult]) -> list[LateRank]:
    """Ranks that come late at most of the sizes at which it would show, the latest first; at most half of all ranks.

    ``results``: sizes and collectives of the same ranks.
    """
    sizes = [_Size(result) for result in results if len(result.arrivals) > 1 and result.iterations >= ITERATIONS]
    ranks = sorted({rank for size in sizes for rank in size.of_rank})
    late_ranks = known(_late(rank, sizes) for rank in ranks)
    return sorted(late_ranks, key=lambda late: -late.late_s) if 2 * len(late_ranks) <= len(ranks) else []


def find_early(results: Sequence[CollectiveResult]) -> list[int]:
    """Ranks that come clearly before the usual ones: then more than half of the ranks are late."""
    early: Counter[int] = Counter()
    for result in results:
        limit_s = (usual_lag_s(result) or 0.0) - max(_least_s(result), OF_TIME * (result.time_s or 0.0))
        steady = (arrival for arrival in result.arrivals if (arrival.late_share or 0.0) <= EARLY_SHARE)
        early.update(arrival.rank for arrival in steady if arrival.lag_s < limit_s)
    return sorted(rank for rank, count in early.items() if 2 * count > len(results))


class _Size:
    """One result, ready to be asked about its ranks. ``limit_s``: a lag beyond the usual one is late from here on."""

    def __init__(self, result: CollectiveResult) -> None:
        self.of_rank = {arrival.rank: arrival for arrival in result.arrivals}
        self.iterations = result.iterations
        self.usual_s = usual_lag_s(result) or 0.0
        shares = known(arrival.late_share for arrival in result.arrivals)
        self.usual_share = statistics.mean(shares) if shares else 0.0
        self.limit_s = max(_least_s(result), OF_TIME * (result.time_s or 0.0), OF_USUAL_LAG * self.usual_s)

    def usual_work_s(self, rank: int) -> float | None:
        """The median of the others' own work."""
        return median_of(arrival.work_s for arrival in self.of_rank.values() if arrival.rank != rank)


def _late(rank: int, sizes: Sequence[_Size]) -> LateRank | None:
    present = [(size, size.of_rank[rank]) for size in sizes if rank in size.of_rank]
    late = [(size, arrival) for size, arrival in present if arrival.lag_s - size.usual_s > size.limit_s]
    if not late:
        return None
    typical_s = statistics.median(arrival.lag_s - size.usual_s for size, arrival in late)
    shows = [(size, arrival) for size, arrival in present if size.limit_s < typical_s or (size, arrival) in late]
    if len(late) < SIZES_SHARE * len(shows) or _by_luck(shows) > CHANCE:
        return None
    share = statistics.mean(arrival.late_share or 0.0 for _, arrival in late)
    works = [(arrival.work_s, size.usual_work_s(rank)) for size, arrival in late if arrival.work_s is not None]
    own, others = works[0] if works else (None, None)
    first = late[0][1]
    return LateRank(rank, first.node, first.gpu, typical_s, share, own, others)


def _by_luck(shows: Sequence[tuple[_Size, RankArrival]]) -> float:
    """The chance that one of the ranks comes late so often when all are late equally often (binomial tail).

    The mean share of all ranks is what chance gives: of two ranks one is always later.
    """
    shares = [(size, arrival.late_share) for size, arrival in shows if arrival.late_share is not None]
    turns = sum(size.iterations for size, _ in shares)
    if not turns:
        return 0.0
    times_late = sum(round(share * size.iterations) for size, share in shares)
    late = sum(size.usual_share * size.iterations for size, _ in shares) / turns
    ranks = max(len(size.of_rank) for size, _ in shares)
    counts = range(times_late, turns + 1)
    return ranks * sum(math.comb(turns, count) * late**count * (1 - late) ** (turns - count) for count in counts)


def _least_s(result: CollectiveResult) -> float:
    return LEAST_GPU_S if result.backend == "nccl" else LEAST_CPU_S
