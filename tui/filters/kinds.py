"""Why a text is no filter, in one sentence.

Kinds of values: which units people may write, and what an amount means without one.

Text patterns as people write them: ``gpu0*``, ``node?1``, ``node[01-16,20]``; case ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field


class FilterProblem(ValueError):
    """``str()`` is the sentence."""


_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)\s*(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Kind:
    """``unit`` is written in the help; ``units`` maps what people write (in lower case) to a factor.

    ``words``: values that have a name instead of a number, as the getter returns them. ``most``: what is larger has
    a forgotten unit. ``near``: amounts that differ by less are equal, because the screen shows no more digits. Of
    text the operators are =, != and ~ only; ``choices``: there are no other values. ``ranges``: = and != take 0-3,7.
    """

    name: str
    unit: str = ""
    units: dict[str, float] = field(default_factory=dict, hash=False)
    words: dict[str, float] = field(default_factory=dict, hash=False)
    most: float | None = None
    near: float = 0.0
    text: bool = False
    choices: tuple[str, ...] = ()
    ranges: bool = False

    def amount(self, written: str) -> float:
        """The number that ``written`` means; raises FilterProblem."""
        if self.words:
            return self._named(written)
        match = _NUMBER.fullmatch(written)
        if match is None or (match.group(2) and not self.units):
            raise FilterProblem(f"{written!r} is no number{self._example()}")
        number, unit = float(match.group(1)), match.group(2).casefold()
        if unit and unit not in self.units:
            raise FilterProblem(f"{match.group(2)!r} is no unit of it{self._example()}")
        if not unit and self.most is not None and abs(number) > self.most:
            raise FilterProblem(
                f"{written} is more than everything: it is a share, write {written}% or {number / 100:g}"
            )
        return number * self.units.get(unit, 1.0)

    def is_bare(self, written: str) -> bool:
        """Whether it is a number without a unit."""
        match = _NUMBER.fullmatch(written)
        return match is not None and not match.group(2)

    def _named(self, written: str) -> float:
        if written.casefold() in self.words:
            return self.words[written.casefold()]
        raise FilterProblem(f"{written!r} is none of {', '.join(self.words)}")

    def _example(self) -> str:
        if self.ranges:
            return ": 3, or after = and != also 0-3,7"
        return f" (in {self.unit})" if self.unit else ""


_SI = {"": 1.0, "m": 1e-3, "k": 1e3}
_BYTES = {letter: 2.0 ** (10 * power) for power, letter in enumerate("kmgtpe", 1)}

TEXT = Kind("text", text=True)
COUNT = Kind("count", ranges=True)
NUMBER = Kind("number")
SHARE = Kind("share", "% or 0..1", {"%": 0.01}, most=1.0, near=0.005)
CORES = Kind("cores", "% or cores", {"%": 0.01}, near=0.005)
WATTS = Kind("watts", "W", {f"{prefix}w": factor for prefix, factor in _SI.items()}, near=0.5)
CELSIUS = Kind("celsius", "C", {"c": 1.0, "°c": 1.0}, near=0.5)
MEGAHERTZ = Kind("megahertz", "MHz", {"mhz": 1.0, "ghz": 1e3}, near=0.5)
BYTES = Kind(
    "bytes",
    "bytes, K M G T",
    {"b": 1.0} | {letter + tail: factor for letter, factor in _BYTES.items() for tail in ("", "b", "ib")},
)
SECONDS = Kind("seconds", "s, m, h, d", {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0})
YES_NO = Kind("yes or no", "yes, no", words={"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0})
SEVERITY = Kind(
    "severity",
    "none < info < warning < critical",
    words={
        "none": 0.0,
        "info": 1.0,
        "warning": 2.0,
        "critical": 3.0,
        "warn": 2.0,
        "wrn": 2.0,
        "crit": 3.0,
        "bad": 3.0,
    },
)
_STATES = ("live", "connecting", "stale", "lost", "refused")
STATE = Kind("state", ", ".join(_STATES), text=True, choices=_STATES)


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
