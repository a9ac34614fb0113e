"""Why a device is slow: from its clock, power, temperature and throttle counters, and those of its peers.

Throttle reasons are NVML's (GpuSample.throttle_reasons), as shares of the phase's time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mltop.probes.judge.probes.devices import Reason, listed
from mltop.probes.judge.values import known, median_of
from mltop.probes.model.probe import DeviceResult, MatmulResult, Phase
from mltop.probes.model.units import percent_words, span_words

HELD = 0.05  # of a phase's time: a reason that held less explains nothing
HELD_LONG = 0.2  # a fault even where no peer shows that it costs anything
AT_LIMIT = 0.95  # of the power limit: what a power cap looks like when it is one
FAR_BELOW_LIMIT = 0.8
LOWERED = 0.95  # of the default limit, or of the others' limit
_TOO_HOT = ("hw_thermal", "sw_thermal")
SAME_CLOCK = 0.97
LOW_POWER = 0.9
LESS_PER_CLOCK = 0.9  # of the others' median: the clock alone does not explain that

_COOLING = "check fans, inlet temperature and the neighbours; if it stays, drain the node"
_SUPPLY = "check PSU, PDU and the BMC's event log"
_CAP_ELSEWHERE = "check PSU, power cables and the BMC's power cap (nvidia-smi -q -d POWER)"
_COMPARE = "compare power limit and cooling with a good GPU: nvidia-smi -q -d POWER,TEMPERATURE"
_CLOCKS = "nvidia-smi -q -d CLOCK,PERFORMANCE; if somebody has set the clocks: nvidia-smi -rgc"
_HIDDEN = "drain the node, power-cycle it, measure again; if it stays: dcgmi diag -r 3 and replace the GPU"
_CPU = "look for other load, the frequency governor and throttling on that node"
_SOFTWARE = "compare driver, torch and cuBLAS with a good node"


@dataclass(frozen=True)
class Throttle:
    """What holds a GPU back and no load explains. ``name``: NVML's; ``heat``: temperatures belong to it, else watts."""

    name: str
    kind: str
    words: str
    action: str
    heat: bool


# The first one that held explains.
THROTTLES = (
    Throttle("hw_thermal", "thermal", "heat", _COOLING, heat=True),
    Throttle("sw_thermal", "thermal", "thermal slowdown", _COOLING, heat=True),
    Throttle("power_brake", "power brake", "the PSU brake", _SUPPLY, heat=False),
    Throttle("board_limit", "board", "its board's limit", _SUPPLY, heat=False),
    Throttle("hw_slowdown", "hw slowdown", "HW slowdown, cause unstated", _SUPPLY, heat=True),
)


def load_phase(result: MatmulResult) -> Phase | None:
    """The phase whose rate is judged: back to back, else burst."""
    by_name = {phase.name: phase for phase in reversed(result.phases)}
    return by_name.get("sustained", by_name.get("burst"))


def explain(result: MatmulResult, others: Sequence[MatmulResult]) -> Reason:
    """The reason that the counters give for a slow GPU. ``others``: its peers without it, may be empty."""
    phase = load_phase(result)
    if result.kind == "cpu":
        return _of_cpu(result, others)
    if phase is None:
        return Reason("unknown", "nothing was measured beside its rate")
    peers = known(map(load_phase, others))
    reason = hardware_fault(result, others) or _power(result, phase, others, peers)
    reason = reason or _clock(result, phase, others, peers)
    text = reason.text + _less_per_clock(result, phase, others, reason.kind)
    text += "; it was still heating up" if result.still_heating else ""
    return replace(reason, text=text)


def hardware_fault(result: MatmulResult, others: Sequence[MatmulResult]) -> Reason | None:
    """Heat, power brake, HW slowdown, or a power cap that is not the GPU's own limit: nothing that load explains."""
    phase = load_phase(result)
    if phase is None:
        return None
    throttle = throttle_of(phase)
    if throttle is not None:
        beside = _heat(phase, _near(result, others)) if throttle.heat else _drawing(phase)
        text = f"{_held_at(phase)} by {throttle_words(throttle, phase)}{beside}"
        return Reason(throttle.kind, text, throttle.action, fault=phase.throttle_share[throttle.name] >= HELD_LONG)
    of_limit = _of_limit(phase)
    if phase.throttle_share.get("sw_power_cap", 0.0) < HELD or of_limit is None or of_limit >= FAR_BELOW_LIMIT:
        return None
    draws = f"it draws {phase.power_w:.0f} W of its {phase.power_limit_w:.0f} W limit"
    text = f"{_held_at(phase)} by a power cap although {draws}: board, PSU or BMC"
    return Reason("cap elsewhere", text, _CAP_ELSEWHERE, fault=True)


def throttle_of(phase: Phase) -> Throttle | None:
    return next((each for each in THROTTLES if phase.throttle_share.get(each.name, 0.0) >= HELD), None)


def throttle_words(throttle: Throttle, phase: Phase) -> str:
    """``thermal slowdown 40 % of the time``."""
    return throttle.words + _most_of_time(phase.throttle_share[throttle.name])


def lowered_limit(phase: Phase | None, peers: Iterable[Phase]) -> Reason | None:
    """When its power limit is below its default, or below that of most others."""
    if phase is None or phase.power_limit_w is None:
        return None
    limit, default = phase.power_limit_w, phase.power_limit_default_w
    usual = median_of(peer.power_limit_w for peer in peers)
    below_default = default is not None and limit < LOWERED * default
    below_peers = usual is not None and limit < LOWERED * usual
    if not below_default and not below_peers:
        return None
    against = [f"default {default:.0f} W"] if below_default else []
    against += [f"others {usual:.0f} W"] if usual is not None and below_peers else []
    back = usual if below_peers else default
    text = f"its limit was lowered to {limit:.0f} W ({', '.join(against)})"
    return Reason("lowered limit", text, f"if nobody wants it: sudo nvidia-smi -pl {back:.0f}")


def at_power_limit(phase: Phase | None) -> bool:
    """Held by its own limit: normal for bf16 at full load."""
    if phase is None:
        return False
    capped = phase.throttle_share.get("sw_power_cap", 0.0) >= HELD
    return (_of_limit(phase) or 0.0) >= AT_LIMIT and (capped or not phase.throttle_share)


def condition(phase: Phase | None) -> str:
    """``1410 MHz, 690 of 700 W, 61 °C``; "" when nothing is known."""
    if phase is None:
        return ""
    parts = [] if phase.sm_clock_mhz is None else [f"{phase.sm_clock_mhz:.0f} MHz"]
    if phase.power_w is not None:
        of = "" if phase.power_limit_w is None else f" of {phase.power_limit_w:.0f}"
        parts.append(f"{phase.power_w:.0f}{of} W")
    parts += [] if phase.temperature_c is None else [f"{phase.temperature_c:.0f} °C"]
    return ", ".join(parts)


def _power(result: MatmulResult, phase: Phase, others: Sequence[MatmulResult], peers: Sequence[Phase]) -> Reason | None:
    """The limit, where it holds this GPU lower than others. With their clock it does not tell why it does less."""
    lowered = lowered_limit(phase, peers)
    if lowered is not None:
        clock = "" if phase.sm_clock_mhz is None else f", at {phase.sm_clock_mhz:.0f} MHz"
        return Reason(lowered.kind, lowered.text + clock, lowered.action)
    usual = median_of(peer.sm_clock_mhz for peer in peers)
    as_others = usual is not None and phase.sm_clock_mhz is not None and phase.sm_clock_mhz >= SAME_CLOCK * usual
    if as_others and _less_per_clock(result, phase, others, ""):
        return None
    if at_power_limit(phase):
        with_same = "" if usual is None else f", others reach {usual:.0f} MHz with theirs"
        with_same = " like the others" if as_others else with_same
        text = f"{_held_at(phase)} by its {phase.power_limit_w:.0f} W limit{with_same}{_heat(phase, peers)}"
        return Reason("power limit", text, _COMPARE)
    share = phase.throttle_share.get("sw_power_cap", 0.0)
    if share >= HELD:
        text = f"{_held_at(phase)} by the power cap{_most_of_time(share)}{_drawing(phase)}{_heat(phase, peers)}"
        return Reason("power cap", text, _COMPARE)
    return None


def _clock(result: MatmulResult, phase: Phase, others: Sequence[MatmulResult], peers: Sequence[Phase]) -> Reason:
    """No throttling that matters: the clock is low without a reason, or it is not and the work is slow all the same."""
    clock, usual = phase.sm_clock_mhz, median_of(peer.sm_clock_mhz for peer in peers)
    if clock is None:
        why = next((f" ({text})" for what, text in result.gaps.items() if "clock" in what and text), "")
        return Reason("unknown", f"its clock is unknown{why}, so the cause is unknown")
    top = usual if usual is not None else phase.sm_clock_max_mhz
    if top is not None and clock < SAME_CLOCK * top:
        who = f"others {usual:.0f} MHz" if usual is not None else f"maximum {top:.0f} MHz"
        set_by = "sync_boost" if phase.throttle_share.get("sync_boost", 0.0) >= HELD else "applications_clocks"
        if phase.throttle_share.get(set_by, 0.0) >= HELD:
            how = "sync boost" if set_by == "sync_boost" else "clocks that somebody has set"
            return Reason("set clocks", f"{_held_at(phase)} by {how} ({who})", _CLOCKS)
        silent = "the driver gives no reason" if phase.throttle_share else "the reasons are unknown"
        return Reason("low clock", f"at {clock:.0f} MHz ({who}) and {silent}{_heat(phase, peers)}", _CLOCKS)
    versions = other_versions(result, others)
    if versions:
        return Reason("versions", f"at its full clock of {clock:.0f} MHz, with {versions}", _SOFTWARE)
    watts = median_of(peer.power_w for peer in peers)
    draws = ""
    if watts is not None and phase.power_w is not None and phase.power_w < LOW_POWER * watts:
        draws = f", drawing {phase.power_w:.0f} W (others {watts:.0f} W)"
    return Reason("full clock", f"slow at its full clock of {clock:.0f} MHz{draws}: no reason is shown", _HIDDEN)


def other_versions(result: DeviceResult, others: Sequence[DeviceResult]) -> str:
    """``driver 550.54 (others 570.86)``: what most others have otherwise; "" when all is equal."""
    different = []
    for library, version in sorted(result.versions.items()):
        theirs = [other.versions[library] for other in others if library in other.versions]
        usual = statistics.mode(theirs) if theirs else version
        if usual != version and 2 * theirs.count(usual) > len(theirs):
            different.append(f"{library} {version} (others {usual})")
    return listed(different)


def _of_cpu(result: MatmulResult, others: Sequence[MatmulResult]) -> Reason:
    versions = other_versions(result, others)
    if versions:
        return Reason("versions", f"with {versions}", _SOFTWARE)
    celsius = result.phases[-1].temperature_c if result.phases else None
    hot = f" ({celsius:.0f} °C)" if celsius else ""
    return Reason("cpu", f"the same code path and threads as the others, cause unknown{hot}", _CPU)


def _less_per_clock(result: MatmulResult, phase: Phase, others: Sequence[MatmulResult], kind: str) -> str:
    rate = _per_clock(result, phase)
    usual = median_of(_per_clock(other, load_phase(other)) for other in others)
    if kind in ("full clock", "versions") or rate is None or usual is None or rate >= LESS_PER_CLOCK * usual:
        return ""
    return f", and {percent_words(1 - rate / usual)} less work per clock than the others"


def _per_clock(result: MatmulResult, phase: Phase | None) -> float | None:
    if result.rate is None or phase is None or not phase.sm_clock_mhz:
        return None
    return result.rate / phase.sm_clock_mhz


def _held_at(phase: Phase) -> str:
    return "held back" if phase.sm_clock_mhz is None else f"held at {phase.sm_clock_mhz:.0f} MHz"


def _most_of_time(share: float) -> str:
    return "" if share >= 0.9 else f" {percent_words(share)} of the time"


def _drawing(phase: Phase) -> str:
    if phase.power_w is None:
        return ""
    of = "" if phase.power_limit_w is None else f" of its {phase.power_limit_w:.0f} W limit"
    return f", drawing {phase.power_w:.0f} W{of}"


def _heat(phase: Phase, peers: Iterable[Phase]) -> str:
    if phase.temperature_c is None:
        return ""
    others = span_words(known(peer.temperature_c for peer in peers), "°C")
    return f" ({phase.temperature_c:.0f} °C{', others ' + others if others else ''})"


def _near(result: MatmulResult, others: Sequence[MatmulResult]) -> list[Phase]:
    """The phases of the neighbours in the same node, which share its air; of all others when it has none.

    Those that are too hot themselves say nothing about what is usual.
    """
    neighbours = [other for other in others if other.node == result.node] or list(others)
    phases = known(map(load_phase, neighbours))
    hot = [any(phase.throttle_share.get(name, 0.0) >= HELD for name in _TOO_HOT) for phase in phases]
    return [phase for phase, is_hot in zip(phases, hot, strict=True) if not is_hot] or phases


def _of_limit(phase: Phase) -> float | None:
    if phase.power_w is None or not phase.power_limit_w:
        return None
    return phase.power_w / phase.power_limit_w
