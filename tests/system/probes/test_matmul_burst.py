"""The timed loops over this machine's CPUs: what they report is what torch.mm takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mltop.probes.active.device import Cpu
from mltop.probes.active.matmul.corruption import Checker
from mltop.probes.active.matmul.gemm import Buffers, Operands, kernel
from mltop.probes.active.matmul.shapes import Shape
from mltop.probes.active.matmul.timing import Gemms, Scan

CUBE = Shape(256, 256, 256)
SMALL = Shape(32, 32, 32)
RUN = kernel(torch, "fp32")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def buffers(*shapes: Shape) -> Buffers:
    return Buffers(Cpu(torch), "fp32", 3, shapes)


def time_plainly(operands: Operands) -> float:
    started = time.perf_counter()
    torch.mm(operands.a, operands.b, out=operands.c)
    return time.perf_counter() - started


def test_a_timed_gemm_takes_as_long_as_a_plain_one() -> None:
    """Within 5 %, by the median over pairs of short GEMMs, either of a pair first as often as the other.

    What else the machine does slows both of a pair down, or makes an outlier.
    """
    operands = buffers(CUBE).operands(CUBE)
    burst = Gemms(Cpu(torch), RUN, operands, Checker(torch, CUBE.flop))
    burst.warm_up(3)
    ratios = []
    for _ in range(600):
        ratios.append(burst.times(1)[0] / time_plainly(operands))
        ratios.append(1 / (time_plainly(operands) / burst.times(1)[0]))
    assert statistics.median(ratios) == pytest.approx(1.0, rel=0.05)


def test_sustained_and_warm_count_all_that_they_ran() -> None:
    runs = 0

    def counted(operands: Operands) -> Any:
        nonlocal runs
        runs += 1
        return RUN(operands)

    operands = buffers(SMALL).operands(SMALL)
    checker = Checker(torch, SMALL.flop)
    started = time.perf_counter()
    gemms = Gemms(Cpu(torch), counted, operands, checker)
    done = gemms.sustain(0.1, lambda *_: None)
    passed_s = time.perf_counter() - started
    assert runs == done.gemms + 1 == 8 * checker.checked + 1  # the reference is not timed
    assert 0 < done.seconds < passed_s
    assert done.tflops(SMALL.flop) == pytest.approx(SMALL.flop * done.gemms / done.seconds / 1e12)
    assert 0 < gemms.warm(0.05, lambda _: None) < 0.05


def test_a_burst_ends_by_time_or_by_count_whichever_is_later_but_not_for_ever() -> None:
    burst = Gemms(Cpu(torch), RUN, buffers(SMALL).operands(SMALL))
    fractions: list[float] = []
    found = burst.times_for(0.05, least=3, tell=lambda fraction, _: fractions.append(fraction))
    assert len(found) >= 3 and fractions == sorted(fractions) and fractions[-1] == 1.0
    assert len(burst.times_for(1.0, least=3000)) >= 3000
    few = burst.times_for(0.001, least=10**9)
    assert 1 <= len(few) < 10**6


def test_every_eighth_output_of_a_burst_is_checked() -> None:
    checker = Checker(torch, SMALL.flop)
    Gemms(Cpu(torch), RUN, buffers(SMALL).operands(SMALL), checker).times(25)
    assert checker.checked == 3  # 8, 16, 24 against 0


def test_a_scan_tries_one_shape_however_short_its_time_is() -> None:
    made = buffers(SMALL, CUBE)

    def gemms(shape: Shape) -> Gemms:
        return Gemms(Cpu(torch), RUN, made.operands(shape))

    scan = Scan(gemms, seconds=0.0)
    scan.try_all([CUBE, SMALL], 2, lambda: None)
    assert list(scan.tried) == [CUBE]
    longer = Scan(gemms, seconds=600.0)
    best_of: list[Shape] = []
    longer.try_all([SMALL, CUBE], 3, lambda: best_of.append(longer.ranking()[0]))
    assert best_of[0] == SMALL and len(best_of) == len(longer.tried) == 2
    assert longer.tried[longer.ranking()[0]] == max(longer.tried.values())
