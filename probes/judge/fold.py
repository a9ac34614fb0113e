"""Rank sets as text: ``0-12,14-63``."""

from __future__ import annotations

from collections.abc import Iterable


def fold(numbers: Iterable[int]) -> str:
    """Sorted ranges of the distinct numbers, "" for none. Negative numbers raise ValueError."""
    ordered = sorted(set(numbers))
    if ordered and ordered[0] < 0:
        raise ValueError(f"cannot fold a negative number: {ordered[0]}")
    parts: list[str] = []
    first = last = -1
    for number in ordered:
        if number == last + 1 and first >= 0:
            last = number
            continue
        if first >= 0:
            parts.append(_range(first, last))
        first = last = number
    if first >= 0:
        parts.append(_range(first, last))
    return ",".join(parts)


def unfold(text: str) -> list[int]:
    """The numbers of folded text, ascending for text made by `fold`. ValueError for anything else."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        numbers.extend(range(int(first), int(last if dash else first) + 1))
    return numbers


def ranks_text(numbers: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-1,3``."""
    text = fold(numbers)
    return f"rank {text}" if text.isdigit() else f"ranks {text}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
