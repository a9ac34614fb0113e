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


class Burst:
    """Timed GEMMs of one shape. ``checker`` sees every eighth output, outside of what is timed."""

    def __init__(self, device: Device, run: Run, operands: Operands, checker: Checker | None = None) -> None:
        self._device = device
        self._run = run
        self._operands = operands
        self._checker = checker
        self._done = 0

    def warm_up(self, count: int) -> None:
        for _ in range(count):
            self._run(self._operands)
        self._device.wait()

    def times(self, count: int) -> list[float]:
        """Seconds of each of ``count`` GEMMs; the device is waited for at the end, not between them."""
        timers = [self._start() for _ in range(count)]
        self._device.wait()
        return [timer.seconds() for timer in timers]

    def times_for(self, seconds: float, least: int, tell: Callable[[float, Sequence[float]], None]) -> list[float]:
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

    def _start(self) -> Timer:
        self._device.flush()
        if self._operands.fresh is not None:
            self._operands.c.copy_(self._operands.fresh)
        timer, output = _group(self._device, self._run, self._operands, 1)
        if self._checker is not None and self._done % EVERY == 0:
            self._checker.check(output)
        self._done += 1
        return timer


def next_batch(per_s: float, before: int) -> int:
    """How many to enqueue at once: about a tenth of a second, growing slowly, as the first ones load kernels."""
    return max(1, min(int(per_s * _BATCH_S), 4 * before, _MOST_BATCH))


@dataclass
class Tried:
    shape: Shape
    median_tflops: float


class Scan:
    """Tries shapes until its time is over; the first one in any case. ``tried``: all, in order."""

    def __init__(self, device: Device, run: Run, operands_of: Callable[[Shape], Operands], seconds: float) -> None:
        self._device = device
        self._run = run
        self._operands_of = operands_of
        self._ends = time.perf_counter() + seconds
        self.tried: list[Tried] = []

    def over(self) -> bool:
        return bool(self.tried) and time.perf_counter() >= self._ends

    def try_all(self, shapes: Iterable[Shape], iterations: int, tell: Callable[[Tried], None]) -> None:
        for shape in shapes:
            if self.over():
                return
            burst = Burst(self._device, self._run, self._operands_of(shape))
            burst.warm_up(min(SCAN_WARM_UPS, iterations))
            times_s = burst.times(iterations)
            self.tried.append(Tried(shape, rates(shape.flop, times_s).median))
            tell(self.best())

    def best(self) -> Tried:
        return max(self.tried, key=lambda tried: tried.median_tflops)

    def ranking(self) -> list[Shape]:
        return [tried.shape for tried in sorted(self.tried, key=lambda tried: -tried.median_tflops)]


_AHEAD = 2  # groups that are enqueued beyond the one being worked on: the device never waits for the host


@dataclass
class Sustained:
    gemms: int
    seconds: float  # of GEMMs alone, by the device's own clock

    def tflops(self, flop: float) -> float:
        return self.gemms * flop / self.seconds / 1e12


def _group(device: Device, run: Run, operands: Operands, count: int) -> tuple[Timer, Any]:
    """``count`` GEMMs enqueued, timed as a whole, and the output of the last."""
    timer, output = device.timer(), None
    timer.start()
    for _ in range(count):
        output = run(operands)
    timer.stop()
    return timer, output


def warm(device: Device, run: Run, operands: Operands, seconds: float, tell: Callable[[float], None]) -> float:
    """Full load for so long. Returns seconds of one GEMM, the best of any batch."""
    started = time.perf_counter()
    batch, best_s, done = 1, float("inf"), 0
    while True:
        timer, _ = _group(device, run, operands, batch)
        timer.wait()
        best_s = min(best_s, timer.seconds() / batch)
        done += batch
        passed = time.perf_counter() - started
        tell(min(1.0, passed / seconds))
        if passed >= seconds:
            return best_s
        batch = next_batch(done / passed, batch)


def sustain(
    device: Device,
    run: Run,
    operands: Operands,
    checker: Checker,
    *,
    seconds: float,
    tell: Callable[[float, float], None],
) -> Sustained:
    """Groups of eight GEMMs, timed each as a whole; the output of the last is compared between two groups.

    The comparison is not part of the time, and takes the device about 1 % of it. ``tell``: (fraction, GEMMs/s).
    """
    checker.check(run(operands))  # the reference
    started = time.perf_counter()
    waiting: deque[Timer] = deque()
    done = Sustained(0, 0.0)

    def finish_oldest() -> None:
        timer = waiting.popleft()
        timer.wait()
        done.gemms += EVERY
        done.seconds += timer.seconds()

    while not (done.gemms or waiting) or time.perf_counter() - started < seconds:
        timer, output = _group(device, run, operands, EVERY)
        checker.check(output)
        waiting.append(timer)
        if len(waiting) > _AHEAD:
            finish_oldest()
            tell(min(1.0, (time.perf_counter() - started) / seconds), done.gemms / done.seconds)
    while waiting:
        finish_oldest()
    return done
