"""Figures of a host in words."""

from __future__ import annotations

from functools import lru_cache

from mltop.probes.model import RankSample

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def size(value: float) -> str:
    """``71 GB``: powers of 1024, as free(1) counts them."""
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def duration(seconds: float) -> str:
    """``45 s``, ``4 min``, ``3 h``, ``2 days``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def rank_name(rank: RankSample) -> str:
    return f"rank {rank.rank}" if rank.rank is not None else f"pid {rank.pid}"


@lru_cache(4096)
def kernel_list(text: str | None) -> frozenset[int]:
    """``"0-3,8"`` → {0, 1, 2, 3, 8}; nothing of what is no such list."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
