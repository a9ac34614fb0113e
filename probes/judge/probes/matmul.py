"""Results of the GEMM probe beside what they are compared with.

The GEMM probe's verdict in words.

Is a GPU slow at multiplying, and why: against its own history, then its peers, then the shipped table.

The table never accuses: software alone moves a GPU by 40 %. Rates are TFLOP/s, back to back where that was measured.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.judge.probes import numbers
from mltop.probes.judge.probes.compare import PEER_GAP, Comparison, against_past, matmul_key, slower_than_peers, subject
from mltop.probes.judge.probes.corruption import clean_text, corrupt, unlike
from mltop.probes.judge.probes.devices import device_name, devices_name, plural
from mltop.probes.judge.probes.hardware.peaks import Peak, peak_of, peak_tflops
from mltop.probes.judge.probes.matmul_reasons import (
    Reason,
    at_power_limit,
    condition,
    explain,
    hardware_fault,
    load_phase,
    lowered_limit,
    rate_of,
)
from mltop.probes.model.probe import MatmulResult, PastResult, ProbeFailure, ProbeVerdict, Suspect


@dataclass
class Look:
    """One result. ``rate``: TFLOP/s; ``others``: it against all of its group, whatever their power limits.

    ``reason``: why it is accused, None when it is not; ``by_history``: because it was faster before.
    """

    result: MatmulResult
    rate: float
    history: Comparison
    peers: Comparison
    others: Comparison
    reason: Reason | None = None

    @property
    def by_history(self) -> bool:
        return self.history.slow is True and self.peers.slow is not True

    @property
    def slower(self) -> float:
        """By how much, of what it is accused by: 0.21 for 21 %."""
        if self.by_history:
            return self.history.slower
        return self.peers.slower if self.peers.slow else max(0.0, self.others.slower)


@dataclass
class Group:
    """Results that may be compared: one model, type, shape; of CPUs one code path and number of threads."""

    looks: list[Look] = field(default_factory=list)

    @property
    def slow(self) -> list[Look]:
        return [look for look in self.looks if look.reason is not None]

    @property
    def rest(self) -> list[Look]:
        return [look for look in self.looks if look.reason is None]


NEAR_TABLE = 0.9  # of mamf-finder's figure; below it is told, never accused
LOW_EFFICIENCY = 0.6  # of the multiprocessors' peak at their clock, back to back
_EFFICIENT = ("bf16", "fp16", "fp8")  # types for which the figure above holds
_VERSIONS = ("driver", "torch", "cuda", "cublas", "hip")
SENTENCES = 4


def wrong_sentence(suspect: Suspect) -> str:
    who = f"GPU {suspect.gpu}" if suspect.gpu is not None else "CPUs"
    on = f" {'on' if suspect.gpu is not None else 'of'} {suspect.node}" if suspect.node else ""
    return f"{who}{on} {suspect.reason}"


def headline(group: Group, several: bool) -> str:
    """Those that are not accused: ``7 of 8 GPUs alike at 712 TFLOPS bf16 sustained``."""
    rest = group.rest or group.looks
    model = f"{rest[0].result.name}: " if several and rest[0].result.name else ""
    rates = [look.rate for look in rest]
    what = _what(rest[0].result)
    if len(group.looks) == 1:
        state = "" if group.slow else _alone(rest[0])
        return f"{model}{device_name(rest[0].result)}: {numbers.tflops(rates[0])} {what}{state}"
    who = plural([look.result for look in rest])
    if group.slow:
        every = plural([look.result for look in group.looks])
        who = f"{len(rest)} of {every}" if group.rest else f"all {every}"
    if len(rest) == 1:
        return f"{model}{who} at {numbers.tflops(rates[0])} {what}"
    usual = statistics.median(rates)
    if min(rates) >= (1 - PEER_GAP) * usual:
        return f"{model}{who} alike at {numbers.tflops(usual)} {what}{_software(group)}"
    return f"{model}{who} at {numbers.tflops_span(rates)} {what}{_slowest(rest)}"


def slow_sentences(group: Group) -> list[str]:
    """One for each node and kind of reason: ``GPU 5 on n03 is 21 % slower: held at 1215 MHz by …``."""
    alike: dict[tuple[str, str, bool], list[Look]] = {}
    for look in group.slow:
        reason = look.reason
        assert reason is not None
        alike.setdefault((look.result.node, reason.kind, look.by_history), []).append(look)
    ordered = sorted(alike.values(), key=lambda looks: -max(look.slower for look in looks))
    sentences = [_slow_sentence(looks, len(group.looks) == 1) for looks in ordered[:SENTENCES]]
    left = sum(len(looks) for looks in ordered[SENTENCES:])
    return sentences + ([f"and {left} more are slow"] if left else [])


def how_much(look: Look) -> str:
    """``21 % slower than its peers: held at 1215 MHz by …``."""
    why = look.reason.text if look.reason is not None else ""
    return f"{numbers.percent(look.slower)} slower than {_than(look)}: {why}" if look.slower > 0 else why


def _group_details(group: Group) -> Iterator[str]:
    looks = group.looks
    results = [look.result for look in looks]
    if len(looks) > 1 and all(look.peers.slow is None for look in looks):
        yield looks[0].peers.why
    yield from _limits(results)
    shares = [one.sustained_efficiency for one in results if one.sustained_efficiency is not None]
    if shares:
        yield f"sustained: {numbers.percent_span(shares)} of what the multiprocessors can do at the clock they had"
    yield from _against_table([look.result for look in group.rest] or results)
    heating = [one for one in results if one.still_heating]
    if heating:
        yield f"{devices_name(heating)}: still heating up, its clock fell during the warm-up: later it will be slower"
    known = sum(look.history.slow is not None for look in looks)
    if known:
        kept = sum(look.history.slow is False for look in looks)
        yield f"{kept} of {known} as fast as in their earlier results"


def checked(results: Sequence[MatmulResult]) -> list[str]:
    """What the comparison of bits covered."""
    count = sum(result.checked_iterations for result in results)
    if not clean_text(results):
        return []
    return [f"{numbers.many(count, 'iteration')} compared bit for bit"]


def failure(failed: ProbeFailure) -> str:
    gpu = f"GPU {failed.gpu} on " if failed.gpu is not None else ""
    stage = f" (in {failed.stage})" if failed.stage else ""
    return f"{gpu}{failed.node} was not measured: {failed.why}{stage}"


def nothing(failures: Sequence[ProbeFailure]) -> str:
    if not failures:
        return "nothing was measured"
    refused = all(one.refused for one in failures)
    first = failure(failures[0])
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"nothing was measured{', all refused' if refused else ''}: {first}{more}"


def _what(result: MatmulResult) -> str:
    if result.kind == "cpu":
        return f"{result.dtype} ({_path(result)})"
    return f"{result.dtype} {'sustained' if result.sustained_tflops is not None else 'burst'}"


def _path(result: MatmulResult) -> str:
    return result.code_path or "code path unknown"


def _alone(look: Look) -> str:
    """What can be said of a single device."""
    said = []
    state = condition(load_phase(look.result))
    if state:
        said.append(f" at {state}")
    if at_power_limit(load_phase(look.result)):
        said.append(" (held by its power limit, normal at full load)")
    if look.history.slow is False:
        said.append(f", as in its last {numbers.many(look.history.count, 'result')}")
    elif look.result.kind == "cpu":
        said.append(", no figure to compare it with")
    else:
        said.append(", nothing to compare it with")
    return "".join(said)


def _software(group: Group) -> str:
    """All alike and all low at a normal clock: not the hardware."""
    if group.slow:
        return ""
    results = [look.result for look in group.looks]
    peak = peak_of(results[0].name, results[0].pci_device)
    shares = [one.sustained_efficiency for one in results if one.sustained_efficiency is not None]
    if (
        group.slow
        or peak is None
        or not peak.is_sure(f"tflops.{results[0].dtype}")
        or results[0].dtype not in _EFFICIENT
        or not shares
    ):
        return ""
    if max(shares) >= LOW_EFFICIENCY:
        return ""
    versions = [f"{name} {results[0].versions[name]}" for name in _VERSIONS if name in results[0].versions]
    named = f" ({', '.join(versions)})" if versions else ""
    return f", only {numbers.percent_span(shares)} of what they can do at their clock: software{named}"


def _slowest(rest: Sequence[Look]) -> str:
    """Too few to accuse anybody, but the difference and its cause are worth a word."""
    last = min(rest, key=lambda look: look.rate)
    reason = explain(last.result, [look.result for look in rest if look is not last])
    return f", the slowest {device_name(last.result)} ({reason.text})"


def _slow_sentence(looks: list[Look], alone: bool) -> str:
    """``alone``: the headline has named it already."""
    worst = max(looks, key=lambda look: look.slower)
    reason = worst.reason
    assert reason is not None
    who = "it" if alone else devices_name([look.result for look in looks])
    if worst.slower <= 0:  # nothing to compare with: the fault alone
        return reason.text if alone else f"{who}: {reason.text}"
    much = numbers.percent_span(look.slower for look in looks)
    than = f" than {_than(worst, len(looks) > 1)}" if worst.by_history else ""
    verb = "are" if len(looks) > 1 or (worst.result.kind == "cpu" and not alone) else "is"
    also = ""
    if not worst.by_history and worst.history.slow is False:
        also = f" (as in {'their' if len(looks) > 1 else 'its'} earlier results)"
    return f"{who} {verb} {much} slower{than}{also}: {reason.text}"


def _than(look: Look, several: bool = False) -> str:
    if not look.by_history:
        return f"{'their' if several else 'its'} peers"
    usual = f" ({numbers.tflops(look.history.usual)})" if look.history.usual is not None and not several else ""
    count = f" {look.history.count}" if not several else ""
    return f"{'their' if several else 'its'} own last{count} results{usual}"


def _limits(results: Sequence[MatmulResult]) -> Iterator[str]:
    phases = [phase for phase in map(load_phase, results) if phase is not None]
    held = [phase for phase in phases if at_power_limit(phase)]
    if held:
        clocks = numbers.span(_known(phase.sm_clock_mhz for phase in held), "MHz")
        limit = numbers.span(_known(phase.power_limit_w for phase in held), "W")
        at = f" at {clocks}" if clocks else ""
        yield f"the power limit ({limit}) holds {len(held)} of {len(results)}{at}: normal at full load"
    lowered = [phase for phase in phases if lowered_limit(phase, ()) is not None]
    if lowered:
        limit = numbers.span(_known(phase.power_limit_w for phase in lowered), "W")
        default = numbers.span(_known(phase.power_limit_default_w for phase in lowered), "W")
        yield f"the limit of {len(lowered)} of {len(results)} was lowered to {limit} (default {default})"


def _against_table(results: Sequence[MatmulResult]) -> Iterator[str]:
    """Burst beside mamf-finder's figure, for information."""
    first = results[0]
    peak = None if first.kind != "gpu" else peak_of(first.name, first.pci_device)
    best = None if peak is None else peak.mamf_tflops.get(first.dtype)
    rates = [one.burst_tflops for one in results if one.burst_tflops is not None]
    if peak is None or not best or not rates:
        return
    share = numbers.percent_span(rate / best for rate in rates)
    line = f"burst: {numbers.tflops_span(rates)}, {share} of mamf-finder's {numbers.tflops(best)} on {peak.name}"
    sure = peak.is_sure(f"mamf.{first.dtype}")
    if min(rates) < NEAR_TABLE * best and sure:
        line += "; versions of driver, torch and cuBLAS alone can make such a difference"
    yield line if sure else f"{line}; that figure is not certain"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


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
    parts = [wrong_sentence(suspect) for suspect in [*wrong, *differing]]
    for group in groups:
        parts.append(headline(group, len({one.looks[0].result.name for one in groups}) > 1))
        parts += slow_sentences(group)
    suspects = [*wrong, *differing, *(_suspect(look) for group in groups for look in group.slow)]
    clean = clean_text(measured)
    if clean and not differing:
        parts.append(clean)
    details = [line for group in groups for line in _group_details(group)]
    details += [*notes, *checked(measured), *map(failure, failures)]
    if not measured:
        parts = [nothing(failures)]
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
    return Suspect(result.node, how_much(look), gpu=result.gpu, uuid=result.uuid, action=action)
