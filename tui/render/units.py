"""The units of columns and fields: how a cell shows a value, and what people write for it in a filter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.model.units import UNKNOWN, bytes_text, celsius, count, known, mhz, number, percent, seconds, watts


class FilterProblem(ValueError):
    """What is wrong with a filter that somebody writes; ``str()`` is the sentence."""


_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)\s*(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """How the values of columns and fields are shown, and what people may write for them in a filter.

    ``show`` makes the text of a cell. ``written`` stands in the help; ``factors`` has what people write, in lower case.
    ``words``: values that have a name instead of a number, as the getter returns them. ``most``: what is larger has
    a forgotten unit. ``near``: amounts that differ by less are equal, because the screen shows no more digits. Of
    text the operators are =, != and ~ only; ``choices``: there are no other values. ``ranges``: = and != take 0-3,7.
    """

    show: Callable[[Any], str] = lambda value: value or UNKNOWN
    written: str = ""
    factors: dict[str, float] = field(default_factory=dict, hash=False)
    words: dict[str, float] = field(default_factory=dict, hash=False)
    most: float | None = None
    near: float = 0.0
    is_text: bool = False
    choices: tuple[str, ...] = ()
    ranges: bool = False

    def amount(self, written: str) -> float:
        """The number that ``written`` means; raises FilterProblem."""
        if self.words:
            if written.casefold() not in self.words:
                raise FilterProblem(f"{written!r} is none of {', '.join(self.words)}")
            return self.words[written.casefold()]
        match = _NUMBER.fullmatch(written)
        if match is None or (match.group(2) and not self.factors):
            raise FilterProblem(f"{written!r} is no number{self._example()}")
        number, unit = float(match.group(1)), match.group(2).casefold()
        if unit and unit not in self.factors:
            raise FilterProblem(f"{match.group(2)!r} is no unit of it{self._example()}")
        if not unit and self.most is not None and abs(number) > self.most:
            raise FilterProblem(
                f"{written} is more than everything: it is a share, write {written}% or {number / 100:g}"
            )
        return number * self.factors.get(unit, 1.0)

    def is_bare(self, written: str) -> bool:
        """Whether it is a number without a unit."""
        match = _NUMBER.fullmatch(written)
        return match is not None and not match.group(2)

    def _example(self) -> str:
        if self.ranges:
            return ": 3, or after = and != also 0-3,7"
        return f" (in {self.written})" if self.written else ""


_SI = {"": 1.0, "m": 1e-3, "k": 1e3}
_BYTES = {letter: 2.0 ** (10 * power) for power, letter in enumerate("kmgtpe", 1)}

TEXT = Unit(is_text=True)
COUNT = Unit(count, ranges=True)
NUMBER = Unit(number)
SHARE = Unit(percent, "% or 0..1", {"%": 0.01}, most=1.0, near=0.005)
CORES = Unit(percent, "% or cores", {"%": 0.01}, near=0.005)
WATTS = Unit(watts, "W", {f"{prefix}w": factor for prefix, factor in _SI.items()}, near=0.5)
CELSIUS = Unit(celsius, "C", {"c": 1.0, "°c": 1.0}, near=0.5)
MEGAHERTZ = Unit(mhz, "MHz", {"mhz": 1.0, "ghz": 1e3}, near=0.5)
BYTES = Unit(
    bytes_text,
    "bytes, K M G T",
    {"b": 1.0} | {letter + tail: factor for letter, factor in _BYTES.items() for tail in ("", "b", "ib")},
)
SECONDS = Unit(seconds, "s, m, h, d", {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0})
YES_NO = Unit(number, "yes, no", words={"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0})
SEVERITY = Unit(
    number,
    "none < info < warning < critical",
    words={"none": 0.0, "info": 1.0, "warning": 2.0, "critical": 3.0, "warn": 2.0, "wrn": 2.0, "crit": 3.0, "bad": 3.0},
)
_STATES = ("live", "connecting", "stale", "lost", "refused")
STATE = Unit(written=", ".join(_STATES), is_text=True, choices=_STATES)


# Of several values.


def heights(values: Sequence[float]) -> list[float]:
    """The heights 0..1 of a sparkline from the lowest value to the highest, which are a tenth of it apart at least:
    noise stays flat.
    """
    most = max(values, default=0.0)
    span = max(most - min(values, default=0.0), most / 10)
    return [1 - (most - value) / span if span else 0.0 for value in values]


def middle(values: Iterable[float | None], least: int = 1) -> float | None:
    """The median of what is known; None of fewer than ``least``."""
    from statistics import median  # takes a while to import

    figures = [value for value in values if value is not None and known(value)]
    return median(figures) if len(figures) >= max(1, least) else None
