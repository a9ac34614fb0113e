"""GPU and memory temperatures: near a limit, above one, or above the siblings at the same work.

And whether a GPU is really held back by heat: a bit of the driver's alone flickers on cool GPUs at full clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from mltop.probes.judge.health.moment import Moment
from mltop.probes.judge.health.names import named_gpus
from mltop.probes.judge.health.rule import HOLD, LIMIT, Hit, Limit, device_rule
from mltop.probes.judge.values import grouped, known, median_of
from mltop.probes.model import GpuSample
from mltop.probes.model.units import celsius_words, percent_words, watts_words
from mltop.probes.model.verdict import gpu_name

NEAR_C = 10.0  # of a limit: near enough for what the driver says of heat to be believed
HOT_C = 15.0  # from its limit: a GPU that is hotter than its siblings and far from that has no trouble
HOT_ANYWHERE_C = 80.0  # whatever its limits are
HELD_BELOW = 0.97  # of its highest clock
IDLE_BUSY = 0.05
SIBLINGS_AT_LEAST = 3
SAME_POWER = 0.8  # siblings that draw so much of this GPU's power work as hard as it does
MOST_HOT = 64  # each is compared with all others
_THERMAL = frozenset({"hw_thermal", "sw_thermal", "hw_slowdown"})
_CHECK_FANS = "check the node's fans and inlet temperature"
_LIMITS = "gpu.*.temperature_margin_c | gpu.*.temperature_slowdown_c"
_MEMORY_LIMITS = "gpu.*.memory_temperature_max_c | gpu.*.memory_temperature_margin_c"


def heat_matters(gpu: GpuSample, near_c: float = NEAR_C) -> bool:
    """Its clock is held down while it works, or it or its memory is near a limit; True where neither is known."""
    clock, top, is_held = gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, None
    if clock is not None and top:
        idle = gpu.busy < IDLE_BUSY if gpu.busy is not None else "gpu_idle" in (gpu.throttle_reasons or ())
        is_held = clock < HELD_BELOW * top and not idle
    left = known((gpu.memory_temperature_margin_c, *(_left_c(gpu) or ())[:1]))
    if gpu.temperature_c is not None and gpu.temperature_slowdown_c is not None:
        left.append(gpu.temperature_slowdown_c - gpu.temperature_c)
    if gpu.memory_temperature_c is not None and gpu.memory_temperature_max_c is not None:
        left.append(gpu.memory_temperature_max_c - gpu.memory_temperature_c)
    return bool(is_held) or (min(left) <= near_c if left else is_held is None)


def _left_c(gpu: GpuSample) -> tuple[float, str] | None:
    """Degrees to the temperature at which it slows itself down, and what tells so; None where nothing does.

    Margins of 0 and less are wrong on some H100 boards: believed only of a GPU that is hot, or has a thermal bit set.
    """
    left = []
    if gpu.temperature_slowdown_c is not None and gpu.temperature_c is not None:
        left.append((gpu.temperature_slowdown_c - gpu.temperature_c, "temperature and slowdown threshold"))
    if gpu.temperature_margin_c is not None:
        believed = not _THERMAL.isdisjoint(gpu.throttle_reasons or ()) or (gpu.temperature_c or 0.0) >= HOT_ANYWHERE_C
        if gpu.temperature_margin_c > 0 or believed:
            left.append((gpu.temperature_margin_c, "nvmlDeviceGetMarginTemperature"))
    return min(left, key=itemgetter(0), default=None)


@device_rule("gpu.temp.margin", "warning", hold_s=60.0, eager=False)(
    meaning="the GPU is about to slow itself down",
    threshold=f"≤ {LIMIT}* for {HOLD}*; at or above it: at once; margins ≤ 0 count only with a "
    f"thermal bit set, or from {celsius_words(HOT_ANYWHERE_C)}* on",
    limit=Limit(5, celsius_words, "°C"),
    source="nvmlDeviceGetMarginTemperature, else temperature and slowdown threshold",
    action="improve the cooling: fans, inlet temperature, dust",
    needs=("gpu.*.temperature_c", _LIMITS),
    decisive=(_LIMITS,),
    explains=("gpu.temp.peer", "gpu.throttle.hw_slowdown"),
    whole_node=("All {count} GPUs close to their slowdown temperature", _CHECK_FANS),
)
def margin(moment: Moment, limit: float) -> Iterator[Hit]:
    """Near its slowdown temperature for a while; above it at once."""
    for gpu, name in named_gpus(moment):
        left_c, source = _left_c(gpu) or (float("inf"), "")
        if left_c > limit:
            continue
        now = "" if gpu.temperature_c is None else f" at {celsius_words(gpu.temperature_c)}"
        where = f"{celsius_words(left_c)} below slowdown"
        if left_c <= 0:
            above = f"{celsius_words(-left_c)} above" if left_c <= -1 else "at"
            where = f"{above} its slowdown temperature"
        yield Hit(name, f"{name}{now}: {where}", (f"source: {source}",), hold_s=None if left_c > 0 else 0.0)


@device_rule("gpu.temp.hbm", "warning", clear_s=60.0)(
    meaning="the GPU's memory is hotter than it may be",
    threshold="above the memory's maximum operating temperature, or its margin below 0",
    source="field 82 against the memory's threshold; Hopper and newer: field 195, the memory's margin",
    action="improve the cooling; compare with its siblings",
    needs=("gpu.*.memory_temperature_c", _MEMORY_LIMITS),
    decisive=(_MEMORY_LIMITS,),
    explains=("gpu.temp.peer", "gpu.throttle.hw_slowdown"),
    whole_node=("Memory of all {count} GPUs above its temperature limit", _CHECK_FANS),
)
def memory(moment: Moment) -> Iterator[Hit]:
    for gpu, name in named_gpus(moment):
        now, limit = gpu.memory_temperature_c, gpu.memory_temperature_max_c
        margin_c = gpu.memory_temperature_margin_c
        if now is not None and limit is not None and now > limit:
            yield Hit(name, f"{name}: HBM at {celsius_words(now)}, its limit is {celsius_words(limit)}")
        elif margin_c is not None and margin_c < 0:
            at = "" if now is None else f" at {celsius_words(now)},"
            yield Hit(name, f"{name}: HBM{at} {celsius_words(-margin_c)} above its limit")


@device_rule("gpu.temp.peer", "warning", hold_s=60.0, eager=False)(
    meaning="the GPU is cooled worse than the GPUs beside it",
    threshold=f"≥ {LIMIT}* above the median of {SIBLINGS_AT_LEAST} or more siblings that draw ≥ "
    f"{percent_words(SAME_POWER)}* of its power, for {HOLD}*, and within {celsius_words(HOT_C)}* of a limit or below "
    "its highest clock",
    limit=Limit(12, celsius_words, "°C"),
    source="nvmlDeviceGetTemperatureV of the node's GPUs",
    action="check its heatsink and thermal paste; reseat it at the next service",
    needs=("gpu.*.temperature_c", "gpu.*.power_w"),
)
def hotter_than_siblings(moment: Moment, limit: float) -> Iterator[Hit]:
    """Siblings that draw much less than this GPU have a reason to be cooler and do not count."""
    measured = [gpu for gpu in moment.now.gpus if gpu.temperature_c is not None and gpu.power_w is not None]
    for alike in grouped(measured, lambda gpu: gpu.name).values():
        heats = [(gpu.power_w or 0.0, gpu.temperature_c or 0.0, gpu) for gpu in alike]
        coolest = min(celsius for _, celsius, _ in heats)
        hot = [entry for entry in heats if entry[1] - coolest >= limit][:MOST_HOT]
        for watts, celsius, gpu in hot if len(heats) > SIBLINGS_AT_LEAST else ():
            siblings = [other for power, other, sibling in heats if sibling is not gpu and power >= SAME_POWER * watts]
            usual = median_of(siblings) if len(siblings) >= SIBLINGS_AT_LEAST else None
            if usual is not None and celsius - usual >= limit and heat_matters(gpu, HOT_C):
                name = gpu_name(gpu.index)
                text = f"{name} runs {celsius_words(celsius - usual)} hotter than its siblings at the same load"
                evidence = f"{celsius_words(celsius)} at {watts_words(watts)}, siblings {celsius_words(usual)}"
                yield Hit(name, text, (evidence,))
