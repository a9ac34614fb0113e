"""Clocks of busy GPUs: throttled, capped, pinned, or lower than their peers' (same model, same job, same load).

Source: nvmlDeviceGetCurrentClocksEventReasons (bits 0x2 to 0x80) and the counters beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from mltop.probes.judge.health.gpu.temperature import NEAR_C, heat_matters
from mltop.probes.judge.health.moment import FleetMoment, Moment, OfNewest
from mltop.probes.judge.health.names import clock_and_heat, named_gpus
from mltop.probes.judge.health.peers import NODES_AT_LEAST
from mltop.probes.judge.health.relations import SLOWS, THROTTLE
from mltop.probes.judge.health.rule import HOLD, LIMIT, Hit, Rule, device_rule, share
from mltop.probes.model import GpuSample, Sample
from mltop.probes.model.news.judged import Fact
from mltop.probes.model.units import clock_words, percent_words, watts_words
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import Severity

BUSY = 0.9
LEAST_W = 1.0  # an idle GPU draws more
SLOWER = 0.85  # of the median of its peers: within this, chips differ
PINNED_SLOWER = 0.95
PINNED_BELOW = 0.98  # of the highest clock: pinned above costs nothing
PEERS_AT_LEAST = 4  # it is one of them
# GPUs that wait in a collective are "busy" too, at full clock and little power. One that draws so much more than its
# peers does other work, and its lower clock is the price of it.
SAME_POWER = 1.3
# A reason that flickers between samples still shows in its counter: this share of the time counts as holding.
HELD_SHARE = 0.05
LEAST_SHARE = 0.005  # less is told as 0 %
CLOCK, POWER, POWER_LIMIT = "gpu.sm_clock_mhz.busy", "gpu.power_w.busy", "gpu.power_limit_w"  # topics of facts

_CHECK_POWER = "check PSU, PDU and chassis power"
_RESET_CLOCKS = "if nobody wants it: sudo nvidia-smi -rgc; sudo nvidia-smi -rac"
_REASONS = ("gpu.*.throttle_reasons",)
_HEAT = (*_REASONS, "gpu.*.sm_clock_mhz | gpu.*.temperature_margin_c | gpu.*.temperature_slowdown_c")
_LOAD = (*_REASONS, "gpu.*.busy", "gpu.*.sm_clock_mhz")
_OF_PEERS = "compared with GPUs of the same model in the same job"
_HELD = f"or > {LIMIT} of the time, for {HOLD}"
_AND_HOT = f"; its clock below the highest, or within {NEAR_C:.0f} °C* of a limit"

_throttle_rule = partial(device_rule, precedence=THROTTLE, explains_ranks=SLOWS)


def _held_by(
    reason: str, severity: Severity, text: str, hold_s: float, counts: Callable[[GpuSample], bool] = bool
) -> Callable[..., Rule]:
    """A rule about one reason that the driver gives; ``text``: of {gpu}; ``counts``: whether it matters on a GPU."""

    def check(moment: Moment, limit: float = HELD_SHARE) -> Iterator[Hit]:
        before = moment.before.gpus if moment.before is not None else []
        for number, gpu in enumerate(moment.now.gpus):
            is_set, held_ns = reason in (gpu.throttle_reasons or ()), gpu.throttle_ns.get(reason)
            if not is_set and held_ns and number < len(before) and before[number].throttle_ns.get(reason) == held_ns:
                continue  # what most GPUs are at most times
            share = (_share(moment, gpu, reason) or 0.0) if is_set or held_ns or gpu.throttle_share else 0.0
            if not (is_set or share > limit) or not counts(gpu):
                continue
            # Counters of new drivers may lag behind the bits: "0 %" beside a bit that is set would only confuse.
            held = f"held for {percent_words(min(share, 1.0))} of the last interval"
            name = gpu_name(gpu.index)
            yield Hit(name, text.format(gpu=name) + clock_and_heat(gpu), () if share < LEAST_SHARE else (held,))

    return lambda **words: _throttle_rule(f"gpu.throttle.{reason}", severity, hold_s)(**words)(check)


hw_thermal = _held_by("hw_thermal", "critical", "{gpu} is too hot", 5.0, heat_matters)(
    meaning="the hardware halves the clock because of heat",
    threshold=f"bit 0x40 {_HELD}{_AND_HOT}",
    limit=share(HELD_SHARE),
    source="nvmlClocksEventReasons, field 270",
    action="check fans, inlet temperature and neighbours; move the job if it stays",
    needs=_HEAT,
    explains=("gpu.throttle.", "gpu.temp.", "gpu.clock.low_busy"),
    whole_node=(
        "All {count} GPUs are too hot",
        "check the node's fans and inlet temperature; move the job if it stays",
    ),
)
power_brake = _held_by("power_brake", "critical", "PSU brake on {gpu}", 5.0)(
    meaning="the power supply makes the GPU slow down",
    threshold=f"bit 0x80 {_HELD}",
    limit=share(HELD_SHARE),
    source="nvmlClocksEventReasons, field 271",
    action=_CHECK_POWER,
    needs=_REASONS,
    explains=("gpu.throttle.hw_slowdown", "gpu.clock.low_busy"),
    whole_node=("PSU brake on all {count} GPUs", _CHECK_POWER),
)
sw_thermal = _held_by("sw_thermal", "warning", "{gpu} slowing itself to stay cool", 30.0, heat_matters)(
    meaning="the driver lowers the clock to stay below a temperature limit",
    threshold=f"bit 0x20 {_HELD}{_AND_HOT}",
    limit=share(HELD_SHARE),
    source="nvmlClocksEventReasons, field 269",
    action="improve the cooling",
    needs=_HEAT,
    explains=("gpu.temp.", "gpu.clock.low_busy"),
    whole_node=("All {count} GPUs slowing themselves to stay cool", "check the node's fans and inlet temperature"),
)
hw_slowdown = _held_by(
    "hw_slowdown",
    "warning",
    "{gpu}: HW slowdown, cause unstated",
    5.0,
    # The general bit alone: a thermal or power brake bit beside it says more.
    lambda gpu: {"hw_thermal", "power_brake"}.isdisjoint(gpu.throttle_reasons or ()),
)(
    meaning="the hardware halves the clock and does not say why",
    threshold=f"bit 0x8 alone for {HOLD}",
    source="nvmlClocksEventReasons",
    action="look at power and temperatures",
    needs=_REASONS,
    explains=("gpu.clock.low_busy",),
    whole_node=("HW slowdown of all {count} GPUs, cause unstated", "look at the node's power and temperatures"),
)


def _share(moment: Moment, gpu: GpuSample, reason: str) -> float | None:
    """Part of the time since the sample before in which the reason held; None when its counter is unknown."""
    new_ns = gpu.throttle_ns.get(reason)
    before = None if new_ns is None else moment.gpu_before(gpu)
    old_ns = None if before is None else before.throttle_ns.get(reason)
    if new_ns is None or old_ns is None or moment.passed_s is None or moment.passed_s <= 0 or new_ns < old_ns:
        return gpu.throttle_share.get(reason)
    return (new_ns - old_ns) / 1e9 / moment.passed_s


@_throttle_rule("gpu.throttle.power_cap", "warning", hold_s=60.0, eager=False, compares_nodes=True)(
    meaning="the power limit costs this GPU more clock than its peers; at the limit under load alone is normal",
    threshold=f"bit 0x4, busy ≥ {percent_words(BUSY)} and SM clock < {SLOWER} × the median of its peers* for {HOLD}",
    source=f"nvmlClocksEventReasons; {_OF_PEERS}",
    action="compare its power limit and cooling with its peers: nvidia-smi -q -d POWER",
    needs=_LOAD,
    explains=("gpu.clock.low_busy",),
)
def power_cap(moment: FleetMoment) -> Iterator[Hit]:
    """At the power limit under load is what a GPU is made for, and says nothing: every busy node would have a line.

    It is told where it costs this GPU more than its peers at the same work: a worse chip, or a lower limit.
    """
    for gpu in moment.now.gpus:
        if gpu.throttle_reasons and "sw_power_cap" in gpu.throttle_reasons:
            limit = "its power limit" if gpu.power_limit_w is None else f"its {watts_words(gpu.power_limit_w)} limit"
            yield from _slower_than_peers(moment, gpu, f"GPU {gpu.index} at {limit} runs")


@device_rule("gpu.clock.low_busy", "warning", hold_s=60.0, eager=False, compares_nodes=True)(
    meaning="the GPU works at a lower clock than its peers, and nothing says why",
    threshold=f"busy ≥ {percent_words(BUSY)}, SM clock < {SLOWER} × the median of ≥ {PEERS_AT_LEAST} peers, at ≤ "
    f"{SAME_POWER} × their power*, for {HOLD}*",
    source=f"nvmlDeviceGetClockInfo; {_OF_PEERS}",
    action="look at its temperature, power limit and throttle reasons; if none of them explains it: dcgmi diag -r 3",
    needs=("gpu.*.sm_clock_mhz", "gpu.*.busy"),
    whole_node=(
        "All {count} GPUs slower than those of the other nodes in their job",
        "look at the node's power and cooling",
    ),
    explains_ranks=SLOWS,
)
def low_clock(moment: FleetMoment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        reasons = ", ".join(gpu.throttle_reasons or ()) or "none"
        yield from _slower_than_peers(moment, gpu, f"GPU {gpu.index} runs", f"reasons that the driver gives: {reasons}")


def _slower_than_peers(moment: FleetMoment, gpu: GpuSample, text: str, *evidence: str) -> Iterator[Hit]:
    usual = _peer_clock(moment, gpu, SLOWER)
    if usual is not None:
        slower = percent_words(1 - (gpu.sm_clock_mhz or 0) / usual)
        evidence = (f"median of its peers: {clock_words(usual)}", *evidence)
        yield Hit(gpu_name(gpu.index), f"{text} {slower} slower than its peers{clock_and_heat(gpu)}", evidence)


def _peer_clock(moment: FleetMoment, gpu: GpuSample, share: float) -> float | None:
    """The median SM clock (MHz) of the peers of a busy GPU whose own is below ``share`` of it; else None."""
    clock, top = gpu.sm_clock_mhz, gpu.sm_clock_max_mhz
    if gpu.busy is None or gpu.busy < BUSY or clock is None or gpu.state != "ok":
        return None
    if top is not None and clock >= share * top:
        return None  # no peer is faster than the maximum
    group = _group(gpu.name, _jobs(moment.now).get(gpu.index) or moment.now.node)
    usual = moment.peers.median(CLOCK, group, PEERS_AT_LEAST)
    if usual is None or clock >= share * usual:
        return None
    power = moment.peers.median(POWER, group, PEERS_AT_LEAST)
    does_other_work = power is not None and gpu.power_w is not None and gpu.power_w > SAME_POWER * power
    return None if does_other_work else usual


@_throttle_rule("gpu.throttle.user_clocks", "info", hold_s=10.0, compares_nodes=True)(
    meaning="somebody has set the clocks below their maximum",
    threshold=f"bit 0x2 or 0x10 while busy ≥ {percent_words(BUSY)} for {HOLD}*; peers ≥ "
    f"{percent_words(1 - PINNED_SLOWER)} faster*: warning",
    source=f"nvmlClocksEventReasons; {_OF_PEERS}",
    action=_RESET_CLOCKS,
    needs=_LOAD,
    explains=("gpu.clock.low_busy", "gpu.throttle.power_cap"),
    whole_node=("Clocks pinned on all {count} GPUs", _RESET_CLOCKS),
)
def user_clocks(moment: FleetMoment) -> Iterator[Hit]:
    """Clocks that a user set (applications clocks), or that the slowest GPU of a sync boost group sets."""
    for gpu in moment.now.gpus:
        reasons, clock, top = gpu.throttle_reasons or (), gpu.sm_clock_mhz, gpu.sm_clock_max_mhz
        pinned = "applications_clocks" in reasons
        if not (pinned or "sync_boost" in reasons) or gpu.busy is None or gpu.busy < BUSY or clock is None:
            continue
        if top is not None and clock >= PINNED_BELOW * top:
            continue
        usual = _peer_clock(moment, gpu, PINNED_SLOWER)
        text = f"{'Clocks pinned' if pinned else 'Clocks held by sync boost'} at {clock} MHz on GPU {gpu.index}"
        if usual is not None:
            text += f", its peers run at {usual:.0f} MHz"
        action = f"if nobody wants it: sudo nvidia-smi -i {gpu.index} -rgc; sudo nvidia-smi -i {gpu.index} -rac"
        yield Hit(gpu_name(gpu.index), text, severity="info" if usual is None else "warning", action=action)


@_throttle_rule("gpu.power.limit_low", "warning", clear_s=30.0, compares_nodes=True)(
    meaning="the GPU may draw less power than its default, or than its peers",
    threshold=f"≥ {LIMIT}* below either; info where most GPUs of {NODES_AT_LEAST} or more nodes have it",
    limit=share(0.05),
    source="nvmlDeviceGetEnforcedPowerLimit; compared with GPUs of the same model",
    action="sudo nvidia-smi -pl",
    needs=("gpu.*.power_limit_w",),
    explains=("gpu.throttle.power_cap", "gpu.clock.low_busy"),
    whole_node=("The power limit of all {count} GPUs is lowered", "nvidia-smi -q -d POWER; sudo nvidia-smi -pl"),
)
def low_limit(moment: FleetMoment, limit: float) -> Iterator[Hit]:
    """What a whole fleet has is a decision that somebody made."""
    for gpu, name in named_gpus(moment):
        capped, default = gpu.power_limit_w, gpu.power_limit_default_w
        usual = moment.peers.median(POWER_LIMIT, gpu.name or "", PEERS_AT_LEAST)
        back = default if default is not None else usual
        if capped is None or back is None:
            continue
        action = f"sudo nvidia-smi -i {gpu.index} -pl {back:.0f}"
        if usual is not None and capped <= (1 - limit) * usual:
            yield Hit(name, f"{name} capped at {watts_words(capped)}, peers {watts_words(usual)}", action=action)
        elif default is not None and capped <= (1 - limit) * default:
            text = f"{name} capped at {watts_words(capped)}, default {watts_words(default)}"
            if usual is not None and moment.peers.nodes >= NODES_AT_LEAST:
                yield Hit(name, text, ("as most GPUs of its model",), "info", action)
            else:
                yield Hit(name, text, action=action)


@device_rule("gpu.power.zero", "warning", hold_s=10.0, remedy="reset")(
    meaning="the driver reports work on a GPU that gets no power or no clock: no job can run there",
    threshold=f"busy ≥ {percent_words(BUSY)} at less than {LEAST_W:g} W or at 0 MHz for {HOLD}",
    source="nvmlDeviceGetUtilizationRates, nvmlDeviceGetPowerUsage, nvmlDeviceGetClockInfo",
    action="end its job and reset the GPU",
    needs=("gpu.*.busy", "gpu.*.power_w | gpu.*.sm_clock_mhz"),
    explains=("gpu.clock.low_busy",),
    explains_ranks=SLOWS,
)
def zero(moment: Moment) -> Iterator[Hit]:
    for gpu, name in named_gpus(moment):
        no_power = gpu.power_w is not None and gpu.power_w < LEAST_W
        if gpu.state == "ok" and (gpu.busy or 0.0) >= BUSY and (no_power or gpu.sm_clock_mhz == 0):
            at = watts_words(gpu.power_w or 0.0) if no_power else "0 MHz"
            text = f"{name} reports {percent_words(gpu.busy or 0.0)} busy at {at}: no job can run there"
            yield Hit(name, text, action=moment.after_log(zero.action))


def facts(sample: Sample) -> Iterator[Fact]:
    """Clock and power of GPUs at work, by model and job; the power limit of all, by model."""
    jobs = None
    for gpu in sample.gpus:
        if gpu.state != "ok":
            continue
        if gpu.power_limit_w is not None:
            yield POWER_LIMIT, gpu.name or "", gpu.power_limit_w
        if gpu.busy is None or gpu.busy < BUSY or gpu.sm_clock_mhz is None:
            continue
        jobs = _jobs.afresh(sample) if jobs is None else jobs
        group = _group(gpu.name, jobs.get(gpu.index) or sample.node)
        yield CLOCK, group, gpu.sm_clock_mhz
        if gpu.power_w is not None:
            yield POWER, group, gpu.power_w


@OfNewest
def _jobs(sample: Sample) -> dict[int, str]:
    """The job and user of each GPU that a rank uses. Where none is known, the node's own GPUs are the peers."""
    return {index: f"{rank.job} of {rank.uid}" for rank in sample.ranks if rank.job for index in rank.gpus}


@lru_cache(maxsize=4096)
def _group(name: str | None, job: str) -> str:
    return f"{name or ''} in {job}"
