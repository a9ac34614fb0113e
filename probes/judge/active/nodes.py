"""Node names as a user writes them, ``h[01-16,20]``, without a library: a judge has none."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"([^,\[\]]*?)(\d+)([^\d,\[\]]*)")  # the last number of a name; "gpu2-h07.lan" has the 07
MOST_CHARS = 120


def folded(names: Iterable[str], most_chars: int = MOST_CHARS) -> str:
    """The distinct names, those that differ in their last number alone as one; what is too long ends in "and 480 more".

    A number keeps its zeros, as in ClusterShell's notation: h1 and h01 are two nodes.
    """
    distinct = sorted(set(names), key=natural)
    parts = _parts(distinct)
    text = ",".join(part for part, _ in parts)
    if len(text) <= most_chars:
        return text
    kept: list[str] = []
    count = 0
    for part, members in parts:
        if kept and len(",".join([*kept, part])) > most_chars:
            break
        kept.append(part)
        count += members
    return ",".join(kept) + (f" and {len(distinct) - count} more" if count < len(distinct) else "")


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sorting key by which h2 comes before h10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part]


def _parts(names: list[str]) -> list[tuple[str, int]]:
    """Folded texts and how many names each holds, in the order of their first names."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            groups[name, "", -1] = [name]
            continue
        before, number, after = match.groups()
        width = len(number) if number.startswith("0") or _padded(names, before, after, len(number)) else 0
        groups.setdefault((before, after, width), []).append(number)
    return [(_text(*key, numbers), len(numbers)) for key, numbers in groups.items()]


def _padded(names: list[str], before: str, after: str, width: int) -> bool:
    """Whether a number without leading zeros belongs to padded ones: 10 after 09."""
    return any(
        match is not None
        and (match[1], match[3]) == (before, after)
        and len(match[2]) == width
        and match[2].startswith("0")
        for match in map(_NUMBERED.fullmatch, names)
    )


def _text(before: str, after: str, width: int, numbers: list[str]) -> str:
    if width < 0:
        return numbers[0]
    if len(numbers) == 1:
        return f"{before}{numbers[0]}{after}"
    values = sorted(map(int, numbers))
    ranges: list[list[int]] = []
    for value in values:
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    ends = [f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}" for first, last in ranges]
    return f"{before}[{','.join(ends)}]{after}"
