"""Values as short text, the same everywhere. Unknown is ``UNKNOWN``, never 0 and never blank.

What probes measure as short text: rates of arithmetic, bandwidths, sizes and times, and how far off they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from statistics import median

from mltop.tui.render.glyphs import GLYPHS

UNKNOWN = GLYPHS.dash
_BINARY = ("B", "K", "M", "G", "T", "P", "E")
_DECIMAL = ("", "k", "M", "G", "T", "P")


def known(value: float | None) -> bool:
    """A number that can be shown: not None, NaN or infinite."""
    return value is not None and math.isfinite(value)


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    """Three significant digits and a unit: 74.2G, 980M, 0B."""
    size, sign = abs(value), "-" if value < 0 else ""
    step = 0
    # 999.5 would print as 1000: the next unit starts there.
    while size >= 999.5 and step < len(units) - 1:
        size /= base
        step += 1
    digits = 0 if step == 0 or size >= 99.95 else 1
    return f"{sign}{size:.{digits}f}{units[step]}"


def bytes_text(n: float | None) -> str:
    """Powers of 1024: 74.2G."""
    return UNKNOWN if n is None or not known(n) else _scaled(n, 1024, _BINARY)


def count(n: float | None) -> str:
    """Powers of 1000: 950, 12.3k."""
    return UNKNOWN if n is None or not known(n) else _scaled(n, 1000, _DECIMAL)


def rate(per_s: float | None) -> str:
    """Events per second; below ten with one digit, so that 0.3/s is not 0."""
    if per_s is None or not known(per_s):
        return UNKNOWN
    return f"{per_s:.1f}" if 0 < per_s < 9.95 else count(per_s)


def number(value: float | None) -> str:
    """A whole number without a unit."""
    return UNKNOWN if value is None or not known(value) else f"{value:.0f}"


def watts(w: float | None) -> str:
    """652W, 5370W, 41.2kW, 1.23MW: one GPU's limit of 1200W stays comparable with what it draws."""
    if w is None or not known(w):
        return UNKNOWN
    if abs(w) < 9999.5:
        return f"{w:.0f}W"
    return f"{w / 1e3:.1f}kW" if abs(w) < 999_500 else f"{w / 1e6:.2f}MW"


def mhz(value: float | None) -> str:
    """1755MHz."""
    return UNKNOWN if value is None or not known(value) else f"{value:.0f}MHz"


def percent(fraction: float | None) -> str:
    """0.974 is 97%."""
    return UNKNOWN if fraction is None or not known(fraction) else f"{fraction * 100:.0f}%"


def celsius(value: float | None) -> str:
    """64C: the degree sign is not ASCII and costs a column."""
    return UNKNOWN if value is None or not known(value) else f"{value:.0f}C"


def seconds(s: float | None) -> str:
    """A duration in at most two units: 0.4s, 12s, 3m20s, 2h05m, 4d03h."""
    if s is None or not known(s):
        return UNKNOWN
    if s < 0:  # clocks of two machines differ
        return "-" + seconds(-s)
    if s < 9.95:
        return f"{s:.1f}s"
    whole = round(s)
    if whole < 60:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours == 0:
        return f"{minutes}m{whole % 60:02d}s"
    return f"{hours}h{minutes % 60:02d}m" if days == 0 else f"{days}d{hours % 24:02d}h"


age = seconds


def clock_time(at: float | None) -> str:
    """Unix seconds as local time of day: 12:41:07."""
    if at is None or not known(at):
        return UNKNOWN
    try:
        return time.strftime("%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # a year that the platform cannot express
        return UNKNOWN


def of(part: str, whole: str) -> str:
    """ "652/700W" from "652W" and "700W": a shared unit is written once; both unknown is one dash."""
    if part == whole == UNKNOWN:
        return UNKNOWN
    unit = whole.lstrip("-0123456789.")
    if unit and part.endswith(unit) and part != UNKNOWN:
        part = part[: -len(unit)]
    return f"{part}/{whole}"


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
