"""Whether a GPU is really held back by heat: a bit of the driver's alone flickers on cool GPUs at full clock.

GPU and memory temperatures: near a limit, above one, or above the siblings at the same work.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from statistics import median

from mltop.probes.judge.health.names import gpu_name
from mltop.probes.judge.health.rule import SYMPTOM, Hit, Moment, Rule
from mltop.probes.model import GpuSample

NARROW_C = 5.0
NEAR_C = 10.0  # of a limit: near enough for what the driver says of heat to be believed
HOT_ANYWHERE_C = 80.0  # whatever its limits are
HELD_BELOW = 0.97  # of its highest clock
_THERMAL = frozenset({"hw_thermal", "sw_thermal", "hw_slowdown"})
_IDLE_BUSY = 0.05


def left_c(gpu: GpuSample) -> tuple[float, str] | None:
    """Degrees to the temperature at which it slows itself down, and what tells so; None where nothing does.

    Margins of 0 and less are wrong on some H100 boards: believed only of a GPU that is hot, or has a thermal bit set.
    """
    found = []
    if gpu.temperature_slowdown_c is not None and gpu.temperature_c is not None:
        found.append((gpu.temperature_slowdown_c - gpu.temperature_c, "temperature and slowdown threshold"))
    if gpu.temperature_margin_c is not None:
        believed = not _THERMAL.isdisjoint(gpu.throttle_reasons or ()) or (gpu.temperature_c or 0.0) >= HOT_ANYWHERE_C
        if gpu.temperature_margin_c > 0 or believed:
            found.append((gpu.temperature_margin_c, "nvmlDeviceGetMarginTemperature"))
    return min(found, key=itemgetter(0), default=None)


def is_hot(gpu: GpuSample, near_c: float = NEAR_C) -> bool | None:
    """Whether the GPU or its memory is near a limit of its own, by any of them; None where no limit is known."""
    left = left_c(gpu)
    known = [left[0]] if left is not None else []
    pairs = (
        (gpu.temperature_c, gpu.temperature_slowdown_c),
        (gpu.memory_temperature_c, gpu.memory_temperature_max_c),
    )
    known += [most - now for now, most in pairs if now is not None and most is not None]
    known += [gpu.memory_temperature_margin_c] if gpu.memory_temperature_margin_c is not None else []
    return min(known) <= near_c if known else None


def is_held(gpu: GpuSample) -> bool | None:
    """Whether its clock is below what it could be while it works; None where its clocks are not known."""
    clock, top = gpu.sm_clock_mhz, gpu.sm_clock_max_mhz
    if clock is None or not top:
        return None
    idle = gpu.busy < _IDLE_BUSY if gpu.busy is not None else "gpu_idle" in (gpu.throttle_reasons or ())
    return clock < HELD_BELOW * top and not idle


def heat_matters(gpu: GpuSample, near_c: float = NEAR_C) -> bool:
    """Its clock is held down, or it is near a limit. What cannot be known speaks neither for nor against it."""
    held, hot = is_held(gpu), is_hot(gpu, near_c)
    return bool(held or hot) or (held is None and hot is None)


HOTTER_C = 12.0
HOT_C = 15.0  # from its limit: a GPU that is hotter than its siblings and far from that has no trouble
SIBLINGS_AT_LEAST = 3
MOST_HOT = 64  # each is compared with all others
SAME_POWER = 0.8  # siblings that draw so much of this GPU's power work as hard as it does


def margin(moment: Moment) -> Iterator[Hit]:
    """Near its slowdown temperature for a while; above it at once."""
    for gpu in moment.now.gpus:
        left = left_c(gpu)
        if left is not None and left[0] <= NARROW_C:
            yield _margin(gpu, *left)


def _margin(gpu: GpuSample, degrees: float, source: str) -> Hit:
    name = gpu_name(gpu.index)
    now = "" if gpu.temperature_c is None else f" at {gpu.temperature_c:.0f} °C"
    if degrees > 0:
        return Hit(name, f"{name}{now}: {degrees:.0f} °C below slowdown", (f"source: {source}",))
    where = "at its slowdown temperature" if degrees > -1 else f"{-degrees:.0f} °C above its slowdown temperature"
    return Hit(name, f"{name}{now}: {where}", (f"source: {source}",), hold_s=0.0)


def hbm(moment: Moment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        name, now, limit = gpu_name(gpu.index), gpu.memory_temperature_c, gpu.memory_temperature_max_c
        margin_c = gpu.memory_temperature_margin_c
        if now is not None and limit is not None and now > limit:
            yield Hit(name, f"{name}: HBM {now:.0f} °C above limit {limit:.0f}")
        elif margin_c is not None and margin_c < 0:
            at = "" if now is None else f" at {now:.0f} °C,"
            yield Hit(name, f"{name}: HBM{at} {-margin_c:.0f} °C above its limit")


def peer(moment: Moment) -> Iterator[Hit]:
    """Siblings that draw much less than this GPU have a reason to be cooler and do not count."""
    by_name: dict[str, list[tuple[float, float, GpuSample]]] = {}
    for gpu in moment.now.gpus:
        if gpu.temperature_c is not None and gpu.power_w is not None:
            by_name.setdefault(gpu.name or "", []).append((gpu.power_w, gpu.temperature_c, gpu))
    for like in by_name.values():
        coolest = min(celsius for _, celsius, _ in like)
        if len(like) <= SIBLINGS_AT_LEAST or max(celsius for _, celsius, _ in like) - coolest < HOTTER_C:
            continue
        hot = [one for one in like if one[1] - coolest >= HOTTER_C][:MOST_HOT]
        for watts, celsius, gpu in hot:
            siblings = [other for power, other, one in like if one is not gpu and power >= SAME_POWER * watts]
            hotter_c = celsius - median(siblings) if len(siblings) >= SIBLINGS_AT_LEAST else 0.0
            if hotter_c >= HOTTER_C and heat_matters(gpu, HOT_C):
                name = gpu_name(gpu.index)
                text = f"{name} runs {hotter_c:.0f} °C hotter than its siblings at the same load"
                evidence = f"{celsius:.0f} °C at {watts:.0f} W, siblings {median(siblings):.0f} °C"
                yield Hit(name, text, (evidence,))


RULES = (
    Rule(
        "gpu.temp.margin",
        "warning",
        60.0,
        "improve the cooling: fans, inlet temperature, dust",
        margin,
        meaning="the GPU is about to slow itself down",
        threshold="≤ 5 °C* for 60 s*; at or above it: at once; margins ≤ 0 count only with a thermal bit set, or from "
        "80 °C* on",
        source="nvmlDeviceGetMarginTemperature, else temperature and slowdown threshold",
        needs=("gpu.*.temperature_c", "gpu.*.temperature_margin_c | gpu.*.temperature_slowdown_c"),
        decisive=("gpu.*.temperature_margin_c | gpu.*.temperature_slowdown_c",),
        eager=False,
        precedence=SYMPTOM,
        explains=("gpu.temp.peer",),
        whole_node=(
            "All {count} GPUs close to their slowdown temperature",
            "check the node's fans and inlet temperature",
        ),
    ),
    Rule(
        "gpu.temp.hbm",
        "warning",
        0.0,
        "improve the cooling; compare with its siblings",
        hbm,
        meaning="the GPU's memory is hotter than it may be",
        threshold="above the memory's maximum operating temperature, or its margin below 0",
        source="field 82 against the memory's threshold; Hopper and newer: field 195, the memory's margin",
        needs=("gpu.*.memory_temperature_c", "gpu.*.memory_temperature_max_c | gpu.*.memory_temperature_margin_c"),
        decisive=("gpu.*.memory_temperature_max_c | gpu.*.memory_temperature_margin_c",),
        clear_s=60.0,
        precedence=SYMPTOM,
        explains=("gpu.temp.peer",),
        whole_node=(
            "Memory of all {count} GPUs above its temperature limit",
            "check the node's fans and inlet temperature",
        ),
    ),
    Rule(
        "gpu.temp.peer",
        "warning",
        60.0,
        "check its heatsink and thermal paste; reseat it at the next service",
        peer,
        meaning="the GPU is cooled worse than the GPUs beside it",
        threshold="≥ 12 °C* above the median of 3 or more siblings that draw ≥ 80 %* of its power, for 60 s*, and "
        "within 15 °C* of a limit or below its highest clock",
        source="nvmlDeviceGetTemperatureV of the node's GPUs",
        needs=("gpu.*.temperature_c", "gpu.*.power_w"),
        eager=False,
        precedence=SYMPTOM,
    ),
)
