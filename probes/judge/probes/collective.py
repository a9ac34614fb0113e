"""Collectives: from every rank's times to results, and from those to who is slow.

The time of an iteration is that of its slowest rank; busbw is nccl-tests' (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.arrival import LateRank, arrivals, common_iterations, find_early, find_late, usual_lag_s
from mltop.probes.judge.probes.compare import Comparison, against_past, collective_key, group_subject
from mltop.probes.judge.probes.devices import NEAR_FIGURE, first_sentences, listed
from mltop.probes.judge.probes.hardware.peaks import Expected
from mltop.probes.model.probe import CollectiveResult, PastResult, ProbeFailure, ProbeVerdict, RankTimes, Suspect
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.units import counted, percent_words, rate_words, size_words, time_words

JITTER = 3.0  # p95 over the median
_LATE_ACTION = "run mltop probe matmul there, and look at its CPU and other processes"
_NODE_ACTION = "run mltop probe matmul and mltop check on this node"
_WRONG_ACTION = "run mltop probe matmul on all nodes, then the pairs: do not train on them until it is found"
_PAIRS = "mltop probe pairs tells which node or path is slow"
_TWICE = ("all-reduce",)
_ONCE = ("all-gather", "reduce-scatter", "all-to-all")
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
        return ProbeVerdict(_nothing(failures), _failed(failures))
    late, early = find_late(measured), find_early(measured)
    main = _main(measured)
    suspects = [*_wrong_suspects(measured), *_failed(failures), *_late_suspects(late, measured)]
    parts = [*_wrong(measured), _headline(main) + _against(main, past)]
    parts += _late_sentences(late, measured)
    parts += _failure_sentences(failures)
    details = [*_details(measured, late, early), *_older(measured, main, past)]
    return ProbeVerdict("; ".join(part for part in parts if part), suspects, details)


def _main(results: Sequence[CollectiveResult]) -> CollectiveResult:
    """What the sentence is about: the largest size of the first collective."""
    same = [result for result in results if result.collective == results[0].collective]
    return max(same, key=lambda result: result.size_bytes)


def _against(result: CollectiveResult, past: Sequence[PastResult]) -> str:
    """Own history, then the expected figure where it is certain."""
    if result.busbw_bytes_per_s is None:
        return ""
    history = against_past(group_subject(result), collective_key(result), result.busbw_bytes_per_s, {}, past)
    if history.slow:
        return _below_history(history)
    return _below_expected(result)


def _older(results: Sequence[CollectiveResult], main: CollectiveResult, past: Sequence[PastResult]) -> list[str]:
    """The other sizes and collectives that are slower than they were."""
    slower = []
    for result in results:
        if result is main or result.busbw_bytes_per_s is None:
            continue
        history = against_past(group_subject(result), collective_key(result), result.busbw_bytes_per_s, {}, past)
        if history.slow:
            slower.append(_what(result) + _below_history(history))
    return slower


# From the times of ranks to results.


def merge_times(times: Sequence[RankTimes], backend: str) -> list[CollectiveResult]:
    """One result for each round, group, collective and size, in the order in which they first appear.

    Ranks that gave no times, or fewer iterations than others, are named in ``gaps``; nothing is made up for them.
    """
    groups: dict[tuple[int, int, str, int], dict[int, RankTimes]] = {}
    for rank_times in times:
        groups.setdefault((rank_times.round, rank_times.group, rank_times.collective, rank_times.size_bytes), {})[
            rank_times.rank
        ] = rank_times
    return [_merged([of_rank[rank] for rank in sorted(of_rank)], backend) for of_rank in groups.values()]


def busbw_factor(collective: str, ranks: int) -> float:
    """By which algbw is multiplied: what one link carries, so that figures for different ranks compare."""
    if collective in _TWICE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _ONCE else 1.0


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


def _below_history(history: Comparison) -> str:
    usual = "" if history.usual is None else f" ({rate_words(history.usual)})"
    return f", {percent_words(history.slower)} slower than its last {history.count} results{usual}"


def _below_expected(result: CollectiveResult) -> str:
    """ "" where the figure is reached, not known or not certain."""
    expected, busbw = result.expected_busbw_bytes_per_s, result.busbw_bytes_per_s
    if not expected or busbw is None or not result.expected_certain or busbw >= NEAR_FIGURE * expected:
        return ""
    return f", only {percent_words(busbw / expected)} of the {rate_words(expected)} known for it"


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
        for arrival in result.arrivals:
            if arrival.rank in result.wrong_ranks:
                reason = f"got wrong values in {_what(result)}"
                suspects.setdefault(
                    arrival.rank, Suspect(arrival.node, reason, arrival.gpu, arrival.rank, action=_WRONG_ACTION)
                )
    return list(suspects.values())


def _late_suspects(late: Sequence[LateRank], results: Sequence[CollectiveResult]) -> list[Suspect]:
    """A whole node is one suspect, without a rank."""
    suspects = []
    for group in _by_node(late, results):
        if len(group) > 1:
            suspects.append(
                Suspect(group[0].node, f"all its {len(group)} ranks {_how_late(group)}", action=_NODE_ACTION)
            )
        else:
            rank = group[0]
            suspects.append(Suspect(rank.node, _how_late(group), rank.gpu, rank.rank, action=_LATE_ACTION))
    return suspects


def _late_sentences(late: Sequence[LateRank], results: Sequence[CollectiveResult]) -> list[str]:
    """``rank 5 (GPU 5 on n03) comes 30 ms late to every collective: …``."""
    sentences = []
    for group in _by_node(late, results):
        who = _rank(group[0]) if len(group) == 1 else f"all {len(group)} ranks of {group[0].node}"
        sentences.append(f"{who} {_how_late(group)}")
    return first_sentences(sentences, "and {} more are late")


def _failed(failures: Sequence[ProbeFailure]) -> list[Suspect]:
    """Ranks that died or did not come; a node that could not begin is no suspect of a measurement."""
    return [
        Suspect(
            failure.node,
            failure.why,
            failure.gpu,
            failure.rank,
            action=failure.fix,
        )
        for failure in failures
        if failure.rank is not None and not failure.refused
    ]


def _failure_sentences(failures: Sequence[ProbeFailure]) -> list[str]:
    """Those with one reason together."""
    by_reason: dict[str, list[ProbeFailure]] = {}
    for failure in failures:
        by_reason.setdefault(failure.why, []).append(failure)
    return first_sentences([f"{_who(alike)}: {why}" for why, alike in by_reason.items()], "and {} more failures")


def _nothing(failures: Sequence[ProbeFailure]) -> str:
    sentences = _failure_sentences(failures)
    return f"no collective was measured: {'; '.join(sentences)}" if sentences else "no collective was measured"


def _details(results: Sequence[CollectiveResult], late: Sequence[LateRank], early: Sequence[int]) -> Iterator[str]:
    yield from dict.fromkeys(gap for result in results for gap in result.gaps.values())
    if any(result.wrong for result in results) and not _wrong_suspects(results):
        yield "half of the ranks or more got wrong values: any rank or the network may have spoilt them"
    if early:
        waits = "waits" if len(early) == 1 else "wait"
        yield f"most ranks are late: {ranks_text(early)} {waits} for them (clearly earlier in most collectives)"
    lags = [lag for lag in map(_spread_s, results) if lag is not None]
    if lags and not late and not early:
        yield f"no rank is late: lags differ by at most {time_words(max(lags))}"
    for result in results:
        yield from _of_size(result)
    if any(_below_expected(result) for result in results) and not late and len(results[0].nodes) > 2:
        yield _PAIRS


def _of_size(result: CollectiveResult) -> Iterator[str]:
    expected, busbw = result.expected_busbw_bytes_per_s, result.busbw_bytes_per_s
    if expected and busbw is not None:
        doubt = "" if result.expected_certain else "; that figure is not certain"
        share = percent_words(busbw / expected)
        yield f"{_what(result)}: {share} of {rate_words(expected)} ({result.expected_source}){doubt}"
    if result.time_s and result.p95_s is not None and result.p95_s > JITTER * result.time_s:
        p95, median = time_words(result.p95_s), time_words(result.time_s)
        yield f"{_what(result)}: one in twenty takes {p95} (median {median})"


def _spread_s(result: CollectiveResult) -> float | None:
    usual = usual_lag_s(result)
    if usual is None or len(result.arrivals) < 2:
        return None
    return max(arrival.lag_s for arrival in result.arrivals) - min(arrival.lag_s for arrival in result.arrivals)


def _by_node(late: Sequence[LateRank], results: Sequence[CollectiveResult]) -> list[list[LateRank]]:
    """The late ranks; those of a node together when all of its ranks are late and there are several."""
    of_node: dict[str, set[int]] = {}
    for arrival in (arrival for result in results for arrival in result.arrivals):
        of_node.setdefault(arrival.node, set()).add(arrival.rank)
    groups: dict[tuple[str, int], list[LateRank]] = {}
    everyone = {rank.rank for rank in late}
    for rank in late:
        ranks = of_node.get(rank.node, set())
        whole = len(of_node) > 1 and len(ranks) > 1 and ranks <= everyone
        groups.setdefault((rank.node, -1 if whole else rank.rank), []).append(rank)
    return list(groups.values())


def _how_late(group: Sequence[LateRank]) -> str:
    much = time_words(min(rank.late_s for rank in group))
    share = min(rank.late_share for rank in group)
    how_often = "every collective" if share >= 0.95 else f"{percent_words(share)} of the collectives"
    verb = "come" if len(group) > 1 else "comes"
    return f"{verb} {much} late to {how_often}, the others wait{_work(group)}"


def _work(group: Sequence[LateRank]) -> str:
    known = [rank for rank in group if rank.work_s is not None and rank.usual_work_s is not None]
    if not known:
        return ""
    slower = [late for late in known if late.slower_at_work]
    if not slower:
        return " (its own work is as fast as theirs)" if len(group) == 1 else " (their own work is not slower)"
    worst = max(slower, key=lambda late: (late.slow_at_work, late.work_s or 0.0))
    work = f"its own work takes {time_words(worst.work_s or 0.0)}, the others' {time_words(worst.usual_work_s or 0.0)}"
    return f": {work}" if worst.slow_at_work else f" ({work}: too little to explain it)"


def _rank(late: LateRank) -> str:
    place = f"GPU {late.gpu} on {late.node}" if late.gpu is not None else late.node
    return f"rank {late.rank} ({place})" if place else f"rank {late.rank}"


def _who(alike: Sequence[ProbeFailure]) -> str:
    ranks = [failure.rank for failure in alike if failure.rank is not None]
    nodes = folded(failure.node for failure in alike if failure.node)
    if len(ranks) == len(alike):
        return f"{ranks_text(ranks)} ({nodes})" if nodes else ranks_text(ranks)
    return nodes or "the probe"
