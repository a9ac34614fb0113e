"""Numbers as text, the same everywhere: for cells ("652W", "3m20s") and for sentences ("652 W", "3 min 20 s").

Names that end in ``_words`` are for sentences and take known numbers. All others are for cells: unknown is ``UNKNOWN``
there, never 0 and never blank. Memory and files count in powers of 1024, rates in powers of 1000, as link speeds do.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable

UNKNOWN = "–"  # in place of a value; whoever draws on an ASCII terminal draws "-" for it
_BINARY = ("B", "K", "M", "G", "T", "P", "E")
_DECIMAL = ("", "k", "M", "G", "T", "P")
_BINARY_WORDS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def known(value: float | None) -> bool:
    """A number that can be shown: not None, NaN or infinite."""
    return value is not None and math.isfinite(value)


# Cells.


def _scaled(value: float, base: int, limit: float, units: tuple[str, ...]) -> tuple[float, str]:
    """The value in the unit in which it is below ``limit``: 999.5 would print as 1000, the next unit starts there."""
    step = 0
    while abs(value) >= limit and step < len(units) - 1:
        value /= base
        step += 1
    return value, units[step]


def _short(value: float, base: int, units: tuple[str, ...], digits: int = 3) -> str:
    """That many significant digits (with 2 the third is cut off) and a unit: 74.2G, 980M, 0B."""
    size, unit = _scaled(abs(value), base, 999.5, units)
    decimals = 0 if unit == units[0] or size >= 99.95 else 1
    if decimals and digits == 2 and size >= 9.95:
        size, decimals = math.floor(round(size, 1)), 0
    return f"{'-' if value < 0 else ''}{size:.{decimals}f}{unit}"


def bytes_text(n: float | None) -> str:
    """Powers of 1024: 74.2G."""
    return UNKNOWN if n is None or not known(n) else _short(n, 1024, _BINARY)


def whole_bytes_text(n: float | None) -> str:
    """Powers of 1024, two digits where that is less than ten: 74G, 7.4G."""
    return UNKNOWN if n is None or not known(n) else _short(n, 1024, _BINARY, digits=2)


def size_text(size_bytes: int) -> str:
    """A size that somebody chose, powers of 1024: 256M, 1G, 1.5G."""
    value, unit = _scaled(size_bytes, 1024, 1024, _BINARY)
    return f"{value:.0f}{unit}" if value == int(value) else f"{value:.1f}{unit}"


def count(n: float | None) -> str:
    """Powers of 1000: 950, 12.3k."""
    return UNKNOWN if n is None or not known(n) else _short(n, 1000, _DECIMAL)


def rate(per_s: float | None) -> str:
    """Events per second; below ten with one digit, so that 0.3/s is not 0."""
    if per_s is None or not known(per_s):
        return UNKNOWN
    return f"{per_s:.1f}" if 0 < per_s < 9.95 else count(per_s)


def bandwidth(bytes_per_s: float | None) -> str:
    """Powers of 1000, as link speeds are given: 2908G/s, 48.2G/s, 320M/s."""
    if bytes_per_s is None or not known(bytes_per_s):
        return UNKNOWN
    per_s = abs(bytes_per_s)
    if per_s < 1e6:
        return f"{digits(bytes_per_s / 1e3)}k/s"
    return f"{digits(bytes_per_s / 1e6)}M/s" if per_s < 0.9995e9 else f"{digits(bytes_per_s / 1e9)}G/s"


def flops(tflops: float | None) -> str:
    """FLOP/s: 781T, 63.2T, 1402T, 268G. Not beyond T: what is compared stands in one unit."""
    if tflops is None or not known(tflops):
        return UNKNOWN
    return f"{digits(tflops)}T" if abs(tflops) >= 0.9995 else f"{digits(tflops * 1000)}G"


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


def kilowatts(w: float | None) -> str:
    """As ``watts``, from a kilowatt on in these: 752W, 4.2kW, 319kW."""
    if w is None or not known(w) or abs(w) < 999.5:
        return watts(w)
    return f"{w / 1000:.0f}kW" if abs(w) >= 99_950 else f"{w / 1000:.1f}kW"


def mhz(value: float | None) -> str:
    """1755MHz."""
    return UNKNOWN if value is None or not known(value) else f"{value:.0f}MHz"


def percent(fraction: float | None) -> str:
    """0.974 is 97%."""
    return UNKNOWN if fraction is None or not known(fraction) else f"{fraction * 100:.0f}%"


def signed_percent(share: float) -> str:
    """-12%, +3%, 0%."""
    whole = round(share * 100)
    return f"{whole:+d}%" if whole else "0%"


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


def rough_time(s: float | None) -> str:
    """A duration in one unit, rounded down: 48s, 6m, 2h, 4d."""
    if s is None or not known(s):
        return UNKNOWN
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if s >= size:
            return f"{int(s // size)}{unit}"
    return f"{int(max(s, 0.0))}s"


def short_time(s: float | None) -> str:
    """A measured time: 31us, 4.93ms, 158ms, 2.41s."""
    if s is None or not known(s):
        return UNKNOWN
    size = abs(s)
    if size < 0.9995e-3:
        return f"{s * 1e6:.0f}us"
    return f"{digits(s * 1e3)}ms" if size < 0.9995 else f"{digits(s)}s"


def clock_time(at: float | None) -> str:
    """Unix seconds as local time of day: 12:41:07."""
    if at is None or not known(at):
        return UNKNOWN
    try:
        return time.strftime("%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # a year that the platform cannot express
        return UNKNOWN


def day_time(at: float, now: float) -> str:
    """As ``clock_time``, with the date where it is of another day than ``now``: 2025-11-20 12:41:07."""
    today = time.localtime(now)[:3] == time.localtime(at)[:3]
    return clock_time(at) if today else f"{time.strftime('%Y-%m-%d', time.localtime(at))} {clock_time(at)}"


def of(part: str, whole: str) -> str:
    """ "652/700W" from "652W" and "700W": a shared unit is written once; both unknown is one dash."""
    if part == whole == UNKNOWN:
        return UNKNOWN
    unit = whole.lstrip("-0123456789.")
    if unit and part.endswith(unit) and part != UNKNOWN:
        part = part[: -len(unit)]
    return f"{part}/{whole}"


# Sentences.


def digits(value: float) -> str:
    """Three significant digits, but never fewer than all before the point: 3.21, 63.2, 781, 1402."""
    size = abs(value)
    return f"{value:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def size_words(size_bytes: float) -> str:
    """Memory and files, powers of 1024: ``71.2 GiB``, ``1.5 GiB``, ``256 MiB``, ``17 B``."""
    value, unit = _scaled(abs(size_bytes), 1024, 1023.5, _BINARY_WORDS)
    text = digits(value)
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{'-' if size_bytes < 0 else ''}{text} {unit}"


def rate_words(bytes_per_s: float) -> str:
    """``476 GB/s``, ``12.5 MB/s``: powers of 1000, as links are sold."""
    return f"{digits(bytes_per_s / 1e9)} GB/s" if abs(bytes_per_s) >= 1e8 else f"{digits(bytes_per_s / 1e6)} MB/s"


def tflops_words(value: float) -> str:
    """TFLOP/s as ``712 TFLOPS``, of a CPU as ``215 GFLOPS``."""
    return f"{digits(value)} TFLOPS" if value >= 1 else f"{digits(1000 * value)} GFLOPS"


def work_done(pflop: float) -> str:
    """How much arithmetic: ``3.1 PFLOP``, ``420 TFLOP``."""
    if pflop >= 0.9995:
        return f"{pflop:.1f} PFLOP" if pflop < 99.95 else f"{pflop:.0f} PFLOP"
    return f"{pflop * 1000:.0f} TFLOP" if pflop * 1000 >= 0.9995 else f"{pflop * 1e6:.0f} GFLOP"


def percent_words(share: float) -> str:
    """``21 %`` of 0.21; below one percent with a digit behind the point."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.01 or share == 0 else f"{100 * share:.1f} %"


def celsius_words(value: float) -> str:
    """``61 °C``."""
    return f"{value:.0f} °C"


def watts_words(value: float) -> str:
    """``652 W``, ``41.2 kW``."""
    return f"{value:.0f} W" if abs(value) < 9999.5 else f"{value / 1e3:.1f} kW"


def clock_words(value_mhz: float) -> str:
    """``1.98 GHz``."""
    return f"{value_mhz / 1000:.2f} GHz"


def duration_words(s: float) -> str:
    """How long something lasts, in one or two units: ``0.4 s``, ``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``4 days``."""
    if s < 0:
        return "-" + duration_words(-s)
    if s < 9.95:
        return f"{s:.1f}".removesuffix(".0") + " s"
    whole = round(s)
    if whole < 60:
        return f"{whole} s"
    days, hours, minutes = whole // 86400, whole // 3600, whole // 60
    if days:
        parts = (counted(days, "day"), f"{hours % 24} h" if hours % 24 else "")
    elif hours:
        parts = (f"{hours} h", f"{minutes % 60} min" if minutes % 60 else "")
    else:
        parts = (f"{minutes} min", f"{whole % 60} s" if whole % 60 else "")
    return " ".join(filter(None, parts))


def time_words(s: float) -> str:
    """A measured time: ``22 s``, ``2.41 s``, ``31.6 ms``, ``140 µs``."""
    if s >= 0.9995:
        return f"{digits(s)} s" if s < 9.995 else duration_words(s)
    return f"{digits(1e3 * s)} ms" if s >= 0.9995e-3 else f"{digits(1e6 * s)} µs"


def signal_name(number: int) -> str:
    """``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def counted(amount: int, noun: str) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def span(values: Iterable[float], words: Callable[[float], str]) -> str:
    """``2890–2960 GB/s``, or one figure when both ends read alike; "" for none. ``words``: of one value."""
    ordered = sorted(values)
    if not ordered:
        return ""
    least, most = words(ordered[0]), words(ordered[-1])
    return most if least == most else f"{least.removesuffix(' ' + most.partition(' ')[2])}–{most}"


def span_words(values: Iterable[float], unit: str) -> str:
    """``61–66 °C``, or ``61 °C`` when all are one; "" for none. Whole numbers."""
    return span(values, lambda value: f"{value:.0f} {unit}")


def percent_span_words(shares: Iterable[float]) -> str:
    """``15–21 %``."""
    return span_words((100 * share for share in shares), "%")
