"""What all judges do with many values: groups of those that belong together, and medians of what is known; and how
those of thousands are gone through without holding up other threads.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

Entry = TypeVar("Entry")
Key = TypeVar("Key", bound=Hashable)

SLICE = 32  # entries, each of which may take a tenth of a millisecond
_between_slices: list[Callable[[], object]] = []


def call_between_slices(call: Callable[[], object]) -> None:
    """Whoever judges beside others that must not wait has ``call`` made ever so often, in the thread that judges."""
    _between_slices[:] = [call]


def in_slices(entries: Iterable[Entry], size: int = SLICE) -> Iterator[Entry]:
    """The same entries; between so many of them others may go first."""
    for at, entry in enumerate(entries, 1):
        yield entry
        if at % size == 0:
            for call in _between_slices:
                call()


def grouped(entries: Iterable[Entry], key: Callable[[Entry], Key]) -> dict[Key, list[Entry]]:
    """The entries by their key, keys and entries in the order in which they come."""
    groups: dict[Key, list[Entry]] = {}
    for entry in in_slices(entries, 16 * SLICE):
        groups.setdefault(key(entry), []).append(entry)
    return groups


class Joined(Generic[Key]):
    """Sets that are merged whenever two of their members turn out to belong together."""

    def __init__(self) -> None:
        self._above: dict[Key, Key] = {}

    def top(self, member: Key) -> Key:
        """Whoever stands for its set."""
        while (above := self._above.setdefault(member, member)) != member:
            self._above[member] = member = self._above[above]
        return member

    def join(self, members: Iterable[Key]) -> None:
        tops = [*map(self.top, members)]
        for other in tops[1:]:
            self._above[self.top(other)] = self.top(tops[0])


def known(values: Iterable[Entry | None]) -> list[Entry]:
    return [value for value in values if value is not None]


def sum_of(*values: float | None) -> float | None:
    """The sum of the known values; None when none is known."""
    numbers = known(values)
    return sum(numbers) if numbers else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None when none is known. ``sum`` would round differently from Python 3.12 on."""
    numbers = known(values)
    return math.fsum(numbers) / len(numbers) if numbers else None


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of what is known of them; None when nothing is."""
    numbers = sorted(known(values))  # by hand: importing statistics takes a node 2 MiB
    half = len(numbers) // 2
    if not numbers:
        return None
    return numbers[half] if len(numbers) % 2 else (numbers[half - 1] + numbers[half]) / 2


def low_median_of(values: Iterable[float]) -> float:
    """The lower one of two in the middle."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def median_without(ordered: Sequence[float], left_out: float) -> float | None:
    """The median of the sorted values without one occurrence of ``left_out``; None when no other is there."""
    place, count = bisect_left(ordered, left_out), len(ordered) - 1
    if not count:
        return None
    middle = [count // 2] if count % 2 else [count // 2 - 1, count // 2]
    return mean_of(ordered[at + (at >= place)] for at in middle)
