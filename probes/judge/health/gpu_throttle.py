"""Clock throttling. Source: nvmlDeviceGetCurrentClocksEventReasons (bits 0x40, 0x80, 0x20, 0x8)."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.rule import THROTTLE, Hit, Moment, Rule
from mltop.probes.model import GpuSample

# A reason that flickers between samples still shows in its counter: this share of the time counts as holding.
HELD_SHARE = 0.05
_CHECK_COOLING = "check fans, inlet temperature and neighbours; move the job if it stays"


def hw_thermal(moment: Moment) -> Iterator[Hit]:
    for gpu in _throttled(moment, "hw_thermal"):
        text = f"GPU {gpu.index} throttled by HW thermal slowdown{_numbers(gpu)}"
        yield Hit(f"GPU {gpu.index}", text, _evidence(moment, gpu, "hw_thermal"))


def sw_thermal(moment: Moment) -> Iterator[Hit]:
    for gpu in _throttled(moment, "sw_thermal"):
        text = f"GPU {gpu.index} slowing itself to stay cool{_numbers(gpu)}"
        yield Hit(f"GPU {gpu.index}", text, _evidence(moment, gpu, "sw_thermal"))


def power_brake(moment: Moment) -> Iterator[Hit]:
    for gpu in _throttled(moment, "power_brake"):
        text = f"External power brake on GPU {gpu.index}{_numbers(gpu)}"
        yield Hit(f"GPU {gpu.index}", text, _evidence(moment, gpu, "power_brake"))


def hw_slowdown(moment: Moment) -> Iterator[Hit]:
    """The general bit alone: with a thermal or power brake bit beside it, those say more."""
    for gpu in _throttled(moment, "hw_slowdown"):
        if not {"hw_thermal", "power_brake"} & set(gpu.throttle_reasons or ()):
            text = f"GPU {gpu.index}: HW slowdown, cause unstated{_numbers(gpu)}"
            yield Hit(f"GPU {gpu.index}", text, _evidence(moment, gpu, "hw_slowdown"))


def _throttled(moment: Moment, reason: str) -> Iterator[GpuSample]:
    for gpu in moment.now.gpus:
        share = _share(moment, gpu, reason)
        if reason in (gpu.throttle_reasons or ()) or (share is not None and share > HELD_SHARE):
            yield gpu


def _share(moment: Moment, gpu: GpuSample, reason: str) -> float | None:
    """Part of the time since the sample before in which the reason held; None when its counter is unknown."""
    before = next((old for old in (moment.before.gpus if moment.before else ()) if old.index == gpu.index), None)
    if before is None or moment.before is None or before.uuid != gpu.uuid:
        return None
    new_ns, old_ns = gpu.throttle_ns.get(reason), before.throttle_ns.get(reason)
    passed_s = moment.now.sampled_at - moment.before.sampled_at
    if new_ns is None or old_ns is None or passed_s <= 0 or new_ns < old_ns:
        return None
    return (new_ns - old_ns) / 1e9 / passed_s


def _evidence(moment: Moment, gpu: GpuSample, reason: str) -> tuple[str, ...]:
    share = _share(moment, gpu, reason)
    return () if share is None else (f"held for {min(share, 1.0):.0%} of the last interval",)


def _numbers(gpu: GpuSample) -> str:
    """``, SM 1.10 of 1.98 GHz, 91 °C``."""
    parts = []
    if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz is not None:
        parts.append(f"SM {gpu.sm_clock_mhz / 1000:.2f} of {gpu.sm_clock_max_mhz / 1000:.2f} GHz")
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c:.0f} °C")
    return "".join(f", {part}" for part in parts)


RULES = (
    Rule(
        "gpu.throttle.hw_thermal",
        "critical",
        5.0,
        _CHECK_COOLING,
        hw_thermal,
        meaning="the hardware halves the clock because of heat",
        threshold="bit 0x40 or > 5 % of the time, for 5 s",
        source="nvmlClocksEventReasons, fields 270",
        needs=("gpu.*.throttle_reasons",),
        precedence=THROTTLE,
        explains=("gpu.throttle.sw_thermal", "gpu.throttle.hw_slowdown"),
        whole_node=(
            "All {count} GPUs throttled by HW thermal slowdown",
            "check the node's fans and inlet temperature; move the job if it stays",
        ),
    ),
    Rule(
        "gpu.throttle.power_brake",
        "critical",
        5.0,
        "check PSU, PDU and chassis power",
        power_brake,
        meaning="the power supply tells the GPU to slow down",
        threshold="bit 0x80 or > 5 % of the time, for 5 s",
        source="nvmlClocksEventReasons, field 271",
        needs=("gpu.*.throttle_reasons",),
        precedence=THROTTLE,
        explains=("gpu.throttle.hw_slowdown",),
        whole_node=("External power brake on all {count} GPUs", "check PSU, PDU and chassis power"),
    ),
    Rule(
        "gpu.throttle.sw_thermal",
        "warning",
        30.0,
        "improve the cooling",
        sw_thermal,
        meaning="the driver lowers the clock to stay below a temperature limit",
        threshold="bit 0x20 or > 5 % of the time, for 30 s",
        source="nvmlClocksEventReasons, field 269",
        needs=("gpu.*.throttle_reasons",),
        precedence=THROTTLE,
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
        needs=("gpu.*.throttle_reasons",),
        precedence=THROTTLE,
    ),
)
