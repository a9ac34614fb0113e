"""Collectives: from every rank's times to results, and from those to who is slow.

The time of an iteration is that of its slowest rank; busbw is nccl-tests' (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from mltop.probes.judge.active import collective_words as words
from mltop.probes.judge.active.arrival import arrivals, common_iterations, find_early, find_late
from mltop.probes.judge.active.compare import against_past
from mltop.probes.judge.active.expected import Expected
from mltop.probes.judge.active.past import collective_key, group_subject
from mltop.probes.judge.fold import ranks_text
from mltop.probes.model.probe import (
    CollectiveResult,
    PastResult,
    ProbeFailure,
    ProbeVerdict,
    RankTimes,
)

_TWICE = ("all-reduce",)
_ONCE = ("all-gather", "reduce-scatter", "all-to-all")
_PATHS = {"nccl": "NCCL", "gloo": "gloo over TCP: not the training path"}


def merge_times(times: Sequence[RankTimes], backend: str) -> list[CollectiveResult]:
    """One result for each round, group, collective and size, in the order in which they first appear.

    Ranks that gave no times, or fewer iterations than others, are named in ``gaps``; nothing is made up for them.
    """
    groups: dict[tuple[int, int, str, int], dict[int, RankTimes]] = {}
    for one in times:
        groups.setdefault((one.round, one.group, one.collective, one.size_bytes), {})[one.rank] = one
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


def judge_collective(
    results: Sequence[CollectiveResult],
    failures: Sequence[ProbeFailure] = (),
    past: Sequence[PastResult] = (),
) -> ProbeVerdict:
    """``results``: all sizes and collectives of one group of ranks. Wrong results come first, then late ranks.

    A late rank is told by its lag, not by its time. A figure below the expected one is said where that figure is
    certain, and accuses nobody by itself.
    """
    measured = [result for result in results if result.time_s is not None]
    if not measured:
        return ProbeVerdict(words.nothing(failures), words.failed(failures))
    late, early = find_late(measured), find_early(measured)
    main = _main(measured)
    suspects = [*words.wrong_suspects(measured), *words.failed(failures), *words.late_suspects(late, measured)]
    parts = [*words.wrong(measured), words.headline(main) + _against(main, past)]
    parts += words.late_sentences(late, measured)
    parts += words.failure_sentences(failures)
    details = [*words.details(measured, late, early), *_older(measured, main, past)]
    return ProbeVerdict("; ".join(part for part in parts if part), suspects, details)


def _merged(times: Sequence[RankTimes], backend: str) -> CollectiveResult:
    first = times[0]
    nodes = list(dict.fromkeys(one.node for one in times if one.node))
    result = CollectiveResult(first.collective, backend, first.size_bytes, first.ranks, nodes)
    result.path = _PATHS.get(backend, backend)
    result.wrong_ranks = [one.rank for one in times if one.wrong]
    result.wrong = sum(one.wrong for one in times)
    timed = [one for one in times if one.times_s]
    _say_gaps(result, timed)
    count = common_iterations(timed)
    if not timed or not count:
        return result
    slowest = sorted(max(one.times_s[turn] for one in timed) for turn in range(count))
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
    missing = sorted(set(range(result.ranks)) - {one.rank for one in timed})
    if missing:
        result.gaps["ranks"] = f"{ranks_text(missing)} of {result.ranks} gave no times: those of the others count"
    most, least = max((len(one.times_s) for one in timed), default=0), common_iterations(timed)
    if least < most:
        short = [one.rank for one in timed if len(one.times_s) < most]
        result.gaps["iterations"] = f"{ranks_text(short)} gave {least} of {most} iterations: the first {least} count"


def _main(results: Sequence[CollectiveResult]) -> CollectiveResult:
    """What the sentence is about: the largest size of the first collective."""
    same = [one for one in results if one.collective == results[0].collective]
    return max(same, key=lambda one: one.size_bytes)


def _against(result: CollectiveResult, past: Sequence[PastResult]) -> str:
    """Own history, then the expected figure where it is certain."""
    if result.busbw_bytes_per_s is None:
        return ""
    history = against_past(group_subject(result), collective_key(result), result.busbw_bytes_per_s, {}, past)
    if history.slow:
        return words.below_history(history)
    return words.below_expected(result)


def _older(results: Sequence[CollectiveResult], main: CollectiveResult, past: Sequence[PastResult]) -> list[str]:
    """The other sizes and collectives that are slower than they were."""
    found = []
    for result in results:
        if result is main or result.busbw_bytes_per_s is None:
            continue
        history = against_past(group_subject(result), collective_key(result), result.busbw_bytes_per_s, {}, past)
        if history.slow:
            found.append(words.what(result) + words.below_history(history))
    return found
