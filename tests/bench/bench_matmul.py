"""The matmul probe on this machine's CPUs: against plain torch, what its checker costs and finds, how long it takes."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mltop.probes
from mltop.probes.active.child import Order
from mltop.probes.active.device import Cpu
from mltop.probes.active.matmul.corruption import EVERY, Checker, checksum
from mltop.probes.active.matmul.gemm import Buffers, kernel
from mltop.probes.active.matmul.shapes import Shape
from mltop.probes.active.matmul.timing import Gemms
from mltop.probes.model.probe import ProbeDevice
from tests.bench.table import Goal, print_table

PATH = str(Path(mltop.probes.__file__).parent.parent.parent)
PROBE = f"import sys; sys.path.insert(0, {PATH!r}); from mltop.probes.active.matmul import main; main()"
PLAIN = """
import statistics, sys, time, torch
m, n, k, threads = map(int, sys.argv[1:5])
torch.set_num_threads(threads)
a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
times, end = [], time.perf_counter() + 1.5
while time.perf_counter() < end or len(times) < 10:
    started = time.perf_counter()
    torch.mm(a, b, out=c)
    times.append(time.perf_counter() - started)
print(2 * m * n * k / statistics.median(times) / 1e12)
"""
SMALL = Shape(64, 64, 64)


def main(quick: bool = False) -> None:
    rounds = 1 if quick else 5
    walls, probed, plain = [], [], []
    for _ in range(rounds):
        started = time.perf_counter()
        result = run_probe(1.0 if not quick else 0.2)
        walls.append(time.perf_counter() - started)
        probed.append(result["burst_median_tflops"])
        plain.append(run_plain(result["shape"], result["threads"]))
    rows: list[tuple[str, float, Goal | None]] = [
        ("whole probe, median wall, s", statistics.median(walls), Goal(at_most=10)),
        ("burst median, best of all rounds, TFLOPS", max(probed), None),
        ("plain torch.mm median, best of all rounds, TFLOPS", max(plain), None),
        ("difference of these, %", 100 * abs(max(probed) / max(plain) - 1), Goal(at_most=5)),
        ("checker: share of the time of its GEMMs, %", 100 * checker_share(quick), Goal(at_most=3)),
        *found_and_false(quick),
    ]
    print_table(f"matmul probe on CPUs, {rounds} rounds", rows)


def run_probe(factor: float) -> dict[str, Any]:
    """``factor``: of its usual seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin and process.stdout
    seconds = {name: factor * usual for name, usual in (("warm", 1), ("scan", 1.5), ("burst", 1.5), ("sustained", 2))}
    options = {"dtype": "fp32", "seconds": seconds}
    process.stdin.write(Order("matmul", devices=[ProbeDevice("cpu", kind="cpu")], options=options).to_line())
    process.stdin.flush()
    last = json.loads(list(process.stdout)[-1])
    process.stdin.close()
    assert process.wait() == 0 and last["event"] == "result", last
    data: dict[str, Any] = last["data"]
    return data


def run_plain(shape: list[int], threads: int) -> float:
    numbers = [*map(str, shape), str(threads)]
    done = subprocess.run([sys.executable, "-c", PLAIN, *numbers], capture_output=True, text=True, check=True)
    return float(done.stdout)


def checker_share(quick: bool) -> float:
    """Of a check after each eighth GEMM, by fastest times."""
    import torch

    shape = Shape(*[1024] * 3) if quick else Shape(*[2048] * 3)
    operands = Buffers(Cpu(torch), "fp32", 1, [shape]).operands(shape)
    run = kernel(torch, "fp32")
    checker = Checker(torch, shape.flop)
    gemm_s = min(Gemms(Cpu(torch), run, operands).times(5))
    checker.check(operands.c)
    check_s = fastest(lambda: checker.check(operands.c), 20)
    return check_s / (EVERY * gemm_s)


def fastest(work: Callable[[], None], times: int) -> float:
    found = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def found_and_false(quick: bool) -> list[tuple[str, float, Goal | None]]:
    """Flips of 1 to 64 bits in an output that are missed, and clean GEMMs that are accused."""
    import torch

    count = 100 if quick else 50_000
    operands = Buffers(Cpu(torch), "fp32", 1, [SMALL]).operands(SMALL)
    run = kernel(torch, "fp32")
    clean, flips = Checker(torch, SMALL.flop), Checker(torch, SMALL.flop)
    for _ in range(count + 1):
        clean.check(run(operands))
    of_clean, same_sum, rng = checksum(torch, operands.c), 0, random.Random(1)
    flips.check(operands.c)
    data = operands.c.view(torch.uint8).reshape(-1)
    for index in range(count):
        bits = [
            divmod(place, 8) for place in rng.sample(range(8 * data.numel()), 1 if index % 2 else rng.randint(2, 64))
        ]
        for byte, bit in bits:
            data[byte] ^= 1 << bit
        flips.check(operands.c)
        same_sum += checksum(torch, operands.c) == of_clean
        for byte, bit in bits:
            data[byte] ^= 1 << bit
    return [
        (f"missed of {count} outputs with flipped bits", flips.checked - flips.corrupt, Goal(at_most=0)),
        ("of these with the checksum of the clean one", same_sum, Goal(at_most=0)),
        (f"false alarms in {clean.checked} clean GEMMs", clean.corrupt, Goal(at_most=0)),
    ]


if __name__ == "__main__":
    main("--quick" in sys.argv)
