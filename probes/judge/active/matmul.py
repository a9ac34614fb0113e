"""Is a GPU slow at multiplying, and why: against its own history, then its peers, then the shipped table.

The table never accuses: software alone moves a GPU by 40 %. Rates are TFLOP/s, back to back where that was measured.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mltop.probes.judge.active import matmul_words as words
from mltop.probes.judge.active.bits import clean_text, corrupt, unlike
from mltop.probes.judge.active.compare import PEER_GAP, Comparison, against_past, slower_than_peers
from mltop.probes.judge.active.matmul_look import Group, Look
from mltop.probes.judge.active.matmul_reasons import (
    Reason,
    explain,
    hardware_fault,
    load_phase,
    lowered_limit,
    rate_of,
)
from mltop.probes.judge.active.past import matmul_key, subject
from mltop.probes.judge.active.peaks import Peak, peak_of, peak_tflops
from mltop.probes.model.probe import MatmulResult, PastResult, ProbeFailure, ProbeVerdict, Suspect

SOME_OTHERS = 64  # of thousands, enough to tell what is usual


def with_efficiency(result: MatmulResult) -> MatmulResult:
    """A copy with its efficiencies: TFLOP/s over multiprocessors x FLOP/clock x mean SM clock of that phase.

    None for processors, unknown models and types, and where the clock is unknown.
    """
    peak = None if result.kind == "cpu" else peak_of(result.name, result.pci_device)
    return replace(
        result,
        burst_efficiency=_efficiency(result, peak, "burst", result.burst_tflops),
        sustained_efficiency=_efficiency(result, peak, "sustained", result.sustained_tflops),
    )


def judge_matmul(
    results: Sequence[MatmulResult], past: Sequence[PastResult] = (), failures: Sequence[ProbeFailure] = ()
) -> ProbeVerdict:
    """One sentence, who is accused and why, and the rest as details. Corruption comes before slowness."""
    measured = [with_efficiency(result) for result in results if rate_of(result) is not None]
    wrong = corrupt(measured)
    differing, notes = unlike(measured)
    groups = _groups(measured, past)
    parts = [words.wrong_sentence(suspect) for suspect in [*wrong, *differing]]
    for group in groups:
        parts.append(words.headline(group, len({one.looks[0].result.name for one in groups}) > 1))
        parts += words.slow_sentences(group)
    suspects = [*wrong, *differing, *(_suspect(look) for group in groups for look in group.slow)]
    clean = clean_text(measured)
    if clean and not differing:
        parts.append(clean)
    details = [line for group in groups for line in words.details(group)]
    details += [*notes, *words.checked(measured), *map(words.failure, failures)]
    if not measured:
        parts = [words.nothing(failures)]
    return ProbeVerdict("; ".join(part for part in parts if part), suspects, details)


def _efficiency(result: MatmulResult, peak: Peak | None, name: str, rate: float | None) -> float | None:
    clock = next((phase.sm_clock_mhz for phase in result.phases if phase.name == name), None)
    if peak is None or rate is None or not clock or (result.kind == "mig" and not result.multiprocessors):
        return None
    top = peak_tflops(peak, result.dtype, result.multiprocessors, clock)
    return rate / top if top else None


def _groups(results: Sequence[MatmulResult], past: Sequence[PastResult]) -> list[Group]:
    """The largest first."""
    by_key: dict[tuple[object, ...], list[MatmulResult]] = {}
    for result in results:
        by_key.setdefault(_key(result), []).append(result)
    groups = [_judged(members, past) for members in by_key.values()]
    return sorted(groups, key=lambda group: -len(group.looks))


def _key(result: MatmulResult) -> tuple[object, ...]:
    shape = tuple(result.sustained_shape) if result.sustained_tflops is not None else ()
    of_cpu = (result.code_path, result.threads) if result.kind == "cpu" else ()
    return (result.kind, result.name, result.dtype, result.multiprocessors, shape, *of_cpu)


def _judged(members: list[MatmulResult], past: Sequence[PastResult]) -> Group:
    peers = _among_peers(members)
    rates = [rate_of(result) or 0.0 for result in members]
    ordered = sorted(rates)
    earlier: dict[str, list[PastResult]] = {}
    for one in past:
        earlier.setdefault(one.uuid, []).append(one)
    group = Group()
    for place, (result, rate) in enumerate(zip(members, rates, strict=True)):
        what = "sustained" if result.sustained_tflops is not None else "burst"
        of_device = earlier.get(subject(result), ())
        history = against_past(subject(result), matmul_key(result, what), rate, result.versions, of_device)
        others = Comparison(rate, _median_without(ordered, rate), len(ordered) - 1)
        group.looks.append(Look(result, rate, history, peers[place], others))
    company = _Company(members)
    for look in group.looks:
        look.reason = _accusation(look, company)
    return group


def _median_without(ordered: list[float], one: float) -> float | None:
    """The median of the sorted values without one occurrence of ``one``."""
    place, count = bisect_left(ordered, one), len(ordered) - 1
    if not count:
        return None
    middle = [count // 2] if count % 2 else [count // 2 - 1, count // 2]
    return statistics.mean(ordered[at + (at >= place)] for at in middle)


class _Company:
    """With whom a result is compared when reasons are looked for: its node's devices and some of all others."""

    def __init__(self, members: list[MatmulResult]) -> None:
        self._of_node: dict[str, list[MatmulResult]] = {}
        for one in members:
            self._of_node.setdefault(one.node, []).append(one)
        self._some = members[:: max(1, len(members) // SOME_OTHERS)]

    def of(self, result: MatmulResult) -> list[MatmulResult]:
        beside = self._of_node[result.node]
        return [one for one in beside if one is not result] + [one for one in self._some if one.node != result.node]


def _among_peers(members: list[MatmulResult]) -> dict[int, Comparison]:
    """By place. Peers have the same power limit too, to 5 W; one whose limit is unknown is a peer of most others."""
    limits = [_limit_w(result) for result in members]
    classes = [None if limit is None else round(limit / 5) for limit in limits]
    usual = Counter(one for one in classes if one is not None).most_common(1)
    groups: dict[int | None, dict[int, float]] = {}
    for place, result in enumerate(members):
        of_limit = classes[place] if classes[place] is not None or not usual else usual[0][0]
        groups.setdefault(of_limit, {})[place] = rate_of(result) or 0.0
    found: dict[int, Comparison] = {}
    for values in groups.values():
        found.update(slower_than_peers(values))
    return found


def _limit_w(result: MatmulResult) -> float | None:
    phase = load_phase(result)
    return None if phase is None else phase.power_limit_w


def _accusation(look: Look, company: _Company) -> Reason | None:
    """Beside a comparison: a limit that was lowered on this one, and where nobody can compare, a fault that shows."""
    below, alone = look.others.slower > PEER_GAP, look.others.usual is None
    slow = look.history.slow or look.peers.slow
    if not slow and not below and not alone:
        return None
    others = company.of(look.result)
    lowered = lowered_limit(load_phase(look.result), [phase for phase in map(load_phase, others) if phase is not None])
    if slow or (below and lowered is not None and _limit_differs(look.result, others)):
        return explain(look.result, others)
    fault = hardware_fault(look.result, others) if look.peers.slow is None else None
    return explain(look.result, others) if fault is not None and fault.fault else None


def _limit_differs(result: MatmulResult, others: list[MatmulResult]) -> bool:
    """Whether most others may draw more than this one: a limit that all have is a decision, not a fault."""
    limit = _limit_w(result)
    limits = [one for one in map(_limit_w, others) if one is not None]
    return limit is not None and 2 * sum(one > limit for one in limits) > len(limits)


def _suspect(look: Look) -> Suspect:
    result, action = look.result, look.reason.action if look.reason is not None else ""
    return Suspect(result.node, words.how_much(look), gpu=result.gpu, uuid=result.uuid, action=action)
