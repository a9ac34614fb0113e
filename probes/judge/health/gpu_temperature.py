"""GPU and memory temperatures: near a limit, above one, or above the siblings at the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter
from statistics import median

from mltop.probes.judge.health.gpu_words import gpu_name
from mltop.probes.judge.health.rule import SYMPTOM, Hit, Moment, Rule
from mltop.probes.model import GpuSample

NARROW_C = 5.0
HOTTER_C = 12.0
SIBLINGS_AT_LEAST = 3
SAME_POWER = 0.8  # siblings that draw so much of this GPU's power work as hard as it does
_THERMAL = frozenset({"hw_thermal", "sw_thermal", "hw_slowdown"})


def margin(moment: Moment) -> Iterator[Hit]:
    """Margins of 0 and less are wrong on some H100 boards: believed only where a thermal bit is set too."""
    for gpu in moment.now.gpus:
        found = []
        if gpu.temperature_slowdown_c is not None and gpu.temperature_c is not None:
            found.append((gpu.temperature_slowdown_c - gpu.temperature_c, "temperature and slowdown threshold"))
        told_c = gpu.temperature_margin_c
        if told_c is not None and (told_c > 0 or not _THERMAL.isdisjoint(gpu.throttle_reasons or ())):
            found.append((told_c, "nvmlDeviceGetMarginTemperature"))
        left_c, source = min(found, key=itemgetter(0), default=(math.inf, ""))
        if left_c <= NARROW_C:
            yield _margin(gpu, left_c, source)


def _margin(gpu: GpuSample, left_c: float, source: str) -> Hit:
    name = gpu_name(gpu.index)
    now = "" if gpu.temperature_c is None else f" at {gpu.temperature_c:.0f} °C"
    where = f"{left_c:.0f} °C below slowdown" if left_c > 0 else "at its slowdown temperature"
    return Hit(name, f"{name}{now}: {where}", (f"source: {source}",))


def hbm(moment: Moment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        now, limit = gpu.memory_temperature_c, gpu.memory_temperature_max_c
        if now is not None and limit is not None and now > limit:
            name = gpu_name(gpu.index)
            yield Hit(name, f"{name}: HBM {now:.0f} °C above limit {limit:.0f}")


def peer(moment: Moment) -> Iterator[Hit]:
    """Siblings that draw much less than this GPU have a reason to be cooler and do not count."""
    gpus = moment.now.gpus
    if len(gpus) <= SIBLINGS_AT_LEAST:
        return
    known = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    if not known or max(known) - min(known) < HOTTER_C:
        return
    for gpu in gpus:
        if gpu.temperature_c is None or gpu.power_w is None or gpu.temperature_c - min(known) < HOTTER_C:
            continue
        like = [
            other.temperature_c
            for other in gpus
            if other is not gpu
            and other.name == gpu.name
            and other.temperature_c is not None
            and other.power_w is not None
            and other.power_w >= SAME_POWER * gpu.power_w
        ]
        hotter_c = gpu.temperature_c - median(like) if len(like) >= SIBLINGS_AT_LEAST else 0.0
        if hotter_c >= HOTTER_C:
            name = gpu_name(gpu.index)
            text = f"{name} runs {hotter_c:.0f} °C hotter than its siblings at the same load"
            yield Hit(
                name, text, (f"{gpu.temperature_c:.0f} °C at {gpu.power_w:.0f} W, siblings {median(like):.0f} °C",)
            )


RULES = (
    Rule(
        "gpu.temp.margin",
        "warning",
        60.0,
        "improve the cooling: fans, inlet temperature, dust",
        margin,
        meaning="the GPU is about to slow itself down",
        threshold="≤ 5 °C* for 60 s*; margins ≤ 0 count only with a thermal bit set",
        source="nvmlDeviceGetMarginTemperature, else temperature and slowdown threshold",
        needs=("gpu.*.temperature_margin_c",),
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
        threshold="above the memory's maximum operating temperature",
        source="field 82 against the memory's threshold",
        needs=("gpu.*.memory_temperature_c", "gpu.*.memory_temperature_max_c"),
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
        threshold="≥ 12 °C* above the median of 3 or more siblings that draw ≥ 80 %* of its power, for 60 s*",
        source="nvmlDeviceGetTemperatureV of the node's GPUs",
        needs=("gpu.*.temperature_c", "gpu.*.power_w"),
        eager=False,
        precedence=SYMPTOM,
    ),
)
