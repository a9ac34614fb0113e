"""When something is done again, and how long ago it was. Seconds of any one clock.

Imports next to nothing: NVML's reader process, which has to stay small, has it too.
"""

from __future__ import annotations

from typing import Generic, TypeVar

FIRST_LOOK = "first sample: rates need two"
_SHORTEST_S = 0.05  # over less the clock's own steps show
_EARLY_S = 0.5  # looks come once a second, some a little early: what is due every 5 s must not become every 6

Counts = TypeVar("Counts")


class LastLook(Generic[Counts]):
    """The newest look at counters from which rates are made; no rate is made over ``shortest_s`` or less."""

    def __init__(self, shortest_s: float = _SHORTEST_S) -> None:
        self._shortest_s = shortest_s
        self._newest: tuple[float, Counts] | None = None

    def since(self, now: float, counts: Counts) -> tuple[float, Counts] | None:
        """Seconds since the look before, and what it counted; None where there was none, or only just now."""
        before, self._newest = self._newest, (now, counts)
        if before is None or now - before[0] <= self._shortest_s:
            return None
        return now - before[0], before[1]

    def forget(self) -> None:
        self._newest = None


class Pace:
    """When something is due: at first, then after each of ``pauses_s`` in turn, the last of them again and again.

    Of several that begin together each has a first pause of its own: they take turns from then on.
    """

    def __init__(self, *pauses_s: float) -> None:
        self.done_at: float | None = None
        self.due_at = 0.0
        self._pauses_s = pauses_s

    def is_due(self, now: float) -> bool:
        """Whether it is; also when the clock went back."""
        return self.done_at is None or not self.done_at <= now < self.due_at

    def done(self, now: float) -> None:
        self.done_at, self.due_at = now, now + self._pauses_s[0] - _EARLY_S
        self._pauses_s = self._pauses_s[1:] or self._pauses_s

    def hurry(self) -> None:
        """Make it due at the next look."""
        self.due_at = float("-inf")


class Backoff:
    """When to try again: at once for the first ``free`` failures, then after ``first_s``, twice as long each time, at
    last ``longest_s``.

    Failures are forgotten when it ``worked``, or when the newest is older than ``forget_s``.
    """

    def __init__(self, first_s: float, longest_s: float, free: int = 0, forget_s: float = float("inf")) -> None:
        self.next_s = 0.0  # not to be tried before
        self._first_s = first_s
        self._longest_s = longest_s
        self._free = free
        self._forget_s = forget_s
        self._failures = 0
        self._last_failure_s = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether it failed so often that the next try is delayed."""
        return self._failures > self._free

    def failed(self, at_s: float, free: int | None = None) -> None:
        """Notes a failure; ``free``: in place of the usual number."""
        if at_s - self._last_failure_s > self._forget_s:
            self._failures = 0
        doublings = self._failures - (self._free if free is None else free)
        self._failures += 1
        self._last_failure_s = at_s
        pause_s = min(self._first_s * 2.0 ** min(doublings, 32), self._longest_s) if doublings >= 0 else 0.0
        self.next_s = at_s + pause_s

    def worked(self) -> None:
        self._failures = 0
