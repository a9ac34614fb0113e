"""When to start a child again after one was stuck or died, and which GPUs to leave out. Monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeVar

from mltop.probes.model import Fault


@dataclass(frozen=True)
class Pauses:
    """Seconds between attempts. A loop of restarts would hide what happened and load a sick driver."""

    free_restarts: int = 3
    longest_restart_s: float = 60.0
    forget_failures_s: float = 600.0
    init_retry_first_s: float = 2.0  # no driver, no permission: asked again, then after twice as long …
    init_retry_s: float = 30.0  # … and at last this often
    skipped_gpu_s: float = 300.0  # doubled each time it gets stuck again
    longest_skipped_gpu_s: float = 3600.0


class Restarts:
    """Three restarts at once, then after 1, 2, 4 … 60 s."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self._last_failure_s = 0.0
        self.next_start_s = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether so many children ended that the next ones are delayed."""
        return self._failures > self._pauses.free_restarts

    def failed(self, at_s: float) -> None:
        if at_s - self._last_failure_s > self._pauses.forget_failures_s:
            self._failures = 0
        self._failures += 1
        self._last_failure_s = at_s
        beyond = self._failures - self._pauses.free_restarts
        pause_s = min(2.0 ** (beyond - 1), self._pauses.longest_restart_s) if beyond > 0 else 0.0
        self.next_start_s = at_s + pause_s


class Retries:
    """After a library that could not be used: 2, 4, 8 … 30 s."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self.next_s = 0.0

    def failed(self, at_s: float, has_worked: bool) -> None:
        """``has_worked``: the library answered before, so its first failure is followed by a try at once."""
        doublings = self._failures - has_worked
        self._failures += 1
        pause_s = min(self._pauses.init_retry_first_s * 2.0 ** min(doublings, 16), self._pauses.init_retry_s)
        self.next_s = at_s + (pause_s if doublings >= 0 else 0.0)

    def answered(self) -> None:
        self._failures = 0


@dataclass
class Skip:
    reason: str
    until_s: float
    times: int = 1
    code: Fault = "stuck"


Key = TypeVar("Key", int, str)


@dataclass
class Skips(Generic[Key]):
    """What is left out because it got stuck: GPUs by NVML index, or parts of what is read by name."""

    pauses: Pauses
    _by_key: dict[Key, Skip] = field(default_factory=dict)

    def add(self, key: Key, reason: str, at_s: float, code: Fault = "stuck") -> None:
        before = self._by_key.get(key)
        times = before.times + 1 if before else 1
        pause_s = min(self.pauses.skipped_gpu_s * 2.0 ** (times - 1), self.pauses.longest_skipped_gpu_s)
        self._by_key[key] = Skip(reason, at_s + pause_s, times, code)

    def now(self, at_s: float) -> frozenset[Key]:
        """Those not to be touched at this moment."""
        return frozenset(key for key, skip in self._by_key.items() if at_s < skip.until_s)

    def answered(self, keys: set[Key]) -> None:
        """These were read: they are not skipped any more."""
        for key in keys & self._by_key.keys():
            del self._by_key[key]

    def items(self) -> list[tuple[Key, Skip]]:
        return sorted(self._by_key.items(), key=itemgetter(0))
