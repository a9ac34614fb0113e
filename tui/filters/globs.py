"""Text patterns as people write them: ``gpu0*``, ``node?1``, ``node[01-16,20]``; case ignored."""

from __future__ import annotations

import re
from collections.abc import Callable

from mltop.tui.filters.problem import FilterProblem

MOST_NUMBERS = 20_000  # in one pair of brackets
_RANGE = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")
_PIECE = re.compile(r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]|\*+|\?|[^*?\[]+|\[")


def glob(pattern: str) -> Callable[[str], bool]:
    """Whether a text is like ``pattern`` as a whole. Raises FilterProblem for a range that is too long."""
    segments: list[str] = [""]
    for piece in _PIECE.findall(pattern):
        if piece.startswith("*"):
            segments.append("")
        elif piece == "?":
            segments[-1] += "."
        else:
            numbers = _RANGE.fullmatch(piece)
            segments[-1] += _numbers(numbers.group(1)) if numbers else re.escape(piece)
    found = re.compile(_joined(segments), re.IGNORECASE | re.DOTALL).fullmatch
    return lambda text: found(text) is not None


def _joined(segments: list[str]) -> str:
    """Segments with anything in between. What a middle segment has found is not looked for again.

    Without that, several stars would take quadratic time and more. Until Python 3.11 there are no atomic groups: a
    lookahead and its back reference do the same.
    """
    first, *middle = segments
    if not middle:
        return first
    last = middle.pop()
    atomic = [f"(?=(?P<g{at}>.*?{segment}))(?P=g{at})" for at, segment in enumerate(middle) if segment]
    return f"{first}{''.join(atomic)}.*{last}"


def _numbers(ranges: str) -> str:
    """ "01-03,7" as a choice of 01, 02, 03 and 7; zeros in front count, as in host lists."""
    written: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        count = int(last or first) - int(first) + 1
        if count + len(written) > MOST_NUMBERS:
            raise FilterProblem(f"[{ranges}] has more than {MOST_NUMBERS} numbers")
        if count < 1:
            raise FilterProblem(f"[{ranges}]: {part} ends before it begins")
        written += [f"{number:0{len(first)}d}" for number in range(int(first), int(first) + count)]
    return f"(?:{'|'.join(written)})"
