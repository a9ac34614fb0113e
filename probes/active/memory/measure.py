"""Copying one buffer to another again and again: mean, best, and whether the last copy is right."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Protocol

BATCH = 5
WARM_COPIES = 3
LEAST_COPIES = 5
BUDGET_S = 8.0  # of the copies; slow memory makes fewer of them


@dataclass(frozen=True)
class Options:
    """``size_bytes`` 0: as much as fits the device. ``warm_s``: a GPU's memory clock needs a while to rise."""

    size_bytes: int = 0
    iterations: int = 20
    warm_s: float = 0.5


def options_of(told: dict[str, Any]) -> Options:
    """Raises ValueError with a sentence."""
    size, iterations = _count(told, "size_bytes", 0), _count(told, "iterations", 20)
    warm_s = told.get("warm_s", 0.5)
    if size and size < 4096:
        raise ValueError(f"size_bytes is {size}: at least 4096")
    if not 1 <= iterations <= 10_000:
        raise ValueError(f"iterations is {iterations}: 1 to 10000")
    if isinstance(warm_s, bool) or not isinstance(warm_s, (int, float)) or not 0 <= warm_s <= 10:
        raise ValueError(f"warm_s is {warm_s!r}: 0 to 10 seconds")
    return Options(size, iterations, float(warm_s))


def _count(told: dict[str, Any], name: str, default: int) -> int:
    value = told.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a count, not {value!r}")
    return value


class Memory(Protocol):
    size_bytes: int

    def copies(self, count: int) -> list[float]: ...

    def intact(self) -> bool: ...


@dataclass(frozen=True)
class Measured:
    """Bytes/s, a copied byte counting twice: it is read and written."""

    iterations: int
    mean_bytes_per_s: float | None
    best_bytes_per_s: float | None
    intact: bool


def measure(memory: Memory, options: Options, progress: Callable[[float], None]) -> Measured:
    """``progress`` is told the share of the copies that are done."""
    warm_until = time.monotonic() + options.warm_s
    memory.copies(WARM_COPIES)
    while time.monotonic() < warm_until:
        memory.copies(BATCH)
    times: list[float] = []
    began = time.monotonic()
    while len(times) < options.iterations:
        if len(times) >= LEAST_COPIES and time.monotonic() - began > BUDGET_S:
            break
        times += memory.copies(min(BATCH, options.iterations - len(times)))
        progress(len(times) / options.iterations)
    moved, total, best = 2 * memory.size_bytes, sum(times), min(times)
    return Measured(
        len(times),
        moved * len(times) / total if total > 0 else None,
        moved / best if best > 0 else None,
        memory.intact(),
    )
