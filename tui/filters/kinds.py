"""Kinds of values: which units people may write, and what an amount means without one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mltop.tui.filters.problem import FilterProblem

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
