"""How long copies take: in batches, within a budget, and never waiting for ever."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Protocol

BATCH = 5
WARM_COPIES = 2
POLL_S = 0.002


class Stalled(Exception):
    """Copies that did not end; what was begun on these devices after them will not end either."""


class Running(Protocol):
    """Copies that were begun. ``seconds``: of all of them, by the device's clock, once they are done."""

    def done(self) -> bool: ...

    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Plan:
    """``budget_s``: for all batches of one device (or of all at once); ``stall_s``: for a batch."""

    size_bytes: int
    iterations: int
    budget_s: float
    stall_s: float


@dataclass
class Timed:
    copies: int = 0
    seconds: float = 0.0

    def rate(self, size_bytes: int) -> float | None:
        """Bytes/s."""
        return self.copies * size_bytes / self.seconds if self.seconds > 0 else None


Begin = Callable[[int], Running]


def timed(begins: Sequence[Begin], plan: Plan, look: Callable[[], None] = lambda: None) -> list[Timed]:
    """What each of several copies takes while all of them run; ``begin(count)`` begins some. Raises Stalled.

    ``look`` is called again and again while they run.
    """
    wait([begin(WARM_COPIES) for begin in begins], plan.stall_s, look)
    found = [Timed() for _ in begins]
    began, done = time.monotonic(), 0
    while done < plan.iterations and (done == 0 or time.monotonic() - began < plan.budget_s):
        count = min(BATCH, plan.iterations - done)
        running = [begin(count) for begin in begins]
        wait(running, plan.stall_s, look)
        for timing, one in zip(found, running):
            timing.copies += count
            timing.seconds += one.seconds()
        done += count
    return found


def wait(running: Sequence[Running], stall_s: float, look: Callable[[], None]) -> None:
    deadline_s = time.monotonic() + stall_s
    look()
    while not all(one.done() for one in running):
        if time.monotonic() > deadline_s:
            raise Stalled(f"a copy did not end within {stall_s:g} s")
        time.sleep(POLL_S)
        look()
