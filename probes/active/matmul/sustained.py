"""GEMMs back to back, nothing between them: what training gets, held down by the power limit."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Callable

from mltop.probes.active.matmul.burst import next_batch
from mltop.probes.active.matmul.corruption import EVERY, Checker
from mltop.probes.active.matmul.device import Device, Timer
from mltop.probes.active.matmul.gemm import Operands, Run

_AHEAD = 2  # groups that are enqueued beyond the one being worked on: the device never waits for the host


@dataclass
class Sustained:
    gemms: int
    seconds: float  # of GEMMs alone, by the device's own clock

    def tflops(self, flop: float) -> float:
        return self.gemms * flop / self.seconds / 1e12


def warm(device: Device, run: Run, operands: Operands, seconds: float, tell: Callable[[float], None]) -> float:
    """Full load for so long. Returns seconds of one GEMM, the best of any batch."""
    started = time.perf_counter()
    batch, best_s, done = 1, float("inf"), 0
    while True:
        timer = device.timer()
        timer.start()
        for _ in range(batch):
            run(operands)
        timer.stop()
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
        timer = device.timer()
        timer.start()
        for _ in range(EVERY):
            output = run(operands)
        timer.stop()
        checker.check(output)
        waiting.append(timer)
        if len(waiting) > _AHEAD:
            finish_oldest()
            tell(min(1.0, (time.perf_counter() - started) / seconds), done.gemms / done.seconds)
    while waiting:
        finish_oldest()
    return done
