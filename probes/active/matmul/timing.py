"""GEMMs timed one by one under mamf-finder's protocol (L2 flushed and C refreshed between them), and back to back.

A GPU's tensor cores rest for 30 to 40 % of a loop of the first kind, so that its power limit binds less than in
training; with nothing between GEMMs it holds the clock down as there. On CPUs nothing is flushed: their GEMMs are long.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.active.device import Device, Timer
from mltop.probes.active.matmul.corruption import EVERY, Checker
from mltop.probes.active.matmul.gemm import Operands, Run
from mltop.probes.active.matmul.shapes import Shape

SCAN_WARM_UPS = 2
_BATCH_S = 0.1  # so long is enqueued at once
_MOST_BATCH = 200
_AHEAD = 2  # groups that are enqueued beyond the one being worked on: the device never waits for the host


@dataclass
class Rates:
    """TFLOPS of single GEMMs. ``mean`` is work by mean time, as mamf-finder's; ``p5``: 95 % were faster."""

    iterations: int
    mean: float
    median: float
    p5: float
    best: float


def rates(flop: float, times_s: Sequence[float]) -> Rates:
    """The rates of at least one time. ``p5`` is the nearest rank."""
    slowest_first = sorted(times_s, reverse=True)
    p5_s = slowest_first[max(1, math.ceil(0.05 * len(times_s))) - 1]
    seconds = (statistics.fmean(times_s), statistics.median(times_s), p5_s, slowest_first[-1])
    return Rates(len(times_s), *(flop / time_s / 1e12 for time_s in seconds))


@dataclass
class Sustained:
    gemms: int
    seconds: float  # of GEMMs alone, by the device's own clock

    def tflops(self, flop: float) -> float:
        return self.gemms * flop / self.seconds / 1e12


@dataclass
class Gemms:
    """GEMMs of one shape on a device, timed. ``checker`` sees every eighth output, outside of what is timed."""

    device: Device
    run: Run
    operands: Operands
    checker: Checker | None = None
    done: int = 0

    def warm_up(self, count: int) -> None:
        for _ in range(count):
            self.run(self.operands)
        self.device.wait()

    def times(self, count: int) -> list[float]:
        """Seconds of each of ``count`` GEMMs; the device is waited for at the end, not between them."""
        timers = []
        for _ in range(count):
            self.device.flush()
            if self.operands.fresh is not None:
                self.operands.c.copy_(self.operands.fresh)
            timer, output = self._group(1)
            timers.append(timer)
            if self.done % EVERY == 0:
                self._check(output)
            self.done += 1
        self.device.wait()
        return [timer.seconds() for timer in timers]

    def times_for(
        self, seconds: float, least: int, tell: Callable[[float, Sequence[float]], None] = lambda *_: None
    ) -> list[float]:
        """Times of ``least`` GEMMs, more until ``seconds`` have passed; never much longer than four times that.

        ``tell``: (fraction, times so far).
        """
        started = time.perf_counter()
        times_s: list[float] = []
        batch = 1
        while True:
            times_s += self.times(batch)
            passed = time.perf_counter() - started
            tell(min(1.0, passed / seconds, len(times_s) / least), times_s)
            if passed >= (seconds if len(times_s) >= least else 4 * seconds):
                return times_s
            batch = next_batch(len(times_s) / passed, batch)

    def warm(self, seconds: float, tell: Callable[[float], None]) -> float:
        """Full load for so long. Returns seconds of one GEMM, the best of any batch."""
        started = time.perf_counter()
        batch, best_s, done = 1, float("inf"), 0
        while True:
            timer, _ = self._group(batch)
            timer.wait()
            best_s = min(best_s, timer.seconds() / batch)
            done += batch
            passed = time.perf_counter() - started
            tell(min(1.0, passed / seconds))
            if passed >= seconds:
                return best_s
            batch = next_batch(done / passed, batch)

    def sustain(self, seconds: float, tell: Callable[[float, float], None]) -> Sustained:
        """Groups of eight GEMMs, timed each as a whole; the output of the last is compared between two groups.

        The comparison is not part of the time, and takes the device about 1 % of it. ``tell``: (fraction, GEMMs/s).
        """
        self._check(self.run(self.operands))  # the reference
        started = time.perf_counter()
        waiting: deque[Timer] = deque()
        done = Sustained(0, 0.0)

        def finish_oldest() -> None:
            timer = waiting.popleft()
            timer.wait()
            done.gemms += EVERY
            done.seconds += timer.seconds()

        while not (done.gemms or waiting) or time.perf_counter() - started < seconds:
            timer, output = self._group(EVERY)
            self._check(output)
            waiting.append(timer)
            if len(waiting) > _AHEAD:
                finish_oldest()
                tell(min(1.0, (time.perf_counter() - started) / seconds), done.gemms / done.seconds)
        while waiting:
            finish_oldest()
        return done

    def _group(self, count: int) -> tuple[Timer, Any]:
        """``count`` GEMMs enqueued, timed as a whole, and the output of the last."""
        timer, output = self.device.timer(), None
        timer.start()
        for _ in range(count):
            output = self.run(self.operands)
        timer.stop()
        return timer, output

    def _check(self, output: Any) -> None:
        if self.checker is not None:
            self.checker.check(output)


def next_batch(per_s: float, before: int) -> int:
    """How many to enqueue at once: about a tenth of a second, growing slowly, as the first ones load kernels."""
    return max(1, min(int(per_s * _BATCH_S), 4 * before, _MOST_BATCH))


class Scan:
    """Tries shapes until its time is over; the first one in any case. ``tried``: their median TFLOPS, in order."""

    def __init__(self, gemms_of: Callable[[Shape], Gemms], seconds: float) -> None:
        self._gemms_of = gemms_of
        self._ends = time.perf_counter() + seconds
        self.tried: dict[Shape, float] = {}

    def try_all(self, shapes: Iterable[Shape], iterations: int, tell: Callable[[], None]) -> None:
        for shape in shapes:
            if self.tried and time.perf_counter() >= self._ends:
                return
            gemms = self._gemms_of(shape)
            gemms.warm_up(min(SCAN_WARM_UPS, iterations))
            self.tried[shape] = rates(shape.flop, gemms.times(iterations)).median
            tell()

    def ranking(self) -> list[Shape]:
        """The fastest first."""
        return sorted(self.tried, key=self.tried.__getitem__, reverse=True)
