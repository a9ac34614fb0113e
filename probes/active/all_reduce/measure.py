"""Timing one collective of one size in one rank: warm-ups, an agreed number of iterations, the exact check.

Nothing but the collective is between two readings of the clock, and there is no barrier between iterations: a rank
that comes late has the shortest time, because it waits for nobody.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.active.all_reduce.collectives import Collective

WARM_UPS = 3
LEAST, MOST = 5, 20
LEFT_OUT = 0
# Above this the host waits for every collective on a GPU, so that it is known which one hangs; below, waiting would
# be part of the time.
PACED_FROM_BYTES = 1 << 24


@dataclass
class Measured:
    """``left_out_s``: what the first warm-up took when more of them would not fit into the time; then nothing else."""

    times_s: list[float] = field(default_factory=list)
    work_s: float | None = None
    wrong: int = 0
    left_out_s: float | None = None


class CpuClock:
    """A collective on the CPU is done when the call returns."""

    def __init__(self) -> None:
        self._times_s: list[float] = []

    def time(self, call: Callable[[], None], paced: bool = True) -> None:  # noqa: ARG002 - it always is
        began = time.perf_counter()
        call()
        self._times_s.append(time.perf_counter() - began)

    def take(self) -> list[float]:
        """The times since the last ``take``."""
        taken, self._times_s = self._times_s, []
        return taken


class CudaClock:
    """Two events on the stream around each call: the time on the GPU, the wait for other ranks within."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []

    def time(self, call: Callable[[], None], paced: bool = True) -> None:
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        self._pairs.append((begin, end))
        if paced:
            end.synchronize()

    def take(self) -> list[float]:
        import torch

        torch.cuda.synchronize()
        taken, self._pairs = self._pairs, []
        return [begin.elapsed_time(end) / 1000 for begin, end in taken]


@dataclass
class Conditions:
    """Under which a rank measures. ``agree`` gives every rank the number of the group's first rank.

    ``begin`` is called before every collective; ``delay_s`` is slept before each timed one (fault injection);
    ``work`` is done before each timed one when it is given.
    """

    budget_s: float
    deadline_s: float
    agree: Callable[[int], int]
    begin: Callable[[], None]
    clock: Callable[[], CpuClock | CudaClock]
    delay_s: float = 0.0
    work: Callable[[], None] | None = None


def measure(collective: Collective, size_bytes: int, under: Conditions) -> Measured:
    """Raises what ``Collective.run`` raises."""
    clock = under.clock()
    collective.fill()
    first_s = _warm_up(collective, clock, under, 1)
    if under.agree(int(fits(first_s, under.deadline_s))) == LEFT_OUT:
        return Measured(left_out_s=first_s)
    typical_s = _warm_up(collective, clock, under, WARM_UPS - 1)
    count = under.agree(iterations(typical_s, under.budget_s))
    times_s, work_s = _loop(collective, clock, under, count, size_bytes >= PACED_FROM_BYTES)
    collective.fill()
    under.begin()
    collective.run()
    return Measured(times_s, work_s, int(collective.wrong()))


def iterations(typical_s: float, budget_s: float) -> int:
    """How many fit into the budget, from 5 to 20."""
    return max(LEAST, min(MOST, int(budget_s / max(typical_s, 1e-9))))


def fits(first_s: float, deadline_s: float) -> bool:
    """Would the warm-ups, the fewest iterations and the check be done before the deadline, judged by the first?

    The first one is slow: it makes buffers and connections. Only half of its time counts.
    """
    return first_s + (WARM_UPS - 1 + LEAST + 1) * first_s / 2 < deadline_s


def _warm_up(collective: Collective, clock: CpuClock | CudaClock, under: Conditions, count: int) -> float:
    for _ in range(count):
        under.begin()
        clock.time(collective.run)
    return statistics.median(clock.take())


def _loop(
    collective: Collective, clock: CpuClock | CudaClock, under: Conditions, count: int, paced: bool
) -> tuple[list[float], float | None]:
    own = under.clock()
    for _ in range(count):
        if under.work is not None:
            own.time(under.work, paced=False)
        if under.delay_s:
            time.sleep(under.delay_s)
        under.begin()
        clock.time(collective.run, paced)
    works_s = own.take()
    return clock.take(), statistics.median(works_s) if works_s else None
