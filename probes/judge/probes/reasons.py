"""Why a device is slow: from its clock, power, temperature and throttle counters, and those of its peers. A row each.

Throttle reasons are NVML's (GpuSample.throttle_reasons), as shares of the phase's time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

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


class Throttle(NamedTuple):
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


def throttle_of(phase: Phase) -> Throttle | None:
    return next((each for each in THROTTLES if phase.throttle_share.get(each.name, 0.0) >= HELD), None)


def throttle_words(throttle: Throttle, phase: Phase) -> str:
    """``thermal slowdown 40 % of the time``."""
    return throttle.words + _most_of_time(phase.throttle_share[throttle.name])


def usual_limits(phase: Phase | None, peers: Iterable[Phase]) -> dict[str, float]:
    """Its power limit's default and that of most others, as far as its own was lowered below them."""
    if phase is None or phase.power_limit_w is None:
        return {}
    usual = {"default": phase.power_limit_default_w, "others": median_of(peer.power_limit_w for peer in peers)}
    return {name: watts for name, watts in usual.items() if watts is not None and phase.power_limit_w < LOWERED * watts}


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


def other_versions(result: DeviceResult, others: Sequence[DeviceResult]) -> str:
    """``driver 550.54 (others 570.86)``: what most others have otherwise; "" when all is equal."""
    different = []
    for library, version in sorted(result.versions.items()):
        theirs = [other.versions[library] for other in others if library in other.versions]
        usual = statistics.mode(theirs) if theirs else version
        if usual != version and 2 * theirs.count(usual) > len(theirs):
            different.append(f"{library} {version} (others {usual})")
    return listed(different)


class _Case:
    """A slow device beside its peers: what the rows below ask and name."""

    def __init__(self, result: MatmulResult, others: Sequence[MatmulResult]) -> None:
        self.result, self.others = result, others
        measured = load_phase(result)
        self.phase = phase = measured or Phase("", 0.0)
        self.is_cpu, self.is_measured = result.kind == "cpu", measured is not None
        self.peers = known(map(load_phase, others))
        self.clock, self.of_limit = phase.sm_clock_mhz, _of_limit(phase) or 0.0
        self.usual_clock = median_of(peer.sm_clock_mhz for peer in self.peers)
        self.has_usual_clock = bool(self.usual_clock and (self.clock or 0.0) >= SAME_CLOCK * self.usual_clock)
        self.throttle, self.limits = throttle_of(phase), usual_limits(phase, self.peers)
        self.held = "held back" if self.clock is None else f"held at {self.clock:.0f} MHz"
        self.cap = phase.throttle_share.get("sw_power_cap", 0.0)
        self.versions = other_versions(result, others)
        rate, usual = _per_clock(result), median_of(map(_per_clock, others))
        self.less_per_clock = ""
        if rate is not None and usual is not None and rate < LESS_PER_CLOCK * usual:
            self.less_per_clock = f", and {percent_words(1 - rate / usual)} less work per clock than the others"
        theirs = f", others reach {self.usual_clock:.0f} MHz with theirs" if self.usual_clock else ""
        self.with_theirs = " like the others" if self.has_usual_clock else theirs
        self.heat, self.cap_time = _heat(phase, self.peers), _most_of_time(self.cap)
        self.why_no_clock = next((f" ({why})" for what, why in result.gaps.items() if "clock" in what and why), "")
        celsius = result.phases[-1].temperature_c if result.phases else None
        self.cpu_heat = f" ({celsius:.0f} °C)" if celsius else ""
        watts, usual_watts = phase.power_w, median_of(peer.power_w for peer in self.peers)
        little = watts is not None and usual_watts is not None and watts < LOW_POWER * usual_watts
        self.little_power = f", drawing {watts:.0f} W (others {usual_watts:.0f} W)" if little else ""
        of = "" if phase.power_limit_w is None else f" of its {phase.power_limit_w:.0f} W limit"
        self.drawing = "" if watts is None else f", drawing {watts:.0f} W{of}"
        # With the others' clock, the limit does not show why it does less.
        self.limit_explains = not (self.has_usual_clock and self.less_per_clock)

    @property
    def low_clock(self) -> str:
        """``others 1410 MHz``: the clock that it should have, "" where it has it."""
        who, top = ("others", self.usual_clock) if self.usual_clock else ("maximum", self.phase.sm_clock_max_mhz)
        return f"{who} {top:.0f} MHz" if self.clock and top and self.clock < SAME_CLOCK * top else ""

    @property
    def set_by(self) -> str:
        words = {"sync_boost": "sync boost", "applications_clocks": "clocks that somebody has set"}
        return next((words[name] for name in words if self.phase.throttle_share.get(name, 0.0) >= HELD), "")

    @property
    def throttled(self) -> str:
        """``heat 60 % of the time (87 °C, others 61–65 °C)``."""
        if self.throttle is None:
            return ""
        beside = _heat(self.phase, _near(self.result, self.others)) if self.throttle.heat else self.drawing
        return throttle_words(self.throttle, self.phase) + beside

    @property
    def lowered(self) -> str:
        limits = ", ".join(f"{name} {watts:.0f} W" for name, watts in self.limits.items())
        return f"({limits})" + ("" if self.clock is None else f", at {self.clock:.0f} MHz")


class _Row(NamedTuple):
    """``test``: whether it is the reason; ``words``: of the case. ``at_full_clock``: less work per clock is what it
    means.
    """

    kind: str
    test: Callable[[_Case], object]
    words: str
    action: str = ""
    at_full_clock: bool = False


# The first that holds explains. Hardware that fails comes before what people have set.
_ROWS = (
    _Row("versions", lambda of: of.is_cpu and of.versions, "with {0.versions}", _SOFTWARE),
    _Row("cpu", lambda of: of.is_cpu,
         "the same code path and threads as the others, cause unknown{0.cpu_heat}", _CPU),
    _Row("unknown", lambda of: not of.is_measured, "nothing was measured beside its rate"),
    _Row("{0.throttle.kind}", lambda of: of.throttle, "{0.held} by {0.throttled}", "{0.throttle.action}"),
    _Row("cap elsewhere", lambda of: of.cap >= HELD and 0 < of.of_limit < FAR_BELOW_LIMIT,
         "{0.held} by a power cap although it draws {0.phase.power_w:.0f} W of its {0.phase.power_limit_w:.0f} W limit:"
         " board, PSU or BMC", _CAP_ELSEWHERE),
    _Row("lowered limit", lambda of: of.limits, "its limit was lowered to {0.phase.power_limit_w:.0f} W {0.lowered}",
         "if nobody wants it: sudo nvidia-smi -pl {1:.0f}"),
    _Row("power limit", lambda of: of.limit_explains and at_power_limit(of.phase),
         "{0.held} by its {0.phase.power_limit_w:.0f} W limit{0.with_theirs}{0.heat}", _COMPARE),
    _Row("power cap", lambda of: of.limit_explains and of.cap >= HELD,
         "{0.held} by the power cap{0.cap_time}{0.drawing}{0.heat}", _COMPARE),
    _Row("unknown", lambda of: of.clock is None, "its clock is unknown{0.why_no_clock}, so the cause is unknown"),
    _Row("set clocks", lambda of: of.low_clock and of.set_by, "{0.held} by {0.set_by} ({0.low_clock})", _CLOCKS),
    _Row("low clock", lambda of: of.low_clock and of.phase.throttle_share,
         "at {0.clock:.0f} MHz ({0.low_clock}) and the driver gives no reason{0.heat}", _CLOCKS),
    _Row("low clock", lambda of: of.low_clock,
         "at {0.clock:.0f} MHz ({0.low_clock}) and the reasons are unknown{0.heat}", _CLOCKS),
    _Row("versions", lambda of: of.versions, "at its full clock of {0.clock:.0f} MHz, with {0.versions}", _SOFTWARE,
         at_full_clock=True),
    _Row("full clock", lambda _: True,
         "slow at its full clock of {0.clock:.0f} MHz{0.little_power}: no reason is shown", _HIDDEN,
         at_full_clock=True),
)  # fmt: skip


def explain(result: MatmulResult, others: Sequence[MatmulResult]) -> Reason:
    """The reason that the counters give for a slow device. ``others``: its peers without it, may be empty."""
    case = _Case(result, others)
    row = next(row for row in _ROWS if row.test(case))
    usual = case.limits.get("others", case.limits.get("default", 0.0))
    kind, text, action = (words.format(case, usual) for words in (row.kind, row.words, row.action))
    if case.is_measured and not case.is_cpu:
        text += "" if row.at_full_clock else case.less_per_clock
        text += "; it was still heating up" if result.still_heating else ""
    held_long = case.throttle is not None and case.phase.throttle_share[case.throttle.name] >= HELD_LONG
    return Reason(kind, text, action, fault=held_long or kind == "cap elsewhere")


def _per_clock(result: MatmulResult) -> float | None:
    phase = load_phase(result)
    if result.rate is None or phase is None or not phase.sm_clock_mhz:
        return None
    return result.rate / phase.sm_clock_mhz


def _most_of_time(share: float) -> str:
    return "" if share >= 0.9 else f" {percent_words(share)} of the time"


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
