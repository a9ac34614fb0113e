"""What probes measure as short text: rates of arithmetic, bandwidths, sizes and times, and how far off they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from mltop.tui.render.units import UNKNOWN, known

GIGA, TERA, PETA = 1e9, 1e12, 1e15


def digits(value: float) -> str:
    """Three significant digits, but never fewer than all before the point: 3.21, 63.2, 781, 1402."""
    size = abs(value)
    return f"{value:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def flops(tflops: float | None) -> str:
    """FLOP/s: 781T, 63.2T, 1402T, 268G. Not beyond T: what is compared stands in one unit."""
    if tflops is None or not known(tflops):
        return UNKNOWN
    return f"{digits(tflops)}T" if abs(tflops) >= 0.9995 else f"{digits(tflops * 1000)}G"


def bandwidth(bytes_per_s: float | None) -> str:
    """Powers of 1000, as link speeds are given: 2908G/s, 48.2G/s, 320M/s."""
    if bytes_per_s is None or not known(bytes_per_s):
        return UNKNOWN
    per_s = abs(bytes_per_s)
    if per_s < 1e6:
        return f"{digits(bytes_per_s / 1e3)}k/s"
    return f"{digits(bytes_per_s / 1e6)}M/s" if per_s < 0.9995e9 else f"{digits(bytes_per_s / 1e9)}G/s"


def size_text(size_bytes: int) -> str:
    """Powers of 1024: 256M, 1G, 1.5G."""
    value, units = float(size_bytes), ("B", "K", "M", "G", "T", "P")
    step = 0
    while value >= 1024 and step < len(units) - 1:
        value /= 1024
        step += 1
    return f"{value:.0f}{units[step]}" if value == int(value) else f"{value:.1f}{units[step]}"


def short_time(s: float | None) -> str:
    """31us, 4.93ms, 158ms, 2.41s."""
    if s is None or not known(s):
        return UNKNOWN
    size = abs(s)
    if size < 0.9995e-3:
        return f"{s * 1e6:.0f}us"
    return f"{digits(s * 1e3)}ms" if size < 0.9995 else f"{digits(s)}s"


def work_done(pflop: float) -> str:
    """How much arithmetic: "3.1 PFLOP", "420 TFLOP"."""
    if pflop >= 0.9995:
        return f"{pflop:.1f} PFLOP" if pflop < 99.95 else f"{pflop:.0f} PFLOP"
    return f"{pflop * 1000:.0f} TFLOP" if pflop * 1000 >= 0.9995 else f"{pflop * 1e6:.0f} GFLOP"


def signed_percent(share: float) -> str:
    """-12%, +3%, 0%."""
    whole = round(share * 100)
    return f"{whole:+d}%" if whole else "0%"


def heights(values: Sequence[float]) -> list[float]:
    """For a sparkline, 0..1: from the lowest to the highest, but a tenth of that at least, so that noise stays flat."""
    most = max(values, default=0.0)
    span = max(most - min(values, default=0.0), most / 10)
    return [1 - (most - value) / span if span else 0.0 for value in values]


def middle(values: Iterable[float | None], least: int = 1) -> float | None:
    """The median of what is known; None of fewer than ``least``."""
    found = [value for value in values if value is not None and known(value)]
    return median(found) if len(found) >= max(1, least) else None
