"""Is a GPU slow at multiplying, and why: against its own history, then its peers, then the shipped table.

The table never accuses: software alone moves a GPU by 40 %. Rates are TFLOP/s, back to back where that was measured.
"""

from __future__ import annotations

import statistics
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
        parts.append(words.headline(group, several=len(groups) > 1))
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
    group = Group()
    for place, (result, rate) in enumerate(zip(members, rates, strict=True)):
        what = "sustained" if result.sustained_tflops is not None else "burst"
        history = against_past(subject(result), matmul_key(result, what), rate, result.versions, past)
        theirs = rates[:place] + rates[place + 1 :]
        others = Comparison(rate, statistics.median(theirs) if theirs else None, len(theirs))
        group.looks.append(Look(result, rate, history, peers[place], others))
    for look in group.looks:
        look.reason = _accusation(look, [other.result for other in group.looks if other is not look])
    return group


def _among_peers(members: list[MatmulResult]) -> dict[int, Comparison]:
    """By place. Peers have the same power limit too, to 5 W."""
    limits: dict[int | None, dict[int, float]] = {}
    for place, result in enumerate(members):
        phase = load_phase(result)
        limit = None if phase is None or phase.power_limit_w is None else round(phase.power_limit_w / 5)
        limits.setdefault(limit, {})[place] = rate_of(result) or 0.0
    found: dict[int, Comparison] = {}
    for values in limits.values():
        found.update(slower_than_peers(values))
    return found


def _accusation(look: Look, others: list[MatmulResult]) -> Reason | None:
    """Beside a comparison: a limit that was lowered on this one, and where nobody can compare, a fault that shows."""
    if look.history.slow or look.peers.slow:
        return explain(look.result, others)
    below = look.others.slower > PEER_GAP
    lowered = lowered_limit(load_phase(look.result), [phase for phase in map(load_phase, others) if phase is not None])
    if lowered is not None and below and _limit_differs(look.result, others):
        return explain(look.result, others)
    if look.peers.slow is None and (below or not others):
        fault = hardware_fault(look.result, others)
        return explain(look.result, others) if fault is not None and fault.fault else None
    return None


def _limit_differs(result: MatmulResult, others: list[MatmulResult]) -> bool:
    """Whether most others may draw more than this one: a limit that all have is a decision, not a fault."""
    phase = load_phase(result)
    limit = None if phase is None else phase.power_limit_w
    limits = [one.power_limit_w for one in map(load_phase, others) if one is not None and one.power_limit_w is not None]
    return limit is not None and 2 * sum(one > limit for one in limits) > len(limits)


def _suspect(look: Look) -> Suspect:
    result, action = look.result, look.reason.action if look.reason is not None else ""
    return Suspect(result.node, words.how_much(look), gpu=result.gpu, uuid=result.uuid, action=action)
