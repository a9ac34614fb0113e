"""Collectives: from every rank's times to results, and from those to who is slow.

The time of an iteration is that of its slowest rank; busbw is nccl-tests' (doc/PERFORMANCE.md there). Who comes last to
a collective is who waits least in it. Its victims, who wait longest, have the longest times. A rank that is delayed by
30 ms makes the collectives of all others 30 ms longer, and its own the shortest. Noise of the scheduler hits one rank
now and another then: late is who comes late far more often than luck would have it, and by clearly more than the lag
that is usual there.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.compare import against_past, collective_key, group_subject
from mltop.probes.judge.probes.devices import NEAR_FIGURE, first_sentences, listed
from mltop.probes.judge.probes.hardware.peaks import Expected
from mltop.probes.judge.values import grouped, known, median_of
from mltop.probes.model.probe import (
    CollectiveResult,
    PastResult,
    ProbeFailure,
    ProbeVerdict,
    RankArrival,
    RankTimes,
    Suspect,
)
from mltop.probes.model.ranks import fold, ranks_text
from mltop.probes.model.units import counted, percent_words, rate_words, size_words, time_words

JITTER = 3.0  # p95 over the median
_LATE_ACTION = "run mltop probe matmul there, and look at its CPU and other processes"
_NODE_ACTION = "run mltop probe matmul and mltop check on this node"
_WRONG_ACTION = "run mltop probe matmul on all nodes, then the pairs: do not train on them until it is found"
_PAIRS = "mltop probe pairs shows which node or path is slow"
# How often each byte goes over the bus.
_TIMES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
_PATHS = {"nccl": "NCCL", "gloo": "gloo over TCP: not the training path"}


def judge_collective(
    results: Sequence[CollectiveResult], failures: Sequence[ProbeFailure] = (), past: Sequence[PastResult] = ()
) -> ProbeVerdict:
    """``results``: all sizes and collectives of one group of ranks. Wrong results come first, then late ranks.

    A late rank is told by its lag, not by its time. A figure below the expected one is said where that figure is
    certain, and accuses nobody by itself.
    """
    measured = [result for result in results if result.time_s is not None]
    if not measured:
        why = "; ".join(first_sentences(failure_sentences(failures), "and {} more failures"))
        return ProbeVerdict(f"no collective was measured{f': {why}' if why else ''}", _failed(failures))
    late, early = find_late(measured), find_early(measured)
    late_groups = _by_node(late, measured)
    # The sentence is about the largest size of the first collective.
    first = (result for result in measured if result.collective == measured[0].collective)
    main = max(first, key=lambda result: result.size_bytes)
    below_past = {id(result): _below_history(result, past) for result in measured}
    suspects = [*_wrong_suspects(measured), *_failed(failures), *map(_late_suspect, late_groups)]
    parts = [*_wrong(measured), _headline(main) + (below_past[id(main)] or _below_expected(main))]
    parts += first_sentences(
        [f"{_late_who(group)} {_how_late(group)}" for group in late_groups], "and {} more are late"
    )
    parts += first_sentences(failure_sentences(failures), "and {} more failures")
    others = [result for result in measured if result is not main and below_past[id(result)]]
    details = [*_details(measured, late, early), *(_what(result) + below_past[id(result)] for result in others)]
    return ProbeVerdict("; ".join(parts), suspects, details)


# From the times of ranks to results.


def merge_times(times: Sequence[RankTimes], backend: str) -> list[CollectiveResult]:
    """One result for each round, group, collective and size, in the order in which they first appear.

    Ranks that gave no times, or fewer iterations than others, are named in ``gaps``; nothing is made up for them.
    """
    groups = grouped(times, lambda rank: (rank.round, rank.group, rank.collective, rank.size_bytes))
    by_rank = ({rank.rank: rank for rank in group} for group in groups.values())
    return [_merged([of_rank[rank] for rank in sorted(of_rank)], backend) for of_rank in by_rank]


def busbw_factor(collective: str, ranks: int) -> float:
    """The factor from algbw to busbw: what one link carries, so that figures for different ranks compare."""
    return _TIMES[collective] * (ranks - 1) / ranks if collective in _TIMES else 1.0


def with_expected(result: CollectiveResult, expected: Expected | None) -> CollectiveResult:
    """A copy with what this hardware gives at this size."""
    if expected is None:
        return result
    return replace(
        result,
        expected_busbw_bytes_per_s=expected.bytes_per_s,
        expected_source=expected.source,
        expected_certain=expected.certain,
    )


def _merged(times: Sequence[RankTimes], backend: str) -> CollectiveResult:
    first = times[0]
    nodes = list(dict.fromkeys(rank.node for rank in times if rank.node))
    result = CollectiveResult(first.collective, backend, first.size_bytes, first.ranks, nodes)
    result.path = _PATHS.get(backend, backend)
    result.wrong_ranks = [rank.rank for rank in times if rank.wrong]
    result.wrong = sum(rank.wrong for rank in times)
    timed = [rank for rank in times if rank.times_s]
    _say_gaps(result, timed)
    count = common_iterations(timed)
    if not timed or not count:
        return result
    slowest = sorted(max(rank.times_s[turn] for rank in timed) for turn in range(count))
    result.iterations = count
    result.time_s, result.best_s = statistics.median(slowest), slowest[0]
    result.p95_s = slowest[math.ceil(0.95 * count) - 1]
    if result.time_s > 0:
        result.algbw_bytes_per_s = first.size_bytes / result.time_s
        if first.ranks > 1:
            result.busbw_bytes_per_s = result.algbw_bytes_per_s * busbw_factor(first.collective, first.ranks)
    result.arrivals = arrivals(timed)
    return result


def _say_gaps(result: CollectiveResult, timed: Sequence[RankTimes]) -> None:
    missing = sorted(set(range(result.ranks)) - {rank.rank for rank in timed})
    if missing:
        result.gaps["ranks"] = f"{ranks_text(missing)} of {result.ranks} gave no times: those of the others count"
    most, least = max((len(rank.times_s) for rank in timed), default=0), common_iterations(timed)
    if least < most:
        short = [rank.rank for rank in timed if len(rank.times_s) < most]
        result.gaps["iterations"] = f"{ranks_text(short)} gave {least} of {most} iterations: the first {least} count"


# In words.


def _what(result: CollectiveResult) -> str:
    """``all-reduce of 256 MiB``."""
    return f"{result.collective} of {size_words(result.size_bytes)}"


def _headline(result: CollectiveResult) -> str:
    """``16 ranks on 2 nodes: all-reduce of 256 MiB at 352 GB/s busbw (NCCL)``."""
    on = f" on {counted(len(result.nodes), 'node')}" if result.nodes else ""
    if result.busbw_bytes_per_s is not None:
        speed = f"at {rate_words(result.busbw_bytes_per_s)} busbw"
    else:
        speed = f"in {time_words(result.time_s or 0.0)}"
    path = f" ({result.path})" if result.path else ""
    return f"{counted(result.ranks, 'rank')}{on}: {_what(result)} {speed}{path}"


def _below_history(result: CollectiveResult, past: Sequence[PastResult]) -> str:
    """ "" where it is as fast as it was, or nobody knows."""
    if result.busbw_bytes_per_s is None:
        return ""
    history = against_past(group_subject(result), collective_key(result), result.busbw_bytes_per_s, {}, past)
    if not history.slow:
        return ""
    usual = "" if history.usual is None else f" ({rate_words(history.usual)})"
    return f", {percent_words(history.slower)} slower than its last {history.count} results{usual}"


def _below_expected(result: CollectiveResult) -> str:
    """ "" where the figure is reached, not known or not certain."""
    expected, share = result.expected_busbw_bytes_per_s, result.share_of_expected
    if not expected or share is None or not result.expected_certain or share >= NEAR_FIGURE:
        return ""
    return f", only {percent_words(share)} of the {rate_words(expected)} known for it"


def _wrong(results: Sequence[CollectiveResult]) -> list[str]:
    """Wrong sums: nothing is worse, so it comes first."""
    bad = [result for result in results if result.wrong]
    if not bad:
        return []
    ranks = sorted({rank for result in bad for rank in result.wrong_ranks})
    who = f"{ranks_text(ranks)} of {bad[0].ranks}" if ranks else "some ranks"
    return [f"WRONG RESULTS: {who} got wrong values in {listed([_what(result) for result in bad])}"]


def _wrong_suspects(results: Sequence[CollectiveResult]) -> list[Suspect]:
    """When fewer than half of the ranks got wrong values, those; else nobody can tell who spoilt them."""
    suspects: dict[int, Suspect] = {}
    for result in results:
        if not result.wrong or 2 * len(result.wrong_ranks) >= result.ranks:
            continue
        reason = f"got wrong values in {_what(result)}"
        for arrival in result.arrivals:
            if arrival.rank in result.wrong_ranks:
                accused = Suspect(arrival.node, reason, arrival.gpu, arrival.rank, action=_WRONG_ACTION)
                suspects.setdefault(arrival.rank, accused)
    return list(suspects.values())


def _late_suspect(group: Sequence[LateRank]) -> Suspect:
    """A whole node is one suspect, without a rank."""
    first = group[0]
    if len(group) > 1:
        return Suspect(first.node, f"all its {len(group)} ranks {_how_late(group)}", action=_NODE_ACTION)
    return Suspect(first.node, _how_late(group), first.gpu, first.rank, action=_LATE_ACTION)


def _failed(failures: Sequence[ProbeFailure]) -> list[Suspect]:
    """Ranks that died or did not come; a node that could not begin is no suspect of a measurement."""
    of_ranks = (failure for failure in failures if failure.rank is not None and not failure.refused)
    return [Suspect(failure.node, failure.why, failure.gpu, failure.rank, action=failure.fix) for failure in of_ranks]


def failure_sentences(failures: Sequence[ProbeFailure]) -> list[str]:
    """Those with one reason together."""
    by_reason = grouped(failures, lambda failure: failure.why)
    return [f"{who_failed(alike)}: {why}" for why, alike in by_reason.items()]


def _details(results: Sequence[CollectiveResult], late: Sequence[LateRank], early: Sequence[int]) -> Iterator[str]:
    yield from dict.fromkeys(gap for result in results for gap in result.gaps.values())
    if any(result.wrong for result in results) and not _wrong_suspects(results):
        yield "half of the ranks or more got wrong values: any rank or the network may have spoilt them"
    if early:
        waits = "waits" if len(early) == 1 else "wait"
        yield f"most ranks are late: {ranks_text(early)} {waits} for them (clearly earlier in most collectives)"
    lags = [[arrival.lag_s for arrival in result.arrivals] for result in results if len(result.arrivals) > 1]
    if lags and not late and not early:
        yield f"no rank is late: lags differ by at most {time_words(max(max(own) - min(own) for own in lags))}"
    for result in results:
        yield from _of_size(result)
    if any(_below_expected(result) for result in results) and not late and len(results[0].nodes) > 2:
        yield _PAIRS


def _of_size(result: CollectiveResult) -> Iterator[str]:
    expected, share = result.expected_busbw_bytes_per_s, result.share_of_expected
    if expected and share is not None:
        doubt = "" if result.expected_certain else "; that figure is not certain"
        yield f"{_what(result)}: {percent_words(share)} of {rate_words(expected)} ({result.expected_source}){doubt}"
    if result.time_s and result.p95_s is not None and result.p95_s > JITTER * result.time_s:
        p95, median = time_words(result.p95_s), time_words(result.time_s)
        yield f"{_what(result)}: one in twenty takes {p95} (median {median})"


def _by_node(late: Sequence[LateRank], results: Sequence[CollectiveResult]) -> list[list[LateRank]]:
    """The late ranks; those of a node together when all of its ranks are late and there are several."""
    of_node: dict[str, set[int]] = {}
    for arrival in (arrival for result in results for arrival in result.arrivals):
        of_node.setdefault(arrival.node, set()).add(arrival.rank)
    late_ranks = {rank.rank for rank in late}
    several = {node for node, ranks in of_node.items() if len(ranks) > 1 and ranks <= late_ranks}
    whole = several if len(of_node) > 1 else set()
    return list(grouped(late, lambda rank: (rank.node, -1 if rank.node in whole else rank.rank)).values())


def _how_late(group: Sequence[LateRank]) -> str:
    much = time_words(min(rank.late_s for rank in group))
    share = min(rank.late_share for rank in group)
    how_often = "every collective" if share >= 0.95 else f"{percent_words(share)} of the collectives"
    verb = "come" if len(group) > 1 else "comes"
    return f"{verb} {much} late to {how_often}, the others wait{_work(group)}"


def _work(group: Sequence[LateRank]) -> str:
    if all(rank.work_s is None or rank.usual_work_s is None for rank in group):
        return ""
    slower = [rank for rank in group if rank.slower_at_work]
    if not slower:
        return " (its own work is as fast as theirs)" if len(group) == 1 else " (their own work is not slower)"
    worst = max(slower, key=lambda rank: (rank.slow_at_work, rank.work_s or 0.0))
    work = f"its own work takes {time_words(worst.work_s or 0.0)}, the others' {time_words(worst.usual_work_s or 0.0)}"
    return f": {work}" if worst.slow_at_work else f" ({work}: too little to explain it)"


def _late_who(group: Sequence[LateRank]) -> str:
    """``rank 5 (GPU 5 on n03)``, ``all 8 ranks of n03``."""
    late = group[0]
    if len(group) > 1:
        return f"all {len(group)} ranks of {late.node}"
    where = f"GPU {late.gpu} on {late.node}" if late.gpu is not None else late.node
    return f"rank {late.rank} ({where})" if where else f"rank {late.rank}"


def who_failed(alike: Sequence[ProbeFailure]) -> str:
    """ "node[01-03]", "node01 GPU 0-3 rank 5"; of several nodes "88 GPUs on node[02-12]". GPUs and ranks: where each
    failure has one.
    """
    nodes = folded(failure.node for failure in alike if failure.node) or "the probe"
    gpus, ranks = known(failure.gpu for failure in alike), known(failure.rank for failure in alike)
    gpus, ranks = (numbers if len(numbers) == len(alike) else [] for numbers in (gpus, ranks))
    if len({failure.node for failure in alike}) > 1:
        who = ranks_text(ranks) if ranks else f"{len(gpus)} GPUs" if gpus else ""
        return f"{who} on {nodes}" if who else nodes
    return nodes + (f" GPU {fold(gpus)}" if gpus else "") + (f" rank {fold(ranks)}" if ranks else "")


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
