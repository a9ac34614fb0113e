"""The search for bad nodes and bad links by pairs: the judge says who measures with whom, the launchers stay up."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.investigate.probing.collective import Collective, Round, RoundResult, Tell
from mltop.probes.investigate.probing.plan import PAIR_BUDGET_S, pair_size
from mltop.probes.investigate.probing.setting import Setting
from mltop.probes.judge.active.collective import merge_times
from mltop.probes.judge.active.pairs import PairSearch
from mltop.probes.model.probe import PairResult, RankTimes


def search(
    collective: Collective, setting: Setting, nodes: Sequence[str], on_cpu: bool, tell: Tell
) -> list[PairResult]:
    """Rounds of pairs until the judge knows enough; what was measured until then when it has to end early."""
    wanted, stop = setting.wanted, setting.stop
    choice = PairSearch(tuple(nodes), round_robin=wanted.round_robin)
    size = pair_size(wanted, on_cpu)
    results: list[PairResult] = []
    number = 0
    while not stop.now:
        pairs = choice.next_round(results)
        if not pairs:
            break
        number += 1
        tell(f"round {number}: {len(pairs)} pair{'s' * (len(pairs) != 1)}")
        wanted_round = Round(tuple(pairs), ("all-reduce",), (size,), PAIR_BUDGET_S, work=False)
        measured = collective.measure(wanted_round, tell)
        if stop.cancelled.is_set():
            break
        results.extend(pair_results(number, pairs, size, measured))
    return results


def pair_results(
    number: int, pairs: Sequence[tuple[str, str]], size_bytes: int, measured: RoundResult
) -> list[PairResult]:
    """One result for each pair: its bus bandwidth, or why there is none."""
    of_pair: dict[int, list[RankTimes]] = {}
    for times in measured.times:
        of_pair.setdefault(times.group, []).append(times)
    found = []
    for group, pair in enumerate(pairs):
        why = "; ".join(f"{node}: {measured.failures[node]}" for node in pair if measured.failures.get(node))
        merged = merge_times(of_pair.get(group, []), "")
        busbw = merged[0].busbw_bytes_per_s if merged and not why else None
        if merged and merged[0].wrong:
            why = f"{merged[0].wrong} wrong results"
        found.append(
            PairResult(number, list(pair), size_bytes, busbw, why or ("" if busbw else "nothing was measured"))
        )
    return found
