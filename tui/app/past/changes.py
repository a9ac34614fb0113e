"""What changes now and then: what it was at each time."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Changes(Generic[Value]):
    """Each value with the time from which it was so. Of ``most`` (values, or what they weigh) the oldest go.

    ``whole_from``: before that time some had to go.
    """

    __slots__ = ("_most", "_times", "_values", "_weight", "_weights", "whole_from")

    def __init__(self, most: int) -> None:
        self._most, self._weight = most, 0
        self._times: list[float] = []
        self._values: list[Value] = []
        self._weights: list[int] = []
        self.whole_from = -math.inf

    @property
    def newest(self) -> Value | None:
        return self._values[-1] if self._values else None

    @property
    def newest_at(self) -> float:
        return self._times[-1] if self._times else -math.inf

    def add(self, at: float, value: Value, weight: int = 1) -> None:
        """Where time goes back, what was later is forgotten."""
        while self._times and self._times[-1] >= at:
            self._times.pop()
            self._values.pop()
            self._weight -= self._weights.pop()
        self._times.append(at)
        self._values.append(value)
        self._weights.append(weight)
        self._weight += weight
        while self._weight > self._most and len(self._times) > 1:
            del self._times[0], self._values[0]
            self._weight -= self._weights.pop(0)
            self.whole_from = self._times[0]

    def replace(self, value: Value) -> None:
        """The newest one says the same in other words."""
        self._values[-1] = value

    def at(self, moment: float) -> Value | None:
        """What was so then; None before the first."""
        found = self.found(moment)
        return None if found is None else found[1]

    def found(self, moment: float) -> tuple[float, Value] | None:
        """The same, with the time from which it was so."""
        place = bisect_right(self._times, moment) - 1
        return None if place < 0 else (self._times[place], self._values[place])

    def after(self, moment: float, within_s: float) -> list[Value]:
        """What came later, the oldest first."""
        return self._values[bisect_right(self._times, moment) : bisect_right(self._times, moment + within_s)]
