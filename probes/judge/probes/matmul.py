"""Is a GPU slow at multiplying, and why: against its own history, then its peers, then the published figure.

Published figures accuse nobody: software alone moves a GPU by 40 %. Rates are TFLOP/s, back to back where that was
measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from mltop.probes.judge.probes import devices, reasons
from mltop.probes.judge.probes.compare import PEER_GAP, Comparison
from mltop.probes.judge.probes.hardware.peaks import Peak, peak_of, peak_tflops
from mltop.probes.judge.values import grouped, known, median_without
from mltop.probes.model import units
from mltop.probes.model.probe import MatmulResult, PastResult, ProbeVerdict, Suspect

# Of the multiprocessors' peak at their clock, back to back: software is to blame below the first, and a GPU is good
# above the second (an H100 does 0.91 to 0.94).
LOW_EFFICIENCY, GOOD_EFFICIENCY = 0.6, 0.85
SAME_LIMIT = 0.95  # of the model's power limit: with a lower one a published figure cannot be reached
_EFFICIENT = ("bf16", "fp16", "fp8")  # types for which the figure above holds
_VERSIONS = ("driver", "torch", "cuda", "cublas", "hip")
SOME_OTHERS = 64  # of thousands, enough to tell what is usual
REPLACE = "take it out of service, run it again to confirm, then dcgmi diag -r 3"
_AGAIN = "run the probe again to confirm before accusing it"
MAJORITY_AT_LEAST = 3  # devices that were compared: of two nobody knows which is right


RatedMatmul = devices.Rated[MatmulResult]


class Published(NamedTuple):
    """mamf-finder's figure for a model, and the ``share`` of it that a burst reached by the same method."""

    tflops: float
    share: float
    model: str


class Group:
    """Results that may be compared: one model, type, shape; of CPUs one code path and number of threads."""

    def __init__(self, members: Sequence[RatedMatmul]) -> None:
        self.members = members
        self.results = [rated.result for rated in members]
        self.shares = known(result.sustained_efficiency for result in self.results)
        self.accused = [rated for rated in members if rated.reason is not None]
        self.rest = [rated for rated in members if rated.reason is None]


def judge_matmul(results: Sequence[MatmulResult], past: Sequence[PastResult] = ()) -> ProbeVerdict:
    """One sentence, who is accused and why, and the rest as details. Corruption comes before slowness."""
    measured = [with_efficiency(result) for result in results if result.rate is not None]
    if not measured:
        return ProbeVerdict("nothing was measured")
    wrong = corrupt(measured)
    differing, notes = unlike(measured)
    groups = _groups(measured, past)
    several = len({group.members[0].result.name for group in groups}) > 1
    parts = []
    for accused in [*wrong, *differing]:
        who, on = (f"GPU {accused.gpu}", " on ") if accused.gpu is not None else ("CPUs", " of ")
        parts.append(f"{who}{on + accused.node if accused.node else ''} {accused.reason}")
    for group in groups:
        parts += [_headline(group, several), *_slow_sentences(group)]
    clean = clean_text(measured)
    parts += [clean] if clean and not differing else []
    suspects = [*wrong, *differing, *(_suspect(rated) for group in groups for rated in group.accused)]
    details = [*(line for group in groups for line in _details(group)), *notes]
    if clean:
        count = sum(result.checked_iterations for result in measured)
        details.append(f"{units.counted(count, 'iteration')} compared bit for bit")
    return ProbeVerdict("; ".join(parts), suspects, details)


def with_efficiency(result: MatmulResult) -> MatmulResult:
    """A copy with its efficiencies: TFLOP/s over multiprocessors x FLOP/clock x mean SM clock of that phase.

    None for processors, unknown models and types, and where the clock is unknown. A clock that fell because the
    power limit was reached does not show that the GPU was still heating up.
    """
    peak = None if result.kind == "cpu" else peak_of(result.name, result.pci_device)
    warm = next((phase.throttle_share for phase in result.phases if phase.name == "warm"), {})
    return replace(
        result,
        still_heating=None if warm.get("sw_power_cap", 0.0) >= reasons.HELD else result.still_heating,
        burst_efficiency=_efficiency(result, peak, "burst", result.burst_tflops),
        sustained_efficiency=_efficiency(result, peak, "sustained", result.sustained_tflops),
    )


def _efficiency(result: MatmulResult, peak: Peak | None, name: str, rate: float | None) -> float | None:
    clock = next((phase.sm_clock_mhz for phase in result.phases if phase.name == name), None)
    if peak is None or rate is None or not clock or (result.kind == "mig" and not result.multiprocessors):
        return None
    top = peak_tflops(peak, result.dtype, result.multiprocessors, clock)
    return rate / top if top else None


def published(result: MatmulResult) -> Published | None:
    """None where the burst cannot be compared: no figure is reliable, or its shape or power limit is another one."""
    peak = peak_of(result.name, result.pci_device) if result.kind == "gpu" else None
    figure = None if peak is None else peak.mamf_tflops.get(result.dtype)
    if peak is None or figure is None or result.burst_tflops is None or not peak.is_sure(f"mamf.{result.dtype}"):
        return None
    limit = next((phase.power_limit_w for phase in result.phases if phase.name == "burst"), None)
    lowered = limit is not None and peak.power_w is not None and limit < SAME_LIMIT * peak.power_w
    same = peak.best_shapes.get(result.dtype) == tuple(result.shape) and not lowered
    return Published(figure, result.burst_tflops / figure, peak.name) if same else None


# Computed wrong: a passed check is no proof of health, and is not called so.


def corrupt(results: Sequence[MatmulResult]) -> list[Suspect]:
    """Devices that gave different bits for the same work within one process: strong evidence."""
    suspects = []
    for result in results:
        if result.corrupt_iterations:
            checked = f"{result.corrupt_iterations} of {result.checked_iterations} checked iterations gave other bits"
            suspects.append(devices.suspect(result, f"gave wrong results: {checked}", REPLACE))
        elif result.upload_intact is False:
            suspects.append(devices.suspect(result, "got inputs with other bits than were sent to it", REPLACE))
    return suspects


def unlike(results: Sequence[MatmulResult]) -> tuple[list[Suspect], list[str]]:
    """Devices whose checksum differs from that of most of their equals, and what else to say about checksums.

    The same bits may be expected of equal model, multiprocessors, versions, shape and type only (cuBLAS: results are
    reproducible for one version, architecture and number of multiprocessors).
    """
    comparable = (result for result in results if result.checksum and not result.corrupt_iterations)
    suspects, notes = [], []
    for group in grouped(comparable, _same_bits).values():
        counts = Counter(result.checksum for result in group)
        if len(counts) < 2:
            continue
        usual, most = counts.most_common(1)[0]
        if len(group) < MAJORITY_AT_LEAST or 2 * most <= len(group):
            unsettled = "gave different results for equal work, and no majority shows which is right"
            notes.append(f"{devices.devices_name(group)} {unsettled}: {_AGAIN}")
            continue
        reason = f"gave another result than {most} equal devices: rerun to confirm"
        suspects += [devices.suspect(result, reason, _AGAIN) for result in group if result.checksum != usual]
    return suspects, notes


def clean_text(results: Sequence[MatmulResult]) -> str:
    """``no error in 12.3 PFLOP``; "" when nothing was checked or something was wrong."""
    checked = sum(result.checked_pflop for result in results)
    if any(result.is_wrong for result in results) or not any(result.checked_iterations for result in results):
        return ""
    scale, unit = (1.0, "PFLOP") if checked >= 0.1 else (1e3, "TFLOP") if checked >= 1e-4 else (1e6, "GFLOP")
    return f"no error in {units.digits(scale * checked)} {unit}"


def _same_bits(result: MatmulResult) -> tuple[object, ...]:
    device = (result.kind, result.name, result.multiprocessors, result.threads)
    library = (tuple(sorted(result.versions.items())), result.code_path)
    return (*device, *library, result.dtype, tuple(result.shape), tuple(result.sustained_shape))


# Who is slow.


def _groups(results: Sequence[MatmulResult], past: Sequence[PastResult]) -> list[Group]:
    """The largest first."""
    limits: dict[int, int | None] = {}
    for members in grouped(results, _key).values():
        limits |= _limits(members)

    def alike_by(result: MatmulResult) -> tuple[object, ...]:
        return (_key(result), limits[id(result)])

    every = devices.compared(
        results, lambda result: result.rate, alike_by, lambda result: result.key(_load(result)), past
    )
    groups = map(_judged, grouped(every, lambda rated: _key(rated.result)).values())
    return sorted(groups, key=lambda group: -len(group.members))


def _key(result: MatmulResult) -> tuple[object, ...]:
    shape = tuple(result.sustained_shape) if result.sustained_tflops is not None else ()
    of_cpu = (result.code_path, result.threads) if result.kind == "cpu" else ()
    return (result.kind, result.name, result.dtype, result.multiprocessors, shape, *of_cpu)


def _load(result: MatmulResult) -> str:
    return "sustained" if result.sustained_tflops is not None else "burst"


def _limits(members: Sequence[MatmulResult]) -> dict[int, int | None]:
    """By ``id``. Power limits of peers are equal, to 5 W; one whose limit is unknown is a peer of most others."""
    watts = {id(result): _limit_w(result) for result in members}
    classes = {key: None if limit is None else round(limit / 5) for key, limit in watts.items()}
    usual = Counter(known(classes.values())).most_common(1)
    return {key: usual[0][0] if limit is None and usual else limit for key, limit in classes.items()}


def _judged(members: Sequence[RatedMatmul]) -> Group:
    ordered = sorted(rated.rate for rated in members)
    results = [rated.result for rated in members]
    of_node = grouped(results, lambda result: result.node)
    some = results[:: max(1, len(results) // SOME_OTHERS)]
    for rated in members:
        rated.others = Comparison(rated.rate, median_without(ordered, rated.rate), len(ordered) - 1)
        # Reasons are looked for beside its node's devices and some of all others.
        beside = [other for other in of_node[rated.result.node] if other is not rated.result]
        beside += [other for other in some if other.node != rated.result.node]
        rated.reason = _accusation(rated, beside)
    return Group(members)


def _limit_w(result: MatmulResult) -> float | None:
    phase = reasons.load_phase(result)
    return None if phase is None else phase.power_limit_w


def _accusation(rated: RatedMatmul, others: Sequence[MatmulResult]) -> devices.Reason | None:
    """Beside a comparison: a limit that was lowered on this one, and where nobody can compare, a fault that shows."""
    below, alone = rated.others.slower > PEER_GAP, rated.others.usual is None
    if not rated.slow and not below and not alone:
        return None
    lowered = reasons.lowered_limit(reasons.load_phase(rated.result), known(map(reasons.load_phase, others)))
    # A limit that all have is a decision, not a fault: most others may draw more.
    limit, limits = _limit_w(rated.result), known(map(_limit_w, others))
    differs = limit is not None and 2 * sum(watts > limit for watts in limits) > len(limits)
    if rated.slow or (below and lowered is not None and differs):
        return reasons.explain(rated.result, others)
    fault = reasons.hardware_fault(rated.result, others) if rated.peers.slow is None else None
    return reasons.explain(rated.result, others) if fault is not None and fault.fault else None


def _suspect(rated: RatedMatmul) -> Suspect:
    """``21 % slower than its peers: held at 1215 MHz by …``."""
    reason = rated.reason or devices.Reason("", "")
    how_much = f"{units.percent_words(rated.slower)} slower than {_than(rated)}: " if rated.slower > 0 else ""
    return devices.suspect(rated.result, how_much + reason.text, reason.action)


# In words.


def _headline(group: Group, several: bool) -> str:
    """Those that are not accused: ``7 of 8 GPUs alike at 712 TFLOPS bf16 sustained``."""
    rest = group.rest or group.members
    first = rest[0].result
    model = f"{first.name}: " if several and first.name else ""
    if len(group.members) == 1:
        state = "" if group.accused else _alone(rest[0])
        return f"{model}{devices.device_name(first)}: {units.tflops_words(rest[0].rate)} {_what(first)}{state}"
    every = "" if group.rest else "all "
    text = f"{model}{every}{devices.alike(rest, group.results, units.tflops_words)} {_what(first)}"
    if len(rest) == 1:
        return text
    if devices.are_alike(rest):
        return text + _software(group)
    # Too few to accuse anybody, but the difference and its cause are worth a word.
    last = min(rest, key=lambda rated: rated.rate)
    reason = reasons.explain(last.result, [rated.result for rated in rest if rated is not last])
    return f"{text}, the slowest {devices.device_name(last.result)} ({reason.text})"


def _slow_sentences(group: Group) -> list[str]:
    """One for each node and kind of reason: ``GPU 5 on n03 is 21 % slower: held at 1215 MHz by …``."""
    same_reason = grouped(
        group.accused, lambda rated: (rated.result.node, rated.reason.kind if rated.reason else "", rated.by_history)
    )
    ordered = sorted(same_reason.values(), key=lambda members: -max(rated.slower for rated in members))
    sentences = [_slow_sentence(members, len(group.members) == 1) for members in ordered[: devices.SENTENCES]]
    left = sum(len(members) for members in ordered[devices.SENTENCES :])
    return sentences + ([f"and {left} more are slow"] if left else [])


def _slow_sentence(members: list[RatedMatmul], alone: bool) -> str:
    """``alone``: the headline has named it already."""
    worst = max(members, key=lambda rated: rated.slower)
    why = worst.reason.text if worst.reason else ""
    who = "it" if alone else devices.devices_name([rated.result for rated in members])
    if worst.slower <= 0:  # nothing to compare with: the fault alone
        return why if alone else f"{who}: {why}"
    much = units.percent_span_words(rated.slower for rated in members)
    than = f" than {_than(worst, len(members) > 1)}" if worst.by_history else ""
    verb = "are" if len(members) > 1 or (worst.result.kind == "cpu" and not alone) else "is"
    also = ""
    if not worst.by_history and worst.history.slow is False:
        also = f" (as in {'their' if len(members) > 1 else 'its'} earlier results)"
    return f"{who} {verb} {much} slower{than}{also}: {why}"


def _than(rated: RatedMatmul, several: bool = False) -> str:
    whose = "their" if several else "its"
    if not rated.by_history:
        return f"{whose} peers"
    if several:
        return "their own last results"
    usual = f" ({units.tflops_words(rated.history.usual)})" if rated.history.usual is not None else ""
    return f"its own last {rated.history.count} results{usual}"


def _what(result: MatmulResult) -> str:
    if result.kind == "cpu":
        return f"{result.dtype} ({result.code_path or 'code path unknown'})"
    return f"{result.dtype} {_load(result)}"


def _alone(rated: RatedMatmul) -> str:
    """What can be said of a single device."""
    phase = reasons.load_phase(rated.result)
    state = reasons.condition(phase)
    text = f" at {state}" if state else ""
    text += " (held by its power limit, normal at full load)" if reasons.at_power_limit(phase) else ""
    if rated.history.slow is False:
        return f"{text}, as in its last {units.counted(rated.history.count, 'result')}"
    good = _why_good(rated.result)
    nothing = f"{'no figure' if rated.result.kind == 'cpu' else 'nothing'} to compare it with"
    return f"{text}, {f'good: {good}' if good else nothing}"


def _why_good(result: MatmulResult) -> str:
    """What shows that a single GPU does what its model should, "" when nothing does."""
    figure = published(result)
    if figure is not None and figure.share >= devices.NEAR_FIGURE:
        return f"burst {units.percent_words(figure.share)} of mamf-finder's {units.tflops_words(figure.tflops)}"
    phase, efficiency = reasons.load_phase(result), result.sustained_efficiency
    full_limit = reasons.at_power_limit(phase) and reasons.lowered_limit(phase, ()) is None
    if full_limit and efficiency is not None and efficiency >= GOOD_EFFICIENCY:
        return f"{units.percent_words(efficiency)} of its peak at that clock"
    return ""


def _software(group: Group) -> str:
    """All alike and all low at a normal clock: not the hardware."""
    first = group.members[0].result
    peak = peak_of(first.name, first.pci_device)
    shares = group.shares
    judgeable = peak is not None and peak.is_sure(f"tflops.{first.dtype}") and first.dtype in _EFFICIENT
    if group.accused or not judgeable or not shares or max(shares) >= LOW_EFFICIENCY:
        return ""
    versions = [f"{name} {first.versions[name]}" for name in _VERSIONS if name in first.versions]
    named = f" ({', '.join(versions)})" if versions else ""
    return f", only {units.percent_span_words(shares)} of what they can do at their clock: software{named}"


def _details(group: Group) -> Iterator[str]:
    results = group.results
    if len(results) > 1 and all(rated.peers.slow is None for rated in group.members):
        yield group.members[0].peers.why
    yield from _power_limits(results)
    if group.shares:
        share = units.percent_span_words(group.shares)
        yield f"sustained: {share} of what the multiprocessors can do at the clock they had"
    yield from _against_table([rated.result for rated in group.rest] or results)
    heating = [result for result in results if result.still_heating]
    if heating:
        who = devices.devices_name(heating)
        yield f"{who}: still heating up, its clock fell during the warm-up: later it will be slower"
    with_history = sum(rated.history.slow is not None for rated in group.members)
    if with_history:
        as_fast = sum(rated.history.slow is False for rated in group.members)
        yield f"{as_fast} of {with_history} as fast as in their earlier results"


def _power_limits(results: Sequence[MatmulResult]) -> Iterator[str]:
    phases = known(map(reasons.load_phase, results))
    at_limit = [phase for phase in phases if reasons.at_power_limit(phase)]
    if at_limit:
        clocks = units.span_words(known(phase.sm_clock_mhz for phase in at_limit), "MHz")
        limit = units.span_words(known(phase.power_limit_w for phase in at_limit), "W")
        at = f" at {clocks}" if clocks else ""
        yield f"the power limit ({limit}) holds {len(at_limit)} of {len(results)}{at}: normal at full load"
    lowered = [phase for phase in phases if reasons.lowered_limit(phase, ()) is not None]
    if lowered:
        limit = units.span_words(known(phase.power_limit_w for phase in lowered), "W")
        default = units.span_words(known(phase.power_limit_default_w for phase in lowered), "W")
        yield f"the limit of {len(lowered)} of {len(results)} was lowered to {limit} (default {default})"


def _against_table(results: Sequence[MatmulResult]) -> Iterator[str]:
    """Bursts beside mamf-finder's figure."""
    figures = known(map(published, results))
    if figures:
        of, rates = figures[0], [figure.share * figure.tflops for figure in figures]
        share = units.percent_span_words(figure.share for figure in figures)
        note = devices.doubt(rates, of.tflops, True, "versions of driver, torch and cuBLAS alone")
        beside = f"{share} of mamf-finder's {units.tflops_words(of.tflops)} on {of.model}"
        yield f"burst: {units.span(rates, units.tflops_words)}, {beside}{note}"
