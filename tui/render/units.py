"""Values as short text, the same everywhere. Unknown is ``UNKNOWN``, never 0 and never blank."""

from __future__ import annotations

import math
import time

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
