"""What the heatmap can show of a GPU: a share of a scale for the glyph, and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mltop.probes.reach.glance import AnyGpu
from mltop.tui.render.units import bytes_text, celsius, known, mhz, percent, watts

COLDEST_C, HOTTEST_C = 30.0, 90.0  # data centre GPUs idle near the one and slow down near the other


@dataclass(frozen=True)
class Metric:
    """``share``: 0..1 of the scale from ``low`` to ``high``, None: unknown. ``text``: the figure with its unit.

    ``low_is_bad``: the GPU that stands for its node is the lowest one, otherwise the highest.
    """

    key: str
    title: str
    low: str
    high: str
    share: Callable[[AnyGpu], float | None]
    text: Callable[[AnyGpu], str]
    low_is_bad: bool = True


def activity(gpu: AnyGpu) -> float | None:
    """The share of SMs that work; where that is not known, of the time in which any kernel was resident."""
    return gpu.busy if gpu.sm_active is None else gpu.sm_active


def clock(gpu: AnyGpu) -> float | None:
    return _ratio(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)


def temperature(gpu: AnyGpu) -> float | None:
    return None if gpu.temperature_c is None else (gpu.temperature_c - COLDEST_C) / (HOTTEST_C - COLDEST_C)


def power(gpu: AnyGpu) -> float | None:
    return _ratio(gpu.power_w, gpu.power_limit_w)


def memory(gpu: AnyGpu) -> float | None:
    return _ratio(gpu.memory_used_bytes, gpu.memory_total_bytes)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


METRICS = (
    Metric("activity", "activity", "0%", "100%", activity, lambda gpu: percent(activity(gpu))),
    Metric("clock", "SM clock of its maximum", "0%", "100%", clock, lambda gpu: mhz(gpu.sm_clock_mhz)),
    Metric(
        "temperature",
        "temperature",
        celsius(COLDEST_C),
        celsius(HOTTEST_C),
        temperature,
        lambda gpu: celsius(gpu.temperature_c),
        low_is_bad=False,
    ),
    Metric("power", "power of its limit", "0%", "100%", power, lambda gpu: watts(gpu.power_w)),
    Metric(
        "memory",
        "memory used",
        "0%",
        "100%",
        memory,
        lambda gpu: bytes_text(gpu.memory_used_bytes),
        low_is_bad=False,
    ),
)


def next_metric(now: Metric) -> Metric:
    return METRICS[(METRICS.index(now) + 1) % len(METRICS)]


def activity_source(gpus: Iterable[AnyGpu]) -> str:
    """Which of the two activities these GPUs report: "SM active", "GPU-Util", "SM active or GPU-Util", or ""."""
    words = {"SM active" if gpu.sm_active is not None else "GPU-Util" for gpu in gpus if known(activity(gpu))}
    return " or ".join(sorted(words, reverse=True))
