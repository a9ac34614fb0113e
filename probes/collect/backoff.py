"""When to try again what has failed. Imports nothing: NVML's reader process, which has to stay small, has it too."""

from __future__ import annotations


class Backoff:
    """At once for the first ``free`` failures, then after ``first_s``, twice as long each time, at last ``longest_s``.

    Failures are forgotten when it ``worked``, or when the newest is older than ``forget_s``. Seconds of any one clock.
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
        """``free``: in place of the usual number."""
        if at_s - self._last_failure_s > self._forget_s:
            self._failures = 0
        doublings = self._failures - (self._free if free is None else free)
        self._failures += 1
        self._last_failure_s = at_s
        pause_s = min(self._first_s * 2.0 ** min(doublings, 32), self._longest_s) if doublings >= 0 else 0.0
        self.next_s = at_s + pause_s

    def worked(self) -> None:
        self._failures = 0
