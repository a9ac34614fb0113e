"""Clock throttling. Source: nvmlDeviceGetCurrentClocksEventReasons (bits 0x2 to 0x80) and the counters beside it."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.gpu.clocks import BUSY, peer_clock
from mltop.probes.judge.health.gpu.temperature import heat_matters
from mltop.probes.judge.health.names import clock_and_heat, gpu_name
from mltop.probes.judge.health.rule import THROTTLE, Hit, Moment, Rule
from mltop.probes.model import GpuSample

# A reason that flickers between samples still shows in its counter: this share of the time counts as holding.
HELD_SHARE = 0.05
LEAST_SHARE = 0.005  # less is told as 0 %
CAPPED_SLOWER = 0.85  # of what others do at the same limit: within this, chips differ
PINNED_SLOWER = 0.95
PINNED_BELOW = 0.98  # of the highest clock: pinned above costs nothing
_CHECK_COOLING = "check fans, inlet temperature and neighbours; move the job if it stays"
_CHECK_POWER = "check PSU, PDU and chassis power"


def hw_thermal(moment: Moment) -> Iterator[Hit]:
    for gpu in filter(heat_matters, _throttled(moment, "hw_thermal")):
        yield _hit(moment, gpu, "hw_thermal", f"GPU {gpu.index} throttled by HW thermal slowdown")


def sw_thermal(moment: Moment) -> Iterator[Hit]:
    for gpu in filter(heat_matters, _throttled(moment, "sw_thermal")):
        yield _hit(moment, gpu, "sw_thermal", f"GPU {gpu.index} slowing itself to stay cool")


def power_brake(moment: Moment) -> Iterator[Hit]:
    for gpu in _throttled(moment, "power_brake"):
        yield _hit(moment, gpu, "power_brake", f"External power brake on GPU {gpu.index}")


def hw_slowdown(moment: Moment) -> Iterator[Hit]:
    """The general bit alone: with a thermal or power brake bit beside it, those say more."""
    for gpu in _throttled(moment, "hw_slowdown"):
        if not {"hw_thermal", "power_brake"} & set(gpu.throttle_reasons or ()):
            yield _hit(moment, gpu, "hw_slowdown", f"GPU {gpu.index}: HW slowdown, cause unstated")


def power_cap(moment: Moment) -> Iterator[Hit]:
    """At the power limit under load is what a GPU is made for, and says nothing: every busy node would have a line.

    It is told where it costs this GPU more than its peers at the same work: a worse chip, or a lower limit.
    """
    for gpu in moment.now.gpus:
        reasons = gpu.throttle_reasons
        if not reasons or "sw_power_cap" not in reasons or gpu.busy is None or gpu.busy < BUSY:
            continue
        usual = peer_clock(moment, gpu, CAPPED_SLOWER)
        if usual is None or gpu.sm_clock_mhz is None:
            continue
        limit = "its power limit" if gpu.power_limit_w is None else f"its {gpu.power_limit_w:.0f} W limit"
        slower = 1 - gpu.sm_clock_mhz / usual
        text = f"GPU {gpu.index} at {limit} runs {slower:.0%} slower than its peers{clock_and_heat(gpu)}"
        yield Hit(gpu_name(gpu.index), text, (f"median of its peers: {usual / 1000:.2f} GHz",))


def user_clocks(moment: Moment) -> Iterator[Hit]:
    """Clocks that a user set (applications clocks), or that the slowest GPU of a sync boost group sets."""
    for gpu in moment.now.gpus:
        reasons = gpu.throttle_reasons
        if not reasons or gpu.busy is None or gpu.busy < BUSY or gpu.sm_clock_mhz is None:
            continue
        pinned = "applications_clocks" in reasons
        if not pinned and "sync_boost" not in reasons:
            continue
        if gpu.sm_clock_max_mhz is not None and gpu.sm_clock_mhz >= PINNED_BELOW * gpu.sm_clock_max_mhz:
            continue
        usual = peer_clock(moment, gpu, PINNED_SLOWER)
        how = "Clocks pinned" if pinned else "Clocks held by sync boost"
        text = f"{how} at {gpu.sm_clock_mhz} MHz on GPU {gpu.index}"
        if usual is not None:
            text += f", its peers run at {usual:.0f} MHz"
        action = f"if nobody wants it: sudo nvidia-smi -i {gpu.index} -rgc; sudo nvidia-smi -i {gpu.index} -rac"
        yield Hit(gpu_name(gpu.index), text, severity="info" if usual is None else "warning", action=action)


def _throttled(moment: Moment, reason: str) -> Iterator[GpuSample]:
    before = moment.before.gpus if moment.before is not None else []
    for place, gpu in enumerate(moment.now.gpus):
        if gpu.throttle_reasons and reason in gpu.throttle_reasons:
            yield gpu
            continue
        held_ns = gpu.throttle_ns.get(reason)
        if held_ns and place < len(before) and before[place].throttle_ns.get(reason) == held_ns:
            continue  # what most GPUs are at most times
        if held_ns or gpu.throttle_share:
            share = _share(moment, gpu, reason)
            if share is not None and share > HELD_SHARE:
                yield gpu


def _share(moment: Moment, gpu: GpuSample, reason: str) -> float | None:
    """Part of the time since the sample before in which the reason held; None when its counter is unknown."""
    new_ns = gpu.throttle_ns.get(reason)
    before = None if new_ns is None else moment.gpu_before(gpu)
    old_ns = None if before is None else before.throttle_ns.get(reason)
    if new_ns is None or old_ns is None or moment.passed_s is None or moment.passed_s <= 0 or new_ns < old_ns:
        return gpu.throttle_share.get(reason)
    return (new_ns - old_ns) / 1e9 / moment.passed_s


def _hit(moment: Moment, gpu: GpuSample, reason: str, text: str) -> Hit:
    share = _share(moment, gpu, reason)
    # Counters of new drivers may lag behind the bits: "0 %" beside a bit that is set would only confuse.
    evidence = () if share is None or share < LEAST_SHARE else (f"held for {min(share, 1.0):.0%} of the last interval",)
    return Hit(gpu_name(gpu.index), text + clock_and_heat(gpu), evidence)


_REASONS = ("gpu.*.throttle_reasons",)
_HEAT = (*_REASONS, "gpu.*.sm_clock_mhz | gpu.*.temperature_margin_c | gpu.*.temperature_slowdown_c")
_LOAD = (*_REASONS, "gpu.*.busy", "gpu.*.sm_clock_mhz")

RULES = (
    Rule(
        "gpu.throttle.hw_thermal",
        "critical",
        5.0,
        _CHECK_COOLING,
        hw_thermal,
        meaning="the hardware halves the clock because of heat",
        threshold="bit 0x40 or > 5 % of the time, for 5 s; its clock below the highest, or within 10 °C* of a limit",
        source="nvmlClocksEventReasons, field 270",
        needs=_HEAT,
        precedence=THROTTLE,
        explains=("gpu.throttle.sw_thermal", "gpu.throttle.hw_slowdown", "gpu.temp.", "gpu.clock.low_busy"),
        whole_node=(
            "All {count} GPUs throttled by HW thermal slowdown",
            "check the node's fans and inlet temperature; move the job if it stays",
        ),
    ),
    Rule(
        "gpu.throttle.power_brake",
        "critical",
        5.0,
        _CHECK_POWER,
        power_brake,
        meaning="the power supply tells the GPU to slow down",
        threshold="bit 0x80 or > 5 % of the time, for 5 s",
        source="nvmlClocksEventReasons, field 271",
        needs=_REASONS,
        precedence=THROTTLE,
        explains=("gpu.throttle.hw_slowdown", "gpu.clock.low_busy"),
        whole_node=("External power brake on all {count} GPUs", _CHECK_POWER),
    ),
    Rule(
        "gpu.throttle.sw_thermal",
        "warning",
        30.0,
        "improve the cooling",
        sw_thermal,
        meaning="the driver lowers the clock to stay below a temperature limit",
        threshold="bit 0x20 or > 5 % of the time, for 30 s; its clock below the highest, or within 10 °C* of a limit",
        source="nvmlClocksEventReasons, field 269",
        needs=_HEAT,
        precedence=THROTTLE,
        explains=("gpu.temp.", "gpu.clock.low_busy"),
        whole_node=("All {count} GPUs slowing themselves to stay cool", "check the node's fans and inlet temperature"),
    ),
    Rule(
        "gpu.throttle.hw_slowdown",
        "warning",
        5.0,
        "look at power and temperatures",
        hw_slowdown,
        meaning="the hardware halves the clock and does not say why",
        threshold="bit 0x8 alone for 5 s",
        source="nvmlClocksEventReasons",
        needs=_REASONS,
        precedence=THROTTLE,
        explains=("gpu.clock.low_busy",),
        whole_node=("HW slowdown of all {count} GPUs, cause unstated", "look at the node's power and temperatures"),
    ),
    Rule(
        "gpu.throttle.power_cap",
        "warning",
        60.0,
        "compare its power limit and cooling with its peers: nvidia-smi -q -d POWER",
        power_cap,
        meaning="the power limit costs this GPU more clock than its peers; at the limit under load alone is normal",
        threshold="bit 0x4, busy ≥ 90 % and SM clock < 0.85 × the median of its peers* for 60 s",
        source="nvmlClocksEventReasons; compared with GPUs of the same model in the same job",
        needs=_LOAD,
        eager=False,
        precedence=THROTTLE,
        explains=("gpu.clock.low_busy",),
    ),
    Rule(
        "gpu.throttle.user_clocks",
        "info",
        10.0,
        "if nobody wants it: sudo nvidia-smi -rgc; sudo nvidia-smi -rac",
        user_clocks,
        meaning="somebody has set the clocks below their maximum",
        threshold="bit 0x2 or 0x10 while busy ≥ 90 % for 10 s*; peers ≥ 5 % faster*: warning",
        source="nvmlClocksEventReasons; compared with GPUs of the same model in the same job",
        needs=_LOAD,
        precedence=THROTTLE,
        explains=("gpu.clock.low_busy", "gpu.throttle.power_cap"),
        whole_node=(
            "Clocks pinned on all {count} GPUs",
            "if nobody wants it: sudo nvidia-smi -rgc; sudo nvidia-smi -rac",
        ),
    ),
)
