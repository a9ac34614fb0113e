"""Is a GPU slow at multiplying, and why: against its own history, then its peers, then the published figure.

Published figures accuse nobody: software alone moves a GPU by 40 %. Rates are TFLOP/s, back to back where that was
measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from mltop.probes.judge.probes import reasons
from mltop.probes.judge.probes.compare import PEER_GAP, Comparison
from mltop.probes.judge.probes.devices import (
    NEAR_FIGURE,
    Device,
    DeviceJudge,
    Figure,
    Members,
    Reason,
    are_alike,
    device_name,
    devices_name,
)
from mltop.probes.judge.probes.hardware.peaks import Peak, peak_of, peak_tflops
from mltop.probes.judge.values import grouped, known, median_without
from mltop.probes.model import units
from mltop.probes.model.probe import MatmulResult, ProbeVerdict

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

Damaged = list[tuple[MatmulResult, str, str]]


class MatmulJudge(DeviceJudge):
    shows_figures: ClassVar[bool] = True
    beside: ClassVar[str] = "{label}: {rates}, {share} of mamf-finder's {good} on {source}"
    causes: ClassVar[str] = "versions of driver, torch and cuBLAS alone"

    def rate_words(self, rate: float) -> str:
        return units.tflops_words(rate)

    def complete(self, result: MatmulResult) -> MatmulResult:
        return with_efficiency(result)

    def ways(self, result: MatmulResult) -> Sequence[str]:
        return (result.main,) if result.main else ()

    def group(self, result: MatmulResult) -> Hashable:
        """One model, type, shape; of CPUs one code path and number of threads."""
        shape = tuple(result.sustained_shape) if result.sustained_tflops is not None else ()
        of_cpu = (result.code_path, result.threads) if result.kind == "cpu" else ()
        return (result.kind, result.name, result.dtype, result.multiprocessors, shape, *of_cpu)

    def peer_keys(self, _way: str, results: Sequence[MatmulResult]) -> Sequence[Hashable]:
        """Power limits of peers are equal, to 5 W; one whose limit is unknown is a peer of most others."""
        limits: dict[int, int | None] = {}
        for members in grouped(results, self.group).values():
            watts = {id(result): _limit_w(result) for result in members}
            classes = {key: None if limit is None else round(limit / 5) for key, limit in watts.items()}
            usual = Counter(known(classes.values())).most_common(1)
            limits |= {key: usual[0][0] if limit is None and usual else limit for key, limit in classes.items()}
        return [(self.group(result), limits[id(result)]) for result in results]

    def damaged(self, results: Sequence[MatmulResult]) -> Damaged:
        return [*corrupt(results), *unlike(results)[0]]

    def accuse(self, members: Members) -> None:
        rated = [device for device in members if device.rates]
        ordered = sorted(device.result.rate for device in rated)
        of_node = grouped((device.result for device in rated), lambda result: result.node)
        some = [device.result for device in rated[:: max(1, len(rated) // SOME_OTHERS)]]
        for device in rated:
            rate = device.result.rate
            device.others = Comparison(rate, median_without(ordered, rate), len(ordered) - 1)
            # Reasons are looked for beside its node's devices and some of all others.
            beside = [other for other in of_node[device.result.node] if other is not device.result]
            beside += [other for other in some if other.node != device.result.node]
            device.reason = _accusation(device, beside)

    def words(self, way: str, result: MatmulResult, _whose: str) -> str:
        if result.kind == "cpu":
            return f"{result.dtype} ({result.code_path or 'code path unknown'})"
        return f"{result.dtype} {way}"

    def state(self, device: Device) -> tuple[str, str]:
        phase = reasons.load_phase(device.result)
        state = reasons.condition(phase)
        limited = " (held by its power limit, normal at full load)" if reasons.at_power_limit(phase) else ""
        return (f" at {state}" if state else "") + limited, self._why_good(device.result)

    def _why_good(self, result: MatmulResult) -> str:
        for figure in self.figures(result):
            if figure.rate >= NEAR_FIGURE * figure.good:
                share = units.percent_words(figure.rate / figure.good)
                return f"burst {share} of mamf-finder's {units.tflops_words(figure.good)}"
        phase, efficiency = reasons.load_phase(result), result.sustained_efficiency
        full_limit = reasons.at_power_limit(phase) and not reasons.usual_limits(phase, ())
        if full_limit and efficiency is not None and efficiency >= GOOD_EFFICIENCY:
            return f"{units.percent_words(efficiency)} of its peak at that clock"
        return ""

    def of_all(self, members: Members, rest: Members) -> str:
        rates = [device.result.rate for device in rest]
        if are_alike(rates):
            return "" if any(device.reason for device in members) else _software([one.result for one in members])
        # Too few to accuse anybody, but the difference and its cause are worth a word.
        last = min(rest, key=lambda device: device.result.rate)
        reason = reasons.explain(last.result, [device.result for device in rest if device is not last])
        return f", the slowest {device_name(last.result)} ({reason.text})"

    def figures(self, result: MatmulResult) -> Iterator[Figure]:
        """None where the burst cannot be compared: no figure is reliable, or its shape or power limit is another."""
        peak = peak_of(result.name, result.pci_device) if result.kind == "gpu" else None
        figure = None if peak is None else peak.mamf_tflops.get(result.dtype)
        if peak is None or figure is None or result.burst_tflops is None or not peak.is_sure(f"mamf.{result.dtype}"):
            return
        limit = next((phase.power_limit_w for phase in result.phases if phase.name == "burst"), None)
        lowered = limit is not None and peak.power_w is not None and limit < SAME_LIMIT * peak.power_w
        if peak.best_shapes.get(result.dtype) == tuple(result.shape) and not lowered:
            yield Figure("burst", result.burst_tflops, figure, peak.name)

    def details(self, members: Members) -> Iterator[str]:
        results = [device.result for device in members]
        yield from _power_limits(results)
        if shares := known(result.sustained_efficiency for result in results):
            share = units.percent_span_words(shares)
            yield f"sustained: {share} of what the multiprocessors can do at the clock they had"
        if heating := [result for result in results if result.still_heating]:
            who = devices_name(heating)
            yield f"{who}: still heating up, its clock fell during the warm-up: later it will be slower"

    def after(self, results: Sequence[MatmulResult], verdict: ProbeVerdict) -> Sequence[str]:
        differing, notes = unlike(results)
        verdict.details += notes
        # A passed check is no proof of health, and is not called so.
        count = sum(result.checked_iterations for result in results)
        if not count or any(result.is_wrong for result in results):
            return ()
        verdict.details.append(f"{units.counted(count, 'iteration')} compared bit for bit")
        work = units.work_done(sum(result.checked_pflop for result in results))
        return () if differing else [f"no error in {work}"]


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


# Computed wrong.


def corrupt(results: Sequence[MatmulResult]) -> Damaged:
    """Devices that gave different bits for the same work within one process: strong evidence."""
    found: Damaged = []
    for result in results:
        if result.corrupt_iterations:
            checked = f"{result.corrupt_iterations} of {result.checked_iterations} checked iterations gave other bits"
            found.append((result, f"gave wrong results: {checked}", REPLACE))
        elif result.upload_intact is False:
            found.append((result, "got inputs with other bits than were sent to it", REPLACE))
    return found


def unlike(results: Sequence[MatmulResult]) -> tuple[Damaged, list[str]]:
    """Devices whose checksum differs from that of most of their equals, and what else to say about checksums.

    The same bits may be expected of equal model, multiprocessors, versions, shape and type only (cuBLAS: results are
    reproducible for one version, architecture and number of multiprocessors).
    """
    comparable = (result for result in results if result.checksum and not result.corrupt_iterations)
    found: Damaged = []
    notes = []
    for group in grouped(comparable, _same_bits).values():
        counts = Counter(result.checksum for result in group)
        usual, most = counts.most_common(1)[0]
        if len(counts) > 1 and (len(group) < MAJORITY_AT_LEAST or 2 * most <= len(group)):
            unsettled = "gave different results for equal work, and no majority shows which is right"
            notes.append(f"{devices_name(group)} {unsettled}: {_AGAIN}")
            continue
        reason = f"gave another result than {most} equal devices: rerun to confirm"
        found += [(result, reason, _AGAIN) for result in group if result.checksum != usual]
    return found, notes


def _same_bits(result: MatmulResult) -> tuple[object, ...]:
    device = (result.kind, result.name, result.multiprocessors, result.threads)
    library = (tuple(sorted(result.versions.items())), result.code_path)
    return (*device, *library, result.dtype, tuple(result.shape), tuple(result.sustained_shape))


# Who is slow.


def _limit_w(result: MatmulResult) -> float | None:
    phase = reasons.load_phase(result)
    return None if phase is None else phase.power_limit_w


def _accusation(device: Device, others: Sequence[MatmulResult]) -> Reason | None:
    """Beside a comparison: a limit that was lowered on this one, and where nobody can compare, a fault that shows."""
    (rated,) = device.rates.values()
    below, alone = device.others.slower > PEER_GAP, device.others.usual is None
    if not rated.slow and not below and not alone:
        return None
    reason = reasons.explain(device.result, others)
    lowered = reasons.usual_limits(reasons.load_phase(device.result), known(map(reasons.load_phase, others)))
    # A limit that all have is a decision, not a fault: most others may draw more.
    limit, limits = _limit_w(device.result), known(map(_limit_w, others))
    differs = limit is not None and 2 * sum(watts > limit for watts in limits) > len(limits)
    accused = rated.slow or (below and lowered and differs) or (rated.peers.slow is None and reason.fault)
    return reason if accused else None


def _software(results: Sequence[MatmulResult]) -> str:
    """All alike and all low at a normal clock: not the hardware."""
    first, shares = results[0], known(result.sustained_efficiency for result in results)
    peak = peak_of(first.name, first.pci_device)
    judgeable = peak is not None and peak.is_sure(f"tflops.{first.dtype}") and first.dtype in _EFFICIENT
    if not judgeable or not shares or max(shares) >= LOW_EFFICIENCY:
        return ""
    versions = [f"{name} {first.versions[name]}" for name in _VERSIONS if name in first.versions]
    named = f" ({', '.join(versions)})" if versions else ""
    return f", only {units.percent_span_words(shares)} of what they can do at their clock: software{named}"


def _power_limits(results: Sequence[MatmulResult]) -> Iterator[str]:
    phases = known(map(reasons.load_phase, results))
    at_limit = [phase for phase in phases if reasons.at_power_limit(phase)]
    if at_limit:
        clocks = units.span_words(known(phase.sm_clock_mhz for phase in at_limit), "MHz")
        limit = units.span_words(known(phase.power_limit_w for phase in at_limit), "W")
        at = f" at {clocks}" if clocks else ""
        yield f"the power limit ({limit}) holds {len(at_limit)} of {len(results)}{at}: normal at full load"
    lowered = [phase for phase in phases if reasons.usual_limits(phase, ())]
    if lowered:
        limit = units.span_words(known(phase.power_limit_w for phase in lowered), "W")
        default = units.span_words(known(phase.power_limit_default_w for phase in lowered), "W")
        yield f"the limit of {len(lowered)} of {len(results)} was lowered to {limit} (default {default})"
