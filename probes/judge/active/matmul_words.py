"""The GEMM probe's verdict in words."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from mltop.probes.judge.active import numbers
from mltop.probes.judge.active.bits import clean_text
from mltop.probes.judge.active.compare import PEER_GAP
from mltop.probes.judge.active.devices import device_name, devices_name, plural
from mltop.probes.judge.active.matmul_look import Group, Look
from mltop.probes.judge.active.matmul_reasons import at_power_limit, condition, explain, load_phase, lowered_limit
from mltop.probes.judge.active.peaks import peak_of
from mltop.probes.model.probe import MatmulResult, ProbeFailure, Suspect

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


def details(group: Group) -> Iterator[str]:
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
