"""Sets of rank numbers: as ranges, and as text (``0-12,14-63``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache


class Ranges:
    """Numbers from 0 on, as sorted ranges (first, last): what a job says of its size may be any number.

    Costs as much as it has ranges, not numbers.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """``ranges``: ascending, apart from each other."""
        self._ranges = tuple(ranges)

    @classmethod
    def below(cls, count: int) -> Ranges:
        """0 to ``count`` - 1."""
        return cls([(0, count - 1)] if count > 0 else [])

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ranges:
        """Negative numbers raise ValueError."""
        ordered = sorted(set(numbers))
        if ordered and ordered[0] < 0:
            raise ValueError(f"cannot fold a negative number: {ordered[0]}")
        ranges: list[tuple[int, int]] = []
        for number in ordered:
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        return cls(ranges)

    @classmethod
    def parsed(cls, text: str) -> Ranges:
        """What ``str`` made. ValueError for anything else."""
        ranges: list[tuple[int, int]] = []
        for part in text.split(",") if text else ():
            first, dash, last = part.partition("-")
            pair = int(first), int(last if dash else first)
            if not (first + last).isdecimal() or pair[0] > pair[1] or (ranges and pair[0] <= ranges[-1][1]):
                raise ValueError(f"no ranges of numbers: {part[:40]!r}")
            ranges.append(pair)
        return cls(ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self._ranges:
            yield from range(first, last + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(self._ranges)

    def __repr__(self) -> str:
        return f"Ranges({self})"

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self._ranges)

    @property
    def count(self) -> int:
        """How many numbers. Not ``len``, which ends at 2^63."""
        return sum(last - first + 1 for first, last in self._ranges)

    def without(self, others: Ranges) -> Ranges:
        ranges: list[tuple[int, int]] = []
        taken = iter(others._ranges)
        gap = next(taken, None)
        for first, last in self._ranges:
            at = first
            while gap is not None and gap[1] < at:
                gap = next(taken, None)
            while gap is not None and gap[0] <= last:
                if gap[0] > at:
                    ranges.append((at, gap[0] - 1))
                at = gap[1] + 1
                if at > last:  # the next range may begin within the same gap
                    break
                gap = next(taken, None)
            if at <= last:
                ranges.append((at, last))
        return Ranges(ranges)

    def within(self, others: Ranges) -> Ranges:
        return self.without(self.without(others))

    @property
    def first(self) -> int | None:
        """The smallest number, None without any."""
        return self._ranges[0][0] if self._ranges else None


def fold(numbers: Iterable[int]) -> str:
    """Sorted ranges of the distinct numbers, "" for none. Negative numbers raise ValueError."""
    return str(numbers if isinstance(numbers, Ranges) else Ranges.of(numbers))


def ranks_text(numbers: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-1,3``."""
    ranks = numbers if isinstance(numbers, Ranges) else Ranges.of(numbers)
    return f"rank {ranks}" if ranks.count == 1 else f"ranks {ranks}"


@lru_cache(maxsize=4096)
def kernel_list(text: str | None) -> frozenset[int]:
    """``"0-3,8"`` → {0, 1, 2, 3, 8}; nothing of what is no such list."""
    numbers: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)
