"""What hardware should give, whose figure that is, and whether it may be relied on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """``certain`` False: an estimate, or measured under conditions that may not be these: it accuses nobody."""

    bytes_per_s: float
    source: str
    certain: bool = True
