"""What all judges do with many values: groups of those that belong together, and medians of what is known."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Entry = TypeVar("Entry")
Key = TypeVar("Key", bound=Hashable)


def grouped(entries: Iterable[Entry], key: Callable[[Entry], Key]) -> dict[Key, list[Entry]]:
    """The entries by their key, keys and entries in the order in which they come."""
    groups: dict[Key, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def known(values: Iterable[Entry | None]) -> list[Entry]:
    return [value for value in values if value is not None]


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of what is known of them; None when nothing is."""
    from statistics import median  # takes a while to import, which names of nodes do without

    numbers = known(values)
    return median(numbers) if numbers else None


def median_without(ordered: Sequence[float], left_out: float) -> float | None:
    """The median of the sorted values without one occurrence of ``left_out``; None when no other is there."""
    place, count = bisect_left(ordered, left_out), len(ordered) - 1
    if not count:
        return None
    middle = [count // 2] if count % 2 else [count // 2 - 1, count // 2]
    return sum(ordered[at + (at >= place)] for at in middle) / len(middle)
