"""Figures as an engineer reads them: three digits, a unit, a range where there are several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LISTED = 3


def percent(share: float) -> str:
    """``21 %`` of 0.21; below one percent with a digit behind the point."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.01 or share == 0 else f"{100 * share:.1f} %"


def tflops(value: float) -> str:
    """TFLOP/s as ``712 TFLOPS``, of a CPU as ``215 GFLOPS``."""
    return f"{digits(value)} TFLOPS" if value >= 1 else f"{digits(1000 * value)} GFLOPS"


def rate(bytes_per_s: float) -> str:
    """Bytes/s as ``476 GB/s`` (10^9)."""
    return f"{digits(bytes_per_s / 1e9)} GB/s" if bytes_per_s >= 1e8 else f"{digits(bytes_per_s / 1e6)} MB/s"


def size(count: int) -> str:
    """Bytes as ``256 MiB`` (2^20)."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.4g} {unit}"
    return f"{count} B"


def duration(seconds: float) -> str:
    """``22 s``, ``31.6 ms``, ``140 µs``."""
    if seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{digits(seconds)} s"
    return f"{digits(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{digits(1e6 * seconds)} µs"


def digits(value: float) -> str:
    """Three significant digits, never with an exponent."""
    size_of = abs(value)
    return f"{value:.0f}" if size_of >= 100 else f"{value:.1f}" if size_of >= 10 else f"{value:.2f}"


def span(values: Iterable[float], unit: str) -> str:
    """``61–66 °C``, or ``61 °C`` when all are one; "" for none. Whole numbers."""
    known = sorted(values)
    if not known:
        return ""
    least, most = f"{known[0]:.0f}", f"{known[-1]:.0f}"
    return f"{least} {unit}" if least == most else f"{least}–{most} {unit}"


def tflops_span(values: Iterable[float]) -> str:
    """``698–720 TFLOPS``, or one figure when both ends read alike."""
    known = sorted(values)
    least, most = tflops(known[0]), tflops(known[-1])
    if least == most:
        return most
    return f"{least.split()[0]}–{most}" if least.split()[1] == most.split()[1] else f"{least}–{most}"


def percent_span(shares: Iterable[float]) -> str:
    """``15–21 %``."""
    return span((100 * share for share in shares), "%")


def listed(items: Sequence[str], most: int = LISTED) -> str:
    """``a``, ``a and b``, ``a, b, c and 5 more``."""
    if len(items) <= 1:
        return "".join(items)
    if len(items) > most + 1:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return f"{', '.join(items[:-1])} and {items[-1]}"


def many(count: int, word: str) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
